"""YAML nodes -> checked values, one kind of the table at a time; what is wrong goes on a list.

Owns the words about wrong types and ranges, and the rules for names. Must not know which keys exist
(`catalog_keys.py`) nor how they fit together (`catalog_models.py`).
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, assert_never

from router.catalog import MAX_NAME_LENGTH, AliasSpec, Problem, RequestRules
from router.catalog_keys import (
    ALIAS_KEYS,
    DIGEST_PATTERN,
    ROUTER_OWNED,
    RULE_KEYS,
    VARIABLE_PATTERN,
    Aliases,
    Choice,
    Digest,
    Environment,
    FilePath,
    Flag,
    Json,
    Key,
    Kind,
    Number,
    Proportions,
    Rules,
    Text,
    Texts,
    Variable,
    Whole,
)
from router.catalog_refusals import NOT_YET, explain_alias_key, explain_rule_key
from router.yaml_lines import Place, YamlList, YamlMap, YamlNode, YamlScalar


class Wrong(Exception):
    """A value cannot be used; says why. Caught in this file: it becomes a problem with a place."""

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

    def add(self, where: str, place: Place, message: str) -> None:
        """Record one problem, on one line whatever its keys and values contain. Mutates: `problems`."""
        self._problems[Problem(_one_line(where), _one_line(message), place.line, place.column)] = None


@dataclass(frozen=True, slots=True)
class Found:
    """A value that was read, and where it stands."""

    value: Any
    where: str
    place: Place


def read_section(
    node: YamlMap,
    where: str,
    keys: Mapping[str, Key],
    explain: Callable[[str, str | None], str],
    findings: Findings,
) -> dict[str, Found]:
    """Return the usable values by key; unknown keys, answered by `explain`, and wrong values become problems.

    Mutates: `findings`.
    """
    found: dict[str, Found] = {}
    for name, entry in node.entries.items():
        path = f"{where}.{name}"
        key = keys.get(name)
        if key is None:
            findings.add(path, entry.place, explain(name, short_text(entry.value)))
            continue
        value = entry.value
        if key.is_nullable and isinstance(value, YamlScalar) and value.value is None:
            found[name] = Found(None, path, value.place)
            continue
        try:
            found[name] = Found(_read(key.kind, value, path, findings), path, value.place)
        except Wrong as wrong:
            findings.add(path, value.place, wrong.message)
    return found


def _read(kind: Kind, node: YamlNode, where: str, findings: Findings) -> Any:  # noqa: PLR0911, PLR0912 - one case for each kind
    """Return the value of `node` as `kind` wants it. Raises: Wrong."""
    match kind:
        case Whole():
            return _whole(kind, node)
        case Number():
            return _number(kind, node)
        case Flag():
            if isinstance(node, YamlScalar) and isinstance(node.value, bool):
                return node.value
            raise Wrong(f"must be true or false, without quotes, not {shown(node)}")
        case Text():
            return _text(kind, node)
        case Choice():
            return _choice(kind, node)
        case Texts():
            return _texts(kind, node, where, findings)
        case Proportions():
            return _proportions(node)
        case Json():
            return {name: to_json(entry.value) for name, entry in _map(node, "a map").entries.items()}
        case Environment():
            return _environment(node, where, findings)
        case Rules():
            return read_rules(node, where, findings)
        case Aliases():
            return _aliases(node, where, findings)
        case Digest():
            return _secretive(
                node, DIGEST_PATTERN, "a SHA-256 sum: 64 hexadecimal digits, as `printf %s KEY | sha256sum` prints it"
            ).lower()
        case Variable():
            return _secretive(
                node, VARIABLE_PATTERN, "the name of an environment variable, for example MY_APP_KEY; not a key itself"
            )
        case FilePath():
            return resolve_path(_text(Text(4096), node), findings.base_dir)
        case _:
            assert_never(kind)


def resolve_path(text: str, base_dir: Path) -> Path:
    """Return the path relative to `base_dir`; one that starts with `~` is left to whoever may ask for the home."""
    return Path(text) if text.startswith("~") else base_dir / text


# --- scalars ----------------------------------------------------------------------------------------------


def _whole(kind: Whole, node: YamlNode) -> int | None:
    if isinstance(node, YamlScalar):
        if isinstance(node.value, str) and node.value in kind.words:
            return kind.words[node.value]
        if isinstance(node.value, int) and not isinstance(node.value, bool):
            if node.value > kind.maximum and kind.beyond:
                raise Wrong(kind.beyond)
            if not kind.minimum <= node.value <= kind.maximum:
                raise Wrong(f"must be from {kind.minimum} to {kind.maximum}, not {node.text[:40]}")
            return node.value
    words = "".join(f" or `{word}`" for word in kind.words)
    raise Wrong(f"must be {kind.hint or 'a whole number'}{words}, not {shown(node)}{_unquote(node)}")


def _number(kind: Number, node: YamlNode) -> float:
    value = node.value if isinstance(node, YamlScalar) else None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise Wrong(f"must be {kind.hint or 'a number'}, not {shown(node)}{_unquote(node)}")
    if not kind.minimum <= value <= kind.maximum or (kind.is_open and value == kind.minimum):
        bound = "more than" if kind.is_open else "at least"
        raise Wrong(f"must be {bound} {kind.minimum:g} and at most {kind.maximum:g}, not {shown(node)}")
    return float(value)


def _unquote(node: YamlNode) -> str:
    """Return advice for a number in quotes."""
    if not isinstance(node, YamlScalar) or not isinstance(node.value, str):
        return ""
    return "; remove the quotes" if re.fullmatch(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?", node.value) is not None else ""


def _text(kind: Text, node: YamlNode) -> str:
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


def _secretive(node: YamlNode, pattern: str, what: str) -> str:
    """Return the text if it fits `pattern`. Raises: Wrong, without quoting what may be a secret."""
    if isinstance(node, YamlScalar) and re.fullmatch(pattern, node.text) is not None and node.value is not None:
        return node.text
    raise Wrong(f"must be {what}")


def _choice(kind: Choice, node: YamlNode) -> str:
    if isinstance(node, YamlScalar):
        if isinstance(node.value, bool) and node.value in kind.flags:
            return kind.flags[node.value]
        if isinstance(node.value, str) and node.value in kind.values:
            return node.value
    raise Wrong(f"must be one of {', '.join(kind.values)}, not {shown(node)}")


# --- lists and maps ---------------------------------------------------------------------------------------


def _map(node: YamlNode, what: str) -> YamlMap:
    if isinstance(node, YamlMap):
        return node
    raise Wrong(f"must be {what}, not {shown(node)}")


def _texts(kind: Texts, node: YamlNode, where: str, findings: Findings) -> tuple[str, ...]:
    if not isinstance(node, YamlList):
        example = f", for example [{kind.allowed[0]}]" if kind.allowed else ""
        raise Wrong(f"must be a list{example}, not {shown(node)}")
    texts: list[str] = []
    for number, item in enumerate(node.items):
        try:
            text = _text(Text(), item)
            if kind.allowed and text not in kind.allowed:
                raise Wrong(f"must be one of {', '.join(kind.allowed)}, not {shown(item)}")
            texts.append(text)
        except Wrong as wrong:
            findings.add(f"{where}[{number}]", item.place, wrong.message)
    if kind.allowed and not node.items:
        raise Wrong(f"must name at least one of {', '.join(kind.allowed)}")
    return tuple(dict.fromkeys(texts))


def _proportions(node: YamlNode) -> tuple[float, ...]:
    numbers = [item.value for item in node.items if isinstance(item, YamlScalar)] if isinstance(node, YamlList) else []
    good = [float(n) for n in numbers if isinstance(n, int | float) and not isinstance(n, bool) and 0 <= n < math.inf]
    if not isinstance(node, YamlList) or len(good) != len(node.items) or sum(good) <= 0 or len(good) > 128:
        raise Wrong(f"must be a list of numbers of 0 or more, for example [3, 1], not {shown(node)}")
    return tuple(good)


def _environment(node: YamlNode, where: str, findings: Findings) -> dict[str, str]:
    env: dict[str, str] = {}
    for name, entry in _map(node, "a map from variable to value").entries.items():
        value = entry.value
        if re.fullmatch(VARIABLE_PATTERN, name) is None:
            findings.add(f"{where}.{name}", entry.place, "is not a name of an environment variable")
        elif not isinstance(value, YamlScalar) or isinstance(value.value, bool | None):
            message = f"must be text or a number, not {shown(value)}; put it in quotes"
            findings.add(f"{where}.{name}", value.place, message)
        elif "\0" in value.text:
            findings.add(f"{where}.{name}", value.place, "must not contain the character U+0000")
        else:
            env[name] = value.text
    return env


def read_rules(node: YamlNode, where: str, findings: Findings) -> RequestRules:
    """Return the rules of a `request:` map. Mutates: `findings`. Raises: Wrong when it is no map at all."""

    def explain(key: str, value: str | None) -> str:
        return explain_rule_key(key, value, RULE_KEYS)

    section = _map(node, "a map with `defaults`, `force` or `drop`")
    found = read_section(section, where, RULE_KEYS, explain, findings)
    for name, part in found.items():
        for owned in ROUTER_OWNED:
            if owned in part.value:
                findings.add(
                    f"{where}.{name}",
                    part.place,
                    f"cannot change `{owned}`: the router reads it before any rule applies",
                )
    values = {name: part.value for name, part in found.items()}
    return RequestRules(values.get("defaults", {}), values.get("force", {}), values.get("drop", ()))


def _aliases(node: YamlNode, where: str, findings: Findings) -> tuple[tuple[AliasSpec, str, Place], ...]:
    """Return each alias with the path and place of its name."""
    entries: list[tuple[str, str, Place, YamlNode | None]] = []
    if isinstance(node, YamlMap):
        entries = [(name, f"{where}.{name}", entry.place, entry.value) for name, entry in node.entries.items()]
    elif isinstance(node, YamlList):
        for number, item in enumerate(node.items):
            path = f"{where}[{number}]"
            if isinstance(item, YamlScalar) and isinstance(item.value, str):
                entries.append((item.value, path, item.place, None))
            else:
                findings.add(path, item.place, f"must be a name, not {shown(item)}; put it in quotes")
    else:
        raise Wrong(f"must be a list of names or a map from name to options, not {shown(node)}")
    aliases = []
    for name, path, place, options in entries:
        if (message := name_problem(name)) is not None:
            findings.add(path, place, message)
        else:
            aliases.append((_alias(name, path, options, findings), path, place))
    return tuple(aliases)


def _alias(name: str, where: str, options: YamlNode | None, findings: Findings) -> AliasSpec:
    if options is None or (isinstance(options, YamlScalar) and options.value is None):
        return AliasSpec(name)
    if not isinstance(options, YamlMap):
        findings.add(where, options.place, f"must be empty or a map with `request` or `listed`, not {shown(options)}")
        return AliasSpec(name)

    def explain(key: str, value: str | None) -> str:
        return explain_alias_key(key, ALIAS_KEYS)

    values = {key: found.value for key, found in read_section(options, where, ALIAS_KEYS, explain, findings).items()}
    return AliasSpec(name, values.get("request", RequestRules()), values.get("listed", True))


def name_problem(name: str) -> str | None:
    """Return why `name` cannot name a model or an alias; None if it can."""
    if not name:
        return "a name must not be empty"
    if len(name) > MAX_NAME_LENGTH:
        return f"a name has at most {MAX_NAME_LENGTH} characters, this one has {len(name)}"
    if "*" in name:
        return f"a name with `*` (a pattern) {NOT_YET}"
    if any(character.isspace() or not character.isprintable() for character in name):
        return "a name must not contain spaces or control characters"
    return None


# --- JSON and messages ------------------------------------------------------------------------------------


def to_json(node: YamlNode) -> Any:
    """Return what `node` says as JSON would. Raises: Wrong for numbers that JSON lacks."""
    match node:
        case YamlScalar():
            if isinstance(node.value, float) and not math.isfinite(node.value):
                raise Wrong(f"{node.text} has no form in JSON; write a finite number")
            return node.value
        case YamlList():
            return [to_json(item) for item in node.items]
        case YamlMap():
            return {name: to_json(entry.value) for name, entry in node.entries.items()}
        case _:
            assert_never(node)


def _one_line(text: str) -> str:
    return text if text.isprintable() else "".join(c if c.isprintable() else "?" for c in text)


def short_text(node: YamlNode) -> str | None:
    """Return a scalar's text if it is short enough to quote in a message."""
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
        case YamlScalar(value=str(text)):
            flat = " ".join(text.split())
            return f"the text '{flat if len(flat) <= 40 else flat[:40] + '…'}'"
        case YamlScalar():
            return node.text[:40]
        case _:
            assert_never(node)
