"""Client programs: which there are, what they check, and how one is run in the environment of its client."""

from __future__ import annotations

import ast
import json
import os
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tests.clients.environments import CLIENTS, is_made, python_of

KEY: Final = "key-of-the-clients"

_PROGRAMS: Final = Path(__file__).resolve().parent / "programs"
_LONGEST_RUN_S: Final = 900.0


@dataclass(frozen=True)
class Program:
    """One file in `programs`, and the client that it needs."""

    client: str
    path: Path

    @property
    def checks(self) -> tuple[str, ...]:
        """The functions that check something, without importing what only the client's environment has."""
        module = ast.parse(self.path.read_text(encoding="utf-8"))
        functions = [one for one in module.body if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef)]
        return tuple(one.name for one in functions if one.name.startswith("check_"))


Outcomes = Callable[[Program], Mapping[str, Any]]
"""What became of the checks of a program."""


def programs() -> tuple[Program, ...]:
    """Return all programs: the files whose name begins with that of a client."""
    found = [
        Program(client, path)
        for client in CLIENTS
        for path in (*_PROGRAMS.glob(f"{client}.py"), *_PROGRAMS.glob(f"{client}_*.py"))
    ]
    return tuple(sorted(found, key=lambda one: one.path))


def run(program: Program, url: str, folder: Path) -> Mapping[str, Any]:
    """Return what became of each check of the program. `folder` is its home.

    Raises: AssertionError if there is no environment for it, or if it does not run to its end.
    """
    assert is_made(program.client), f"the environment of {program.client} is missing or outdated: run `make clients`"
    report = folder / "report.json"
    # A proxy, a key or a base URL of the user's own must not reach a client.
    environment = {name: os.environ[name] for name in ("PATH", "LANG", "TMPDIR") if name in os.environ}
    environment |= {"HOME": str(folder), "NO_PROXY": "*", "CORRAL_URL": url, "CORRAL_KEY": KEY}
    done = subprocess.run(
        [str(python_of(program.client)), str(program.path), str(report)],
        cwd=folder,
        env=environment,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=_LONGEST_RUN_S,
        check=False,
    )
    assert done.returncode == 0, f"{program.path.name} ended with {done.returncode}:\n{done.stdout}"
    return dict(json.loads(report.read_text(encoding="utf-8")))
