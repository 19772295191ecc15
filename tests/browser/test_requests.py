"""The list of recent requests in a real browser, on a desk and on a phone.

Requests are sent over HTTP beside the page; how they are counted is tested elsewhere.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from playwright.sync_api import expect

from tests.browser.tabs import WIDTHS, OpenTab
from tests.browser.talk import chat
from tests.support.models import smollm2_path
from tests.support.real_server import RealServer, real_server

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealServer]:
    """A server that has answered one request, refused a second one, and has never heard of the model of a third."""
    models = {"smollm2": {"model": str(smollm2_path()), "context": 256, "slots": 1, "aliases": ["gpt-4o-mini"]}}
    with real_server(tmp_path_factory.mktemp("requests"), models) as server:
        assert chat(server.url, model="gpt-4o-mini").status_code == 200
        assert chat(server.url, text="word " * 1000).status_code == 400
        assert chat(server.url, model="nobody").status_code == 404
        yield server


@pytest.mark.parametrize("width", WIDTHS)
def test_requests_are_listed_with_how_they_went(server: RealServer, open_tab: OpenTab, width: int) -> None:
    tab = open_tab(server.url, width=width).open("requests")
    rows = tab.page.locator("tr.request")
    rows.nth(2).wait_for()
    first = rows.last  # the oldest: newest are on top
    expect(first.locator('[data-label="Model"]')).to_have_text("smollm2")
    expect(first.locator('[data-label="Outcome"]')).to_have_text("ok")
    expect(first.locator('[data-label="Answer"]')).to_have_text(re.compile(r"^\d+$"))
    expect(first.locator('[data-label="Load"]')).to_have_text(re.compile(r"\d m?s"))
    refused = rows.filter(has_text="400")
    expect(refused.locator('[data-label="Outcome"]').first).to_contain_text("context_length_exceeded")
    answer = rows.filter(has_text="404").locator('[data-label="Answer"]')
    expect(answer).to_have_text("–")
    expect(answer).to_have_attribute("title", "unknown")
    assert tab.overflow() == []


def test_a_row_opens_and_gives_its_request_id(server: RealServer, open_tab: OpenTab) -> None:
    tab = open_tab(server.url, width=390, permissions=["clipboard-read", "clipboard-write"]).open("requests")
    row = tab.page.locator("tr.request").last
    row.locator(".request-open").click()
    details = tab.page.locator(".request-details")
    expect(details).to_contain_text("gpt-4o-mini")
    request_id = details.locator("code").inner_text()
    assert re.fullmatch(r"[0-9a-f]{24}", request_id)
    details.get_by_role("button", name="Copy").click()
    expect(tab.page.locator(".toast")).to_contain_text("copied")
    assert tab.page.evaluate("navigator.clipboard.readText()") == request_id
    assert tab.overflow() == []
    row.locator(".request-open").click()
    expect(details).to_have_count(0)


def test_a_browser_that_allows_no_copying_is_told(server: RealServer, open_tab: OpenTab) -> None:
    tab = open_tab(server.url).open("requests")
    tab.page.locator(".request-open").first.click()
    tab.page.evaluate("navigator.clipboard.writeText = () => Promise.reject(); document.execCommand = () => false")
    tab.page.get_by_role("button", name="Copy").click()
    toast = tab.page.locator(".toast.error")
    expect(toast).to_contain_text("did not allow")
    toast.get_by_role("button", name="Close this notice").click()
    expect(toast).to_have_count(0)


def test_requests_are_found_by_model_and_outcome(server: RealServer, open_tab: OpenTab) -> None:
    tab = open_tab(server.url).open("requests")
    rows = tab.page.locator("tr.request")
    rows.nth(2).wait_for()
    tab.page.get_by_label("Filter by outcome").select_option("ok")
    expect(rows.filter(has_not_text="ok")).to_have_count(0)
    tab.page.get_by_label("Filter by model").select_option("no model")
    expect(tab.page.locator(".requests .empty")).to_have_text("No request matches.")
    tab.page.get_by_label("Filter by outcome").select_option("All outcomes")
    expect(rows).to_have_count(1)
    expect(rows).to_contain_text("404")


def test_new_requests_come_by_themselves_unless_the_list_is_held(server: RealServer, open_tab: OpenTab) -> None:
    tab = open_tab(server.url).open("requests")
    rows = tab.page.locator("tr.request")
    rows.nth(2).wait_for()
    before = rows.count()
    rows.first.locator(".request-open").click()
    chat(server.url)
    expect(rows).to_have_count(before + 1)
    expect(tab.page.locator(".request-details")).to_have_count(1)  # what was open stays open
    hold = tab.page.get_by_role("button", name="Hold still")
    hold.click()
    chat(server.url)
    expect(tab.page.locator(".requests .panel-head")).to_contain_text("1 newer")
    expect(rows).to_have_count(before + 1)
    hold.click()
    expect(rows).to_have_count(before + 2)
