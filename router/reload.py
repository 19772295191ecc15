"""Exchanges the configuration of the running server: one reading after another, and all of it or nothing.

Owns when a new catalogue and new keys come into force, what is said about it, and why the last try failed. Must not
decide what becomes of workers (the fleet does) nor notice edits (`watcher.py` does).
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import functools
import gc
import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from router.auth import KeyProblem, KeyRing, load_key_ring
from router.body import BodyMemory
from router.catalog import Catalog, Limits, ModelSpec
from router.catalog_diff import AVAILABILITY, CatalogDiff, compare
from router.catalog_files import Locate, examine_text, in_order, load_catalog, named_files
from router.catalog_problems import ELSEWHERE, CatalogError, Problem, and_more, first_problems
from router.checking import vain_names
from router.cors import ANY
from router.errors import ShuttingDown, TooManyRequests
from router.host_guard import HostGuard, is_loopback
from router.listen import admin_host
from router.own_thread import in_own_thread
from router.settings import RouterSettings
from router.watcher import Sight, look

if TYPE_CHECKING:
    from router.metrics import RouterMetrics
    from router.supervisor import Supervisor

logger = logging.getLogger(__name__)

EDIT = "edited"
"""Why the configuration is read again when nobody has asked for it."""

_MAX_CHECKS = 4
"""So many texts may be checked or wait for it."""


@dataclass(frozen=True, slots=True)
class Refused:
    """Why what was read cannot be used; everything stays as it was."""

    problems: tuple[Problem, ...]
    since_s: float
    """Unix time of the first failure since the last success."""

    @property
    def summary(self) -> str:
        """The first problem and how many more there are, on one line."""
        return and_more(self.problems[0].describe(), len(self.problems))

    @property
    def outline(self) -> str:
        """Where the first problem is and how many more there are, for those who may not know what the file says."""
        return self._outlined(self.problems[0].whereabouts)

    @property
    def place(self) -> str:
        """The same by line and column alone, for those who may not know the names of all models."""
        return self._outlined(dataclasses.replace(self.problems[0], where="").whereabouts)

    def _outlined(self, whereabouts: str) -> str:
        return f"{and_more(whereabouts or 'the file or a key', len(self.problems))}: {ELSEWHERE}"


@dataclass(frozen=True, slots=True)
class Parts:
    """What follows the configuration."""

    supervisor: Supervisor
    keys: KeyRing
    guard: HostGuard
    body_memory: BodyMemory
    metrics: RouterMetrics


@dataclass(frozen=True, slots=True)
class Checked:
    """What would become of a text as the configuration."""

    problems: tuple[Problem, ...]
    """Why it could not be used; () = it could."""
    warnings: tuple[Problem, ...] = ()
    """Why some of its models could not, in the order of the text."""
    diff: CatalogDiff | None = None
    """What it would change; None = it could not be used."""


@dataclass(frozen=True, slots=True)
class _Reading:
    """All that was read at one moment, and is sound."""

    catalog: Catalog
    keys: KeyRing
    diff: CatalogDiff
    files: frozenset[Path]


class Reloader:
    """The one place from which the configuration changes. To be used on one event loop."""

    def __init__(
        self,
        path: Path,
        parts: Parts,
        *,
        settings: RouterSettings,
        environ: Mapping[str, str],
        locate: Locate | None = None,
        on_models: Callable[[Sequence[ModelSpec]], None] | None = None,
    ) -> None:
        """`path` is what the server was started with; `on_models` is told of models whose files are new."""
        self.path = path
        self.refused: Refused | None = None
        """What the last reading failed with; None = the configuration in force is what the files say."""
        self.files = frozenset(files_of(parts.supervisor.catalog, path, settings))
        """What the configuration is read from, so that a change of any of these is an edit."""
        self.taken: Sight = {}
        self.loaded_at_s = time.time()
        """Unix time at which what is in force was last read, or found to be what the files still say."""
        self._parts = parts
        self._settings = settings
        self._environ = environ
        self._locate = locate
        self._on_models = on_models
        self._turn = asyncio.Lock()
        self._check_turn = asyncio.Lock()
        self._checking: asyncio.Future[Checked] | None = None
        self._num_checks = 0
        self._tasks: set[asyncio.Task[Any]] = set()
        self._is_closed = False

    async def reload(self, why: str) -> CatalogDiff:
        """Everything follows what the files say now. Outlives the caller.

        Raises: CatalogError, with every problem; then nothing has changed. ShuttingDown.
        """
        if self._is_closed:
            raise ShuttingDown("the server is stopping: its configuration is not read again")
        task = asyncio.get_running_loop().create_task(self._reload(why), name="reload")
        self._tasks.add(task)
        task.add_done_callback(self._end_task)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            if task.cancelled() and self._is_closed:  # `close` has cancelled it; the caller is still there
                raise ShuttingDown("the server is stopping: its configuration is not read again") from None
            raise

    async def check(self, text: str) -> Checked:
        """Return what would become of `text` if it stood in the file that was given; nothing changes.

        One after another: each may keep a core busy. Raises: TooManyRequests when too many wait.
        """
        if self._num_checks >= _MAX_CHECKS:
            raise TooManyRequests(
                f"{self._num_checks} texts wait to be checked, one after another: try again when they are",
                retry_after_s=5.0,
            )
        self._num_checks += 1
        try:
            async with self._check_turn:
                if self._checking is not None:  # whoever wanted it may have left: it goes on to its end
                    await asyncio.wait({self._checking})
                look = functools.partial(self._check, text, self._parts.supervisor.catalog)
                self._checking = in_own_thread(look, "config-check")
                return await asyncio.shield(self._checking)
        finally:
            self._num_checks -= 1

    async def take_edits(self) -> None:
        """Everything follows an edit, or the log tells why not; a look that finds nothing new says nothing."""
        with contextlib.suppress(CatalogError, ShuttingDown):
            await self.reload(EDIT)

    async def close(self) -> None:
        """Nothing changes any more."""
        self._is_closed = True
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _reload(self, why: str) -> CatalogDiff:
        async with self._turn:
            # Before anything is read: an edit from now on differs from it, and is noticed.
            seen = await asyncio.to_thread(look, self.files)
            is_edited = any(self.taken.get(path, held) != held for path, held in seen.items())
            self.taken = seen
            try:
                reading = await asyncio.to_thread(self._read, self._parts.supervisor.catalog)
            except CatalogError as error:
                self._refuse(error)
                raise
            self._adopt(reading)
            self.loaded_at_s = time.time()
            if why != EDIT or is_edited or self.refused is not None or not reading.diff.is_empty:
                self._tell(reading, why)
            self.refused = None
            return reading.diff

    # --- reading: in a thread, changes nothing but `files` ------------------------------------------------

    def _read(self, old: Catalog) -> _Reading:
        """Return what the files say. Raises: CatalogError."""
        with _without_collection():
            return self._read_all(old)

    def _read_all(self, old: Catalog) -> _Reading:
        catalog = _with_old_parts(load_catalog(self.path, self._locate, self._environ), old)
        files = frozenset(files_of(catalog, self.path, self._settings))
        try:
            keys = read_keys(self._settings, catalog, self._environ)
        except KeyProblem as problem:
            self.files |= files  # the missing file may be created
            raise CatalogError([Problem("", str(problem))], self.path) from None
        diff = self._compare(old, catalog, keys)
        catalog.policies()  # made here once, not on the event loop
        return _Reading(catalog, keys, diff, files)

    def _check(self, text: str, old: Catalog) -> Checked:
        with _without_collection():
            examined = examine_text(text, self.path, self._locate, self._environ)
            if not examined.is_sound:
                return Checked(in_order(examined.reading.problems))
            try:
                keys = read_keys(self._settings, examined.catalog, self._environ)
            except KeyProblem as problem:
                return Checked((Problem("", str(problem)),))
            diff = self._compare(old, _with_old_parts(examined.catalog, old), keys)
            return Checked((), examined.problems, diff)

    def _compare(self, old: Catalog, new: Catalog, keys: KeyRing) -> CatalogDiff:
        diff = compare(old, new)
        if "keys" not in diff.settings and not keys.is_same_as(self._parts.keys):
            return dataclasses.replace(diff, settings=(*diff.settings, "keys"))
        return diff

    # --- in force -----------------------------------------------------------------------------------------

    def _adopt(self, reading: _Reading) -> None:
        """What was read is in force. Nothing awaits in here: no request sees one half old and one half new."""
        parts, catalog = self._parts, reading.catalog
        self.files = reading.files
        if reading.diff.is_empty:
            return
        parts.keys.adopt(reading.keys)
        parts.guard.has_keys = not reading.keys.is_empty
        parts.body_memory.max_bytes = body_memory_bytes(self._settings, catalog.limits)
        parts.supervisor.set_catalog(catalog)
        if self._on_models is not None:
            turned = (name for name, keys in reading.diff.changed.items() if AVAILABILITY in keys)
            names = dict.fromkeys((*reading.diff.added, *reading.diff.restarted, *turned))
            self._on_models([catalog.models[name] for name in names])

    def _refuse(self, error: CatalogError) -> None:
        since_s = time.time() if self.refused is None else self.refused.since_s
        self.refused = Refused(error.problems, since_s)
        told = {"reload": "refused", "problems": [problem.describe() for problem in first_problems(error.problems)]}
        logger.error(
            "the configuration stays as it was, because what was read cannot be used: %s",
            error.summary,
            extra={"_fields": told},
        )
        self._parts.metrics.catalog_reloaded(False)

    def _tell(self, reading: _Reading, why: str) -> None:
        cause = "configuration edited" if why == EDIT else f"configuration read again ({why})"
        again = ", and sound again" if self.refused is not None else ""
        told = {"reload": "ok"} | reading.diff.to_json()
        logger.info("%s%s: %s", cause, again, reading.diff.describe(), extra={"_fields": told})
        for where, message in vain_names(reading.catalog, reading.catalog.keys):
            logger.warning("%s: %s", where, message)
        self._parts.metrics.catalog_reloaded(True)

    def _end_task(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if task.cancelled():
            return
        error = task.exception()
        if error is not None and not isinstance(error, CatalogError | ShuttingDown):
            logger.error("reading the configuration failed: this is a fault of the router", exc_info=error)


def read_keys(settings: RouterSettings, catalog: Catalog, environ: Mapping[str, str]) -> KeyRing:
    """Return the keys that hold with this catalogue.

    Raises: KeyProblem when one cannot be read, or when everybody in reach of a public address could do everything.
    """
    keys = load_key_ring(settings, catalog.keys, environ)
    hosts = filter(None, (settings.host, admin_host(settings.admin_socket)))
    exposed = next((host for host in hosts if not is_loopback(host)), None)
    if keys.is_empty and exposed is not None and not settings.allow_unauthenticated:
        raise KeyProblem(
            f"refusing to listen on {exposed} without API keys: everybody in reach could use and unload the "
            f"models. Set CORRAL_API_KEYS or --api-key-file (and CORRAL_ADMIN_KEYS for load and unload); or set "
            f"CORRAL_ALLOW_UNAUTHENTICATED=1 if something else protects this address"
        )
    if keys.is_empty and ANY in settings.cors_origins:
        raise KeyProblem(
            "refusing CORRAL_CORS_ORIGINS=* without API keys: every website could use the models through the browser "
            "of anybody who can reach this server. Set CORRAL_API_KEYS or --api-key-file, or list the origins of your "
            "own pages, such as CORRAL_CORS_ORIGINS=http://localhost:3000"
        )
    return keys


def _with_old_parts(new: Catalog, old: Catalog) -> Catalog:
    """Return `new` with what is equal in `old` taken from there: its fingerprint is known, and it is in memory."""
    models = {name: old.models[name] if old.models.get(name) == spec else spec for name, spec in new.models.items()}
    return dataclasses.replace(new, models=models)


def body_memory_bytes(settings: RouterSettings, limits: Limits) -> int:
    """Return how many bytes of request bodies may be held at the same time."""
    return settings.max_body_memory_bytes or 8 * limits.max_body_bytes


def files_of(catalog: Catalog, path: Path, settings: RouterSettings) -> Iterator[Path]:
    """Return everything that `path` and the keys are read from, and model files, missing ones too."""
    named: list[Path | None] = [path, settings.api_key_file]
    named += [spec.chat_template_file for spec in catalog.models.values()]
    named += [key.file for key in catalog.keys]
    named += [file for spec in catalog.models.values() for file in named_files(spec)]
    for file in _distinct(named):
        try:
            yield file.expanduser()
        except RuntimeError:  # the home folder of a stranger: reading it says so
            continue


@contextlib.contextmanager
def _without_collection() -> Iterator[None]:
    """No search for cyclic garbage goes on inside the block: there is none, and a large file makes many objects."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _distinct(paths: Iterable[Path | None]) -> list[Path]:
    return list(dict.fromkeys(path for path in paths if path is not None))
