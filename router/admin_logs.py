"""`GET /admin/logs`: the last lines that a model's worker, or the router itself, has printed, and those to come.

Owns the query and the text. Must not slow down who prints: lines that a client does not read in time are left out of
its reply. Neither log has prompts or answers in it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial

from aiohttp import web

from router.auth import Scope
from router.catalog import ModelSpec
from router.errors import BadRequest, NotFound
from router.events import WorkerId
from router.live_streams import LIVE_STREAMS, Kind, Outbox, write_until_left
from router.log_tail import LineBuffer, LogTail
from router.recent_log import recent_lines
from router.routes import Route
from router.services import SERVICES, Services, current_exchange

MAX_LINES = 10_000
"""That may be asked for; fewer are kept."""
_TEXT = "text/plain; charset=utf-8"
_LEFT_OUT = "[{} lines are left out here: they came faster than they were read]\n"
_LOOK_EVERY_S = 1.0
"""How soon the lines of a new worker of the model are followed too."""
_YES, _NO = frozenset({"true", "1", "yes"}), frozenset({"", "false", "0", "no"})
_KNOWN = ("follow", "lines", "model")


async def get_logs(request: web.Request) -> web.StreamResponse:
    """Answer with the last lines of `model`'s worker (without `model`: of the router); with `follow`, new ones too."""
    services = request.app[SERVICES]
    query = request.query
    if unknown := sorted(set(query) - set(_KNOWN)):
        raise BadRequest(f"`{unknown[0]}` is not an option here; there are `model`, `lines` and `follow`")
    is_followed = _read_flag(query.get("follow", ""))
    num_lines = _read_count(query.get("lines"))
    source = _own_source() if "model" not in query else _worker_source(services, query["model"])
    if not is_followed:
        return web.Response(text=_joined(source.last(num_lines)), headers={"Cache-Control": "no-store"})
    grant = current_exchange().grant
    with request.app[LIVE_STREAMS].open(Kind.LOGS, grant, left_out=_LEFT_OUT) as box:
        box.push(_joined(source.last(num_lines)).encode())
        with source.followed(box):
            return await write_until_left(request, box, _TEXT, may_go_on=partial(services.keys.still_grants, grant))


ROUTES = (Route("GET", "/admin/logs", get_logs, scopes=(Scope.ADMIN,)),)


class _Own:
    """The router's log."""

    def __init__(self, lines: LineBuffer) -> None:
        self._lines = lines

    def last(self, num_lines: int | None) -> list[str]:
        return _last(self._lines.lines(), num_lines)

    @contextmanager
    def followed(self, box: Outbox) -> Iterator[None]:
        """Every new line goes into `box` inside the block."""
        leave = self._lines.listen(_pusher(box))
        try:
            yield
        finally:
            leave()


class _OfWorkers:
    """What the workers of one model print, each line with the worker's number where there may be several."""

    def __init__(self, services: Services, spec: ModelSpec) -> None:
        self._services = services
        self._model = spec.name

    def last(self, num_lines: int | None) -> list[str]:
        lines = []
        for worker, log in self._logs():
            prefix = self._prefix(worker)
            lines += [prefix + line for line in _last(log.lines(), num_lines)]
        return lines

    @contextmanager
    def followed(self, box: Outbox) -> Iterator[None]:
        """Every new line goes into `box` inside the block, also of workers that start meanwhile."""
        with ExitStack() as leaving:
            followed: set[WorkerId] = set()
            for worker, log in self._logs():
                followed.add(worker)
                leaving.callback(log.listen(_pusher(box, self._prefix(worker))))
            looking = asyncio.create_task(self._follow_new(box, followed, leaving), name="follow new workers")
            leaving.callback(looking.cancel)
            yield

    async def _follow_new(self, box: Outbox, followed: set[WorkerId], leaving: ExitStack) -> None:
        while True:
            await asyncio.sleep(_LOOK_EVERY_S)
            for worker, log in self._logs():
                if worker not in followed:
                    followed.add(worker)
                    push = _pusher(box, self._prefix(worker))
                    push(log.lines())
                    leaving.callback(log.listen(push))

    def _logs(self) -> Sequence[tuple[WorkerId, LogTail]]:
        return self._services.supervisor.logs(self._model)

    def _prefix(self, worker: WorkerId) -> str:
        spec = self._services.supervisor.catalog.models.get(self._model)
        return f"[{worker.replica}] " if spec is not None and spec.replicas > 1 else ""


def _own_source() -> _Own:
    lines = recent_lines()
    if lines is None:
        raise NotFound("this program keeps no log lines of its own; name a worker's model with ?model=NAME")
    return _Own(lines)


def _worker_source(services: Services, name: str) -> _OfWorkers:
    """Return the log of the model that `name` stands for. Raises: ModelNotFound, NotFound."""
    spec = services.supervisor.catalog.resolve(name).spec
    if spec.remote is not None:
        raise NotFound(f"`{spec.name}` is on another server: there is no worker here whose lines could be shown")
    return _OfWorkers(services, spec)


def _pusher(box: Outbox, prefix: str = "") -> Callable[[Sequence[str]], None]:
    """Return what puts lines into `box`, from whichever thread it is called."""
    loop = asyncio.get_running_loop()

    def push(lines: Sequence[str]) -> None:
        piece = _joined([prefix + line for line in lines]).encode()
        if piece and not loop.is_closed():
            loop.call_soon_threadsafe(partial(box.push, piece))

    return push


def _last(lines: list[str], num_lines: int | None) -> list[str]:
    return lines if num_lines is None else lines[len(lines) - min(num_lines, len(lines)) :]


def _joined(lines: Sequence[str]) -> str:
    return "".join(f"{line}\n" for line in lines)


def _read_flag(text: str) -> bool:
    if text.lower() not in _YES | _NO:
        raise BadRequest("`follow` must be true or false", param="follow")
    return text.lower() in _YES


def _read_count(text: str | None) -> int | None:
    if text is None:
        return None
    if not (text.isascii() and text.isdecimal() and int(text[:9]) <= MAX_LINES):
        raise BadRequest(f"`lines` must be a number from 0 to {MAX_LINES}", param="lines")
    return int(text)
