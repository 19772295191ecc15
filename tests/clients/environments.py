"""A virtual environment for each client program that the tests run.

Owns what is installed where. Each client has an environment of its own, because together they hold each other back:
one wants an older release of what another wants newer. `pins/NAME.txt` says exactly what is in it; `--update` renews
these files with the newest releases that the package index has.
"""

from __future__ import annotations

import argparse
import hashlib
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

CLIENTS: Final = {
    "anthropic": ("anthropic",),
    "instructor": ("instructor",),
    "langchain": ("langchain-openai",),
    "litellm": ("litellm",),
    "llm": ("llm",),
    "ollama": ("ollama",),
    "openai": ("openai",),
    "smolagents": ("openai", "smolagents"),
}
"""Client -> the packages that it is, whose newest releases an update looks for."""

_HERE: Final = Path(__file__).resolve().parent
_PINS: Final = _HERE / "pins"
_ENVIRONMENTS: Final = _HERE.parents[1] / ".venv-clients"
_STAMP: Final = "made-of"


def pins_of(client: str) -> Path:
    """Return the file that says what is installed."""
    return _PINS / f"{client}.txt"


def python_of(client: str) -> Path:
    """Return the interpreter of the client's environment, whether it is made or not."""
    return _ENVIRONMENTS / client / "bin" / "python"


def is_made(client: str) -> bool:
    """Return whether the environment holds what its pins say."""
    stamp = _ENVIRONMENTS / client / _STAMP
    return stamp.is_file() and stamp.read_text(encoding="utf-8") == _fingerprint(client)


def make(client: str) -> None:
    """Make the environment as its pins say. Raises: CalledProcessError if a package cannot be had."""
    _install(client, ["--requirement", str(pins_of(client))])
    _mark_made(client)


def update(client: str) -> None:
    """Make the environment with the newest releases, and write down which these are."""
    _install(client, CLIENTS[client])
    frozen = _pip(client, "freeze", capture=True)
    lines = [f"# What `make clients-update` found newest for {' '.join(CLIENTS[client])}.", *sorted(frozen.split("\n"))]
    pins_of(client).write_text("\n".join(line for line in lines if line) + "\n", encoding="utf-8")
    _mark_made(client)


def _mark_made(client: str) -> None:
    (_ENVIRONMENTS / client / _STAMP).write_text(_fingerprint(client), encoding="utf-8")


def _fingerprint(client: str) -> str:
    """Return what an environment is made of, in short."""
    return hashlib.sha256(sys.version.encode() + pins_of(client).read_bytes()).hexdigest()


def _install(client: str, packages: Sequence[str]) -> None:
    """Put `packages` into a new environment; one that breaks off has no stamp, and is made again next time."""
    folder = _ENVIRONMENTS / client
    shutil.rmtree(folder, ignore_errors=True)
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    # Most of these modules are never imported: those that are get compiled then.
    _pip(client, "install", "--quiet", "--no-compile", *packages)


def _pip(client: str, *arguments: str, capture: bool = False) -> str:
    """Run the pip of this environment on the client's, which needs none of its own."""
    command = [sys.executable, "-m", "pip", "--python", str(python_of(client)), *arguments]
    done = subprocess.run(command, check=True, text=True, stdout=subprocess.PIPE if capture else None)
    return done.stdout or ""


def main() -> None:
    """Make what is missing, or renew the pins."""
    parser = argparse.ArgumentParser(prog="python -m tests.clients.environments", description=main.__doc__)
    parser.add_argument("clients", nargs="*", metavar="CLIENT", help=f"of {', '.join(CLIENTS)}; without one: all")
    parser.add_argument("--update", action="store_true", help="pin the newest releases instead of those in pins/")
    asked = parser.parse_args()
    if unknown := set(asked.clients) - CLIENTS.keys():
        parser.error(f"there is no client {', '.join(sorted(unknown))}")
    for client in asked.clients or CLIENTS:
        if not asked.update and is_made(client):
            continue
        start_s = time.monotonic()
        (update if asked.update else make)(client)
        sys.stdout.write(f"{client}: environment made in {time.monotonic() - start_s:.0f} s\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
