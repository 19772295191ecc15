"""A picture of a command on a real terminal: tmux runs it, a page shows what is on its screen. Holds no tests."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from playwright.sync_api import Browser
from rich.console import Console
from rich.terminal_theme import MONOKAI
from rich.text import Text

COLUMNS = 112
_PAGE = """<style>
body {{ margin: 0; padding: 14px 18px; background: #0c0c0c; color: #d9d9d9 }}
pre {{ margin: 0; font-size: 14px }}
</style>{code}"""


class Screen:
    """The screen of one tmux session."""

    def __init__(self, name: str) -> None:
        self._name = name

    def lines(self) -> list[str]:
        """Return what is on it, with colours as escapes, without the empty lines at its end."""
        command = ["tmux", "capture-pane", "-e", "-p", "-t", self._name]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.rstrip().splitlines()

    def picture(self, browser: Browser) -> bytes:
        """Return it as a PNG."""
        console = Console(record=True, width=COLUMNS, file=io.StringIO())
        for line in self.lines():
            console.print(Text.from_ansi(line), no_wrap=True, crop=False)
        code = console.export_html(theme=MONOKAI, inline_styles=True, code_format="<pre>{code}</pre>")
        page = browser.new_page(viewport={"width": 1000, "height": 100}, device_scale_factor=1)
        page.set_content(_PAGE.format(code=code))
        picture: bytes = page.screenshot(full_page=True)
        page.close()
        return picture


@contextmanager
def running(arguments: Sequence[str], env: Mapping[str, str], *, num_lines: int = 30) -> Iterator[Screen]:
    """`corral` runs with `arguments` on a terminal inside the block."""
    name = f"corral-{uuid.uuid4().hex[:8]}"
    command = ["tmux", "new-session", "-d", "-s", name, "-x", str(COLUMNS), "-y", str(num_lines)]
    command += [sys.executable, "-m", "router", *arguments]
    subprocess.run(command, check=True, env={**os.environ, **env})
    try:
        yield Screen(name)
    finally:
        subprocess.run(["tmux", "kill-session", "-t", name], check=False)
