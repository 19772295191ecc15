"""The topics of `GET /events` beside `changes`: the server, models, slots, devices, queue and requests as they are.

Owns when they are looked at and what of them has changed. Costs nothing while nobody follows: there is no timer, and
nothing is kept. However many follow, each topic is looked at once a second. What is told is `status_views.py`'s.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Protocol

import orjson
from aiohttp import web

from router.auth import Grant, Scope
from router.live_streams import Outbox
from router.recent_requests import RecentRequests, Record, shown
from router.status_views import Scene, view_devices, view_model, view_queue, view_server, view_slots

if TYPE_CHECKING:
    from router.catalog import ModelSpec
    from router.fleet_views import ModelView
    from router.services import Services

logger = logging.getLogger(__name__)

EVERY_S: Final = 1.0
"""Between two looks at least."""
NUM_RECENT: Final = 100
"""Requests that a new follower is told of."""
_COARSE_BYTES: Final = 2**22
"""Changes of memory that are less than this are not worth an event."""


class Topic(StrEnum):
    """What can be followed, in the order in which a new follower is told of it."""

    SERVER = "server"
    DEVICES = "devices"
    MODELS = "models"
    SLOTS = "slots"
    QUEUE = "queue"
    REQUESTS = "requests"


@dataclass(frozen=True, slots=True)
class Piece:
    """One event, ready to be sent."""

    event: bytes
    state_of: str | None = None
    """What it tells all of, so that it makes an earlier one worthless; None = it tells of something that happened."""


class Source(Protocol):
    """What one topic is told from, as long as somebody follows it."""

    def changes(self, scene: Scene) -> Iterable[Piece]:
        """Return what has changed since the last call; at first everything."""
        ...

    def now(self, scene: Scene) -> Iterable[Piece]:
        """Return everything, as it was at the last call of `changes` or is in `scene`. Comes after a call of it."""
        ...

    def close(self) -> None:
        """Nobody follows any more."""
        ...


class Whole:
    """A topic of which all is told whenever something has changed."""

    def __init__(self, kind: str, view: Callable[[Scene], Any], coarse: Callable[[Any], Any] | None = None) -> None:
        """`coarse` returns what of a view must differ for an event; None = all of it."""
        self._kind = kind
        self._view = view
        self._coarse = coarse
        self._last: object = None
        self._piece: Piece | None = None

    def changes(self, scene: Scene) -> Iterable[Piece]:
        view = self._view(scene)
        key = orjson.dumps(view if self._coarse is None else self._coarse(view))
        if key == self._last:
            return ()
        self._last, self._piece = key, Piece(encode_event(self._kind, view), self._kind)
        return (self._piece,)

    def now(self, _: Scene) -> Iterable[Piece]:
        return () if self._piece is None else (self._piece,)

    def close(self) -> None:
        self._piece = None


class Models:
    """Each model by itself: of a thousand only those are told that have changed."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[object, bytes, Piece]] = {}
        """By name: what tells whether a model at rest has changed, what was told of one that is not, and the event."""

    def changes(self, scene: Scene) -> Iterable[Piece]:
        models = scene.visible.models
        pieces = [piece for spec in models.values() if (piece := self._change(scene, spec)) is not None]
        for name in self._known.keys() - models.keys():
            del self._known[name]
            pieces.append(Piece(encode_event("model_removed", {"model": name}), f"model {name}"))
        return pieces

    def _change(self, scene: Scene, spec: ModelSpec) -> Piece | None:
        view, known = scene.look.fleet.models.get(spec.name), self._known.get(spec.name)
        key = _rest_key(scene, spec, view)
        if known is not None and key is not None and known[0] == key:
            return None
        model = view_model(scene, spec)
        told = orjson.dumps(_steady(model, scene, view))
        if known is not None and known[1] == told:
            self._known[spec.name] = key, told, known[2]
            return None
        piece = Piece(encode_event("model", model), f"model {spec.name}")
        self._known[spec.name] = key, told, piece
        return piece

    def now(self, scene: Scene) -> Iterable[Piece]:
        models, views = scene.visible.models, scene.look.fleet.models
        for name, (_, _, piece) in self._known.items():
            spec, view = models.get(name), views.get(name)
            if spec is None or view is None or not (view.residents or view.last_exit):
                yield piece
            else:  # it tells how long something takes yet, or was ago, and that has changed since
                yield Piece(encode_event("model", view_model(scene, spec)), piece.state_of)

    def close(self) -> None:
        self._known.clear()


def _rest_key(scene: Scene, spec: ModelSpec, view: ModelView | None) -> object:
    """Return what all of a model at rest depends on, times that pass left aside; None = it is not at rest."""
    if view is None:
        return spec, scene.services.remotes.num_running(spec.name)
    if view.residents or view.queue_length or spec.name in scene.look.fetches:
        return None
    supervisor = scene.services.supervisor
    pin = view.is_pinned, view.is_pin_ordered
    facts = view.footprint, view.impossible, supervisor.header_of(spec), supervisor.context_of(spec)
    return spec, view.state, view.last_exit, view.num_starts, view.blocked_by, pin, facts


def _steady(model: Mapping[str, Any], scene: Scene, view: ModelView | None) -> dict[str, Any]:
    """Return what is told of a model without that which only time has changed, and memory in coarse steps."""
    steady = dict(model)
    steady["retry_in_s"] = None
    if (exit_ := steady.get("last_exit")) is not None:
        steady["last_exit"] = exit_ | {"at": None, "ago_s": None}
    if view is not None:
        steady["idle_unload_in_s"] = [resident.idle_unload_at_s for resident in view.residents]
    for name in ("memory", "workers"):
        if name in steady:
            steady[name] = _coarse(steady[name])
    return steady


def _coarse(value: Any) -> Any:
    """Return the value with all that is measured in bytes in coarse steps."""
    if isinstance(value, Mapping):
        return {
            key: one // _COARSE_BYTES if str(key).endswith("_bytes") and isinstance(one, int) else _coarse(one)
            for key, one in value.items()
        }
    return [_coarse(one) for one in value] if isinstance(value, list) else value


class Requests:
    """The requests that have ended."""

    def __init__(self, recent: RecentRequests, on_news: Callable[[], None], *, with_keys: bool) -> None:
        self._recent = recent
        self._on_news = on_news
        self._with_keys = with_keys
        self._new: list[Record] | None = None
        """None = nothing has been told yet."""
        self._unwatch = recent.watch(self._note)

    def _note(self, record: Record) -> None:
        if self._new is not None:
            self._new.append(record)
            self._on_news()

    def changes(self, scene: Scene) -> Iterable[Piece]:
        if self._new is None:
            self._new = []
            return self.now(scene)
        new, self._new = self._new, []
        return [Piece(encode_event("request", shown(record, with_key=self._with_keys))) for record in new]

    def now(self, _: Scene) -> Iterable[Piece]:
        num_new = len(self._new or ())
        told = self._recent.last(NUM_RECENT + num_new)
        told = told[: max(0, len(told) - num_new)]  # those are told to everybody with the next look
        records = [shown(record, with_key=self._with_keys) for record in told]
        return [Piece(encode_event(Topic.REQUESTS, records))]

    def close(self) -> None:
        self._unwatch()


@dataclass(frozen=True, slots=True)
class Channel:
    """A topic as some followers see it."""

    topic: Topic
    is_full: bool = False
    """What only administrators may know is told too: whose key a request came with, what is wrong with the file."""
    names: tuple[str, ...] = ()
    """Which models are told of, as keys name them; () = all."""
    tells_folders: bool = True
    """Where on the machine files lie is told too."""

    def seen(self, scene: Scene) -> Scene:
        """Return the same instant for its followers."""
        return scene.seen_by(self.names, tells_folders=self.tells_folders)


class TopicHub:
    """Looks for all who follow, and at nothing while nobody does."""

    def __init__(self, every_s: float = EVERY_S) -> None:
        self.every_s = every_s
        self._followers: dict[Outbox, list[Channel]] = {}
        self._sources: dict[Channel, Source] = {}
        self._news = asyncio.Event()
        self._looking: asyncio.Task[None] | None = None
        self._unwatch: Callable[[], None] = lambda: None
        self._is_stopping = False

    def tell_stop(self, services: Services) -> None:
        """The server says from now on that it is draining; those who follow it are told at once."""
        self._is_stopping = True
        self._look(Scene.of(services))

    def _view_server(self, scene: Scene, *, is_full: bool) -> dict[str, Any]:
        view = view_server(scene, in_full=is_full)
        return view | {"status": "draining"} if self._is_stopping else view

    @contextmanager
    def followed(self, services: Services, box: Outbox, topics: Iterable[Topic], grant: Grant) -> Iterator[None]:
        """Inside the block `box` gets what is of `topics`, as far as `grant` goes, and then every change."""
        wanted, is_admin = set(topics), Scope.ADMIN in grant.scopes
        channels = [
            Channel(
                topic, is_admin and topic in _FULLER, grant.visible, grant.tells_folders or topic is not Topic.MODELS
            )
            for topic in Topic
            if topic in wanted
        ]
        if not channels:
            yield
            return
        self._followers[box] = channels
        try:
            # One piece, however many models there are: it must not count as falling behind.
            box.push(b"".join(piece.event for piece in self._all_of(services, channels)))
            if self._looking is None:
                self._begin(services)
            yield
        finally:
            del self._followers[box]
            self._close_unused()

    def _all_of(self, services: Services, channels: Iterable[Channel]) -> Iterator[Piece]:
        """Yield what is; from now on somebody follows these channels."""
        scene = Scene.of(services)
        for channel in channels:
            seen = channel.seen(scene)
            if channel in self._sources:
                yield from self._sources[channel].now(seen)
            else:
                source = self._sources[channel] = self._open(services, channel)
                yield from source.changes(seen)

    def _open(self, services: Services, channel: Channel) -> Source:
        match channel.topic:
            case Topic.SERVER:
                return Whole("server", partial(self._view_server, is_full=channel.is_full))
            case Topic.DEVICES:
                return Whole("devices", view_devices, _coarse)
            case Topic.MODELS:
                return Models()
            case Topic.SLOTS:
                return Whole("slots", view_slots)
            case Topic.QUEUE:
                return Whole("queue", partial(view_queue, with_keys=channel.is_full))
            case Topic.REQUESTS:
                return Requests(services.recent, self._news.set, with_keys=channel.is_full)

    def _begin(self, services: Services) -> None:
        self._news.clear()
        self._unwatch = services.supervisor.watch(lambda _: self._news.set())
        self._looking = asyncio.get_running_loop().create_task(self._look_on(services), name="topics of /events")
        self._looking.add_done_callback(self._note_end)

    def _close_unused(self) -> None:
        used = {channel for channels in self._followers.values() for channel in channels}
        for channel in self._sources.keys() - used:
            self._sources.pop(channel).close()
        if not self._followers and self._looking is not None:
            self._looking.cancel()
            self._looking = None
            self._unwatch()

    async def _look_on(self, services: Services) -> None:
        is_busy = True
        while True:
            await asyncio.sleep(self.every_s)
            if not is_busy:  # what then happens is told at once
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(self.every_s):
                        await self._news.wait()
            self._news.clear()
            is_busy = self._look(Scene.of(services))

    def _look(self, scene: Scene) -> bool:
        """Tell all followers what has changed; return whether work is going on, so that the next look is due soon."""
        scenes = {(one.names, one.tells_folders): one.seen(scene) for one in self._sources}
        for channel, source in self._sources.items():
            pieces = list(source.changes(scenes[channel.names, channel.tells_folders]))
            for box in [box for box, channels in self._followers.items() if channel in channels] if pieces else ():
                for piece in pieces:
                    box.push(piece.event, state_of=piece.state_of)
        views = scene.look.fleet.models.values()
        return bool(scene.look.fetches) or any(view.residents or view.queue_length for view in views)

    def _note_end(self, task: asyncio.Task[None]) -> None:
        if task.cancelled():
            return
        logger.error("the events of topics end: this is a fault of the router", exc_info=task.exception())
        if self._looking is task:  # who comes from now on is looked for again
            self._looking = None
            self._unwatch()
        for box in list(self._followers):
            box.close()


_FULLER = frozenset({Topic.SERVER, Topic.QUEUE, Topic.REQUESTS})
"""Topics that tell administrators more than others."""


def encode_event(kind: str, told: Any) -> bytes:
    """Return a server-sent event of this kind."""
    return b"event: " + kind.encode() + b"\ndata: " + orjson.dumps(told) + b"\n\n"


TOPIC_HUB = web.AppKey("topic_hub", TopicHub)
