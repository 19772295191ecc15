"""A configuration with all defaults filled in, as text for people.

Owns that form: YAML, with a mark where the file sets a value. Pure.
"""

from __future__ import annotations

import textwrap
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import yaml

from router.catalog_keys import MODEL_KEYS

_MARK_AT = 44
_WIDTH = 100


def write_models(
    path: Path,
    default_model: str | None,
    limits: Mapping[str, Any],
    models: Mapping[str, Any],
    written: Mapping[str, Collection[str]],
) -> str:
    """Return the whole text. It can be read as a models.yaml. `written`: by model, the keys that the file sets."""
    lines = [f"# {path} with all defaults filled in; at options of models, * = set there, or in its `defaults:`"]
    if default_model is not None:
        lines.append(_line("default_model", default_model))
    set_limits = {name: value for name, value in limits.items() if value is not None}
    lines += ["limits:", *(f"  {_line(name, value)}" for name, value in set_limits.items()), "models:"]
    for name, options in models.items():
        lines.append(f"  {_scalar(name)}:")
        for key, value in options.items():
            if _is_nothing(value):
                continue
            line = f"    {_line(key, value)}"
            is_set = key in written.get(name, ()) or _is_set(key, value)
            lines.append(f"{line:<{_MARK_AT}} # *" if is_set else line)
        if unset := [key for key, value in options.items() if _is_nothing(value)]:
            text = "without a value: " + ", ".join(unset)
            lines += textwrap.wrap(text, _WIDTH, initial_indent="    # ", subsequent_indent="    #   ")
    return "\n".join(lines) + "\n"


def _is_nothing(value: Any) -> bool:
    return value is None or value in ([], {})


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
