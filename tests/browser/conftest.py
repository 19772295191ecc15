"""One Chromium for all tests of a module; tabs that fail their test if the page complains."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import Browser, sync_playwright

from tests.browser.tabs import OpenTab, Tab


def chromium_path() -> str:
    """Return the program. Raises: AssertionError, saying how to get it."""
    path = shutil.which("chromium") or shutil.which("chromium-browser")
    assert path is not None, "Chromium is missing: apt install chromium"
    return path


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    """The system's Chromium: Playwright's own would have to be downloaded."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium_path(), args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def open_tab(chromium: Browser) -> Iterator[OpenTab]:
    """Opens tabs: `open_tab(url, width=390)`; each must have a clean console when the test is over."""
    tabs: list[Tab] = []

    def open_(url: str, **options: Any) -> Tab:
        tabs.append(Tab(chromium, url, **options))
        return tabs[-1]

    yield open_
    for tab in tabs:
        tab.close()
