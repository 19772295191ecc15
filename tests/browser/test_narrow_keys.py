"""What the views say to a key that may only run models: the playground works, the others say what is missing.

The key form itself is tested in test_shell.py.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import expect

from tests.browser.playground import answers, ask, delta, end, ended, events, playground, timing
from tests.browser.tabs import OpenTab
from tests.support.models import smollm2_path
from tests.support.real_server import RealServer, real_server

pytestmark = pytest.mark.browser

KEY, ADMIN, METRICS = "k" * 40, "a" * 40, "m" * 40


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealServer]:
    env = {"CORRAL_API_KEYS": KEY, "CORRAL_ADMIN_KEYS": ADMIN, "CORRAL_METRICS_KEYS": METRICS}
    with real_server(tmp_path_factory.mktemp("keys"), {"smollm2": {"model": str(smollm2_path())}}, env=env) as running:
        yield running


def test_logs_and_configuration_say_that_the_scope_is_missing(server: RealServer, open_tab: OpenTab) -> None:
    tab = open_tab(server.url, key=KEY)
    tab.allow("status of 403")
    page = tab.open("logs").page
    expect(page.locator(".log-status")).to_have_text("This key may not read logs: that needs the scope admin.")
    expect(page.locator(".log-status code")).to_have_text("admin")
    expect(page.get_by_role("button", name="Pause")).to_be_hidden()
    expect(page.locator(".view-logs .empty")).to_be_hidden()
    page.get_by_role("tab", name="Configuration").click()
    expect(page.locator(".config-notes .banner.danger")).to_contain_text(
        "This key may not read the configuration: that needs the scope admin."
    )
    expect(page.locator(".view-configuration .config")).to_be_hidden()
    page.locator(".config-notes").get_by_role("button", name="Use another key").click()
    expect(page.locator("#key-present")).to_have_text("The present key has the scope inference.")
    page.get_by_label("API key").fill(ADMIN)
    page.get_by_label("API key").press("Enter")
    expect(page.locator(".verdict")).to_have_text("Valid, and in use")
    page.get_by_role("tab", name="Logs").click()
    expect(page.locator(".log-line", has_text="listening")).to_have_count(1)


def test_a_key_that_gets_its_scope_later_is_tried_again(server: RealServer, open_tab: OpenTab) -> None:
    tab = open_tab(server.url, key=KEY)
    page = tab.open("logs").page
    expect(page.locator(".log-status")).to_contain_text("needs the scope admin")
    page.evaluate(f"sessionStorage.setItem('corral.key', '{ADMIN}')")
    page.get_by_role("button", name="Try again").click()
    expect(page.locator(".log-line", has_text="listening")).to_have_count(1)
    page.get_by_role("tab", name="Configuration").click()
    page.locator(".config-notes").get_by_role("button", name="Try again").click()
    expect(page.locator(".verdict")).to_have_text("Valid, and in use")


def test_a_key_for_metrics_is_not_offered_the_playground(server: RealServer, open_tab: OpenTab) -> None:
    page = open_tab(server.url, key=METRICS).open("playground").page
    expect(page.locator(".view-playground .banner")).to_contain_text("that needs the scope inference")
    expect(page.get_by_role("textbox", name="Message")).to_be_hidden()
    expect(page.get_by_role("button", name="Send")).to_be_hidden()
    page.locator(".view-playground").get_by_role("button", name="Use another key").click()
    expect(page.locator("#key-present")).to_have_text("The present key has the scope metrics.")
    page.get_by_label("API key").fill(KEY)
    page.get_by_label("API key").press("Enter")
    expect(page.get_by_role("textbox", name="Message")).to_be_visible()


def test_the_playground_works_and_what_the_key_may_not_see_is_unknown(server: RealServer, open_tab: OpenTab) -> None:
    tab = open_tab(server.url, key=KEY)
    tab.allow("status of 403")
    page = playground(tab)
    answers(page, events(delta(content="Hi"), end("stop")))
    with page.expect_request("**/v1/chat/completions") as asked:
        ask(page, "Hello")
    ended(page, "done")
    assert asked.value.headers["authorization"] == f"Bearer {KEY}"
    assert timing(page)["in the queue"] == "–"
