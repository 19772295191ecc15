"""Where the files for operators are, and the programs that check them. Must not judge any of them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"


def tool(name: str) -> str:
    """Return the path of a program; those that come with Python packages lie beside the interpreter."""
    found = shutil.which(
        name, path=os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"], "/usr/sbin"])
    )
    assert found is not None, f"{name} is not installed: .ci/run tells what the tests marked `deploy` need"
    return found


def run(*command: str | Path, env: dict[str, str] | None = None) -> str:
    """Return what a program that must succeed has written."""
    done = subprocess.run(
        [str(part) for part in command],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env=os.environ | (env or {}),
    )
    assert done.returncode == 0, f"{command[0]}: {done.stdout}\n{done.stderr}"
    return done.stdout


def unit(path: Path) -> dict[str, list[str]]:
    """Return the settings of a systemd unit, all sections together; a setting may be given several times."""
    found: dict[str, list[str]] = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        if line and line[0] not in "#[;":
            name, _, value = line.partition("=")
            found.setdefault(name, []).append(value)
    return found


def documents(text: str) -> list[dict[str, Any]]:
    """Return the YAML documents of a text that say something."""
    return [document for document in yaml.safe_load_all(text) if document]


def by_kind(found: list[dict[str, Any]], kind: str) -> dict[str, Any]:
    """Return the only manifest of that kind."""
    (one,) = [document for document in found if document["kind"] == kind]
    return one
