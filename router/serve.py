"""Runs the server: composes the parts, listens, and stops in the right order.

Owns start, signals and shutdown. Must not know routes or how models are loaded.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import math
import os
import sys
import time
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path

from router.app import make_app
from router.auth import KeyProblem, KeyRing
from router.body import BodyMemory
from router.cache_folder import default_cache_dir
from router.catalog import Catalog, ModelSpec
from router.catalog_problems import CatalogError
from router.checking import problem_of, vain_names
from router.conversations import Conversations
from router.cores import count_cores
from router.cors import Cors
from router.devices import DeviceMonitor
from router.entrances import Addresses, listening, open_addresses, raise_open_files_limit
from router.errors import ShuttingDown
from router.fleet_log import fields
from router.greeting import greet
from router.host_guard import HostGuard, is_loopback
from router.lifecycle import WorkerState
from router.listen import CannotListen, admin_host, most_exposed, passed_sockets, reach_of
from router.listing import UNAVAILABLE
from router.logs import is_for_people
from router.metrics import RouterMetrics
from router.progress_bar import ProgressBar
from router.reload import Parts, Reloader, body_memory_bytes, read_keys
from router.remotes import Remotes
from router.runtime_dir import RuntimeDirError
from router.service_notify import Heartbeat, ServiceManager, describe
from router.services import Services
from router.settings import RouterSettings
from router.sources import ModelStore
from router.stopping import Signals, drain
from router.supervisor import Supervisor
from router.tasks import AgainOnce, Tasks
from router.tls import TlsFiles
from router.tracing import start_tracing
from router.version import version
from router.watcher import PATIENCE_S, Watcher

_log = logging.getLogger(__name__)

_SPANS_WITHIN_S = 2.0
"""How long the last spans may take to be sent."""


class CannotServe(Exception):
    """The server cannot start; the message tells what to change."""


def run(catalog: Catalog, settings: RouterSettings) -> int:
    """Serve until a signal stops it; return the process's exit code. Raises: CannotServe."""
    raise_open_files_limit()
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        return runner.run(serve(catalog, settings))


async def serve(catalog: Catalog, settings: RouterSettings) -> int:
    """Serve until SIGTERM or SIGINT: then finish what runs and stop; at the second one, stop at once.

    Meanwhile what is served follows the files that it was read from. Raises: CannotServe.
    """
    manager = ServiceManager(os.environ)
    try:
        passed = passed_sockets(os.environ)
        if passed:  # whoever made them has chosen the address
            settings = settings.model_copy(update=dict(zip(("host", "port"), most_exposed(passed), strict=True)))
        keys = _load_keys(catalog, settings)
        stop = Signals()
        addresses = open_addresses(settings, passed)
    except CannotListen as error:
        raise CannotServe(str(error)) from None
    metrics, store = RouterMetrics(), make_store(settings)
    supervisor = Supervisor(
        catalog,
        store=store,
        num_cores=settings.cores or count_cores(),
        worker_command=settings.worker_command,
        metrics=metrics,
        cache_dir=cache_dir(settings).absolute(),
        device_monitor=DeviceMonitor(may_probe=settings.worker_command is None),
        is_confined=settings.worker_sandbox,
        checks_cells=settings.check_cells,
    )
    cors = Cors(settings.cors_origins)
    names = (*settings.allowed_hosts, *filter(None, [admin_host(settings.admin_socket)]))
    guard = HostGuard(host=settings.host, allowed=names, has_keys=not keys.is_empty, cors=cors)
    body_memory = BodyMemory(body_memory_bytes(settings, catalog.limits))
    files, remotes = _FileWarnings(store, settings), Remotes()
    assert catalog.path is not None, "a catalogue that is served was read from somewhere"
    reloader = Reloader(
        catalog.path,
        Parts(supervisor, keys, guard, body_memory, metrics),
        settings=settings,
        environ=os.environ,
        locate=store.locate,
        on_models=files.look,
    )
    tracing = start_tracing(os.environ, version())
    app = make_app(
        Services(
            supervisor=supervisor,
            settings=settings,
            metrics=metrics,
            keys=keys,
            guard=guard,
            cors=cors,
            body_memory=body_memory,
            conversations=make_conversations(settings),
            reloader=reloader,
            remotes=remotes,
            store=store,
            started_at=int(time.time()),
            tracing=tracing,
        )
    )
    try:
        await supervisor.start()
        async with (
            listening(app, addresses, settings, stop) as connections,
            _progress_shown(supervisor),
            _in_touch(manager, supervisor, reloader) as heartbeat,
        ):
            await _announce(catalog, settings, keys, addresses, files, are_passed=bool(passed))
            files.look(list(catalog.models.values()))
            async with _following(reloader, addresses.tls, stop, manager):
                await stop.first.wait()
            files.close()
            heartbeat.is_stopping = True
            manager.stopping()
            drain_s = settings.shutdown_drain_s
            is_hurried = await drain(
                supervisor, remotes, connections, stop, drain_s=drain_s, is_handed_over=bool(passed)
            )
    except RuntimeDirError as error:
        raise CannotServe(str(error)) from None
    finally:
        await supervisor.close(0.0)
        await store.close()
        addresses.close()
        if tracing is not None:
            await tracing.close(_SPANS_WITHIN_S)
    _log.info("stopped")
    return 1 if is_hurried else 0


def make_store(settings: RouterSettings) -> ModelStore:
    """Return the store of model files that the settings name."""
    return ModelStore(cache_dir(settings), offline=settings.offline)


def make_conversations(settings: RouterSettings) -> Conversations:
    """Return what keeps responses, within the bounds that are set."""
    return Conversations(
        max_bytes=settings.responses_max_bytes,
        max_count=settings.responses_max_count,
        max_age_s=settings.responses_max_age_s,
    )


def cache_dir(settings: RouterSettings) -> Path:
    """Return the folder for what can be had again: fetched files, and what workers have measured."""
    return settings.cache.expanduser() if settings.cache is not None else default_cache_dir()


@contextlib.asynccontextmanager
async def _following(
    reloader: Reloader, tls: TlsFiles | None, stop: Signals, manager: ServiceManager
) -> AsyncIterator[None]:
    """What is served follows its files inside the block."""
    # A model file that is being copied into a folder is not to be read half, however long that takes.
    watcher = Watcher(reloader, patience_s=math.inf if reloader.path.is_dir() else PATIENCE_S)
    watching = asyncio.create_task(watcher.run())
    watching.add_done_callback(_note_end_of_watch)
    reloads = AgainOnce(lambda: _reload(reloader, tls, manager), "reload")
    stop.reload_with(reloads.ask)
    try:
        yield
    finally:
        stop.reload_with(None)
        watching.cancel()
        await reloader.close()
        await reloads.close()


async def _reload(reloader: Reloader, tls: TlsFiles | None, manager: ServiceManager) -> None:
    """Everything follows what the files say now, or the log tells why not; the service manager sees both ends."""
    manager.reloading()
    if tls is not None:
        await tls.take_edits()
    try:
        await reloader.reload("SIGHUP")
    except (CatalogError, ShuttingDown):
        pass
    finally:
        manager.ready()


@contextlib.asynccontextmanager
async def _in_touch(manager: ServiceManager, supervisor: Supervisor, reloader: Reloader) -> AsyncIterator[Heartbeat]:
    """Whoever manages this service knows that it is ready, and how it is, while the block runs."""

    def tell() -> str:
        refused = None if reloader.refused is None else reloader.refused.summary
        return describe(supervisor.snapshot(), len(supervisor.catalog.models), refused)

    heartbeat = Heartbeat(manager, probe=supervisor.tick, describe=tell)
    tasks = Tasks()
    if manager.is_there:
        manager.tell(tell(), "READY=1")
        tasks.spawn(heartbeat.run(), "telling the service manager")
    try:
        yield heartbeat
    finally:
        await tasks.close()
        manager.close()


def _note_end_of_watch(task: asyncio.Task[None]) -> None:
    if not task.cancelled():
        text = "edits are no longer noticed, which is a fault of the router; SIGHUP and POST /admin/reload still work"
        _log.error(text, exc_info=task.exception())


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


class _FileWarnings:
    """The log names every model that no request can be answered with, and why; the server answers meanwhile."""

    def __init__(self, store: ModelStore, settings: RouterSettings) -> None:
        self._store = store
        self._settings = settings
        self._tasks: set[asyncio.Task[None]] = set()

    def look(self, specs: Sequence[ModelSpec]) -> None:
        """Each of `specs` is looked at soon."""
        task = asyncio.get_running_loop().create_task(self._look(specs))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def close(self) -> None:
        """Nothing more is said."""
        for task in self._tasks:
            task.cancel()

    async def problems(self, specs: Sequence[ModelSpec]) -> dict[str, str]:
        """Return why models cannot be used, by name, of those that cannot."""
        found = {spec.name: await self._problem(spec) for spec in specs}
        return {name: problem for name, problem in found.items() if problem is not None}

    async def _look(self, specs: Sequence[ModelSpec]) -> None:
        for spec in specs:
            if (problem := await self._problem(spec)) is not None:
                # As `corral ps` shows it: a request may still try a file that is there, whatever it holds.
                state, what = WorkerState.UNLOADED.value, "cannot be loaded"
                if spec.problem is not None:
                    state = what = UNAVAILABLE
                _log.warning("%s: %s: %s", spec.name, what, problem, extra=fields(spec.name, state))

    async def _problem(self, spec: ModelSpec) -> str | None:
        look = functools.partial(problem_of, spec, self._store, must_be_here=self._settings.offline)
        return await asyncio.to_thread(look)


def _load_keys(catalog: Catalog, settings: RouterSettings) -> KeyRing:
    try:
        keys = read_keys(settings, catalog, os.environ)
    except KeyProblem as problem:
        raise CannotServe(str(problem)) from None
    if keys.is_empty and not is_loopback(settings.host):
        _log.warning("everybody who can reach this address may use, load and unload models: there are no API keys")
    for where, message in vain_names(catalog, catalog.keys):
        _log.warning("%s: %s", where, message)
    return keys


async def _announce(
    catalog: Catalog,
    settings: RouterSettings,
    keys: KeyRing,
    addresses: Addresses,
    files: _FileWarnings,
    *,
    are_passed: bool,
) -> None:
    url, reach = addresses.url, reach_of(addresses.main)
    if not is_for_people(settings.log_format, sys.stdout):
        known = {"url": url, "models": list(catalog.models), "version": version()}
        if addresses.admin_url is not None:
            known["admin_url"] = addresses.admin_url
        if are_passed:
            known["sockets"] = "passed by the service manager"
        _log.info("listening%s", f" {reach}" if reach else "", extra=known)
        return
    text = greet(
        catalog,
        version=version(),
        url=url,
        admin_url=addresses.admin_url,
        reach=reach,
        problems=await files.problems(list(catalog.models.values())),
        has_keys=not keys.is_empty,
        edits=_edits(catalog),
    )
    sys.stdout.write(f"\n{text}\n")
    sys.stdout.flush()


def _edits(catalog: Catalog) -> str | None:
    """Return what becomes of edits of what the catalogue was read from; None = they are not looked for."""
    if catalog.path is not None and catalog.path.is_dir():
        return f"Models that come to {catalog.path} or go are noticed while the server runs."
    if catalog.path is not None and catalog.path.suffix != ".gguf":
        return f"Edits of {catalog.path.name} are picked up while the server runs."
    return None


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        import uvloop
    except ImportError:  # not made for every Python; asyncio's own loop does the same, slower
        return None
    factory: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return factory
