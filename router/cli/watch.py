"""`corral ps --watch` on a terminal: the whole screen, drawn once a second from one stream of events.

Owns the screen, the keys and the stream's new beginnings. What stands on the screen is `ps_view`'s.
"""

from __future__ import annotations

import os
import select
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, TextIO

from router.cli import ps_view
from router.cli.formats import duration
from router.cli.live import follow
from router.cli.output import CommandFailed, ExitCode
from router.cli.picture import Picture
from router.cli.ps_rows import MANY_MODELS
from router.cli.server import Refused

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.live import Live

    from router.cli.server import Server

_DRAW_EVERY_S = 1.0
_LOOK_EVERY_S = 0.1
"""How soon a key, a new size of the terminal and the first picture are noticed."""
_TRY_AGAIN_S = 1.0
_AWAY = frozenset({502, 503, 504})
_QUIT = frozenset("qQ\x1b\x04")
_ALL = frozenset("aA")
_ENDS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Watch:
    """A screen that follows one server."""

    def __init__(self, server: Server, console: Console, *, all_models: bool) -> None:
        self._server = server
        self._console = console
        self._all_models = all_models
        self._lock = threading.Lock()
        self._picture: Picture | None = None
        self._lost_at_s: float | None = None
        self._lost_why = ""
        self._failure: CommandFailed | None = None
        self._is_over = threading.Event()

    def run(self, keys: TextIO) -> None:
        """Show the server until somebody quits; the screen is then as it was before.

        Raises: CommandFailed when there is nothing to show from the first, or the server refuses.
        """
        from rich.live import Live

        # It may sit in a read for as long as nothing happens: nobody waits for it at the end.
        threading.Thread(target=self._follow, name="events", daemon=True).start()
        try:
            self._wait_for_first()
            screen = Live(self._drawn(), console=self._console, screen=True, auto_refresh=False)
            with _signals_noted() as signals, _single_keys(keys) as pressed, screen as live:
                self._show(live, pressed, signals)
        finally:
            self._is_over.set()
        if signals:
            raise SystemExit(128 + signals[0])
        if self._failure is not None:
            raise self._failure

    # --- the screen: in the main thread ------------------------------------------------------------------

    def _wait_for_first(self) -> None:
        while not (self._lost_why or (self._picture is not None and self._picture.server)):
            if self._failure is not None:
                raise self._failure
            time.sleep(_LOOK_EVERY_S)

    def _show(self, live: Live, keys: Iterator[str], signals: Sequence[int]) -> None:
        drawn = None
        for key in keys:
            if signals or key in _QUIT or self._failure is not None:
                return
            if key in _ALL:
                self._all_models = not self._all_models
            # Times go on between two events, so that every second is a new picture.
            now = (int(time.monotonic() / _DRAW_EVERY_S), self._console.size, self._all_models)
            if now != drawn:
                drawn = now
                live.update(self._drawn(), refresh=True)

    def _drawn(self) -> RenderableType:
        from rich.console import Group
        from rich.text import Text

        with self._lock:
            picture = self._picture.aged(time.monotonic()) if self._picture is not None else Picture()
            notice = self._notice()
        height = self._console.height
        body = ps_view.compose(
            picture,
            self._console,
            url=self._server.url,
            now=time.time(),
            all_models=self._all_models,
            height=height - 1,
            notice=notice,
        )
        lines = self._console.render_lines(body, pad=False)
        empty = [Text("")] * max(0, height - 1 - len(lines))
        others = "" if len(picture.models) <= MANY_MODELS else " · a shows only models in use"
        if others and not self._all_models:
            others = " · a shows all models"
        return Group(body, *empty, Text(f"q quits{others}", style="dim", end=""))

    def _notice(self) -> str | None:
        if self._lost_at_s is None:
            return None
        ago = duration(time.monotonic() - self._lost_at_s)
        return f"no connection for {ago}, trying again; this is how it was before ({self._lost_why})"

    # --- the stream: in a thread of its own --------------------------------------------------------------

    def _follow(self) -> None:
        """Keep the picture up; begin anew when the stream ends, with all that the server tells at its start."""
        while not self._is_over.is_set():
            fresh = Picture()
            try:
                for event in follow(self._server):
                    with self._lock:
                        fresh.apply(event)
                        # Until the first of each topic are there, the old picture says more.
                        if fresh.is_whole:
                            self._picture, self._lost_at_s = fresh, None
                self._lost("the server has ended the stream")
            except CommandFailed as failed:
                if self._picture is None or not _may_come_back(failed):
                    self._failure = failed
                    return
                self._lost(failed.message.partition(". ")[0])
            self._is_over.wait(_TRY_AGAIN_S)

    def _lost(self, why: str) -> None:
        with self._lock:
            self._lost_why = why
            if self._lost_at_s is None:
                self._lost_at_s = time.monotonic()


def _may_come_back(failed: CommandFailed) -> bool:
    """Return whether another try may help: the server is away, or a proxy before it says so."""
    if isinstance(failed, Refused):
        return failed.status in _AWAY
    return failed.exit_code == ExitCode.NO_SERVER


@contextmanager
def _signals_noted() -> Iterator[list[int]]:
    """Inside the block a signal that should end the program is only noted, so that no screen is left half made.

    Ctrl-Z does nothing: the shell would get the screen as it is.
    """
    noted: list[int] = []
    before = {number: signal.getsignal(number) for number in (*_ENDS, signal.SIGTSTP)}
    for number in _ENDS:
        signal.signal(number, lambda got, _frame: noted.append(got))
    signal.signal(signal.SIGTSTP, signal.SIG_IGN)
    try:
        yield noted
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def _single_keys(stream: TextIO) -> Iterator[Iterator[str]]:
    """Give the keys that are pressed, "" where none is for a moment; the terminal shows none of them."""
    if not stream.isatty():
        yield _no_keys()
        return
    import termios
    import tty

    number = stream.fileno()
    before = termios.tcgetattr(number)
    tty.setcbreak(number)
    try:
        yield _keys(number)
    finally:
        termios.tcsetattr(number, termios.TCSADRAIN, before)


def _keys(number: int) -> Iterator[str]:
    while True:
        ready, _, _ = select.select([number], [], [], _LOOK_EVERY_S)
        if not ready:
            yield ""
            continue
        pressed = os.read(number, 64)
        # One byte is a key; several at once are an arrow or the like, or pasted text: none of them means anything.
        yield pressed.decode("ascii", "replace") if len(pressed) == 1 else ("" if pressed else "q")


def _no_keys() -> Iterator[str]:
    while True:
        time.sleep(_LOOK_EVERY_S)
        yield ""
