"""`corral version`: the versions of everything that an answer may depend on.

Owns the list. Loads none of it: what llama.cpp says of itself `corral doctor` asks.
"""

from __future__ import annotations

import importlib.metadata
import os
import platform
import re
import sys
from collections.abc import Sequence
from typing import Any

import click

from router.cli.output import json_option, print_json

_LIBRARIES = ("llama-cpp-python", "llguidance", "aiohttp", "pydantic", "numpy", "huggingface_hub", "uvloop")

_GGML = re.compile(r"libggml(?:-base)?(?:\.so\.(?P<so>\d+\.\d+\.\d+)|\.(?P<dylib>\d+\.\d+\.\d+)\.dylib)")
_BACKEND = re.compile(r"libggml-([a-z0-9]+)\.(?:so|dylib)")


@click.command()
@json_option
def version(as_json: bool) -> None:
    """Show the versions of Corral, Python and the libraries that matter."""
    found = versions()
    if as_json:
        print_json(found)
        return
    click.echo(f"corral {found['corral'] or 'unknown'}")
    click.echo(f"Python {found['python']}, {found['platform']}")
    for name, number in found["libraries"].items():
        click.echo(f"{name} {number or 'is not installed'}")
    if found["ggml"]:
        click.echo(f"ggml {found['ggml']}, with {', '.join(found['backends'])}")
    if found["llama_cpp_lib_path"]:
        click.echo(f"llama.cpp is taken from {found['llama_cpp_lib_path']} (LLAMA_CPP_LIB_PATH)")


def versions() -> dict[str, Any]:
    """Return what JSON shows; None = it is not installed, or not known without loading it."""
    files = _library_files()
    return {
        "corral": installed("llama-corral"),
        "python": platform.python_version(),
        "executable": sys.executable,
        "platform": f"{platform.system()} {platform.release()} {platform.machine()}",
        "libraries": {name: installed(name) for name in _LIBRARIES},
        "ggml": _ggml(files),
        "backends": _backends(files),
        "llama_cpp_lib_path": os.environ.get("LLAMA_CPP_LIB_PATH") or None,
    }


def _library_files() -> list[str]:
    """Return the names of the shared libraries that llama-cpp-python has brought."""
    try:
        listed = importlib.metadata.distribution("llama-cpp-python").files or []
    except importlib.metadata.PackageNotFoundError:
        return []
    return sorted(path.name for path in listed if path.name.startswith("lib"))


def _ggml(files: Sequence[str]) -> str | None:
    found = (_GGML.fullmatch(name) for name in files)
    return next((match["so"] or match["dylib"] for match in found if match is not None), None)


def _backends(files: Sequence[str]) -> list[str]:
    """Return llama.cpp's backends that are libraries of their own."""
    found = {match[1] for name in files if (match := _BACKEND.fullmatch(name)) is not None}
    return sorted(found - {"base"})


def installed(name: str) -> str | None:
    """Return the version of an installed distribution; None = there is none."""
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None
