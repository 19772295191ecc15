"""One line at the bottom of a terminal that shows how far downloads and loads are, and gives way to log lines.

Owns that line alone. Must not be used where the output is not a terminal.
"""

from __future__ import annotations

import asyncio
import logging
import shutil
from collections.abc import Callable, Mapping
from typing import TextIO

from router.fetch.protocol import FetchProgress

_EVERY_S = 0.25
_WIDTH = 30
_CLEAR = "\r\033[K"


def describe(fetches: Mapping[str, FetchProgress], columns: int) -> str:
    """Return at most `columns` characters about all downloads; of a single one, a bar too where there is room.

    The bar is that of the whole model, the bytes are those of the part that comes.
    For example `coder: downloading part 2 of 6 [#######     ] 46 of 98 MB`, or `coder 13/89 MB · smollm2 41/93 MB`.
    """
    if len(fetches) != 1:
        return " · ".join(f"{model} {progress.amount.replace(' of ', '/')}" for model, progress in fetches.items())[
            :columns
        ]
    ((model, progress),) = fetches.items()
    if not progress.done_bytes and not progress.total_bytes and progress.detail:
        return f"{model}: {progress.detail}"[:columns]  # nothing is coming yet: what is waited for
    if (share := progress.share) is not None:
        bar = "#" * round(share * _WIDTH)
        what = f"{progress.phase} {progress.detail}".rstrip()
        text = f"{model}: {what} [{bar:<{_WIDTH}}] {progress.amount}"
        if len(text) <= columns:
            return text
    return f"{model}: {progress.text}"[:columns]


class ProgressBar:
    """Draws what `fetches` returns; with `attach` log lines go above it."""

    def __init__(self, stream: TextIO, fetches: Callable[[], Mapping[str, FetchProgress]]) -> None:
        self._stream = stream
        self._fetches = fetches
        self._is_drawn = False

    def draw(self) -> None:
        """Show the present state, or nothing when nothing is fetched."""
        fetches = self._fetches()
        if not fetches:
            self.clear()
            return
        self._stream.write(_CLEAR + describe(fetches, shutil.get_terminal_size().columns - 1))
        self._stream.flush()
        self._is_drawn = True

    def clear(self) -> None:
        """Take the line away."""
        if self._is_drawn:
            self._stream.write(_CLEAR)
            self._stream.flush()
            self._is_drawn = False

    def attach(self, handler: logging.Handler) -> None:
        """Let the log handler take the line away before it writes its own."""

        def give_way(_: logging.LogRecord) -> bool:
            self.clear()
            return True

        handler.addFilter(give_way)

    async def run(self) -> None:
        """Keep the line current until cancelled."""
        try:
            while True:
                self.draw()
                await asyncio.sleep(_EVERY_S)
        finally:
            self.clear()
