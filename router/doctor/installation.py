"""Whether Python and the libraries are what Corral needs, and can be imported.

Owns that look. The libraries are imported in a process of their own: a broken one may end it.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from router.doctor.findings import Finding, fail, ok, warn

DISTRIBUTION: Final = "llama-corral"
LEAST_PYTHON: Final = (3, 11)
_IMPORT_S: Final = 20.0
_REQUIREMENT = re.compile(r"\s*(?P<name>[A-Za-z0-9][A-Za-z0-9._-]*)\s*\(?(?P<bounds>[^;()]*)\)?\s*(?:;(?P<marker>.*))?")
_BOUND = re.compile(r"\s*(?P<operator>>=|<=|==|!=|~=|<|>)\s*(?P<version>[^\s,]+)\s*")

_MODULES: Final = (
    *("aiohttp", "click", "httpx", "huggingface_hub", "jinja2", "jsonschema", "llguidance", "numpy", "orjson"),
    *("psutil", "pydantic", "pydantic_settings", "rich", "yaml"),
)
_OPTIONAL: Final = frozenset({"uvloop"})
"""Missing, they cost speed alone."""

_IMPORT_ALL = """
import importlib, json, sys
failed = {}
for name in sys.argv[1:]:
    try:
        importlib.import_module(name)
    except Exception as error:
        failed[name] = f"{type(error).__name__}: {error}"
    print(json.dumps([name, failed.get(name)]), flush=True)
"""


@dataclass(frozen=True, slots=True)
class Requirement:
    """One library that the distribution asks for."""

    name: str
    bounds: str
    is_extra: bool


def check_installation() -> list[Finding]:
    """Return what there is to say of Python and of the libraries' versions. Quick: nothing is imported."""
    findings = [_python()]
    try:
        version = importlib.metadata.version(DISTRIBUTION)
        required = importlib.metadata.requires(DISTRIBUTION) or []
    except importlib.metadata.PackageNotFoundError:
        advice = f"$ {sys.executable} -m pip install ."
        return [*findings, fail("Corral runs from a folder and is not installed: no versions can be checked", advice)]
    findings.append(ok(f"Corral {version} in {sys.prefix}"))
    wrong = list(_wrong_versions([parse_requirement(text) for text in required]))
    return findings + (wrong or [ok("all libraries are there, in versions that fit")])


def check_imports(modules: Sequence[str] = _MODULES) -> list[Finding]:
    """Return which libraries cannot be imported. Takes about a second."""
    words = [sys.executable, "-P", "-c", _IMPORT_ALL, *modules]
    try:
        done = subprocess.run(words, capture_output=True, timeout=_IMPORT_S, check=False, stdin=subprocess.DEVNULL)
    except subprocess.TimeoutExpired:
        return [warn(f"the libraries could not be imported within {_IMPORT_S:.0f} s: the disk may be very slow")]
    except OSError as error:
        return [fail(f"{sys.executable} cannot be started: {error.strerror}")]
    told = dict(_told(done.stdout.decode("utf-8", "replace")))
    findings = [
        fail(f"{name} cannot be imported: {reason}", _reinstall(name)) for name, reason in told.items() if reason
    ]
    missing = [name for name in modules if name not in told]
    if missing:  # the process has died while it imported the first of them
        said = done.stderr.decode("utf-8", "replace").strip().splitlines()
        last = f": {said[-1]}" if said else ""
        findings.append(
            fail(f"importing {missing[0]} ended Python (status {done.returncode}){last}", _reinstall(missing[0]))
        )
    return findings or [ok("all libraries can be imported")]


def parse_requirement(text: str) -> Requirement:
    """Return what a line of a distribution's requirements says. Source: the dependency specifiers' specification."""
    match = _REQUIREMENT.match(text)
    assert match is not None
    return Requirement(match["name"], match["bounds"].strip(), "extra" in (match["marker"] or ""))


def is_within(version: str, bounds: str) -> bool:
    """Return whether a version keeps `bounds`, as far as its numbers tell."""
    found = _numbers(version)
    for match in _BOUND.finditer(bounds):
        wanted = _numbers(match["version"])
        length = max(len(found), len(wanted))
        left, right = (numbers + (0,) * (length - len(numbers)) for numbers in (found, wanted))
        holds = {
            ">=": left >= right,
            "<=": left <= right,
            ">": left > right,
            "<": left < right,
            "==": left == right,
            "!=": left != right,
            "~=": left >= right and left[: len(wanted) - 1] == right[: len(wanted) - 1],
        }
        if not holds[match["operator"]]:
            return False
    return True


def _numbers(version: str) -> tuple[int, ...]:
    match = re.match(r"\d+(?:\.\d+)*", version)
    return tuple(int(part) for part in match[0].split(".")) if match else ()


def _python() -> Finding:
    version = ".".join(map(str, sys.version_info[:3]))
    if sys.version_info[:2] < LEAST_PYTHON:
        least = ".".join(map(str, LEAST_PYTHON))
        return fail(f"Python {version} is too old: Corral needs {least} or newer", f"$ python{least} -m venv .venv")
    is_own = sys.prefix != sys.base_prefix or os.environ.get("CONDA_PREFIX")
    if is_own:
        return ok(f"Python {version}")
    advice = "an environment of its own (`python3 -m venv .venv`) keeps other programs from changing its libraries"
    return ok(f"Python {version}, the system's own: {advice}")


def _wrong_versions(required: Sequence[Requirement]) -> Iterator[Finding]:
    for one in required:
        if one.is_extra:
            continue
        try:
            version = importlib.metadata.version(one.name)
        except importlib.metadata.PackageNotFoundError:
            tell = warn if one.name in _OPTIONAL else fail
            yield tell(f"{one.name} is not installed", _install(one))
            continue
        if not is_within(version, one.bounds):
            yield fail(f"{one.name} {version} is installed, and {one.bounds} is needed", _install(one))


def _install(one: Requirement) -> str:
    return f"$ {sys.executable} -m pip install '{one.name}{one.bounds}'"


def _reinstall(module: str) -> str:
    names = {"yaml": "pyyaml", "pydantic_settings": "pydantic-settings"}
    return f"$ {sys.executable} -m pip install --force-reinstall {names.get(module, module)}"


def _told(out: str) -> Iterator[tuple[str, str | None]]:
    for line in out.splitlines():
        try:
            name, reason = json.loads(line)
        except (ValueError, TypeError):
            continue
        yield str(name), None if reason is None else str(reason)
