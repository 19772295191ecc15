"""Commands that need no server, run in this process in an empty folder, and fetched models made by hand."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from router.cli import main
from router.package_source import package_folder
from router.references import PackageReference, parse_reference
from tests.support.gguf_bytes import gguf_bytes

REFERENCE = "pkg:tiny-model==1.0/tiny.gguf"


def work_in(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The present folder is `folder`, with a cache of its own in it, and no setting comes from outside."""
    for name in os.environ:
        if name.startswith("CORRAL_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("CORRAL_CACHE", str(folder / "cache"))
    monkeypatch.setenv("HF_HOME", str(folder / "hub"))
    monkeypatch.chdir(folder)
    return folder


def run(*arguments: str, typed: str = "") -> Result:
    """Return what a command has said, without a terminal."""
    return CliRunner().invoke(main, arguments, input=typed)


def fetched(cache: Path, reference: str = REFERENCE, data: bytes | None = None) -> Path:
    """Return the folder of a model that lies in the cache as a fetch leaves it."""
    parsed = parse_reference(reference)
    assert isinstance(parsed, PackageReference)
    folder = package_folder(cache, parsed)
    folder.mkdir(parents=True)
    content = gguf_bytes() if data is None else data
    (folder / "tiny.gguf").write_bytes(content)
    manifest = {"reference": str(parsed), "files": [{"name": "tiny.gguf", "size": len(content), "sha256": "0"}]}
    (folder / "source.json").write_text(json.dumps(manifest), encoding="utf-8")
    (folder / ".lock").touch()
    return folder
