"""Scalar YAML nodes -> checked values, names, and how messages name what was found.

Owns the words about wrong types and ranges, the rules for names, and the list on which problems go. Must not know
lists, maps or which keys exist (`catalog_values.py`).
"""

from __future__ import annotations

import re
import urllib.parse
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, assert_never

from router.catalog import MAX_NAME_LENGTH
from router.catalog_kinds import Choice, Number, Size, Text, Whole
from router.catalog_problems import Problem
from router.yaml_lines import Place, YamlEntry, YamlList, YamlMap, YamlNode, YamlScalar


class Wrong(Exception):
    """A value cannot be used; says why. Caught in `catalog_values.py`: it becomes a problem with a place."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


@dataclass(slots=True)
class Findings:
    """Collects problems, in the order of discovery, each once."""

    base_dir: Path
    _problems: dict[Problem, None] = field(default_factory=dict)

    @property
    def problems(self) -> tuple[Problem, ...]:
        """Everything that was found so far."""
        return tuple(self._problems)

    @property
    def count(self) -> int:
        """How many problems were found so far."""
        return len(self._problems)

    def add(self, where: str, place: Place, message: str) -> None:
        """Record one problem, on one line whatever its keys and values contain. Mutates: `problems`."""
        self._problems[Problem(_one_line(where), _one_line(message), place.line, place.column)] = None


@dataclass(frozen=True, slots=True)
class Found:
    """A value that was read, and where it stands."""

    value: Any
    where: str
    place: Place


# --- what may be a secret ---------------------------------------------------------------------------------


class _HiddenScalar(YamlScalar):
    """A scalar that no message may quote."""

    __slots__ = ()


def hidden(node: YamlNode) -> YamlNode:
    """Return the same node, of which no message quotes a value: it may hold secrets."""
    match node:
        case YamlMap():
            return hidden_map(node)
        case YamlList():
            return YamlList(tuple(hidden(item) for item in node.items), node.place)
        case YamlScalar():
            return _HiddenScalar(node.value, node.text, node.place)
        case _:
            assert_never(node)


def hidden_map(node: YamlMap) -> YamlMap:
    """Return the same map, of which no message quotes a value; its keys are no secret."""
    entries = {name: YamlEntry(hidden(entry.value), entry.place) for name, entry in node.entries.items()}
    return YamlMap(entries, node.place)


# --- values ----------------------------------------------------------------------------------------------


def read_whole(kind: Whole, node: YamlNode) -> int | None:
    """Return the number, or what a word stands for. Raises: Wrong."""
    if isinstance(node, YamlScalar):
        if isinstance(node.value, str) and node.value in kind.words:
            return kind.words[node.value]
        if isinstance(node.value, int) and not isinstance(node.value, bool):
            if node.value > kind.maximum and kind.beyond:
                raise Wrong(kind.beyond)
            if not kind.minimum <= node.value <= kind.maximum:
                raise Wrong(f"must be from {kind.minimum} to {kind.maximum}, not {shown(node)}")
            return node.value
    words = "".join(f" or `{word}`" for word in kind.words)
    raise Wrong(f"must be {kind.hint or 'a whole number'}{words}, not {shown(node)}{_unquote(node)}")


def read_number(kind: Number, node: YamlNode) -> float:
    """Return the number. Raises: Wrong."""
    value = node.value if isinstance(node, YamlScalar) else None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise Wrong(f"must be {kind.hint or 'a number'}, not {shown(node)}{_unquote(node)}")
    if not kind.minimum <= value <= kind.maximum or (kind.is_open and value == kind.minimum):
        bound = "more than" if kind.is_open else "at least"
        raise Wrong(f"must be {bound} {kind.minimum:g} and at most {kind.maximum:g}, not {shown(node)}")
    return float(value)


SIZE_PATTERN = r"([0-9]+(?:\.[0-9]+)?) ?(?:([KMGT])(i?B|i)?|B)"
"""A size as text: a number, maybe one space, a unit. A unit without `B` means the same as one with `iB`."""


def read_size(kind: Size, node: YamlNode) -> int:
    """Return the number of bytes. Raises: Wrong."""
    value = node.value if isinstance(node, YamlScalar) else None
    size: float | None = None
    if isinstance(value, int | float) and not isinstance(value, bool):
        size = value if value == value // 1 else None
    elif isinstance(value, str) and (match := re.fullmatch(SIZE_PATTERN, value, re.IGNORECASE)) is not None:
        number, prefix, suffix = match.groups()
        unit = 1 if prefix is None else (1000 if suffix in ("B", "b") else 1024) ** ("KMGT".index(prefix.upper()) + 1)
        size = round(float(number) * unit)
    if size is None:
        raise Wrong(f"must be a number of bytes, or text such as `8GiB` or `500MB`, not {shown(node)}{_unquote(node)}")
    if not kind.minimum <= size <= kind.maximum:
        raise Wrong(f"must be from {kind.minimum} to {kind.maximum} bytes, not {shown(node)}")
    return int(size)


_ROUTES = ("/chat/completions", "/completions", "/embeddings", "/rerank", "/models")


def read_address(node: YamlNode) -> str:
    """Return the address of a server, without a `/` at its end and with `/v1` if it has no path. Raises: Wrong."""
    text = read_string(Text(2000), node)
    try:
        parts = urllib.parse.urlsplit(text)
        port, host = parts.port, parts.hostname
    except ValueError:
        raise Wrong("is not the address of a server; write for example `https://HOST/v1`") from None
    if "@" in parts.netloc:  # not quoted: it may hold a password
        raise Wrong("must not hold a user or password; put the API key into a variable and name it in `url_key_env`")
    if parts.scheme not in ("http", "https") or not host or " " in text or port == 0:
        raise Wrong(f"must be an address such as `https://HOST/v1`, not {shown(node)}")
    if parts.query or parts.fragment or text[-1] in "?#":
        raise Wrong("must end with the path, without `?` and `#`; write for example `https://HOST/v1`")
    path = parts.path.rstrip("/")
    for route in _ROUTES:
        if path.endswith(route):
            raise Wrong(f"must not name a route: leave `{route}` out, requests bring their own")
    return f"{parts.scheme}://{parts.netloc}{path or '/v1'}"


def _unquote(node: YamlNode) -> str:
    """Return advice for a number in quotes."""
    if not isinstance(node, YamlScalar) or not isinstance(node.value, str):
        return ""
    return "; remove the quotes" if re.fullmatch(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?", node.value) is not None else ""


def read_string(kind: Text, node: YamlNode) -> str:
    """Return the text. Raises: Wrong."""
    if not isinstance(node, YamlScalar) or not isinstance(node.value, str):
        is_value = isinstance(node, YamlScalar) and node.value is not None
        raise Wrong(f"must be text, not {shown(node)}" + ("; put it in quotes" if is_value else ""))
    text = node.value
    if len(text) > kind.max_length:
        raise Wrong(f"is too long: {len(text)} characters, at most {kind.max_length} are allowed")
    if not text.strip() and not kind.may_be_empty:
        raise Wrong("must not be empty")
    if not kind.is_long and not text.isprintable():
        raise Wrong("must be one line without control characters")
    return text


def read_secretive(node: YamlNode, pattern: str, what: str) -> str:
    """Return the text if it fits `pattern`. Raises: Wrong, without quoting what may be a secret."""
    if isinstance(node, YamlScalar) and re.fullmatch(pattern, node.text) is not None and node.value is not None:
        return node.text
    raise Wrong(f"must be {what}")


def read_choice(kind: Choice, node: YamlNode) -> str:
    """Return the word. Raises: Wrong."""
    if isinstance(node, YamlScalar):
        if isinstance(node.value, bool) and node.value in kind.flags:
            return kind.flags[node.value]
        if isinstance(node.value, str) and node.value in kind.values:
            return node.value
    raise Wrong(f"must be one of {', '.join(kind.values)}, not {shown(node)}")


def resolve_path(text: str, base_dir: Path) -> Path:
    """Return the path relative to `base_dir`; one that starts with `~` is left to whoever may ask for the home."""
    return Path(text) if text.startswith("~") else base_dir / text


def name_problem(name: str, *, may_be_pattern: bool = False) -> str | None:
    """Return why `name` cannot name a model, an alias or an adapter; None if it can."""
    if not name:
        return "a name must not be empty"
    if len(name) > MAX_NAME_LENGTH:
        return f"a name has at most {MAX_NAME_LENGTH} characters, this one has {len(name)}"
    if "*" in name and not may_be_pattern:
        return "only aliases may have a `*` in their name: write it among the `aliases` of a model"
    if "**" in name:
        return "`**` means the same as `*` here: write one"
    if " " in name or not name.isprintable():  # other kinds of space are not printable
        return "a name must not contain spaces or control characters"
    return None


# --- messages -------------------------------------------------------------------------------------------


def _one_line(text: str) -> str:
    return text if text.isprintable() else "".join(c if c.isprintable() else "?" for c in text)


def short_text(node: YamlNode) -> str | None:
    """Return a scalar's text if it may be quoted in a message and is short enough for that."""
    if isinstance(node, _HiddenScalar):
        return None
    return node.text if isinstance(node, YamlScalar) and 0 < len(node.text) <= 40 else None


def shown(node: YamlNode) -> str:
    """Return how a message names `node`."""
    match node:
        case YamlList():
            return "a list"
        case YamlMap():
            return "a map"
        case YamlScalar(value=None):
            return "nothing (null)"
        case _HiddenScalar(value=value):
            return "text" if isinstance(value, str) else "true or false" if isinstance(value, bool) else "a number"
        case YamlScalar(value=str(text)):
            flat = " ".join(text.split())
            return f"the text '{flat if len(flat) <= 40 else flat[:40] + '…'}'"
        case YamlScalar():
            return node.text[:40]
        case _:
            assert_never(node)
