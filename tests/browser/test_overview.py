"""The overview in a real browser: states, buttons, slots at work, on a desk and on a phone.

Looks at the page alone; what the server tells is tested elsewhere.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from playwright.sync_api import expect

from tests.browser.tabs import WIDTHS, OpenTab
from tests.browser.talk import chatting
from tests.support.models import smollm2_path
from tests.support.real_server import RealServer, real_server
from tests.support.tiny_gguf import write_truncated

pytestmark = pytest.mark.browser


FILE = "SmolLM2 on two slots"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealServer]:
    """A server with a model that works, one that is cut off, one that is not there, one that is elsewhere."""
    folder = tmp_path_factory.mktemp("overview")
    write_truncated(folder / "broken.gguf")
    models = {
        "smollm2": {
            "model": str(smollm2_path()),
            "context": 2048,
            "slots": 2,
            "aliases": ["gpt-4o-mini"],
            "description": FILE,
        },
        "broken": {"model": "./broken.gguf"},
        "missing": {"model": "./missing.gguf"},
        "far-away": {"url": "http://127.0.0.1:9/v1", "url_model": "x"},
    }
    with real_server(folder, models) as server:
        yield server


@pytest.mark.parametrize("width", WIDTHS)
def test_every_model_is_shown_with_its_state_and_why(server: RealServer, open_tab: OpenTab, width: int) -> None:
    tab = open_tab(server.url, width=width).open()
    tab.wait_live()
    tab.wait_state("missing", "unavailable")
    expect(tab.model("missing").locator(".problem")).to_contain_text("missing.gguf")
    expect(tab.model("far-away").locator(".state")).to_have_text("remote")
    expect(tab.model("smollm2").locator(".model-aliases")).to_have_text("gpt-4o-mini")
    expect(tab.page.locator(".summary-status .summary-value")).to_have_text("Running")
    expect(tab.page.locator(".summary-loaded .summary-more")).to_have_text("of 4")
    expect(tab.page.locator(".memory-bar").first).to_have_attribute("aria-label", re.compile("Memory of .* in all"))
    assert tab.overflow() == []


def test_what_is_not_known_is_a_dash_that_says_so(server: RealServer, open_tab: OpenTab) -> None:
    tab = open_tab(server.url).open()
    context = tab.model("missing").locator(".model-context > span").last
    expect(context).to_have_text("–")
    expect(context).to_have_attribute("title", "unknown")
    expect(context).to_have_attribute("aria-label", "unknown")


@pytest.mark.parametrize("width", WIDTHS)
def test_a_model_is_loaded_watched_at_work_and_unloaded(server: RealServer, open_tab: OpenTab, width: int) -> None:
    tab = open_tab(server.url, width=width).open()
    tab.wait_state("smollm2", "unloaded")
    expect(tab.page.locator(".slots .empty")).to_have_text("No model is loaded.")
    model = tab.model("smollm2")
    model.get_by_role("button", name="Load smollm2").click()
    tab.wait_state("smollm2", "ready")
    expect(tab.page.locator("#announcer")).to_have_text("smollm2 is loaded")
    rows = tab.page.locator(".slots-table tbody tr")
    expect(rows).to_have_count(2)
    expect(model.locator(".model-device")).to_contain_text(re.compile("cpu|CUDA|Metal"))
    with chatting(server.url):
        tab.page.locator(
            '.slots-table tr[data-state="GENERATING"] td[data-label="Tok/s"]', has_text=re.compile(r"\d")
        ).first.wait_for()
        expect(model.locator(".model-rate")).to_have_text(re.compile(r"^[1-9]\d*\.\d$"))
        expect(tab.page.locator(".summary-busy .summary-value")).to_have_text(re.compile("[12]"))
        tab.page.locator(".spark-line[d*=L]").first.wait_for(state="attached")
        assert tab.overflow() == []
    expect(model.locator(".model-idle")).to_contain_text("in 1")  # 15 minutes at most
    model.get_by_role("button", name="Unload smollm2").click()
    tab.wait_state("smollm2", "unloaded")
    expect(model.locator(".model-state .model-more")).to_have_text("was told to unload")
    expect(rows).to_have_count(0)


GB = 10**9
WORKER = {"model": "a", "replica": 0, "weights_bytes": 2 * GB, "kv_bytes": GB, "compute_bytes": 0, "other_bytes": 0}
SHARES = "(device) => import('/ui/live/devices.js').then(({ shares }) => shares(device))"


@pytest.mark.parametrize(
    ("fields", "free", "kept"),
    [
        ({"reserved_bytes": 4 * GB, "used_by_others_bytes": 5 * GB, "free_bytes": 9 * GB}, 9 * GB, 2 * GB),
        ({"reserved_bytes": 4 * GB, "used_by_others_bytes": 12 * GB, "free_bytes": 0}, 0, 4 * GB),
        ({"reserved_bytes": 1 * GB, "used_by_others_bytes": 16 * GB, "free_bytes": 3 * GB}, GB, 0),
    ],
)
def test_the_parts_of_a_memory_add_up_to_it(
    server: RealServer, open_tab: OpenTab, fields: dict[str, int], free: int, kept: int
) -> None:
    page = open_tab(server.url).open().page
    parts = page.evaluate(SHARES, {"id": "d", "total_bytes": 20 * GB, "workers": [WORKER], **fields})
    assert (parts["free"], parts["kept"]) == (free, kept)
    names = ("weights", "kv", "compute", "rest", "reserved", "others", "free", "kept")
    assert sum(parts[name] for name in names) == 20 * GB
    assert parts["used"] == 20 * GB - free - kept


def test_the_parts_of_a_memory_that_nobody_knows_stay_unknown(server: RealServer, open_tab: OpenTab) -> None:
    page = open_tab(server.url).open().page
    device = {"id": "d", "total_bytes": GB, "workers": [], "reserved_bytes": 0, "used_by_others_bytes": None}
    parts = page.evaluate(SHARES, device | {"free_bytes": None})
    assert [parts[name] for name in ("used", "others", "free", "kept")] == [None] * 4


def test_a_model_is_pinned_unpinned_and_given_back_to_the_file(server: RealServer, open_tab: OpenTab) -> None:
    tab = open_tab(server.url, width=390).open()
    model = tab.model("smollm2")
    pin, unpin = (model.get_by_role("button", name=f"{word} smollm2", exact=True) for word in ("Pin", "Unpin"))
    pin.click()
    expect(unpin).to_be_visible()
    expect(model.get_by_role("img", name="pinned")).to_be_visible()
    expect(model).to_contain_text("Pinned by hand, until the server stops.")
    unpin.click()
    expect(pin).to_be_visible()
    expect(model).to_contain_text("Unpinned by hand, until the server stops.")
    model.get_by_role("button", name="Do as the configuration says").click()
    expect(model.get_by_role("button", name="Do as the configuration says")).to_be_hidden()


def test_a_broken_file_is_told_at_the_model_in_the_servers_words(server: RealServer, open_tab: OpenTab) -> None:
    tab = open_tab(server.url, width=390).open()
    model = tab.model("broken")
    model.locator(".model-load").click()
    tab.wait_state("broken", "failed", "backoff")
    expect(model.locator(".problem")).to_contain_text(re.compile("file|tensor", re.IGNORECASE))
    expect(model.locator(".model-load")).to_have_text("Load")  # once more is possible
    assert tab.overflow() == []


def test_buttons_that_cannot_work_say_why(server: RealServer, open_tab: OpenTab) -> None:
    tab = open_tab(server.url).open()
    for name, button, why in (
        ("missing", ".model-load", "Loading cannot help: .*missing.gguf"),
        ("far-away", ".model-load", "Another server answers for this model"),
        ("far-away", ".model-pin", "Another server answers for this model"),
    ):
        model = tab.model(name)
        expect(model.locator(button)).to_have_attribute("aria-disabled", "true")
        model.locator(button).click(force=True)
        expect(model.locator(".model-error")).to_contain_text(re.compile(why))
        model.get_by_role("button", name="Close this message").click()
        expect(model.locator(".model-error")).to_be_hidden()


@pytest.mark.parametrize(("button", "order"), [(".model-load", "/models/load"), (".model-pin", "/admin/pin")])
def test_a_model_that_was_removed_meanwhile_is_refused_in_the_servers_words(
    server: RealServer, open_tab: OpenTab, button: str, order: str
) -> None:
    tab = open_tab(server.url).open()
    tab.allow("404")
    tab.page.route(
        f"**{order}", lambda route: route.continue_(post_data=route.request.post_data.replace("smollm2", "gone"))
    )
    model = tab.model("smollm2")
    model.locator(button).click()
    expect(model.locator(".model-error")).to_contain_text("gone")
    expect(model.locator(button)).not_to_have_attribute("aria-busy", "true")


def test_models_are_found_by_name_and_alias_and_by_being_loaded(server: RealServer, open_tab: OpenTab) -> None:
    tab = open_tab(server.url).open()
    rows = tab.page.locator(".model-list .model-row:visible")
    expect(rows).to_have_count(4)
    tab.page.get_by_label("Filter models by name or alias").fill("GPT-4o")
    expect(rows).to_have_count(1)
    expect(rows).to_contain_text("smollm2")
    tab.page.get_by_label("Loaded only").check()
    expect(tab.page.locator(".models .empty")).to_have_text("No model matches.")
    tab.page.get_by_label("Filter models by name or alias").fill("")
    tab.page.get_by_label("Loaded only").uncheck()
    expect(rows).to_have_count(4)


def test_more_of_a_model_is_shown_on_demand(server: RealServer, open_tab: OpenTab) -> None:
    tab = open_tab(server.url, width=390).open()
    model = tab.model("smollm2")
    model.locator(".model-open").click()
    expect(model.locator(".details-body")).to_contain_text(FILE)
    assert tab.overflow() == []
    model.get_by_role("button", name="Show its log").click()
    expect(tab.page).to_have_url(re.compile(r"#logs\?model=smollm2$"))


def test_everything_can_be_done_from_the_keyboard(server: RealServer, open_tab: OpenTab) -> None:
    tab = open_tab(server.url).open()
    tab.wait_state("smollm2", "unloaded")
    page = tab.page
    focused = "document.activeElement?.getAttribute('aria-label') ?? document.activeElement?.textContent"
    seen = []
    for _ in range(40):
        page.keyboard.press("Tab")
        seen.append(page.evaluate(focused))
        if seen[-1] == "Load smollm2":
            break
    assert seen[-1] == "Load smollm2", seen
    assert seen[0] == "Skip to the content"
    assert seen[1] == "Overview"  # one stop for all tabs
    assert "Requests" not in seen
    assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"
    page.keyboard.press("Enter")
    tab.wait_state("smollm2", "ready")
    page.keyboard.press("Enter")  # the same button, which unloads now
    tab.wait_state("smollm2", "unloaded")
    page.locator("#tab-overview").focus()
    page.keyboard.press("ArrowRight")
    expect(page.locator("#view-requests")).to_be_visible()
    page.keyboard.press("ArrowLeft")
    expect(page.locator("#view-overview")).to_be_visible()
    page.keyboard.press("End")
    expect(page.locator("#tab-configuration")).to_be_focused()
