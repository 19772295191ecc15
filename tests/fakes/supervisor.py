"""A supervisor without processes: leases lead to a worker in this process, whose answers are scripted frames.

Owns just enough to test the HTTP side: what a lease gives or refuses, and what goes over the socket.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from aiohttp import web

from router.catalog import Catalog, ModelSpec
from router.errors import RouterError
from router.events import WorkerExit, WorkerId
from router.fetch.protocol import FetchProgress
from router.fleet_views import DeviceView, FleetSnapshot, ModelView, ResidentView, WaiterView
from router.gguf_header import GgufHeader
from router.lifecycle import WorkerState
from router.log_tail import LogTail
from router.worker_session import WorkerSession
from worker.contract import FRAMES_CONTENT_TYPE, ErrorPayload, FrameType, Header, WorkerStatus, encode_frame

JSON = "application/json"
EVENTS = "text/event-stream"


@dataclass
class Received:
    """One request as the worker got it."""

    path: str
    headers: dict[str, str]
    raw: bytes

    @property
    def body(self) -> dict[str, Any]:
        body: dict[str, Any] = json.loads(self.raw)
        return body


class Sender:
    """What a script writes its answer with."""

    def __init__(self, request: web.Request, content_type: str) -> None:
        self._request = request
        self._response = web.StreamResponse(
            headers={"Content-Type": FRAMES_CONTENT_TYPE, Header.CONTENT_TYPE: content_type}
        )

    @property
    def headers(self) -> Any:
        return self._response.headers

    @property
    def response(self) -> web.StreamResponse:
        return self._response

    async def start(self) -> None:
        await self._response.prepare(self._request)

    async def raw(self, data: bytes) -> None:
        await self.start()
        await self._response.write(data)

    async def data(self, data: bytes) -> None:
        await self.raw(encode_frame(FrameType.DATA, data))

    async def error(self, error: ErrorPayload) -> None:
        await self.raw(encode_frame(FrameType.ERROR, error.to_json()))

    async def end(self, outcome: str = "ok", **more: Any) -> None:
        await self.raw(encode_frame(FrameType.END, json.dumps({"outcome": outcome} | more).encode()))

    def cut(self) -> None:
        """The worker dies: its connection ends where it is."""
        assert self._request.transport is not None
        self._request.transport.abort()


Script = Callable[[Received, Sender], Awaitable[None]]


async def say_hello(received: Received, sender: Sender) -> None:
    """Answer "hello", as a stream or whole, as the request asked."""
    usage = {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}
    if received.body.get("stream") is True:
        sender.headers[Header.CONTENT_TYPE] = EVENTS
        await sender.data(b'data: {"n":1}\n\n')
        await sender.data(b"data: [DONE]\n\n")
    else:
        await sender.data(b'{"text":"hello"}')
    await sender.end(usage=usage, finish_reasons=["stop"])


class ScriptedWorker:
    """Serves a Unix socket; every request is answered by `script`."""

    def __init__(self, socket_path: Path) -> None:
        self.socket_path = socket_path
        self.script: Script = say_hello
        self.received: list[Received] = []
        self.num_aborted = 0
        self.aborted = asyncio.Event()
        self.arrived = asyncio.Event()
        self._runner: web.AppRunner | None = None

    async def start(self) -> None:
        app = web.Application(client_max_size=2**30)
        app.router.add_post("/{path:.*}", self._answer)
        self._runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)
        await self._runner.setup()
        await web.UnixSite(self._runner, str(self.socket_path)).start()

    async def stop(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()
        self.socket_path.unlink(missing_ok=True)

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        received = Received(request.path, dict(request.headers), await request.read())
        self.received.append(received)
        self.arrived.set()
        sender = Sender(request, JSON)
        try:
            await self.script(received, sender)
        except asyncio.CancelledError:
            self.num_aborted += 1
            self.aborted.set()
            raise
        return sender.response


@dataclass
class FakeLease:
    worker: WorkerId
    session: WorkerSession
    queue_s: float = 0.25
    load_s: float = 0.5
    ready_ago_s: float = 0.0


@dataclass
class FakeSupervisor:
    """Grants leases to the workers at `sockets`, in turn; the last one stays."""

    catalog: Catalog
    sockets: list[Path]
    load_s: float = 0.5
    """What its leases say of their models' loads."""
    refusal: RouterError | None = None
    gate: asyncio.Event | None = None
    """Leases wait for it."""
    waiting: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when a request waits for a lease."""
    num_leases: int = 0
    granted: list[tuple[str, int, str | None]] = field(default_factory=list)
    going_first: list[bool] = field(default_factory=list)
    """Of each lease that was granted: whether it comes before its equals."""
    prefixes: list[tuple[int, ...]] = field(default_factory=list)
    """Of each lease that was granted."""
    shares: list[tuple[str | None, float, int | None]] = field(default_factory=list)
    """Of each lease that has ended: key, weight, tokens."""
    keep_alives: list[float | None] = field(default_factory=list)
    """Of each lease that was granted."""
    kept_alive: list[tuple[str, float]] = field(default_factory=list)
    """Models that were told how long to stay without a lease."""
    loaded: list[str] = field(default_factory=list)
    unloaded: list[str] = field(default_factory=list)
    pin_orders: dict[str, bool | None] = field(default_factory=dict)
    queue: list[WaiterView] = field(default_factory=list)
    devices: tuple[DeviceView, ...] = ()
    views: dict[str, ModelView] = field(default_factory=dict)
    statuses: dict[WorkerId, WorkerStatus] = field(default_factory=dict)
    earlier_statuses: dict[WorkerId, WorkerStatus] = field(default_factory=dict)
    progress: dict[str, FetchProgress] = field(default_factory=dict)
    contexts: dict[str, int] = field(default_factory=dict)
    headers: dict[str, GgufHeader] = field(default_factory=dict)
    hung_workers: dict[WorkerId, str] = field(default_factory=dict)
    worker_logs: dict[str, list[tuple[WorkerId, LogTail]]] = field(default_factory=dict)
    watchers: list[Callable[[FleetSnapshot], None]] = field(default_factory=list)
    is_shutting_down: bool = False
    num_looks_at_files: int = 0
    num_snapshots: int = 0
    _sessions: list[WorkerSession] = field(default_factory=list)

    @asynccontextmanager
    async def lease(
        self,
        spec: ModelSpec,
        *,
        priority: int = 0,
        key_id: str | None = None,
        prefixes: tuple[int, ...] = (),
        keep_alive_s: float | None = None,
        request_id: str | None = None,
        weight: float = 1.0,
        goes_first: bool = False,
        num_tokens: Callable[[], int | None] = lambda: None,
    ) -> AsyncIterator[FakeLease]:
        self.num_leases += 1
        try:
            if self.gate is not None:
                self.waiting.set()
                await self.gate.wait()
            if self.refusal is not None:
                raise self.refusal
            self.granted.append((spec.name, priority, key_id))
            self.prefixes.append(prefixes)
            self.going_first.append(goes_first)
            self.keep_alives.append(keep_alive_s)
            path = self.sockets[0] if len(self.sockets) == 1 else self.sockets.pop(0)
            session = WorkerSession(path)
            self._sessions.append(session)
            yield FakeLease(WorkerId(spec.name, 0, len(self.granted)), session, load_s=self.load_s)
        finally:
            self.num_leases -= 1
            self.shares.append((key_id, weight, num_tokens()))

    async def close(self) -> None:
        for session in self._sessions:
            await session.close()

    def load(self, model: str) -> None:
        self.loaded.append(model)

    def unload(self, model: str) -> None:
        self.unloaded.append(model)

    def keep_alive(self, model: str, seconds: float) -> None:
        self.kept_alive.append((model, seconds))

    def pin(self, model: str, pin: bool | None) -> None:
        self.pin_orders[model] = pin

    def is_pinned(self, model: str) -> bool:
        pin, spec = self.pin_orders.get(model), self.catalog.models.get(model)
        return (spec is not None and spec.pin) if pin is None else pin

    def look_at_files(self) -> None:
        self.num_looks_at_files += 1

    def set_catalog(self, catalog: Catalog) -> None:
        self.catalog = catalog

    def snapshot(self) -> FleetSnapshot:
        self.num_snapshots += 1
        views = {}
        for name, spec in self.catalog.models.items():
            if spec.remote is not None:
                continue  # other servers' models are not the fleet's
            view, pin = self.views.get(name) or make_view(name), self.pin_orders.get(name)
            if spec.pin or pin is not None:
                is_pinned = spec.pin if pin is None else pin
                view = replace(view, is_pinned=is_pinned, is_pin_ordered=pin is not None)
            views[name] = view
        return FleetSnapshot(views, self.is_shutting_down, self.devices)

    def status(self, worker: WorkerId) -> WorkerStatus | None:
        return self.statuses.get(worker)

    def earlier_status(self, worker: WorkerId) -> WorkerStatus | None:
        return self.earlier_statuses.get(worker)

    def waiters(self) -> list[WaiterView]:
        return self.queue

    def fetches(self) -> dict[str, FetchProgress]:
        return dict(self.progress)

    def hung(self) -> Mapping[WorkerId, str]:
        return self.hung_workers

    def logs(self, model: str) -> Sequence[tuple[WorkerId, LogTail]]:
        return self.worker_logs.get(model, ())

    def watch(self, watcher: Callable[[FleetSnapshot], None]) -> Callable[[], None]:
        self.watchers.append(watcher)
        return lambda: self.watchers.remove(watcher)

    def note_change(self) -> None:
        """Something about a model has changed: whoever watches sees the fleet as it is now."""
        for watcher in list(self.watchers):
            watcher(self.snapshot())

    def header_of(self, spec: ModelSpec) -> GgufHeader | None:
        return self.headers.get(spec.name)

    def context_of(self, spec: ModelSpec) -> int | None:
        return self.contexts.get(spec.name, spec.context)


def make_view(
    name: str,
    state: WorkerState = WorkerState.UNLOADED,
    *,
    residents: tuple[ResidentView, ...] = (),
    last_exit: WorkerExit | None = None,
    queue_length: int = 0,
    oldest_wait_s: float | None = None,
) -> ModelView:
    return ModelView(
        name=name,
        state=state,
        queue_length=queue_length,
        oldest_wait_s=oldest_wait_s,
        residents=residents,
        last_exit=last_exit,
        last_exit_ago_s=None if last_exit is None else 3.0,
        retry_in_s=None,
        num_starts=0,
        blocked_by=None,
    )


def make_resident(model: str, state: WorkerState = WorkerState.READY) -> ResidentView:
    return ResidentView(WorkerId(model, 0, 1), state, 0, 6, 0.0, 0.0, None)
