"""From a model reference to a file on this machine.

Owns the store that everything asks for files: what is here is found without a network or a process; the rest is
fetched by a process of its own (`router.fetch`), once however many ask. Must not import what downloads.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final, assert_never

from router.cache_folder import default_cache_dir
from router.fetch.protocol import (
    Fetched,
    FetchJob,
    FetchProgress,
    SourceError,
    decode_reply,
    without_secrets,
)
from router.file_names import all_parts, parse_split_name
from router.hub_source import hub_cache_dir, is_hub_offline, locate_hub
from router.package_source import locate_package
from router.references import HubReference, PackageReference, PathReference, Reference

__all__ = ["FetchProgress", "ModelStore", "SourceError", "default_cache_dir"]

OnProgress = Callable[[FetchProgress], None]

_LINE_LIMIT: Final = 2**16
_TAIL_BYTES: Final = 4096


_FETCH_VARIABLES = frozenset(
    {
        *("PATH", "HOME", "USER", "LOGNAME", "LANG", "LANGUAGE", "TZ", "TMPDIR", "LD_LIBRARY_PATH", "VIRTUAL_ENV"),
        *("SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "NETRC"),
    }
)
_FETCH_PREFIXES = ("LC_", "PIP_", "HF_", "HUGGINGFACE_", "XDG_", "PYTHON")
_PROXY_VARIABLES = frozenset({"http_proxy", "https_proxy", "all_proxy", "no_proxy"})


class ModelStore:
    """Finds and fetches model files. Belongs to one event loop at a time."""

    def __init__(self, cache_dir: Path, *, offline: bool = False, stall_timeout_s: float = 300.0) -> None:
        """`stall_timeout_s`: a fetch that says nothing for so long is ended and reported as failed."""
        self._cache_dir = cache_dir
        self._is_offline = offline
        self._stall_timeout_s = stall_timeout_s
        self._flights: dict[str, _Flight] = {}

    def locate(self, reference: Reference, base_dir: Path) -> Path | None:
        """Return the model's (first) file if all of it is on this machine; None = it must be fetched.

        Quick: a few looks at the disk. Raises: SourceError if it can never be there (a path that is missing).
        """
        match reference:
            case PathReference():
                return locate_path(reference, base_dir)
            case PackageReference():
                return locate_package(reference, self._cache_dir)
            case HubReference():
                return locate_hub(reference, hub_cache_dir())
            case _:
                assert_never(reference)

    def may_download(self, reference: Reference) -> bool:
        """Return whether a fetch would ask the network, or is to do with what is on this machine."""
        return not (self._is_offline or (isinstance(reference, HubReference) and is_hub_offline()))

    async def fetch(self, reference: Reference, base_dir: Path, on_progress: OnProgress) -> Path:
        """Return the model's (first) file, after fetching it if need be.

        Callers who want the same reference share one fetch and all see its progress. A caller that is cancelled
        leaves the fetch to itself: it goes on, and what it brings is there for the next one. `on_progress` is
        called on the event loop and must not raise.

        Raises: SourceError.
        """
        found = self.locate(reference, base_dir)
        if found is not None:
            return found
        key = str(reference)
        flight = self._flights.get(key)
        if flight is None:
            if isinstance(reference, HubReference) and not self.may_download(reference):
                by = "offline mode" if self._is_offline else "HF_HUB_OFFLINE"
                raise SourceError(
                    f"{reference.short()} is not on this machine and {by} forbids to download it; fetch it once while "
                    "online",
                    is_permanent=True,
                )
            job = FetchJob(key, str(self._cache_dir.absolute()), self._is_offline)
            flight = self._flights[key] = _Flight(job, reference.short(), self._stall_timeout_s)
            flight.task.add_done_callback(lambda _: self._flights.pop(key, None))
        return await flight.wait(on_progress)

    async def close(self) -> None:
        """End all fetches; who waits for one gets a `SourceError`. What is half there is resumed later."""
        flights = list(self._flights.values())
        for flight in flights:
            flight.task.cancel()
        await asyncio.gather(*(flight.task for flight in flights), return_exceptions=True)


def locate_path(reference: PathReference, base_dir: Path) -> Path:
    """Return the absolute path; all parts of a split model are there. Raises: SourceError."""
    try:
        path = (base_dir / Path(reference.path).expanduser()).absolute()
    except RuntimeError as error:  # "~stranger/…"
        raise SourceError(f"{reference}: {error}", is_permanent=True) from None
    split = parse_split_name(path.name)
    if split is not None and split.number != 1:
        raise SourceError(
            f"{path} is part {split.number} of a split model; name the first part, {split.part(1)}",
            is_permanent=True,
        )
    if split is None and path.is_file():
        return path
    parts = [path.with_name(name) for name in all_parts(path.name)]
    missing = [part for part in parts if not part.is_file()]
    if not missing:
        return path
    if path.is_dir():
        reason = f"{path} is a folder, not a model file"
    elif len(parts) == 1:
        reason = f"{path} does not exist"
    else:
        reason = f"{len(missing)} of the {len(parts)} parts of {path} are missing: " + ", ".join(
            part.name for part in missing
        )
    raise SourceError(reason, is_permanent=True)


class _Flight:
    """One fetch in progress, and everybody who waits for it."""

    def __init__(self, job: FetchJob, name: str, stall_timeout_s: float) -> None:
        self._job = job
        self._name = name
        self._stall_timeout_s = stall_timeout_s
        self._watchers: list[OnProgress] = []
        self._last: FetchProgress | None = None
        self.task = asyncio.create_task(self._run(), name=f"fetch {job.reference}")
        self.task.add_done_callback(_look_at_outcome)

    async def wait(self, on_progress: OnProgress) -> Path:
        """Return the file. Raises: SourceError, also when the fetch is ended by `ModelStore.close`."""
        self._watchers.append(on_progress)
        if self._last is not None:
            on_progress(self._last)
        try:
            return await asyncio.shield(self.task)
        except asyncio.CancelledError:
            if not self.task.cancelled():
                raise  # the waiter itself
            raise SourceError(f"{self._name}: the fetch was ended because corral stops") from None
        finally:
            self._watchers.remove(on_progress)

    async def _run(self) -> Path:
        try:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-P", "-m", "router.fetch"),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                limit=_LINE_LIMIT,
                env=_environment(),
                start_new_session=True,
            )
        except OSError as error:
            raise SourceError(f"{self._name}: the fetch process cannot be started: {error.strerror}") from None
        assert process.stdin is not None
        assert process.stderr is not None
        complaints = asyncio.create_task(_tail(process.stderr))
        outcome: Fetched | SourceError | None = None
        try:
            outcome = await self._converse(process)
            if outcome is None:
                status = await process.wait()
                said = without_secrets((await complaints).decode(errors="replace").strip())
                raise SourceError(
                    f"{self._name}: the fetch process ended with status {status} without saying why"
                    + ("; the server's log has its last words" if said else ""),
                    details=said,
                )
        finally:
            if outcome is None:
                _kill_group(process)
            process.stdin.close()
            await asyncio.shield(asyncio.gather(process.wait(), complaints))
        if isinstance(outcome, SourceError):
            raise outcome
        return Path(outcome.path)

    async def _converse(self, process: asyncio.subprocess.Process) -> Fetched | SourceError | None:
        """Return what the process ends with; None if it ends without a word. Raises: SourceError on silence."""
        assert process.stdin is not None
        assert process.stdout is not None
        with contextlib.suppress(ConnectionError):  # it died at once: the missing outcome tells
            process.stdin.write(self._job.to_line())
            await process.stdin.drain()
        while True:
            try:
                async with asyncio.timeout(self._stall_timeout_s):
                    line = await process.stdout.readline()
            except TimeoutError:
                raise SourceError(
                    f"{self._name}: nothing arrived for {self._stall_timeout_s:.0f} s; the fetch was ended, "
                    "check the network"
                ) from None
            if not line:
                return None
            match decode_reply(line):
                case FetchProgress() as progress:
                    self._last = progress
                    for watcher in tuple(self._watchers):
                        watcher(progress)
                case None:
                    continue
                case outcome:
                    return outcome


def _look_at_outcome(task: asyncio.Task[Path]) -> None:
    """Mark a failure as seen: with every waiter gone, nobody else would."""
    if not task.cancelled():
        task.exception()


def _environment() -> dict[str, str]:
    """Return what a fetch process may know: what pip and the Hub's library go by. Our API keys have other names."""
    environ = {
        name: value
        for name, value in os.environ.items()
        if name in _FETCH_VARIABLES or name.lower() in _PROXY_VARIABLES or name.startswith(_FETCH_PREFIXES)
    }
    return environ | {"HF_HUB_DISABLE_PROGRESS_BARS": "1"}


def _kill_group(process: asyncio.subprocess.Process) -> None:
    """End the process with its children (pip); partial files stay for the next try."""
    with contextlib.suppress(ProcessLookupError, PermissionError):  # macOS refuses a group of zombies
        os.killpg(process.pid, signal.SIGKILL)


async def _tail(stream: asyncio.StreamReader) -> bytes:
    kept = b""
    while chunk := await stream.read(_TAIL_BYTES):
        kept = (kept + chunk)[-_TAIL_BYTES:]
    return kept
