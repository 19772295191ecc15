"""What a model is doing, in words, and how far along; and waiting until it has done it.

Owns the reading of a model's entry of `/v1/models`: which state is an end, which a failure. Must not ask for anything
to change.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from router.cli.formats import as_commands, clean, counted, percent, size
from router.cli.output import error_console, note, progress_bar
from router.cli.picture import share_of
from router.cli.shapes import LIST, MODEL, expect

if TYPE_CHECKING:
    from router.cli.server import Server

LOOK_EVERY_S = 0.25
"""How often the server is asked how far it is."""

_FAILED_STATES = frozenset({"failed", "backoff", "unavailable"})
_LEAVING_STATES = frozenset({"draining", "stopping"})
_WITHOUT_WORKER = frozenset({"source_failed", "spawn_failed", "hook_failed"})
_NO_FAILURES = frozenset({"stopped", "no_room"})
_EVERY_BIT_OF_A_SECOND = 1.0
"""How much older than it says an exit may be: times of the server are rounded."""

Entry = Mapping[str, Any]
"""A model as `/v1/models` has it."""


@dataclass(frozen=True, slots=True)
class Doing:
    """What a model is doing."""

    text: str
    fraction: float | None = None
    """How much of it is done, all parts of a download together; None = that is not known."""
    is_fetch: bool = False
    """It brings the file here: of all phases of that, there is one bar."""


@dataclass(frozen=True, slots=True)
class Ended:
    """What became of a model."""

    is_ok: bool
    text: str
    has_log: bool = False
    """A worker ran that may have printed why."""


def entry_of(server: Server, name: str) -> dict[str, Any]:
    """Return a model or alias as the server lists it. Raises: CommandFailed."""
    found = server.get(f"/v1/models/{quote(name, safe='/:')}")
    expect(found, MODEL, server.url, "the description of a model")
    return dict(found)


def listed_models(server: Server) -> list[dict[str, Any]]:
    """Return the models that the server lists, without their aliases. Raises: CommandFailed."""
    listed = server.get("/v1/models")
    expect(listed, LIST, server.url, "a list of models")
    return [one for one in listed["data"] if one.get("parent") is None]


def doing(entry: Entry, waiting_for: str | None = None) -> Doing:
    """Return what keeps a model busy; `waiting_for` is what it waits for itself."""
    state = str(entry.get("state") or "")
    progress = entry.get("progress")
    if state in _LEAVING_STATES:
        running = sum(int(worker.get("running_requests") or 0) for worker in entry.get("workers") or ())
        return Doing(f"{state}, {counted(running, 'request')} still running" if running else state)
    if isinstance(progress, Mapping):
        return _progress(progress)
    if state == "unloaded" and waiting_for:
        return Doing(f"waits for {waiting_for}")
    return Doing(state)


def load_ended(entry: Entry, waiting_for: str | None, elapsed_s: float) -> Ended | None:
    """Return how a load that was asked for `elapsed_s` ago has ended; None = it goes on."""
    state = str(entry.get("state") or "")
    if state == "ready":
        return Ended(True, "ready")
    if state in _FAILED_STATES:
        return Ended(False, as_commands(str(entry.get("reason") or state)), has_log=_has_log(entry))
    if state != "unloaded" or waiting_for:
        return None
    last_exit = entry.get("last_exit")
    ago_s = last_exit.get("ago_s") if isinstance(last_exit, Mapping) else None
    if isinstance(last_exit, Mapping) and ago_s is not None and ago_s <= elapsed_s + _EVERY_BIT_OF_A_SECOND:
        detail = str(last_exit.get("detail") or last_exit.get("reason") or "")
        if last_exit.get("reason") not in _NO_FAILURES:
            return Ended(False, as_commands(detail), has_log=_has_log(entry))
        return Ended(False, f"it is not loaded any more: {detail}")
    return Ended(False, "the server has given the load up: there was no room for it in limits.queue_timeout_s")


def unload_ended(entry: Entry) -> Ended | None:
    """Return how an unload has ended; None = it goes on."""
    states = [str(entry.get("state") or ""), *(str(one.get("state") or "") for one in entry.get("workers") or ())]
    if _LEAVING_STATES.isdisjoint(states):
        is_gone = not entry.get("workers")
        return Ended(True, "unloaded" if is_gone else f"unloaded, and {states[0]} again for a request that came after")
    return None


def wait_for(
    server: Server, names: Mapping[str, float], ended: Callable[[Entry, str | None, float], Ended | None]
) -> Iterator[tuple[str, Doing | Ended]]:
    """Yield every look at each model until all have ended; `names` tells when each was asked for.

    Raises: CommandFailed.
    """
    open_names = dict(names)
    missed: set[str] = set()
    while open_names:
        for name, since_s in list(open_names.items()):
            entry = entry_of(server, name)
            waiting_for = _waiting_for(server, name) if entry.get("state") == "unloaded" else None
            end = ended(entry, waiting_for, time.monotonic() - since_s)
            if end is not None and not end.is_ok and entry.get("state") == "unloaded" and name not in missed:
                missed.add(name)  # two looks, because a model may be between two states
                continue
            missed.discard(name)
            if end is not None:
                del open_names[name]
            yield name, end or doing(entry, waiting_for)
        if open_names:
            time.sleep(LOOK_EVERY_S)


@contextmanager
def shown_progress() -> Iterator[Callable[[str, Doing | Ended], None]]:
    """Inside the block, what is told of each model shows on stderr: bars on a terminal, a line a change elsewhere."""
    console = error_console()
    if not console.is_terminal or console.is_dumb_terminal:
        yield _PlainLines()
        return
    from rich.progress import Progress, TextColumn

    columns = (
        TextColumn("{task.fields[model]}", markup=False, style="bold"),
        progress_bar(),
        TextColumn("{task.description}", markup=False),
        TextColumn("{task.fields[clock]}", markup=False, style="yellow"),
    )
    with Progress(*columns, console=console, transient=True) as bars:
        tasks: dict[str, Any] = {}
        lengths: dict[str, Length] = {}
        began_s = time.monotonic()

        def show(name: str, what: Doing | Ended) -> None:
            if isinstance(what, Ended):
                if name in tasks:
                    bars.remove_task(tasks.pop(name))
                return
            if name not in tasks:
                tasks[name] = bars.add_task("", total=None, model=clean(name), clock="")
                lengths[name] = Length()
            fraction = lengths[name].of(what)
            # `update` takes no None for the total: what is not known runs to and fro.
            next(one for one in bars.tasks if one.id == tasks[name]).total = None if fraction is None else 1.0
            clock = _clock(time.monotonic() - began_s)
            bars.update(tasks[name], description=clean(what.text), completed=fraction or 0.0, clock=clock)

        yield show


class Length:
    """How long a model's bar is: through all phases of a fetch it never goes back."""

    def __init__(self) -> None:
        self._fetched: float | None = None

    def of(self, what: Doing) -> float | None:
        """Return the share of the bar that is full now; None = that is not known."""
        if not what.is_fetch:
            self._fetched = None
            return what.fraction
        if what.fraction is not None:
            self._fetched = max(self._fetched or 0.0, what.fraction)
        return self._fetched


def _clock(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}"


class _PlainLines:
    """Tells of each model what it does, once for each thing that it does."""

    def __init__(self) -> None:
        self._told: dict[str, str] = {}

    def __call__(self, name: str, what: Doing | Ended) -> None:
        if isinstance(what, Ended):
            return
        phase = what.text.partition(",")[0]
        if self._told.get(name) != phase:
            self._told[name] = phase
            note(f"{name}: {phase}")


def _progress(progress: Mapping[str, Any]) -> Doing:
    phase, fraction = str(progress.get("phase") or ""), share_of(progress)
    done, total = progress.get("done_bytes"), progress.get("total_bytes")
    detail = str(progress.get("detail") or "")
    if done is not None:
        amount = f"{size(done)} of {size(total)}" if total else size(done)
        return Doing(f"{' '.join(part for part in (phase, detail) if part)}, {amount}", fraction, is_fetch=True)
    return Doing(phase if fraction is None else f"{phase}, {percent(fraction)}", fraction)


def _has_log(entry: Entry) -> bool:
    """Return whether a worker was started, so that there may be lines of it."""
    last_exit = entry.get("last_exit")
    return isinstance(last_exit, Mapping) and last_exit.get("reason") not in _WITHOUT_WORKER


def _waiting_for(server: Server, name: str) -> str | None:
    from router.cli.server import Refused

    try:
        health = server.get("/health", model=name)
    except Refused as refusal:  # 503 = it cannot be asked now; the body tells the same
        health = refusal.body
    found = health.get("waiting_for") if isinstance(health, dict) else None
    return None if found is None else str(found)
