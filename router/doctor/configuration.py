"""Whether the settings and the configuration are sound, as `corral check` sees them.

Owns the summary alone: what is wrong with them others say.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from router.doctor.findings import Finding, fail, ok, warn

_MAX_SHOWN = 8


@dataclass(frozen=True, slots=True)
class Configured:
    """What the rest of the report wants to know."""

    findings: tuple[Finding, ...]
    cache: Path | None = None
    wants_mlock: bool = False


def check_configuration(file: Path | None) -> Configured:
    """Return what there is to say of the environment's settings and of `file`; None = ./models.yaml."""
    try:
        from router.catalog_files import examine, in_order
        from router.checking import file_problems, key_problems, rule_problems
        from router.settings import SettingsError, read_settings, unknown_variables
        from router.sources import ModelStore, default_cache_dir
    except ImportError as error:
        return Configured((fail(f"the configuration cannot be read: {error}"),))
    try:
        settings: Any = read_settings()
    except SettingsError as error:
        return Configured(tuple(fail(problem, "correct the variable of the environment") for problem in error.problems))
    cache = settings.cache
    path = Path("models.yaml") if file is None else file
    if file is None and not path.exists():
        text = f"there is no models.yaml in this folder ({_here()})"
        advice = (
            "go to its folder, or name it: `corral doctor FILE`; `corral serve FOLDER` serves .gguf files without one"
        )
        return Configured((warn(text, advice),), cache)
    folder = cache.expanduser() if cache is not None else default_cache_dir()
    store = ModelStore(folder, offline=settings.offline)
    found = examine(path, store.locate)
    problems = list(found.problems)
    if found.is_sound:
        problems += key_problems(settings, found.catalog, os.environ, found.reading)
        problems += file_problems(found.catalog, store, must_be_here=settings.offline, reading=found.reading)
        problems += rule_problems(found.catalog, found.reading)
    problems = list(in_order(problems))
    findings = [fail(problem.describe(path)) for problem in problems[:_MAX_SHOWN]]
    if len(problems) > _MAX_SHOWN:
        findings.append(fail(f"and {len(problems) - _MAX_SHOWN} more problems", f"$ corral check {path}"))
    if not problems:
        count = len(found.catalog.models)
        findings.append(ok(f"{path}: {count} {'model' if count == 1 else 'models'}, no problems"))
    findings += [warn(text) for text in unknown_variables(os.environ, found.catalog)]
    wants_mlock = any(spec.engine.get("mlock") for spec in found.catalog.models.values())
    return Configured(tuple(findings), cache, wants_mlock)


def _here() -> str:
    try:
        return str(Path.cwd())
    except FileNotFoundError:
        return "which is gone"
