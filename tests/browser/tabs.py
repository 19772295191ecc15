"""A browser tab that remembers everything its page complained about, and short ways to read the dashboard.

Must not know servers: tests give it an address.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from playwright.sync_api import Browser, ConsoleMessage, Locator, Page, expect

WIDTHS = (1440, 390)
"""A desk and a phone."""
WITHIN_MS = 20_000
"""For a machine that is busy with other things too."""
_HEIGHTS = {390: 844}

expect.set_options(timeout=WITHIN_MS)

OpenTab = Callable[..., "Tab"]


class Tab:
    """One page in a context of its own."""

    def __init__(
        self,
        browser: Browser,
        url: str,
        *,
        width: int = 1440,
        dark: bool = False,
        key: str | None = None,
        **options: Any,
    ) -> None:
        is_phone = width < 600
        self.context = browser.new_context(
            viewport={"width": width, "height": _HEIGHTS.get(width, 900)},
            is_mobile=is_phone,
            has_touch=is_phone,
            color_scheme="dark" if dark else "light",
            **options,
        )
        self.page: Page = self.context.new_page()
        self.page.set_default_timeout(WITHIN_MS)
        self.complaints: list[str] = []
        self._allowed: list[str] = []
        self.page.on("console", self._on_console)
        self.page.on("pageerror", lambda error: self.complaints.append(f"page error: {error}"))
        self.url = url
        if key is not None:
            self.context.add_init_script(f"sessionStorage.setItem('corral.key', {key!r})")

    def _on_console(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            self.complaints.append(f"{message.text} ({message.location.get('url', '')})")

    def allow(self, *patterns: str) -> None:
        """Complaints that match one of these belong to the test."""
        self._allowed += patterns

    def open(self, view: str = "overview") -> Tab:
        self.page.goto(f"{self.url}/ui/#{view}")
        return self

    def close(self) -> None:
        """Close the page. Raises: AssertionError if it complained about anything that the test did not expect."""
        self.context.close()
        left = [one for one in self.complaints if not any(re.search(pattern, one) for pattern in self._allowed)]
        assert not left, f"the browser's console is not empty: {left}"

    def model(self, name: str) -> Locator:
        """Return the row, or card, of a model."""
        return self.page.locator(f'.model-row[data-model="{name}"]')

    def wait_state(self, model: str, *states: str) -> None:
        """Return once the model is shown in one of these states."""
        wanted = ", ".join(f'.model-row[data-model="{model}"][data-state="{state}"]' for state in states)
        self.page.locator(wanted).wait_for()

    def wait_live(self) -> None:
        self.page.locator('#connection[data-status="open"]').wait_for()

    def overflow(self) -> list[str]:
        """Return the elements that stick out of the page to the right, as tag and class."""
        return self.page.evaluate(
            """() => [...document.querySelectorAll('body *')].filter((node) => {
                const box = node.getBoundingClientRect();
                return box.width > 1 && box.right > document.documentElement.clientWidth + 1
                    && !node.closest('.scroll-x, .tabs, .visually-hidden, svg');
            }).map((node) => `${node.tagName} ${node.className}`)"""
        )
