"""Tiny wheels, so that pip itself can be tested without a network."""

from __future__ import annotations

import base64
import hashlib
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path


def write_wheel(
    folder: Path,
    name: str,
    version: str,
    files: Mapping[str, bytes],
    *,
    requires: Sequence[str] = (),
    requires_python: str = ">=3.0",
) -> Path:
    """Return a wheel in `folder` that pip accepts, with `files` by their paths inside it."""
    stem = f"{name.replace('-', '_')}-{version}"
    records = f"{stem}.dist-info"
    metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\nRequires-Python: {requires_python}\n"
    metadata += "".join(f"Requires-Dist: {requirement}\n" for requirement in requires)
    members = dict(files) | {
        f"{records}/METADATA": metadata.encode(),
        f"{records}/WHEEL": b"Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = "".join(f"{path},{_digest(content)},{len(content)}\n" for path, content in members.items())
    members[f"{records}/RECORD"] = (record + f"{records}/RECORD,,\n").encode()
    wheel = folder / f"{stem}-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as archive:
        for path, content in members.items():
            archive.writestr(path, content)
    return wheel


def install(site: Path, wheel: Path) -> None:
    """Lay the wheel's files out in `site`, as an installer does."""
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)


def _digest(content: bytes) -> str:
    raw = hashlib.sha256(content).digest()
    return "sha256=" + base64.urlsafe_b64encode(raw).decode().rstrip("=")
