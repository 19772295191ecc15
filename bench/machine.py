"""What a reader must know to place the figures."""

from __future__ import annotations

import os
import platform
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import psutil


def describe_machine() -> dict[str, str]:
    """Return the machine and the versions that the figures depend on."""
    return {
        "processor": _processor(),
        "cores": f"{psutil.cpu_count(logical=False) or '?'} physical, {os.cpu_count()} logical",
        "memory": f"{psutil.virtual_memory().total / 2**30:.0f} GiB",
        "system": platform.platform(),
        "python": platform.python_version(),
        "llama-cpp-python": _version("llama-cpp-python"),
        "commit": commit(),
    }


def commit() -> str:
    """Return the commit of this working tree; says when files differ from it."""
    root = Path(__file__).parents[1]
    try:
        done = subprocess.run(
            ["git", "describe", "--always", "--dirty", "--abbrev=12"],
            cwd=root,
            capture_output=True,
            text=True,
            check=True,
        )
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return done.stdout.strip()


def peer_version(peer: Path) -> str:
    """Return what llama-server says of itself, in a line."""
    done = subprocess.run([str(peer), "--version"], capture_output=True, text=True, check=False)
    lines = (done.stdout + done.stderr).splitlines()
    return next((line.strip() for line in lines if "version" in line), "unknown version")


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.machine())


def _version(distribution: str) -> str:
    try:
        return version(distribution)
    except PackageNotFoundError:
        return "unknown"
