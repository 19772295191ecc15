"""The configuration in a real browser: its verdict, edits that are checked, saved, refused or in conflict.

Looks at the page and at the file; what the routes answer is tested elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from playwright.sync_api import Locator, Page, expect

from tests.browser.tabs import WIDTHS, WITHIN_MS, OpenTab, Tab
from tests.support.gguf_bytes import gguf_bytes
from tests.support.real_server import RealServer, real_server

pytestmark = pytest.mark.browser

CONFIG = "**/admin/config"
expect.set_options(timeout=WITHIN_MS)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("configuration")
    (folder / "model.gguf").write_bytes(gguf_bytes())
    return folder


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[RealServer]:
    """A server that lets its configuration be edited."""
    models = {"one": {"model": "./model.gguf"}, "two": {"model": "./model.gguf", "slots": 2}}
    with real_server(folder, models, env={"CORRAL_ALLOW_CONFIG_EDITS": "true"}) as running:
        yield running


@pytest.fixture(scope="module")
def closed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealServer]:
    """A server that does not."""
    folder = tmp_path_factory.mktemp("closed")
    (folder / "model.gguf").write_bytes(gguf_bytes())
    with real_server(folder, {"one": {"model": "./model.gguf"}}) as running:
        yield running


@pytest.fixture
def file(folder: Path, server: RealServer) -> Iterator[Path]:
    """The file; it is as it was when the test is over, and in force."""
    path = folder / "models.yaml"
    before = path.read_text()
    yield path
    path.write_text(before)
    assert httpx.post(f"{server.url}/admin/reload").status_code == 200


def test_models_that_cannot_be_used_are_told_with_their_reasons(
    server: RealServer, open_tab: OpenTab, file: Path
) -> None:
    page = opened(open_tab(server.url))
    file.write_text(file.read_text() + "  gone:\n    model: ./gone.gguf\n")
    expect(verdict(page)).to_have_text("Valid; 1 model cannot be used")
    expect(panel(page, "Models that cannot be used")).to_contain_text("models.gone")
    expect(panel(page, "Models that cannot be used")).to_contain_text("gone.gguf")
    editor(page).fill(text_of(page) + "# mine\n")
    expect(verdict(page)).to_have_text("Valid")
    expect(panel(page, "Models that cannot be used")).to_be_hidden()
    button(page, "Discard").click()
    expect(verdict(page)).to_have_text("Valid; 1 model cannot be used")


def test_a_valid_edit_is_saved_and_its_model_appears(server: RealServer, open_tab: OpenTab, file: Path) -> None:
    tab = open_tab(server.url)
    page = opened(tab)
    expect(verdict(page)).to_have_text("Valid, and in use")
    expect(button(page, "Save")).to_be_disabled()
    text = text_of(page) + "  three:\n    model: ./model.gguf\n"
    editor(page).fill(text)
    expect(page.get_by_text("not saved")).to_be_visible()
    expect(verdict(page)).to_have_text("Valid")
    expect(panel(page, "What would change")).to_contain_text("Models added · at once")
    expect(panel(page, "What would change")).to_contain_text("three")
    button(page, "Save").click()
    expect(panel(page, "What has changed")).to_contain_text("three")
    expect(verdict(page)).to_have_text("Valid, and in use")
    assert file.read_text() == text
    page.get_by_role("tab", name="Overview").click()
    expect(tab.model("three")).to_be_visible()


def test_what_a_change_takes_effect_on_is_told(server: RealServer, open_tab: OpenTab, file: Path) -> None:
    page = opened(open_tab(server.url))
    editor(page).fill(text_of(page).replace("slots: 2", "slots: 3") + "limits: {max_queue: 7}\n")
    changes = panel(page, "What would change")
    expect(changes).to_contain_text("when the present worker is idle")
    expect(changes).to_contain_text("two: slots")
    expect(changes).to_contain_text("limits.max_queue")
    button(page, "Discard").click()
    expect(changes).to_be_hidden()
    expect(verdict(page)).to_have_text("Valid, and in use")
    assert "max_queue" not in text_of(page)


def test_mistakes_are_told_with_their_lines_and_not_saved(server: RealServer, open_tab: OpenTab, file: Path) -> None:
    page = opened(open_tab(server.url))
    text = text_of(page)
    line = text.split("\n").index("    slots: 2") + 1
    editor(page).fill(text.replace("slots: 2", "slotz: 2"))
    expect(verdict(page)).to_have_text("Invalid: 1 problem")
    expect(button(page, "Save")).to_be_disabled()
    expect(page.locator(".editor-numbers .has-problem")).to_have_text(str(line))
    expect(panel(page, "Problems")).to_contain_text("did you mean slots?")
    page.get_by_role("button", name=f"Line {line}, column 5").click()
    expect(editor(page)).to_be_focused()
    assert editor(page).evaluate("(node) => node.value.slice(node.selectionStart, node.selectionEnd)") == "slotz: 2"
    assert file.read_text() == text


def test_another_edit_in_between_is_a_conflict_that_loses_nothing(
    server: RealServer, open_tab: OpenTab, file: Path
) -> None:
    tab = open_tab(server.url)
    tab.allow("status of 409")
    page = opened(tab)
    mine = "# mine\n" + text_of(page)
    page.route("**/events?*", lambda route: route.abort())  # no news of the other edit before the save
    editor(page).fill(mine)
    expect(button(page, "Save")).to_be_enabled()
    file.write_text("# theirs\n" + file.read_text())
    button(page, "Save").click()
    expect(page.locator(".banner.warning:visible")).to_contain_text("The file has changed on the disk.")
    assert file.read_text().startswith("# theirs")
    page.get_by_role("button", name="Show the file on the disk").click()
    expect(editor(page)).to_have_value(file.read_text())
    page.get_by_role("button", name="Bring my text back").click()
    expect(editor(page)).to_have_value(mine)
    button(page, "Save").click()
    expect(panel(page, "What has changed")).to_be_visible()
    assert file.read_text() == mine


def test_a_text_that_was_put_aside_can_be_forgotten(server: RealServer, open_tab: OpenTab, file: Path) -> None:
    tab = open_tab(server.url)
    tab.allow("status of (409|500)")
    page = opened(tab)
    page.route(CONFIG, lambda route: refuse_put(route, 409, "changed meanwhile"))
    editor(page).fill("# mine\n" + text_of(page))
    button(page, "Save").click()
    page.route(CONFIG, lambda route: route.fulfill(status=500, json={"error": {"message": "not now"}}))
    page.get_by_role("button", name="Show the file on the disk").click()
    expect(page.locator(".config-notes .banner.danger")).to_contain_text("could not be read: not now")
    assert text_of(page).startswith("# mine")
    page.unroute(CONFIG)
    page.get_by_role("button", name="Show the file on the disk").click()
    page.get_by_role("button", name="Forget it").click()
    expect(page.get_by_role("button", name="Bring my text back")).to_be_hidden()
    expect(editor(page)).to_have_value(file.read_text())


def test_an_edit_outside_is_shown_at_once_unless_there_is_one_here(
    server: RealServer, open_tab: OpenTab, file: Path
) -> None:
    page = opened(open_tab(server.url))
    file.write_text(file.read_text().replace("slots: 2", "slots: 4"))
    assert httpx.post(f"{server.url}/admin/reload").status_code == 200
    expect(editor(page)).to_have_value(file.read_text())
    editor(page).fill("# mine\n" + text_of(page))
    file.write_text(file.read_text().replace("slots: 4", "slots: 5"))
    assert httpx.post(f"{server.url}/admin/reload").status_code == 200
    expect(page.locator(".banner.warning:visible")).to_contain_text("while you were editing it")
    assert text_of(page).startswith("# mine")


def test_a_file_that_is_broken_on_the_disk_is_shown_with_its_problem(
    server: RealServer, open_tab: OpenTab, file: Path
) -> None:
    tab = open_tab(server.url)
    tab.allow("status of 422")
    page = opened(tab)
    file.write_text(file.read_text().replace("slots: 2", "slots: many"))
    button(page, "Reload").click()
    expect(page.locator(".config-notes .banner.danger")).to_contain_text("Not reloaded: nothing has changed:")
    expect(verdict(page)).to_have_text("Invalid: 1 problem; the last valid one stays in use")
    expect(panel(page, "Problems")).to_contain_text("slots")
    file.write_text(file.read_text().replace("slots: many", "slots: 2"))
    page.locator(".config-notes").get_by_role("button", name="Try again").click()
    expect(panel(page, "What has changed")).to_contain_text("Reloaded")
    expect(verdict(page)).to_have_text("Valid, and in use")


@pytest.mark.parametrize(
    ("status", "told"),
    [
        (403, "the server does not allow it"),
        (422, "Not saved: nothing was written"),
        (500, "Not saved: nothing was written"),
    ],
)
def test_a_save_that_is_refused_keeps_the_text(
    server: RealServer, open_tab: OpenTab, file: Path, status: int, told: str
) -> None:
    tab = open_tab(server.url)
    tab.allow(f"status of {status}")
    page = opened(tab)
    page.route(CONFIG, lambda route: refuse_put(route, status, "nothing was written"))
    mine = "# mine\n" + text_of(page)
    editor(page).fill(mine)
    button(page, "Save").click()
    expect(page.locator(".config-notes .banner.danger")).to_contain_text(told)
    expect(editor(page)).to_have_value(mine)
    if status == 422:
        expect(panel(page, "Problems")).to_contain_text("it is no good")
    if status == 500:
        page.unroute(CONFIG)
        page.locator(".config-notes").get_by_role("button", name="Try again").click()
        expect(panel(page, "What has changed")).to_be_visible()


def test_what_is_not_saved_is_asked_for_before_the_page_goes(server: RealServer, open_tab: OpenTab) -> None:
    page = opened(open_tab(server.url))
    page.once("dialog", lambda dialog: dialog.dismiss())
    editor(page).fill("# mine\n" + text_of(page))
    editor(page).press("End")
    with page.expect_event("dialog") as asked:
        page.evaluate("location.assign('/health')")
    assert asked.value.type == "beforeunload"
    page.get_by_role("tab", name="Logs").click()
    page.get_by_role("tab", name="Configuration").click()
    assert text_of(page).startswith("# mine")
    button(page, "Discard").click()


def test_the_tab_key_indents_and_escape_lets_it_go(server: RealServer, open_tab: OpenTab) -> None:
    page = opened(open_tab(server.url))
    area = editor(page)
    area.fill("a:\nb:\n")
    area.evaluate("(node) => node.setSelectionRange(0, 0)")
    area.press("Tab")
    expect(area).to_have_value("  a:\nb:\n")
    area.evaluate("(node) => node.setSelectionRange(0, 8)")
    area.press("Tab")
    expect(area).to_have_value("    a:\n  b:\n")
    area.press("Control+z")
    expect(area).to_have_value("  a:\nb:\n")
    area.press("Escape")
    area.press("Tab")
    expect(area).not_to_be_focused()
    button(page, "Discard").click()


@pytest.mark.parametrize("width", WIDTHS)
def test_without_edits_it_is_only_to_read_and_names_the_setting(
    closed: RealServer, open_tab: OpenTab, width: int
) -> None:
    tab = open_tab(closed.url, width=width, dark=width == 390)
    page = opened(tab)
    expect(page.locator(".view-configuration .hint:visible").first).to_contain_text("CORRAL_ALLOW_CONFIG_EDITS")
    assert not editor(page).is_editable()
    expect(button(page, "Save")).to_be_hidden()
    button(page, "Reload").click()
    expect(panel(page, "What has changed")).to_contain_text("Nothing that the server looks at")
    assert tab.overflow() == []


def test_a_text_that_is_withheld_is_said_in_words(tmp_path: Path, open_tab: OpenTab) -> None:
    (tmp_path / "model.gguf").write_bytes(gguf_bytes())
    with real_server(tmp_path, {"one": {"model": "./model.gguf"}}) as running:
        (tmp_path / "models.yaml").chmod(0o600)
        page = opened(open_tab(running.url))
        hint = page.locator(".view-configuration .hint:visible").first
        expect(hint).to_contain_text("Not shown here: other users of this machine may not read the file")
        expect(hint).to_contain_text("CORRAL_ADMIN_KEYS")
        expect(editor(page)).to_be_hidden()
        expect(button(page, "Save")).to_be_hidden()


def test_a_key_without_the_scope_is_told_so(server: RealServer, open_tab: OpenTab) -> None:
    tab = open_tab(server.url)
    tab.allow("status of 403")
    page = tab.open("requests").page
    error = {"error": {"message": "it lacks `admin`", "code": "forbidden"}}
    page.route(CONFIG, lambda route: route.fulfill(status=403, json=error))
    page.get_by_role("tab", name="Configuration").click()
    expect(page.locator(".config-notes .banner.danger")).to_contain_text("needs the scope admin")
    expect(page.locator(".view-configuration .config")).to_be_hidden()
    page.unroute(CONFIG)
    page.locator(".config-notes").get_by_role("button", name="Try again").click()
    expect(verdict(page)).to_have_text("Valid, and in use")


def opened(tab: Tab) -> Page:
    page = tab.open("configuration").page
    tab.wait_live()
    expect(verdict(page)).to_contain_text("alid")
    return page


def editor(page: Page) -> Locator:
    return page.get_by_role("textbox", name="The configuration")


def text_of(page: Page) -> str:
    return editor(page).input_value()


def verdict(page: Page) -> Locator:
    return page.locator(".verdict")


def panel(page: Page, name: str) -> Locator:
    return page.locator(f'section[aria-label="{name}"]')


def button(page: Page, name: str) -> Locator:
    return page.get_by_role("button", name=name, exact=True)


def refuse_put(route: Any, status: int, message: str) -> None:
    """Refuse to save; everything else passes."""
    if route.request.method != "PUT":
        route.fallback()
        return
    error = {"message": message, "code": "x"}
    problems = [{"where": "models.one", "message": "it is no good", "line": 2, "column": 3}]
    route.fulfill(status=status, json={"error": error, "errors": problems} if status == 422 else {"error": error})
