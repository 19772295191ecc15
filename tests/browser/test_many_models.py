"""The overview with a thousand models: it must stay as usable as with three.

Counts what changes in the page, not how long it takes: that depends on what else the machine does.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import expect

from tests.browser.tabs import OpenTab
from tests.support.models import smollm2_path
from tests.support.real_server import RealServer, real_server

pytestmark = pytest.mark.browser

NUM = 1000


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealServer]:
    models = {f"model-{number:04}": {"model": "./missing.gguf"} for number in range(NUM - 1)}
    models |= {"smollm2": {"model": str(smollm2_path()), "context": 256, "slots": 1}}
    with real_server(tmp_path_factory.mktemp("many"), models) as server:
        yield server


def test_of_a_thousand_models_only_the_row_of_the_one_that_changes_is_touched(
    server: RealServer, open_tab: OpenTab
) -> None:
    tab = open_tab(server.url).open()
    page = tab.page
    expect(page.locator(".models .panel-head .muted")).to_have_text("1,000")
    name = page.locator(".models input[type=search]")  # a label would be sought in every row
    name.fill("model-0999")
    expect(page.locator(".models .empty")).to_have_text("No model matches.")
    name.fill("smol")
    expect(page.locator(".model-list .model-row:visible")).to_have_count(1)
    name.fill("")
    page.evaluate(
        """() => {
            window.touched = new Set();
            new MutationObserver((changes) => {
                for (const { target } of changes) {
                    const node = target.nodeType === Node.ELEMENT_NODE ? target : target.parentElement;
                    window.touched.add(node?.closest('.model-row')?.dataset.model ?? 'the list');
                }
            }).observe(document.querySelector('.model-list'), {
                subtree: true, childList: true, attributes: true, characterData: true,
            });
        }"""
    )
    tab.model("smollm2").locator(".model-load").click()
    tab.wait_state("smollm2", "ready")
    tab.model("smollm2").locator(".model-load").click()
    tab.wait_state("smollm2", "unloaded")
    assert page.evaluate("[...window.touched]") == ["smollm2"]
    assert tab.overflow() == []
