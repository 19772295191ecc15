"""A configuration with all defaults filled in, as text for people.

Owns that form: YAML, with a mark where a value is not the program's own default. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from router.catalog_keys import MODEL_KEYS

_MARK_AT = 44


def write_models(path: Path, default_model: str | None, limits: Mapping[str, Any], models: Mapping[str, Any]) -> str:
    """Return the whole text. It can be read as a models.yaml."""
    lines = [f"# {path} with all defaults filled in; * = set there, or in its `defaults:`"]
    if default_model is not None:
        lines.append(_line("default_model", default_model))
    set_limits = {name: value for name, value in limits.items() if value is not None}
    lines += ["limits:", *(f"  {_line(name, value)}" for name, value in set_limits.items()), "models:"]
    for name, options in models.items():
        lines.append(f"  {_scalar(name)}:")
        for key, value in options.items():
            if value is None or value in ([], {}):
                continue
            line = f"    {_line(key, value)}"
            lines.append(f"{line:<{_MARK_AT}} # *" if _is_set(key, value) else line)
    return "\n".join(lines) + "\n"


def _is_set(key: str, value: Any) -> bool:
    default = MODEL_KEYS[key].default
    usual = {"gpu_layers": "all", "aliases": {}}.get(key, list(default) if isinstance(default, tuple) else default)
    return bool(value != usual)


def _line(key: str, value: Any) -> str:
    return f"{key}: {_scalar(value)}"


def _scalar(value: Any) -> str:
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    text = yaml.safe_dump(value, default_flow_style=True, allow_unicode=True, width=10**6, sort_keys=False)
    return text.removesuffix("\n").removesuffix("\n...")
