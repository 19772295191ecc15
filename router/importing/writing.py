"""An imported configuration as the text of a `models.yaml`, with what was not carried over in comments.

Owns the form of that text. Pure.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import yaml

from router.catalog import MAX_NAME_LENGTH
from router.catalog_keys import MODEL_KEYS
from router.importing.imported import Imported, ImportedModel

_WIDTH = 116
_LIKE_A_NUMBER = re.compile(r"[-+.\d][\w.+-]*")
_ORDER = tuple(MODEL_KEYS)
"""As the table of keys has them."""


def write_catalog(imported: Imported) -> str:
    """Return the whole file."""
    lines = [f"# Made from {imported.origin} by `corral import`. `corral check` tells whether everything is there."]
    for note in imported.notes:
        lines += _comment(note, "")
    lines.append("")
    for key, value in imported.top.items():
        lines += [*_entry(key, value, ""), ""]
    models = _told_apart(imported.models)
    lines.append("models:" if any(model.is_usable for model in models) else "models: {}")
    for model in models:
        lines += _model(model)
        lines.append("")
    return "\n".join(lines).rstrip("\n") + "\n"


def _told_apart(models: Iterable[ImportedModel]) -> list[ImportedModel]:
    """Return the models; one whose name an earlier one has gets another name."""
    apart: list[ImportedModel] = []
    taken: set[str] = set()
    for model in models:
        usual = _usual_name(model.name)
        name, number = usual, 2
        while model.is_usable and name in taken:
            name, number = f"{usual}-{number}", number + 1
        if model.is_usable:
            taken.add(name)
        note = [] if usual == model.name else [f"it was called {model.name!r}, which cannot be a name"]
        note += [f"it was called {usual!r} like the one above"] if name != usual else []
        apart.append(replace(model, name=name, notes=[*model.notes, *note]))
    return apart


def _usual_name(name: str) -> str:
    """Return the name as one that a model may have: short, and of letters that can be seen."""
    seen = "".join(letter if letter.isprintable() else "-" for letter in re.sub(r"\s+", "-", name))
    return seen[: MAX_NAME_LENGTH - 10]  # there is room for a number


def _model(model: ImportedModel) -> list[str]:
    notes = [line for note in model.notes for line in _comment(note, "  ")]
    if not model.is_usable:
        return [*_comment(f"{model.name}: not carried over", "  "), *notes]
    options = _tidied(model.options)
    names = [*(key for key in _ORDER if key in options), *(key for key in options if key not in _ORDER)]
    lines = [f"  {_scalar(model.name)}:"]
    for name in names:
        lines += _entry(name, options[name], "    ")
    return [*notes, *lines]


def _tidied(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return options with aliases as a list where none has options of its own."""
    tidy = dict(options)
    aliases = tidy.get("aliases")
    if isinstance(aliases, dict):
        if not aliases:
            del tidy["aliases"]
        elif not any(aliases.values()):
            tidy["aliases"] = list(aliases)
        else:
            tidy["aliases"] = {name: value or {} for name, value in aliases.items()}
    return tidy


def _comment(text: str, indent: str) -> list[str]:
    plain = " ".join("".join(char if char.isprintable() else " " for char in text).split())
    return [f"{indent}# {line}" for line in textwrap.wrap(plain, _WIDTH - len(indent), break_on_hyphens=False)]


def _entry(key: str, value: Any, indent: str) -> list[str]:
    """Return a key with its value: in one line where that is short, lists and maps of scalars in brackets."""
    width = _WIDTH - len(indent)
    is_text = isinstance(value, str) and "\n" in value
    if is_text or isinstance(value, dict | list):
        style = False if is_text else None
        text = _dump({key: value}, default_flow_style=style, width=width)
    else:
        text = f"{key}: {_dump(value)}".removesuffix("...\n")
    return [f"{indent}{line}".rstrip() for line in text.rstrip("\n").split("\n")]


def _dump(value: Any, *, default_flow_style: bool | None = False, width: int = 1000) -> str:
    """Return a value as YAML; one in which there is anything that a terminal would obey has that in escapes."""

    def dump(*, allow_unicode: bool) -> str:
        return str(
            yaml.dump(
                value,
                Dumper=_Dumper,
                sort_keys=False,
                default_flow_style=default_flow_style,
                allow_unicode=allow_unicode,
                width=width,
            )
        )

    text = dump(allow_unicode=True)
    return text if text.replace("\n", "").isprintable() else dump(allow_unicode=False)


class _Dumper(yaml.SafeDumper):
    """Writes texts of several lines as blocks."""


def _represent_text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    # Readers differ in what they take for a number: 1e9 is one for ours.
    style = "|" if "\n" in text else "'" if _LIKE_A_NUMBER.fullmatch(text) else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _represent_text)


def _scalar(name: str) -> str:
    """Return a name as a key; not dumped as one, because long keys get a form of their own."""
    text = _dump(name, width=10**9)
    return text.removesuffix("...\n").removesuffix("\n")
