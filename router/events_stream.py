"""`GET /events` and `GET /models/sse`: what becomes of each model, and what else can be followed, as it happens.

Owns the two forms in which changes of a model are told, ours and the one of llama-server's router; the other topics
are `topics.py`'s. Must not cost anything while nobody listens, nor wait for anybody who does. docs/status.md describes
both streams.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import orjson
from aiohttp import web

from router.auth import Grant, Scope
from router.catalog import ModelSpec
from router.catalog_view import CatalogView
from router.dialects import EVENT_STREAM, Dialect
from router.errors import BadRequest
from router.fleet_views import FleetSnapshot, ModelView
from router.listing import Look, llama_server_status
from router.live_streams import LIVE_STREAMS, Kind, Outbox, write_until_left
from router.routes import Route
from router.services import SERVICES, Services, current_exchange
from router.shown_states import REMOTE
from router.topics import TOPIC_HUB, Topic

if TYPE_CHECKING:
    from router.supervisor import Supervisor

_PING = b": ping\n\n"
_CHANGES = "changes"
_ALL = "all"
_MAX_WAITING_BYTES = 4 * 2**20
"""For a follower of topics: a thousand models may change at once."""
_SCOPES = (Scope.INFERENCE, Scope.METRICS)


@dataclass(frozen=True, slots=True)
class _Shown:
    """What is told of one model; an event follows when any of it changes."""

    state: str
    phase: str | None
    fraction: float | None
    reason: str | None
    llama_server: Mapping[str, Any]


Tell = Callable[[str, _Shown | None, _Shown | None], Iterator[bytes]]
"""Makes events of a model's name, what was shown of it (None = it is new) and what is (None = it is gone)."""


async def get_events(request: web.Request) -> web.StreamResponse:
    """Answer with what is and then with every change, as server-sent events: of models, or of `?topics=`."""
    grant = current_exchange().grant
    names = _topic_names(request, grant)
    topics = [Topic(name) for name in names if name != _CHANGES]
    if not topics:
        return await _stream(request, _tell_ours)
    hub, services = request.app[TOPIC_HUB], request.app[SERVICES]
    with contextlib.ExitStack() as stack:
        open_ = partial(request.app[LIVE_STREAMS].open, Kind.EVENTS, grant, left_out=None)
        box = stack.enter_context(open_(max_bytes=_MAX_WAITING_BYTES))
        if _CHANGES in names:
            stack.enter_context(
                request.app[EVENT_HUB].told(services.supervisor, box, _seen(services, grant, _tell_ours))
            )
        stack.enter_context(hub.followed(services, box, topics, grant))
        scopes = {"X-Corral-Scopes": ", ".join(sorted(grant.scopes))}  # so that a page hides what its key may not do
        return await _write(request, box, headers=scopes)


async def get_models_sse(request: web.Request) -> web.StreamResponse:
    """Answer with the changes of models in the form of llama-server's router."""
    return await _stream(request, _tell_as_llama_server)


ROUTES = (
    Route("GET", "/events", get_events, scopes=_SCOPES),
    Route("GET", "/models/sse", get_models_sse, scopes=_SCOPES, dialect=Dialect.LLAMA),
)


class EventHub:
    """Looks at the fleet once for all who listen, and at nothing while nobody does."""

    def __init__(self) -> None:
        self._listeners: dict[Outbox, Tell] = {}
        self._shown: dict[str, _Shown] = {}
        self._keys: dict[str, object] = {}
        """By model without a worker: what its entry in `_shown` depends on."""
        self._leave: Callable[[], None] | None = None

    @contextmanager
    def told(self, supervisor: Supervisor, box: Outbox, tell: Tell) -> Iterator[None]:
        """Inside the block `box` gets what is, and then every change."""
        if self._leave is None:
            self._leave = supervisor.watch(partial(self._note, supervisor))
        self._note(supervisor, supervisor.snapshot())
        # One piece, however many models there are: it must not count as falling behind.
        box.push(b"".join(event for name, shown in self._shown.items() for event in tell(name, None, shown)))
        self._listeners[box] = tell
        try:
            yield
        finally:
            del self._listeners[box]
            if not self._listeners:
                self._leave()
                self._leave = None
                self._shown, self._keys = {}, {}

    def _note(self, supervisor: Supervisor, fleet: FleetSnapshot) -> None:
        look = Look.at(supervisor, fleet)
        models = supervisor.catalog.models
        for spec in models.values():
            key = _key(spec, fleet.models.get(spec.name))
            if key is not None and self._keys.get(spec.name) == key:
                continue
            self._keys[spec.name] = key
            self._change(spec.name, _show(look, spec))
        for name in self._shown.keys() - models.keys():
            self._change(name, None)

    def _change(self, name: str, after: _Shown | None) -> None:
        before = self._shown.get(name)
        if before == after:
            return
        if after is None:
            del self._shown[name]
            self._keys.pop(name, None)
        else:
            self._shown[name] = after
        for box, tell in list(self._listeners.items()):
            for event in tell(name, before, after):
                box.push(event)


EVENT_HUB = web.AppKey("event_hub", EventHub)


def _topic_names(request: web.Request, grant: Grant) -> set[str]:
    """Return what the client wants to follow. Raises: BadRequest, Forbidden."""
    asked = [name.strip() for value in request.query.getall("topics", []) for name in value.split(",")]
    names = {name for name in asked if name} or {_CHANGES}
    known = (_CHANGES, *(topic.value for topic in Topic), _ALL)
    if unknown := sorted(names - set(known)):
        raise BadRequest(
            f"`{unknown[0][:80]}` is no topic; the topics are {', '.join(known)}, several with commas between them",
            param="topics",
        )
    may_see_requests = Scope.ADMIN in grant.scopes or Scope.METRICS in grant.scopes
    if Topic.REQUESTS in names and not may_see_requests:
        grant.require(Scope.METRICS)
    if _ALL in names:  # all that the key may see
        names |= {topic.value for topic in Topic if may_see_requests or topic is not Topic.REQUESTS}
    return names - {_ALL}


async def _stream(request: web.Request, tell: Tell) -> web.StreamResponse:
    services, hub = request.app[SERVICES], request.app[EVENT_HUB]
    places, grant = request.app[LIVE_STREAMS], current_exchange().grant
    seen = _seen(services, grant, tell)
    with places.open(Kind.EVENTS, grant, left_out=None) as box, hub.told(services.supervisor, box, seen):
        return await _write(request, box)


def _seen(services: Services, grant: Grant, tell: Tell) -> Tell:
    """Return what tells the same of the models that `grant` may watch, and nothing of the others."""
    if grant.tells_folders and not grant.visible:
        return tell
    known: set[str] = set()

    def told(name: str, before: _Shown | None, after: _Shown | None) -> Iterator[bytes]:
        view = CatalogView(services.supervisor.catalog, grant.visible, tells_folders=grant.tells_folders)
        was_known = name in known
        if after is not None and view.shows(name):
            known.add(name)
            if after.reason is not None:
                reason = view.without_strangers(after.reason)
                status = {**after.llama_server, "reason": reason}
                after = replace(after, reason=reason, llama_server=status)
            yield from tell(name, before if was_known else None, after)
        elif was_known:
            known.discard(name)
            yield from tell(name, before, None)

    return told


async def _write(request: web.Request, box: Outbox, headers: Mapping[str, str] | None = None) -> web.StreamResponse:
    # Who reads nothing would keep its place for ever: newer states take the places of those that wait.
    services = request.app[SERVICES]
    return await write_until_left(
        request,
        box,
        EVENT_STREAM,
        ping=_PING,
        headers=headers,
        max_stall_s=services.settings.max_client_stall_s or None,
        may_go_on=partial(services.keys.still_grants, current_exchange().grant),
    )


def _key(spec: ModelSpec, view: ModelView | None) -> object:
    """Return what tells whether a model without a worker has changed; None for one that has to be looked at."""
    if view is None:
        return (spec.problem, None)
    return None if view.residents else (spec.problem, view.state, view.last_exit)


def _show(look: Look, spec: ModelSpec) -> _Shown:
    view = look.fleet.models.get(spec.name)
    is_still = spec.remote is not None or view is None or not view.residents
    progress = None if is_still else look.progress(spec)
    return _Shown(
        state=look.state(spec),
        phase=None if progress is None else progress["phase"],
        # Whole hundredths: who watches a bar needs no more, and a bar that creeps makes no thousand events.
        fraction=None if progress is None or progress["fraction"] is None else round(progress["fraction"], 2),
        reason=look.reason(spec),
        llama_server=llama_server_status(look, spec),
    )


def _tell_ours(name: str, before: _Shown | None, after: _Shown | None) -> Iterator[bytes]:
    at = round(time.time(), 3)
    if after is None:
        yield _event({"model": name, "at": at}, "removed")
        return
    told: dict[str, Any] = {"model": name, "state": after.state, "at": at}
    if after.phase is not None:
        told["progress"] = {"phase": after.phase, "fraction": after.fraction}
    if after.reason is not None:
        told["reason"] = after.reason
    yield _event(told, "added" if before is None else "changed")


def _tell_as_llama_server(name: str, before: _Shown | None, after: _Shown | None) -> Iterator[bytes]:
    """Source: llama.cpp, tools/server/server-models.cpp, `notify_sse`, `update_status`, `update_download_progress`."""
    if after is None:
        yield _event({"model": name, "event": "model_remove"})
        return
    if after.state == REMOTE and before is not None:
        return
    status = dict(after.llama_server)
    word = status.pop("value")
    if word == "downloading" and before is not None and before.llama_server["value"] == word:
        progress = {name: {"done": round(100 * (after.fraction or 0.0)), "total": 100}}
        yield _event({"model": name, "event": "download_progress", "data": {"progress": progress}})
        return
    data = {"status": word} | {key: status[key] for key in ("progress", "exit_code", "reason") if key in status}
    if word == "unloaded":
        data.setdefault("exit_code", 1 if after.reason is not None else 0)
    yield _event({"model": name, "event": "model_status" if before is None else "status_change", "data": data})


def _event(told: Mapping[str, Any], kind: str | None = None) -> bytes:
    head = b"" if kind is None else b"event: " + kind.encode() + b"\n"
    return head + b"data: " + orjson.dumps(told) + b"\n\n"
