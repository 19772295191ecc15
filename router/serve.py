"""Runs the server: composes the parts, listens, and stops in the right order.

Owns start, signals and shutdown. Must not know routes or how models are loaded.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import logging
import os
import resource
import shlex
import signal
import socket
import sys
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

from aiohttp import web

from router.app import make_app, version
from router.auth import KeyProblem, KeyRing, load_key_ring
from router.body import BodyMemory
from router.cache_folder import default_cache_dir
from router.catalog import Catalog
from router.checking import problem_of
from router.cores import count_cores
from router.fleet_log import fields
from router.host_guard import HostGuard, is_loopback
from router.listen import CannotListen, bind_sockets, reach_of, url_of
from router.listing import UNAVAILABLE
from router.logs import is_for_people
from router.metrics import RouterMetrics
from router.progress_bar import ProgressBar
from router.runtime_dir import RuntimeDirError
from router.services import Services
from router.settings import RouterSettings
from router.sources import ModelStore
from router.supervisor import Supervisor

_log = logging.getLogger(__name__)

_MAX_OPEN_FILES = 65536
_CLOSE_WITHIN_S = 3.0
"""How long answers may take to reach their clients once every worker has stopped."""


class CannotServe(Exception):
    """The server cannot start; the message tells what to change."""


def run(catalog: Catalog, settings: RouterSettings) -> int:
    """Serve until a signal stops it; return the process's exit code. Raises: CannotServe."""
    _raise_open_files_limit()
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        return runner.run(serve(catalog, settings))


async def serve(catalog: Catalog, settings: RouterSettings) -> int:
    """Serve until SIGTERM or SIGINT: then finish what runs and stop; at the second one, stop at once.

    Raises: CannotServe.
    """
    keys = _load_keys(catalog, settings)
    stop = _Signals()
    try:
        sockets = bind_sockets(settings.host, settings.port)
    except CannotListen as error:
        raise CannotServe(str(error)) from None
    metrics, store = RouterMetrics(), make_store(settings)
    supervisor = Supervisor(
        catalog,
        store=store,
        num_cores=settings.cores or count_cores(),
        worker_command=settings.worker_command,
        metrics=metrics,
        calibration_dir=cache_dir(settings).absolute() / "calibration",
    )
    app = make_app(
        Services(
            supervisor=supervisor,
            settings=settings,
            metrics=metrics,
            keys=keys,
            guard=HostGuard(host=settings.host, allowed=settings.allowed_hosts, has_keys=not keys.is_empty),
            body_memory=BodyMemory(settings.max_body_memory_bytes or 8 * catalog.limits.max_body_bytes),
            started_at=int(time.time()),
        )
    )
    try:
        await supervisor.start()
        async with _listening(app, sockets), _progress_shown(supervisor):
            _announce(catalog, settings, keys, sockets)
            looking = asyncio.create_task(_warn_of_files(catalog, store, settings))
            await stop.first.wait()
            looking.cancel()
            is_hurried = await _drain(supervisor, settings.shutdown_drain_s, stop)
    except RuntimeDirError as error:
        raise CannotServe(str(error)) from None
    finally:
        await supervisor.close(0.0)
        await store.close()
        for sock in sockets:
            sock.close()
    _log.info("stopped")
    return 1 if is_hurried else 0


def make_store(settings: RouterSettings) -> ModelStore:
    """Return the store of model files that the settings name."""
    return ModelStore(cache_dir(settings), offline=settings.offline)


def cache_dir(settings: RouterSettings) -> Path:
    """Return the folder for what can be had again: fetched files, and what workers have measured."""
    return settings.cache.expanduser() if settings.cache is not None else default_cache_dir()


class _Signals:
    """Two events: somebody wants a stop; somebody wants it now."""

    def __init__(self) -> None:
        self.first = asyncio.Event()
        self.second = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._note)

    def _note(self) -> None:
        (self.second if self.first.is_set() else self.first).set()


@contextlib.asynccontextmanager
async def _listening(app: web.Application, sockets: list[socket.socket]) -> AsyncIterator[None]:
    # Without handler_cancellation a client that leaves would keep its place on the worker until the answer's end.
    runner = web.AppRunner(app, handler_cancellation=True, access_log=None, shutdown_timeout=_CLOSE_WITHIN_S)
    await runner.setup()
    try:
        for sock in sockets:
            await web.SockSite(runner, sock, backlog=1024).start()
        yield
    finally:
        await runner.cleanup()


@contextlib.asynccontextmanager
async def _progress_shown(supervisor: Supervisor) -> AsyncIterator[None]:
    """Show how far downloads are while the block runs, if somebody sits at a terminal."""
    if not sys.stdout.isatty():
        yield
        return
    bar = ProgressBar(sys.stdout, supervisor.fetches)
    for handler in logging.getLogger().handlers:
        bar.attach(handler)
    task = asyncio.create_task(bar.run())
    try:
        yield
    finally:
        task.cancel()


async def _drain(supervisor: Supervisor, drain_s: float, stop: _Signals) -> bool:
    """Let running requests end and stop every worker; return True when that was cut short by a second signal."""
    views = supervisor.snapshot().models.values()
    num_running = sum(resident.num_leases for view in views for resident in view.residents)
    num_waiting = sum(view.queue_length for view in views)
    _log.info(
        "stopping: new requests are refused; the same signal again stops at once",
        extra={"running_requests": num_running, "waiting_requests": num_waiting, "drain_s": drain_s},
    )
    closing = asyncio.create_task(supervisor.close(drain_s))
    hurry = asyncio.create_task(stop.second.wait())
    await asyncio.wait({closing, hurry}, return_when=asyncio.FIRST_COMPLETED)
    hurry.cancel()
    if closing.done():
        await closing
        return False
    _log.info("stopping at once")
    closing.cancel()
    await asyncio.wait({closing})
    await supervisor.close(0.0, is_hurried=True)
    return True


async def _warn_of_files(catalog: Catalog, store: ModelStore, settings: RouterSettings) -> None:
    """The log names every model that no request can be answered with, and why; the server answers meanwhile."""
    for spec in catalog.models.values():
        look = functools.partial(problem_of, spec, store, must_be_here=settings.offline)
        if (problem := await asyncio.to_thread(look)) is not None:
            _log.warning("%s: unavailable: %s", spec.name, problem, extra=fields(spec.name, UNAVAILABLE))


def _load_keys(catalog: Catalog, settings: RouterSettings) -> KeyRing:
    try:
        keys = load_key_ring(settings, catalog.keys, os.environ)
    except KeyProblem as problem:
        raise CannotServe(str(problem)) from None
    if keys.is_empty and not is_loopback(settings.host) and not settings.allow_unauthenticated:
        raise CannotServe(
            f"refusing to listen on {settings.host} without API keys: everybody in reach could use and unload the "
            f"models. Set CORRAL_API_KEYS or --api-key-file (and CORRAL_ADMIN_KEYS for load and unload); or set "
            f"CORRAL_ALLOW_UNAUTHENTICATED=1 if something else protects this address"
        )
    if keys.is_empty and not is_loopback(settings.host):
        _log.warning("everybody who can reach this address may use, load and unload models: there are no API keys")
    return keys


def _announce(catalog: Catalog, settings: RouterSettings, keys: KeyRing, sockets: list[socket.socket]) -> None:
    url, reach = url_of(sockets[0]), reach_of(sockets)
    if not is_for_people(settings.log_format, sys.stdout):
        known = {"url": url, "models": list(catalog.models), "version": version()}
        _log.info("listening%s", f" {reach}" if reach else "", extra=known)
        return
    width = max((len(name) for name in catalog.models), default=0)
    count = "1 model" if len(catalog.models) == 1 else f"{len(catalog.models)} models"
    lines = ["", f"Corral {version()} serves {count} at {url}{f', {reach}' if reach else ''}", ""]
    for spec in catalog.models.values():
        notes = [f"also called {', '.join(spec.aliases)}"] if spec.aliases else []
        notes += [f"unavailable: {spec.problem}"] if spec.problem is not None else []
        lines.append(f"  {spec.name:<{width}}  {'; '.join(notes)}".rstrip())
    usable = next((name for name, spec in catalog.models.items() if spec.problem is None), None)
    if usable is not None:
        lines += ["", "Try it:", f"  {_curl(url, usable, has_keys=not keys.is_empty)}"]
    sys.stdout.write("\n".join(lines) + "\n\n")
    sys.stdout.flush()


def _curl(url: str, model: str, *, has_keys: bool) -> str:
    asked = {"model": model, "messages": [{"role": "user", "content": "Hello!"}], "max_tokens": 48}
    body = json.dumps(asked, ensure_ascii=False)
    key = "-H 'Authorization: Bearer KEY' " if has_keys else ""
    return f"curl {url}/v1/chat/completions {key}-H 'Content-Type: application/json' -d {shlex.quote(body)}"


def _raise_open_files_limit() -> None:
    """Each stream takes two descriptors; some systems start with a limit of 256."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _MAX_OPEN_FILES if hard == resource.RLIM_INFINITY else min(hard, _MAX_OPEN_FILES)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with contextlib.suppress(OSError, ValueError):  # macOS may refuse; the old limit still works
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        import uvloop
    except ImportError:  # not made for every Python; asyncio's own loop does the same, slower
        return None
    factory: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return factory
