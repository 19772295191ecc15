"""What all views share, in a real browser: keys, banners, the connection, the theme.

The server here wants keys. Each test opens its own line to it where it cuts one.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect

from router.cli.formats import size
from tests.browser.tabs import WIDTHS, OpenTab, Tab
from tests.browser.talk import Line
from tests.support.models import smollm2_path
from tests.support.real_server import RealServer, real_server

pytestmark = pytest.mark.browser

ADMIN, USER, WATCHER = "key-of-an-admin", "key-of-a-user", "key-of-a-watcher"
REFUSED = "status of 401"
FORBIDDEN = "status of 403"
STATES = ("ok", "draining")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("shell")


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[RealServer]:
    keys = {"CORRAL_ADMIN_KEYS": ADMIN, "CORRAL_API_KEYS": USER, "CORRAL_METRICS_KEYS": WATCHER}
    models = {"smollm2": {"model": str(smollm2_path()), "context": 256, "slots": 1}}
    with real_server(folder, models, env=keys) as server:
        yield server


def test_a_key_that_cannot_be_sent_is_told_in_the_form(server: RealServer, open_tab: OpenTab) -> None:
    tab = open_tab(server.url).open()
    tab.allow(REFUSED)
    tab.page.get_by_label("API key").fill("schlüssel")
    tab.page.get_by_role("button", name="Use this key").click()
    expect(tab.page.locator("#key-problem")).to_contain_text("This cannot be a key")
    tab.page.get_by_label("API key").fill(ADMIN)
    tab.page.get_by_role("button", name="Use this key").click()
    tab.wait_live()


def test_the_page_works_where_the_browser_stores_nothing(server: RealServer, open_tab: OpenTab) -> None:
    tab = open_tab(server.url)
    tab.allow(REFUSED)
    closed = "get() { throw new DOMException('storage is off', 'SecurityError') }"
    for name in ("localStorage", "sessionStorage"):
        tab.context.add_init_script(f"Object.defineProperty(window, '{name}', {{ {closed} }})")
    tab.open()
    tab.page.get_by_label("API key").fill(ADMIN)
    tab.page.get_by_role("button", name="Use this key").click()
    tab.wait_live()
    tab.page.get_by_role("tab", name="Playground").click()
    expect(tab.page.get_by_role("textbox", name="Message")).to_be_visible()
    tab.page.get_by_label("Temperature").fill("1")
    tab.page.evaluate("dispatchEvent(new Event('pagehide'))")  # the conversation would be kept now


def test_sizes_are_written_as_on_the_command_line(server: RealServer, open_tab: OpenTab) -> None:
    page = open_tab(server.url, key=ADMIN).open().page
    amounts = [0, 999, 1500, 999_499, 98_300_000, 999_499_999, 1_000_000_000, 25_349_000_000, -2_600_000]
    shown = "(amounts) => import('/ui/formats.js').then(({ bytes }) => amounts.map(bytes))"
    assert page.evaluate(shown, amounts) == [size(amount) for amount in amounts]
    assert page.evaluate(shown, [None]) == ["–"]


def test_a_row_that_goes_leaves_the_focus_in_those_behind_it(server: RealServer, open_tab: OpenTab) -> None:
    page = open_tab(server.url, key=ADMIN).open().page
    assert page.evaluate(
        """async () => {
            const { keyed } = await import('/ui/dom.js');
            const box = document.body.appendChild(document.createElement('div'));
            const kept = new Map();
            const make = () => ({ node: document.createElement('button'), update() {} });
            const draw = (items) => keyed(box, kept, items, (item) => item, make);
            draw([1, 2, 3]);
            kept.get(3).node.focus();
            draw([2, 3, 4]);
            return document.activeElement === kept.get(3).node && box.childElementCount === 3;
        }"""
    )


@pytest.mark.parametrize("width", WIDTHS)
def test_a_key_is_asked_for_refused_if_wrong_and_kept_for_the_tab_alone(
    server: RealServer, open_tab: OpenTab, width: int
) -> None:
    tab = open_tab(server.url, width=width).open()
    tab.allow(REFUSED)
    page = tab.page
    field = page.get_by_label("API key")
    expect(field).to_be_focused()
    assert tab.overflow() == []
    field.fill("wrong")
    field.press("Enter")
    expect(page.locator("#key-problem")).to_have_text("The server does not accept this key.")
    field.fill(ADMIN)
    page.get_by_role("button", name="Use this key").click()
    tab.wait_live()
    tab.wait_state("smollm2", "unloaded")
    assert page.evaluate("sessionStorage.getItem('corral.key')") == ADMIN
    assert page.evaluate("JSON.stringify(localStorage)") == "{}"
    page.reload()
    tab.wait_state("smollm2", "unloaded")
    expect(page.locator("#key-dialog")).to_be_hidden()


def test_without_a_key_the_page_says_so_and_takes_one_later(server: RealServer, open_tab: OpenTab) -> None:
    tab = open_tab(server.url).open()
    tab.allow(REFUSED)
    page = tab.page
    page.get_by_role("button", name="Not now").click()
    expect(page.locator("#connection")).to_have_text("Refused")
    expect(page.locator(".banner:visible")).to_contain_text("No valid key.")
    expect(page.locator(".models .empty")).to_have_text("Not known yet.")
    expect(page.get_by_role("button", name="Try now")).to_be_hidden()
    page.get_by_role("button", name="Enter a key").click()
    expect(page.locator("#key-title")).to_have_text("Enter a key")
    page.get_by_role("button", name="Not now").click()
    page.locator(".banner").get_by_role("button", name="Enter key").click()
    page.get_by_label("API key").fill(USER)
    page.get_by_label("API key").press("Enter")
    tab.wait_live()
    expect(page.locator(".banner:visible")).to_have_count(0)
    tab.wait_state("smollm2", "unloaded")


def test_a_key_is_seen_and_forgotten_with_all_that_it_has_shown(server: RealServer, open_tab: OpenTab) -> None:
    tab = open_tab(server.url).open()
    tab.allow(REFUSED)
    page = tab.page
    page.get_by_label("API key").fill(WATCHER)
    page.get_by_label("API key").press("Enter")
    tab.wait_state("smollm2", "unloaded", "ready")
    page.get_by_role("button", name="The key: see, change or forget it").click()
    expect(page.locator("#key-title")).to_have_text("The key of this tab")
    expect(page.locator("#key-present")).to_have_text("The present key has the scope metrics.")
    page.get_by_role("button", name="Forget this key").click()
    expect(page.locator("#key-title")).to_have_text("This server wants a key")
    expect(page.get_by_role("button", name="Forget this key")).to_be_hidden()
    expect(tab.model("smollm2")).to_have_count(0)
    assert page.evaluate("sessionStorage.getItem('corral.key')") is None


def test_a_key_that_may_only_ask_models_sees_no_buttons_and_no_requests(server: RealServer, open_tab: OpenTab) -> None:
    tab = open_tab(server.url, key=USER).open()
    tab.allow(FORBIDDEN)
    tab.wait_state("smollm2", "unloaded")
    expect(tab.model("smollm2").locator(".model-buttons")).to_be_hidden()
    tab.page.get_by_role("tab", name="Requests").click()
    expect(tab.page.locator(".requests .empty")).to_contain_text("that needs the scope metrics")
    expect(tab.page.get_by_role("button", name="Hold still")).to_be_hidden()
    tab.wait_live()


def test_a_key_for_metrics_sees_requests_but_no_buttons(server: RealServer, open_tab: OpenTab) -> None:
    tab = open_tab(server.url, key=WATCHER).open("requests")
    expect(tab.page.locator(".requests .empty")).to_have_text("No request has ended yet.")
    tab.page.get_by_role("tab", name="Overview").click()
    tab.wait_state("smollm2", "unloaded")
    expect(tab.model("smollm2").locator(".model-buttons")).to_be_hidden()


@pytest.mark.parametrize(("button", "begin"), [(".model-load", "Not loaded"), (".model-pin", "Not changed")])
def test_an_order_without_the_right_is_refused_at_the_model_and_not_offered_again(
    server: RealServer, open_tab: OpenTab, button: str, begin: str
) -> None:
    tab = open_tab(server.url, key=ADMIN).open()
    tab.allow(FORBIDDEN)
    tab.wait_state("smollm2", "unloaded")
    tab.page.evaluate(f"sessionStorage.setItem('corral.key', '{USER}')")  # the key lost its scope meanwhile
    model = tab.model("smollm2")
    model.locator(button).click()
    expect(model.locator(".model-error")).to_contain_text(f"{begin}: this API key lacks the scope admin")
    expect(model.locator(".model-buttons")).to_be_hidden()


def test_an_unload_with_a_key_that_is_gone_asks_for_another(server: RealServer, open_tab: OpenTab) -> None:
    tab = open_tab(server.url, key=ADMIN).open()
    tab.allow(REFUSED)
    model = tab.model("smollm2")
    model.locator(".model-load").click()
    tab.wait_state("smollm2", "ready")
    tab.page.evaluate("sessionStorage.setItem('corral.key', 'revoked')")
    model.locator(".model-load").click()
    expect(tab.page.locator("#key-problem")).to_have_text("The server does not accept this key.")
    tab.page.get_by_role("button", name="Not now").click()
    expect(model.locator(".model-error")).to_contain_text("Not unloaded: a valid API key is required")
    model.locator(".model-load").click()
    tab.page.get_by_label("API key").fill(ADMIN)
    tab.page.get_by_role("button", name="Use this key").click()
    tab.wait_state("smollm2", "unloaded")
    expect(model.locator(".model-error")).to_be_hidden()


def test_a_configuration_that_was_broken_on_the_disk_is_told_until_it_is_fixed(
    server: RealServer, open_tab: OpenTab, folder: Path
) -> None:
    tab = open_tab(server.url, width=390, key=ADMIN).open()
    tab.wait_state("smollm2", "unloaded", "ready")
    file = folder / "models.yaml"
    good = file.read_text()
    banner = tab.page.locator(".banner:visible")
    try:
        file.write_text(good + "  another: {model: ./x.gguf, slotz: 3}\n")
        expect(banner).to_contain_text("The configuration on the disk is invalid.")
        expect(banner).to_contain_text(re.compile(r"line \d+, models\.another\.slotz: .*did you mean slots"))
        assert tab.overflow() == []
        banner.get_by_role("button", name="Open the configuration").click()
        expect(tab.page.locator("#view-configuration")).to_be_visible()
    finally:
        file.write_text(good)
    expect(banner).to_have_count(0)


def test_a_model_that_is_added_to_the_file_appears_and_goes_with_it(
    server: RealServer, open_tab: OpenTab, folder: Path
) -> None:
    tab = open_tab(server.url, key=ADMIN).open()
    tab.wait_state("smollm2", "unloaded", "ready")
    file = folder / "models.yaml"
    good = file.read_text()
    try:
        file.write_text(good + "  another: ./x.gguf\n")
        tab.wait_state("another", "unavailable")
    finally:
        file.write_text(good)
    expect(tab.model("another")).to_have_count(0)


def test_a_lost_connection_is_told_and_found_again(server: RealServer, open_tab: OpenTab) -> None:
    line = Line(server.url)
    tab = open_tab(line.url, width=390, key=ADMIN).open()
    tab.allow("ERR_", "net::")
    tab.wait_state("smollm2", "unloaded", "ready")
    page = tab.page
    line.cut()
    banner = page.locator(".banner:visible")
    expect(banner).to_contain_text(re.compile("The server cannot be reached.*What you see is old"))
    expect(page.locator("#connection")).to_have_text(re.compile("Disconnected|Reconnecting"))
    assert page.evaluate("getComputedStyle(document.querySelector('.models')).opacity") != "1"
    model = tab.model("smollm2")
    for button in (".model-load", ".model-pin"):
        model.locator(button).click(force=True)
        expect(model.locator(".model-error")).to_have_text("The server cannot be reached now.")
    banner.get_by_role("button", name="Try now").click()
    expect(banner).to_contain_text("The server cannot be reached.")  # it still cannot
    assert tab.overflow() == []
    line.join()
    tab.wait_live()
    expect(banner).to_have_count(0)
    expect(model.locator(".model-load")).not_to_have_attribute("aria-disabled", "true")
    line.cut()


def test_the_line_breaks_while_a_button_is_pressed(server: RealServer, open_tab: OpenTab) -> None:
    tab = open_tab(server.url, key=ADMIN).open()
    tab.allow("ERR_")
    tab.wait_state("smollm2", "unloaded", "ready")
    tab.page.route("**/admin/pin", lambda route: route.abort())
    model = tab.model("smollm2")
    model.locator(".model-pin").click()
    expect(model.locator(".model-error")).to_contain_text("Not changed: The server cannot be reached.")
    expect(model.locator(".model-pin")).not_to_have_attribute("aria-busy", "true")


def test_nothing_is_followed_while_nobody_looks(server: RealServer, open_tab: OpenTab) -> None:
    tab = open_tab(server.url, key=ADMIN).open()
    tab.wait_live()
    hide = "Object.defineProperty(document, 'hidden', {value: %s, configurable: true});"
    tell = "document.dispatchEvent(new Event('visibilitychange'))"
    with tab.page.expect_event("requestfailed", lambda request: "/events" in request.url):
        tab.page.evaluate(hide % "true" + tell)
    expect(tab.page.locator("#connection")).to_have_text("Paused")
    with tab.page.expect_request("**/events?topics=all"):
        tab.page.evaluate(hide % "false" + tell)
    tab.wait_live()


def test_the_theme_follows_the_system_until_it_is_chosen(server: RealServer, open_tab: OpenTab) -> None:
    tab = open_tab(server.url, key=ADMIN, dark=True).open()
    background = "getComputedStyle(document.body).backgroundColor"
    dark = tab.page.evaluate(background)
    switch = tab.page.locator("#theme-button")
    expect(switch).to_have_attribute("aria-label", re.compile("as the system has it"))
    switch.click()
    light = tab.page.evaluate(background)
    assert light != dark
    tab.page.reload()
    assert tab.page.evaluate(background) == light
    switch.click()
    assert tab.page.evaluate(background) == dark
    switch.click()
    expect(switch).to_have_attribute("aria-label", re.compile("as the system has it"))


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_texts_stand_out_from_what_is_behind_them(server: RealServer, open_tab: OpenTab, theme: str) -> None:
    """Source: WCAG 2.2, success criterion 1.4.3: 4.5 to 1 for texts of this size."""
    tab = open_tab(server.url, key=ADMIN, dark=theme == "dark").open()
    tab.wait_state("smollm2", "unloaded", "ready")
    pairs = [
        (ink, behind)
        for ink in ("ink", "ink-2", "accent", "good", "busy", "warn", "bad", "other")
        for behind in ("surface", "bg")
    ]
    pairs += [
        ("accent-ink", "accent"),
        ("bad", "bad-soft"),
        ("warn", "warn-soft"),
        ("ink-2", "surface-2"),
        ("accent", "accent-soft"),
    ]
    colours = tab.page.evaluate(
        """(names) => Object.fromEntries(names.map((name) => {
            const probe = document.createElement('i');
            probe.style.color = `var(--${name})`;
            document.body.append(probe);
            const colour = getComputedStyle(probe).color.match(/[\\d.]+/g).slice(0, 3).map(Number);
            probe.remove();
            return [name, colour];
        }))""",
        sorted({name for pair in pairs for name in pair}),
    )
    weak = {pair: ratio for pair in pairs if (ratio := contrast(*(colours[name] for name in pair))) < 4.5}
    assert not weak


def contrast(one: list[float], other: list[float]) -> float:
    """Return the contrast of two colours, from 1 to 21."""
    lighter, darker = sorted((luminance(one), luminance(other)), reverse=True)
    return (lighter + 0.05) / (darker + 0.05)


def luminance(colour: list[float]) -> float:
    parts = [part / 255 / 12.92 if part <= 10.31 else ((part / 255 + 0.055) / 1.055) ** 2.4 for part in colour]
    return 0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2]


def test_the_view_asks_again_after_its_file_could_not_be_loaded(server: RealServer, open_tab: OpenTab) -> None:
    tab = open_tab(server.url, key=ADMIN)
    tab.allow("requests.js", "Failed to fetch dynamically imported module")
    tab.page.route("**/views/requests.js", lambda route: route.abort())
    tab.open("requests")
    expect(tab.page.locator("#view-requests")).to_contain_text("The view could not be loaded")
    tab.page.unroute("**/views/requests.js")
    tab.page.get_by_role("button", name="Try again").click()
    expect(tab.page.locator("#view-requests")).to_contain_text("Recent requests")


def test_a_server_that_drains_is_never_shown_as_running(server: RealServer, open_tab: OpenTab) -> None:
    """It says so on the stream, which ends then; the next connection waits for the next server."""
    tab = open_tab(server.url, key=ADMIN)
    tab.allow("ERR_", "status of 503")
    told = [f"event: server\ndata: {json.dumps({'status': status, 'models': 0, 'loaded': 0})}\n\n" for status in STATES]
    answers = iter([{"body": "".join(told), "content_type": "text/event-stream"}])
    later = {"status": 503, "json": {"error": {"message": "it stops", "code": "shutting_down"}}}
    tab.page.route("**/events?*", lambda route: route.fulfill(**next(answers, later)))
    page = tab.open().page
    banner = page.locator(".banner:visible")
    expect(banner).to_have_count(1)
    expect(banner).to_contain_text("The server is stopping or restarting.")
    expect(page.locator(".summary-status .summary-value")).to_have_text("Stopping")
    expect(page.locator("#connection")).not_to_have_text("Live")
    page.unroute("**/events?*")
    banner.get_by_role("button", name="Try now").click()
    expect(page.locator("#connection")).to_have_text("Live")
    expect(banner).to_have_count(0)


def test_a_server_that_stops_says_so_and_then_is_missed(tmp_path: Path, open_tab: OpenTab) -> None:
    models = {"smollm2": {"model": str(smollm2_path())}}
    with real_server(tmp_path, models) as short:
        tab = open_tab(short.url).open()
        tab.allow("ERR_", "net::")
        tab.wait_state("smollm2", "unloaded")
    told = re.compile("The server (cannot be reached|is stopping or restarting).")
    expect(tab.page.locator(".banner:visible")).to_contain_text(told)
    expect(tab.page.locator(".summary-uptime .summary-value")).not_to_have_text("–")  # old, and greyed


@pytest.mark.parametrize("complaint", ["console.error('boom')", "setTimeout(() => { throw new Error('boom') })"])
def test_a_page_that_complains_fails_its_test(server: RealServer, chromium: Browser, complaint: str) -> None:
    tab = Tab(chromium, server.url, key=ADMIN).open()
    tab.wait_live()
    tab.page.evaluate(f"() => {{ {complaint} }}")
    tab.page.wait_for_timeout(50)
    with pytest.raises(AssertionError, match="boom"):
        tab.close()
