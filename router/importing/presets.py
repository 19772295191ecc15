"""llama-server's presets: an INI file with a section for each model, whose keys are options of its command line.

Owns that form. Pure.

Source: llama.cpp, tools/server/README.md, model presets.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from router.importing.flag_names import BOOLEAN, SHORT, canonical
from router.importing.flags import apply_options
from router.importing.imported import Imported, ImportedModel, NotImportable
from router.importing.special_flags import OFF, ON, hub_reference

GLOBAL = "*"
_HUB_NAME = re.compile(r"[\w.-]+/[\w.-]+(?::[\w.-]+)?")
_LATER = frozenset({"models_max", "models_autoload", "stop_timeout", "version"})
_NEGATED = re.compile(r"no_(?P<name>.+)")


@dataclass(slots=True)
class _Section:
    name: str
    pairs: list[tuple[str, str | None]] = field(default_factory=list)


def read_presets(text: str) -> Imported:
    """Return the presets in our words. Raises: NotImportable."""
    sections = list(_sections(text))
    named = [section for section in sections if section.name not in ("", GLOBAL)]
    if not named:
        raise NotImportable("it has no [section] for a model, so it is no file of presets")
    imported = Imported("presets of llama-server")
    shared = [pair for section in sections if section.name in ("", GLOBAL) for pair in section.pairs]
    _top(imported, shared)
    shared = [(name, value) for name, value in shared if name not in _LATER]
    for section in named:
        imported.models.append(_model(section, shared))
    return imported


def _sections(text: str) -> Iterator[_Section]:
    section = _Section("")
    for number, raw in enumerate(text.splitlines(), 1):
        line = raw.strip().lstrip("\ufeff")
        if not line or line[0] in "#;":
            continue
        if line.startswith("[") and line.endswith("]"):
            yield section
            section = _Section(line[1:-1].strip())
            continue
        key, equals, value = line.partition("=")
        if not equals:
            raise NotImportable(f"line {number} is neither a [section] nor KEY = VALUE: {line[:60]!r}")
        section.pairs.append(_pair(key.strip(), _unquoted(value.strip())))
    yield section


def _pair(key: str, value: str) -> tuple[str, str | None]:
    """Return an option with its value; one that is switched off is its opposite where it has one."""
    bare = key.lstrip("-").replace("-", "_")
    name = (
        canonical(key)
        if key.startswith("LLAMA_ARG_")
        else canonical(f"-{bare}")
        if bare in SHORT
        else canonical(f"--{bare}")
    )
    if name in BOOLEAN:
        if value.lower() in ON:
            return name, None
        if value.lower() in OFF:
            match = _NEGATED.fullmatch(name)
            return (match["name"] if match is not None else f"no_{name}"), None
    return name, value


def _unquoted(value: str) -> str:
    return value[1:-1] if len(value) >= 2 and value[0] == value[-1] and value[0] in "\"'" else value


def _model(section: _Section, shared: list[tuple[str, str | None]]) -> ImportedModel:
    name = re.sub(r"\s+", "-", section.name)
    model = ImportedModel(name)
    if name != section.name:
        model.note(f"its section was {section.name!r}; names have no spaces here")
    pairs = [(key, value) for key, value in [*shared, *section.pairs] if key not in _LATER]
    apply_options(model, pairs)
    if not model.is_usable and _HUB_NAME.fullmatch(section.name):
        model.options["model"] = hub_reference(section.name, None)
    if not model.is_usable:
        model.note("it names no model file: write its path, or hf:OWNER/REPO:QUANT, as `model`")
    return model


def _top(imported: Imported, shared: list[tuple[str, str | None]]) -> None:
    for name, value in shared:
        if name == "models_max" and value is not None and value.isdecimal() and int(value) > 0:
            imported.top["limits"] = {"max_loaded": int(value)}
        elif name in ("host", "port"):
            imported.note(f"{name} = {value}: start the server with `--{name}`, or CORRAL_{name.upper()}")
