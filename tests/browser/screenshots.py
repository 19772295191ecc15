"""Makes the pictures of docs/images: `python -m tests.browser.screenshots`, on a machine that is otherwise idle.

Shows a real server at work on SmolLM2 under several names. Holds no tests; the pictures are to be
looked at, and must not show a path of the machine: so there is none of the logs and the configuration.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, Page, sync_playwright

from tests.browser.conftest import chromium_path
from tests.browser.playground import ask, ended, option, playground
from tests.browser.tabs import Tab
from tests.browser.talk import chat, chatting
from tests.browser.terminal_picture import running
from tests.support.models import smollm2_path
from tests.support.real_server import real_server
from tests.support.tiny_gguf import write_truncated

IMAGES = Path(__file__).parents[2] / "docs" / "images"
MAX_BYTES = 200_000
WATCHED_MS = 20_000
"""Long enough for the lines of speed to have a form."""
QUESTION = "Write a short note that thanks a neighbour for feeding the goats."


def models(folder: Path) -> Mapping[str, Mapping[str, Any]]:
    """Return what is served: models that work, one that is broken, one of another server."""
    write_truncated(folder / "broken.gguf")
    file = {"model": str(smollm2_path())}
    return {
        "smollm2": file | {"context": 2048, "slots": 4, "aliases": ["gpt-4o-mini", "gpt-3.5-turbo"]},
        "smollm2-long": file | {"context": 8192, "slots": 2, "pin": True},
        "summaries": file | {"context": 4096, "slots": 2, "description": "Nightly summaries"},
        "cut-off": {"model": "./broken.gguf"},
        "far-away": {"url": "http://127.0.0.1:9/v1", "url_model": "large"},
    }


def prepare(url: str, tab: Tab) -> None:
    """All states are there, and the list of requests has something in it."""
    tab.open().wait_live()
    for name in ("smollm2", "smollm2-long", "cut-off"):
        tab.model(name).locator(".model-load").click()
    for name, state in (("smollm2", "ready"), ("smollm2-long", "ready"), ("cut-off", "failed")):
        tab.wait_state(name, state)
    for number in range(6):
        chat(
            url,
            model=("smollm2", "smollm2-long", "gpt-4o-mini")[number % 3],
            text=f"Story {number}",
            max_tokens=48,
            stream=number % 2 == 0,
        )
    chat(url, text="word " * 4000)
    chat(url, model="gpt-5")


def take(page: Page, name: str, *, full: bool = True) -> None:
    path = IMAGES / f"{name}.png"
    page.wait_for_timeout(500)  # what turns or fades has come to rest
    page.screenshot(path=path, full_page=full)
    assert path.stat().st_size < MAX_BYTES, f"{path} has {path.stat().st_size} bytes: show less on it"


def at_work(browser: Browser, url: str) -> None:
    """The overview, while more is asked than there are slots."""
    tabs = {
        "overview": Tab(browser, url).open(),
        "overview-dark": Tab(browser, url, dark=True).open(),
        "overview-phone": Tab(browser, url, width=390).open(),
    }
    with chatting(url, num=9), running(["ps", "--watch"], {"CORRAL_URL": url}) as screen:
        tabs["overview"].page.wait_for_timeout(WATCHED_MS)
        tabs["overview"].page.locator(".queue-table tbody tr").first.wait_for()
        for name, tab in tabs.items():
            take(tab.page, name, full=name != "overview-phone")
        (IMAGES / "ps-watch.png").write_bytes(screen.picture(browser))
    for tab in tabs.values():
        tab.context.close()


def other_views(browser: Browser, url: str) -> None:
    tab = Tab(browser, url)
    page = tab.open("requests").page
    rows = page.locator(".request-open")
    rows.nth(7).wait_for()
    rows.nth(1).click()
    take(page, "requests", full=False)
    playground(tab)
    option(page, "Longest answer").fill("64")
    ask(page, QUESTION)
    ended(page, "done")
    take(page, "playground", full=False)
    tab.context.close()


def main() -> None:
    IMAGES.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as name, sync_playwright() as playwright:
        folder = Path(name)
        browser = playwright.chromium.launch(executable_path=chromium_path(), args=["--no-sandbox"])
        with real_server(folder, models(folder)) as server:
            first = Tab(browser, server.url)
            prepare(server.url, first)
            first.context.close()
            at_work(browser, server.url)
            other_views(browser, server.url)
        browser.close()


if __name__ == "__main__":
    main()
