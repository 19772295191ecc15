"""The playground on a server whose only model cannot chat. Owns one server with such a model."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import expect

from tests.browser.playground import ask, message
from tests.browser.tabs import OpenTab
from tests.support.real_server import RealServer, real_server
from tests.support.tiny_gguf import write_tiny_llama

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealServer]:
    folder = tmp_path_factory.mktemp("raw")
    write_tiny_llama(folder / "tiny.gguf")
    with real_server(folder, {"tiny": {"model": "./tiny.gguf", "context": 256, "slots": 1}}) as server:
        yield server


@pytest.mark.parametrize("width", [390, 1440])
def test_a_model_without_a_chat_template_is_asked_to_continue_text(
    server: RealServer, open_tab: OpenTab, width: int
) -> None:
    tab = open_tab(server.url, width=width).open("playground")
    page = tab.page
    expect(page.locator(".picker-note")).to_contain_text("no chat template")
    expect(message(page)).to_have_attribute("placeholder", "Text to continue")
    ask(page, "Once upon a time")
    expect(page.get_by_role("button", name="Continue")).to_be_enabled(timeout=60_000)
    assert tab.overflow() == []
