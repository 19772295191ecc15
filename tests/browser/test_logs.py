"""The logs view in a real browser: whose lines, live, filtered, paused, bounded, and what is said where there are none.

Looks at the page; what `/admin/logs` answers is tested elsewhere.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from playwright.sync_api import Locator, Page, expect

from tests.browser.tabs import WIDTHS, WITHIN_MS, OpenTab
from tests.browser.talk import Line, chat
from tests.fakes.corral_http import Reply, fake_corral
from tests.support.models import smollm2_path
from tests.support.real_server import RealServer, real_server

pytestmark = pytest.mark.browser

LOGS = "**/admin/logs?*"
expect.set_options(timeout=WITHIN_MS)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealServer]:
    """`smollm2`, `idle` that is never loaded, `missing` that cannot be."""
    folder = tmp_path_factory.mktemp("logs")
    file = {"model": str(smollm2_path()), "device": "cpu", "threads": 2, "context": 512, "slots": 1, "idle_unload_s": 0}
    with real_server(folder, {"smollm2": file, "idle": file, "missing": {"model": "./missing.gguf"}}) as running:
        yield running


def test_the_router_and_workers_are_followed_live(server: RealServer, open_tab: OpenTab) -> None:
    page = open_tab(server.url).open("logs").page
    expect(lines(page, "listening")).to_have_count(1)
    expect(page.locator('.log-line[data-level="warning"]', has_text="missing")).not_to_have_count(0)
    page.get_by_label("Whose log").select_option("smollm2")
    expect(page.locator(".empty")).to_contain_text("No worker of smollm2 has printed anything since the server started")
    assert chat(server.url, max_tokens=1).status_code == 200
    expect(lines(page, "ready")).not_to_have_count(0)
    expect(page.locator(".log-status")).to_have_text("Following")
    page.get_by_label("Whose log").select_option("missing")
    expect(page.locator(".empty")).to_contain_text("It cannot be used now:")


def test_an_address_opens_the_log_of_its_model(server: RealServer, open_tab: OpenTab) -> None:
    page = open_tab(server.url).open("logs?model=idle").page
    expect(page.get_by_label("Whose log")).to_have_value("idle")
    expect(page.locator(".empty")).to_contain_text("No worker of idle")


def test_lines_are_filtered_by_text_and_level(server: RealServer, open_tab: OpenTab) -> None:
    page = open_tab(server.url).open("logs").page
    expect(lines(page, "listening")).to_have_count(1)
    page.get_by_label("Only lines with this text").fill("LISTENING")
    expect(page.locator(".log-line")).to_have_count(1)
    page.get_by_label("Least level").select_option("warning")
    expect(page.locator(".empty")).to_contain_text(re.compile(r"None of the \d+ lines fits the filter"))
    expect(page.get_by_role("button", name="Copy")).to_be_disabled()
    expect(page.get_by_role("button", name="Download")).to_be_disabled()
    page.get_by_role("button", name="Show all lines").click()
    expect(lines(page, "listening")).to_have_count(1)
    page.get_by_label("Least level").select_option("warning")
    expect(lines(page, "listening")).to_have_count(0)
    expect(lines(page, "missing")).not_to_have_count(0)


def test_a_pause_keeps_new_lines_back(server: RealServer, open_tab: OpenTab) -> None:
    page = open_tab(server.url).open("logs").page
    expect(lines(page, "listening")).to_have_count(1)
    page.get_by_role("button", name="Pause").click()
    before = page.locator(".log-line").count()
    assert httpx.post(f"{server.url}/admin/reload").status_code == 200
    expect(page.get_by_role("button", name=re.compile(r"Go on \(\d new\)"))).to_be_visible()
    assert page.locator(".log-line").count() == before
    page.get_by_role("button", name="Go on").click()
    expect(lines(page, "POST /admin/reload")).not_to_have_count(0)
    expect(page.get_by_role("button", name="Pause")).to_have_attribute("aria-pressed", "false")


def test_lines_can_be_copied_and_downloaded(server: RealServer, open_tab: OpenTab, tmp_path: Path) -> None:
    page = open_tab(server.url, permissions=["clipboard-read", "clipboard-write"]).open("logs").page
    page.get_by_label("Only lines with this text").fill("listening")
    expect(page.locator(".log-line")).to_have_count(1)
    page.get_by_role("button", name="Copy").click()
    expect(page.locator(".toast")).to_have_text("1 line copied.")
    assert "listening" in page.evaluate("navigator.clipboard.readText()")
    with page.expect_download() as downloading:
        page.get_by_role("button", name="Download").click()
    assert re.fullmatch(r"corral-router-.*\.log", downloading.value.suggested_filename)
    downloading.value.save_as(tmp_path / "lines")
    assert "listening" in (tmp_path / "lines").read_text()
    page.evaluate(
        "navigator.clipboard.writeText = () => Promise.reject(new Error('no')); document.execCommand = () => false"
    )
    page.get_by_role("button", name="Copy").click()
    expect(page.locator(".toast.error")).to_contain_text("The browser does not allow to copy")


def test_only_the_last_lines_are_kept_and_it_says_how_many_are_not(server: RealServer, open_tab: OpenTab) -> None:
    page = open_tab(server.url).open("configuration").page
    told = "".join(f"12:00:00 INFO    line {number} of=many\n" for number in range(2500))
    cut = "[17 lines are left out here: they came faster than they were read]\n"
    page.route(LOGS, lambda route: route.fulfill(content_type="text/plain", body=told + cut))
    page.get_by_role("tab", name="Logs").click()
    expect(page.locator(".log-left")).to_have_text("501 earlier lines left out: the page keeps the last 2,000.")
    expect(page.locator(".log-line")).to_have_count(2000)
    expect(page.locator(".log-line").first).to_contain_text("line 501 of=many")
    expect(page.locator(".log-note")).to_have_text(cut.strip())
    page.locator(".log-lines").evaluate("(node) => { node.scrollTop = 0 }")
    page.get_by_role("button", name="To the end").click()
    expect(page.locator(".log-note")).to_be_in_viewport()
    page.get_by_label("Wrap").uncheck()
    expect(page.locator(".log-lines")).to_have_class(re.compile("no-wrap"))


def test_a_line_that_breaks_is_joined_again_without_doubling_lines(server: RealServer, open_tab: OpenTab) -> None:
    line = Line(server.url)
    tab = open_tab(line.url)
    tab.allow("ERR_", "net::")
    page = tab.open("logs").page
    expect(lines(page, "listening")).to_have_count(1)
    line.cut()
    expect(page.locator(".log-status")).to_have_text("The connection is lost; connecting again …")
    line.join()
    expect(page.locator(".log-status")).to_have_text("Following")
    assert httpx.post(f"{server.url}/admin/reload").status_code == 200
    expect(lines(page, "POST /admin/reload")).not_to_have_count(0)
    expect(lines(page, "listening")).to_have_count(1)


def test_a_proxy_that_finds_no_server_for_a_while_is_waited_for(server: RealServer, open_tab: OpenTab) -> None:
    tab = open_tab(server.url)
    tab.allow("status of 502")
    page = tab.open("configuration").page
    away = [502, 502]
    page.route(LOGS, lambda route: route.fulfill(status=away.pop()) if away else route.continue_())
    page.get_by_role("tab", name="Logs").click()
    expect(lines(page, "listening")).to_have_count(1)
    assert away == []


def test_a_page_that_comes_back_too_late_says_that_lines_may_be_missing(server: RealServer, open_tab: OpenTab) -> None:
    page = open_tab(server.url).open("configuration").page
    bodies = ["one\ntwo\n", "two\nthree\n", "nine\nten\n"]
    page.route(LOGS, lambda route: route.fulfill(content_type="text/plain", body=bodies.pop(0)) if bodies else None)
    page.get_by_role("tab", name="Logs").click()
    expect(page.locator(".log-line")).to_have_text(
        ["one", "two", "three", "[this page was away for a while: lines may be missing here]", "nine", "ten"]
    )


def test_a_long_log_that_comes_in_pieces_is_not_doubled(server: RealServer, open_tab: OpenTab) -> None:
    page = open_tab(server.url).open("configuration").page
    told = ["".join(f"line {number}\n" for number in range(at, at + 300)).encode() for at in (0, 300, 600)]
    ends = threading.Event()
    with fake_corral() as fake:
        again = Reply(200, [*told, b"the new one\n"], "text/plain", hold=ends, gap_s=0.02)
        fake.answers("GET", "/admin/logs", Reply(200, told, "text/plain"), again)
        page.route(LOGS, lambda route: route.continue_(url=f"{fake.url}/admin/logs"))
        page.get_by_role("tab", name="Logs").click()
        expect(lines(page, "the new one")).to_have_count(1)
        expect(page.locator(".log-line")).to_have_count(901)
        expect(page.locator(".log-note")).to_have_count(0)
        ends.set()


@pytest.mark.parametrize(
    ("model", "status", "told"),
    [("nobody", 404, "nobody"), ("smollm2", 403, "that needs the scope admin"), ("smollm2", 429, "too many")],
)
def test_a_log_that_is_refused_says_why_and_can_be_tried_again(
    server: RealServer, open_tab: OpenTab, model: str, status: int, told: str
) -> None:
    tab = open_tab(server.url)
    tab.allow(f"status of {status}")
    page = tab.open("requests").page
    tab.wait_live()
    if status != 404:
        error = {"error": {"message": "too many streams" if status == 429 else "no", "code": "x"}}
        page.route(LOGS, lambda route: route.fulfill(status=status, json=error))
    tab.open(f"logs?model={model}")
    expect(page.locator(".log-status")).to_contain_text(told)
    page.unroute(LOGS)
    if status != 404:
        page.get_by_role("button", name="Try again").click()
        expect(page.locator(".log-status")).to_have_text("Following")


@pytest.mark.parametrize("width", WIDTHS)
def test_the_view_fits_the_page_and_stops_following_when_it_is_left(
    server: RealServer, open_tab: OpenTab, width: int
) -> None:
    tab = open_tab(server.url, width=width, dark=width == 390)
    page = tab.open("logs").page
    expect(lines(page, "listening")).to_have_count(1)
    assert tab.overflow() == []
    with page.expect_event("requestfailed", lambda request: "/admin/logs" in request.url):
        page.get_by_role("tab", name="Overview").click()


def lines(page: Page, text: str) -> Locator:
    return page.locator(".log-line", has_text=text)
