"""Where a model file that comes in Python packages lies on this machine: installed, or in the cache folder.

Owns the cache's layout for packages. Never imports a package, never touches the network: `fetch/package.py`
downloads.

    <cache>/packages/<package>-<hash of the reference>/source.json      what is here, with sha256 and origin
                                                      /<model>.gguf     one file, or the parts of a split model
"""

from __future__ import annotations

import hashlib
import importlib.metadata
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from router.cache_folder import read_json
from router.file_names import NoSuchFile, choose_model
from router.references import PackageReference, PackageSpec

MANIFEST: Final = "source.json"


@dataclass(frozen=True, slots=True)
class InstalledPackage:
    """A distribution of this Python environment that fits a `PackageSpec`."""

    version: str
    files: Mapping[str, Path]
    """By name inside the package."""


def find_installed(spec: PackageSpec) -> InstalledPackage | None:
    """Return the package if this environment has it in the wanted version, else None."""
    try:
        distribution = importlib.metadata.distribution(spec.name)
    except importlib.metadata.PackageNotFoundError:
        return None
    if spec.version is not None and distribution.version != spec.version:
        return None
    files = {
        str(name): Path(str(distribution.locate_file(name)))
        for name in distribution.files or ()
        if ".." not in name.parts and is_payload(str(name))
    }
    return InstalledPackage(distribution.version, files)


def is_payload(name: str) -> bool:
    """Return whether a file of a package is its own: not a folder, not a record of the installer."""
    return not name.endswith("/") and not name.partition("/")[0].endswith(".dist-info")


def package_folder(cache_dir: Path, reference: PackageReference) -> Path:
    """Return the cache folder of exactly this reference: another version or pattern is another folder."""
    first = str(reference.packages[0])
    more = f"+{len(reference.packages) - 1}" if len(reference.packages) > 1 else ""
    digest = hashlib.sha256(str(reference).encode()).hexdigest()[:12]
    return cache_dir / "packages" / f"{first[:80]}{more}-{digest}"


def locate_package(reference: PackageReference, cache_dir: Path) -> Path | None:
    """Return the model's (first) file if it is complete on this machine, None if it must be fetched."""
    if len(reference.packages) == 1:
        installed = _locate_installed(reference)
        if installed is not None:
            return installed
    return locate_cached(package_folder(cache_dir, reference))


def locate_cached(folder: Path) -> Path | None:
    """Return the (first) file that the folder's manifest names, if all of them have their sizes; else None."""
    listed = read_json(folder / MANIFEST).get("files")
    if not isinstance(listed, list) or not listed:
        return None
    for entry in listed:
        match entry:
            case {"name": str(name), "size": int(size)} if Path(name).name == name:
                try:
                    if (folder / name).stat().st_size != size:
                        return None
                except OSError:
                    return None
            case _:
                return None
    return folder / str(listed[0]["name"])


def _locate_installed(reference: PackageReference) -> Path | None:
    installed = find_installed(reference.packages[0])
    if installed is None:
        return None
    try:
        chosen = choose_model(installed.files, reference.file, str(reference.packages[0]))
    except NoSuchFile:
        return None  # perhaps the index has a release with the file
    paths = [installed.files[name] for name in chosen]
    return paths[0] if all(path.is_file() for path in paths) else None
