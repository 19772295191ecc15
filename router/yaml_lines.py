"""YAML text -> plain nodes that remember the line and column of every key and value.

Owns what YAML we accept: no duplicate keys, no tags but the standard scalars, no cycles, bounded depth and size, and
numbers, booleans and null as people expect them (`1e6` is a number, `2024-01-01` and `1:30` are text).
Must not know what a model is, and must never construct a Python object from a tag.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import yaml

try:
    from yaml import CSafeLoader as _BaseLoader  # parses about ten times as fast
except ImportError:  # PyYAML built without libyaml
    from yaml import SafeLoader as _BaseLoader  # type: ignore[assignment]

MAX_DEPTH = 64
"""Deeper documents are refused; a catalogue with a JSON schema inside needs about fifteen."""

MAX_NODES = 1_000_000
"""Counted with every `*reference` written out, so that a few lines cannot stand for gigabytes."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where something starts in the text. Both numbers count from 1; the column counts characters."""

    line: int
    column: int


@dataclass(frozen=True, slots=True)
class YamlScalar:
    """A single value, and its text as written."""

    value: str | int | float | bool | None
    text: str
    place: Place


@dataclass(frozen=True, slots=True)
class YamlList:
    """A list."""

    items: tuple[YamlNode, ...]
    place: Place


@dataclass(frozen=True, slots=True)
class YamlEntry:
    """One `key: value` of a map; the place is the key's."""

    value: YamlNode
    place: Place


@dataclass(frozen=True, slots=True)
class YamlMap:
    """A map in the order of the text. Keys are their text as written: the key `no` is "no"."""

    entries: Mapping[str, YamlEntry]
    place: Place


YamlNode = YamlScalar | YamlList | YamlMap


@dataclass(frozen=True, slots=True)
class YamlProblem:
    """Something that is wrong with the text as YAML; `where` is the dotted path of keys, "" for the document."""

    where: str
    message: str
    place: Place


@dataclass(frozen=True, slots=True)
class YamlDocument:
    """What the text holds as far as it can be read; `root` is None for an empty or unreadable document."""

    root: YamlNode | None
    problems: tuple[YamlProblem, ...]


def read_yaml(text: str) -> YamlDocument:
    """Return the nodes of the only document in `text`, and everything that is wrong with it as YAML. Never raises."""
    if (match := _UNPRINTABLE.search(text)) is not None:
        message = f"the character U+{ord(match.group()):04X} is not allowed in YAML text: delete it"
        return YamlDocument(None, (YamlProblem("", message, _place_at(text, match.start())),))
    loader = _Loader(text)
    try:
        node = loader.get_single_node()
    except yaml.MarkedYAMLError as error:
        return YamlDocument(None, (_explain(error, text),))
    except RecursionError:  # only the loader that is written in Python
        return YamlDocument(None, (YamlProblem("", _TOO_DEEP, Place(1, 1)),))
    finally:
        loader.dispose()
    if node is None:
        return YamlDocument(None, ())
    walk = _Walk()
    root, num_nodes = walk.convert(node, "", 1)
    if num_nodes > MAX_NODES:
        message = f"the document has {num_nodes} values when its `*references` are written out; {MAX_NODES} are allowed"
        return YamlDocument(None, (YamlProblem("", message, Place(1, 1)),))
    return YamlDocument(root, tuple(walk.problems))


_UNPRINTABLE = re.compile("[^\t\n\r\x20-\x7e\x85\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_TOO_DEEP = f"values are nested more than {MAX_DEPTH} levels deep"

_STANDARD = "tag:yaml.org,2002:"
_STR, _MERGE = _STANDARD + "str", _STANDARD + "merge"
_NULL, _BOOL, _INT, _FLOAT = _STANDARD + "null", _STANDARD + "bool", _STANDARD + "int", _STANDARD + "float"
_LIST, _MAP = _STANDARD + "seq", _STANDARD + "map"


class _Loader(_BaseLoader):
    """Scans, parses and composes nodes; its constructor half is never used."""

    yaml_implicit_resolvers: dict[str, list[tuple[str, re.Pattern[str]]]] = {}  # noqa: RUF012 - PyYAML's own shape


for _tag, _pattern, _first in (
    (_NULL, r"~|null|Null|NULL|", ["~", "n", "N", ""]),
    (_BOOL, r"(?i:true|false|yes|no|on|off)", list("tTfFyYnNoO")),
    (_INT, r"[-+]?(?:0|[1-9][0-9_]*)|0x[0-9a-fA-F]+", list("-+0123456789")),
    (
        _FLOAT,
        r"[-+]?(?:[0-9]+\.[0-9]*|\.[0-9]+|[0-9]+(?=[eE]))(?:[eE][-+]?[0-9]+)?|[-+]?\.(?i:inf)|\.(?i:nan)",
        list("-+.0123456789"),
    ),
    (_MERGE, "<<", ["<"]),
):
    _Loader.add_implicit_resolver(_tag, re.compile(rf"(?:{_pattern})\Z"), _first)


class _Walk:
    """Turns PyYAML's node graph into ours; a node that is referenced many times is converted once."""

    def __init__(self) -> None:
        self.problems: list[YamlProblem] = []
        self._done: dict[int, tuple[YamlNode, int]] = {}
        self._open: set[int] = set()
        self._num_merged = 0

    def convert(self, node: yaml.Node, where: str, depth: int) -> tuple[YamlNode, int]:
        """Return the node and how many nodes it stands for, itself included. Mutates: `problems`."""
        place = _place(node.start_mark)
        if isinstance(node, yaml.ScalarNode):
            return self._scalar(node, where, place), 1
        if (done := self._done.get(id(node))) is not None:
            return done
        if depth > MAX_DEPTH or id(node) in self._open:
            message = _TOO_DEEP if depth > MAX_DEPTH else "this `*reference` points at something that contains it"
            self._add(where, message, place)
            return YamlScalar(None, "", place), 1
        self._open.add(id(node))
        if isinstance(node, yaml.MappingNode):
            result = self._convert_map(node, where, depth, place)
        else:
            assert isinstance(node, yaml.SequenceNode)
            result = self._convert_list(node, where, depth, place)
        self._open.discard(id(node))
        self._done[id(node)] = result
        return result

    def _convert_list(self, node: yaml.SequenceNode, where: str, depth: int, place: Place) -> tuple[YamlNode, int]:
        if node.tag != _LIST:
            self._refuse_tag(node, where, place)
        pairs = [self.convert(item, f"{where}[{i}]", depth + 1) for i, item in enumerate(node.value)]
        return YamlList(tuple(item for item, _ in pairs), place), 1 + sum(size for _, size in pairs)

    def _convert_map(self, node: yaml.MappingNode, where: str, depth: int, place: Place) -> tuple[YamlNode, int]:
        if node.tag != _MAP:
            self._refuse_tag(node, where, place)
        own: dict[str, YamlEntry] = {}
        merged: dict[str, YamlEntry] = {}
        size = 1
        for key_node, value_node in node.value:
            key_place = _place(key_node.start_mark)
            key = key_node.value
            if not isinstance(key, str) or not key:
                self._add(where, "a key must be a word or quoted text before a `:`", key_place)
                continue
            path = f"{where}.{key}" if where else key
            value, value_size = self.convert(value_node, path, depth + 1)
            size += value_size
            if key_node.tag == _MERGE:
                for entries in self._merge_sources(value, path):
                    for name, entry in entries.items():
                        merged.setdefault(name, entry)
            elif key in own:
                first = own[key].place
                self._add(path, f"`{key}` is written twice in this map; the first is on line {first.line}", key_place)
            else:
                own[key] = YamlEntry(value, key_place)
        return YamlMap({**merged, **own} if merged else own, place), size

    def _merge_sources(self, value: YamlNode, where: str) -> Iterator[Mapping[str, YamlEntry]]:
        for source in value.items if isinstance(value, YamlList) else (value,):
            if not isinstance(source, YamlMap):
                self._add(where, "`<<` merges a map or a list of maps, for example `<<: *base`", source.place)
                continue
            self._num_merged += len(source.entries)
            if self._num_merged <= MAX_NODES:  # beyond it the document is refused for its size anyway
                yield source.entries

    def _scalar(self, node: yaml.Node, where: str, place: Place) -> YamlScalar:
        text: str = node.value
        value: str | int | float | bool | None = text
        try:
            match node.tag:
                case "tag:yaml.org,2002:str" | "tag:yaml.org,2002:merge":
                    pass
                case "tag:yaml.org,2002:null":
                    value = None
                case "tag:yaml.org,2002:bool":
                    value = _BOOLEANS[text.lower()]
                case "tag:yaml.org,2002:int":
                    value = int(text, 16 if text.startswith("0x") else 10)
                case "tag:yaml.org,2002:float":
                    value = float(text.lower().replace(".inf", "inf").replace(".nan", "nan"))
                case _:
                    self._refuse_tag(node, where, place)
        except (ValueError, KeyError):
            self._add(where, f"`{text[:40]}` cannot be read as the type that is written for it", place)
        return YamlScalar(value, text, place)

    def _refuse_tag(self, node: yaml.Node, where: str, place: Place) -> None:
        tag = node.tag.replace(_STANDARD, "!!")
        self._add(where, f"the tag `{tag}` is not supported: leave it out", place)

    def _add(self, where: str, message: str, place: Place) -> None:
        self.problems.append(YamlProblem(where, message, place))


_BOOLEANS = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}

_MISFIT = "this does not fit the lines above it: look at its indentation, and for a quote or bracket that is still open"
_GAP = "a `,` or a closing bracket is missing before this"
_CUT = "the text ends in the middle of something: a `[` or `{` is not closed, or the file is incomplete"
_HINTS = (
    (
        "mapping values are not allowed",
        "a `: ` is not possible here; put quotes around text that contains one, or look at the `:` and the indentation"
        " of the lines before",
    ),
    ("did not find expected key", _MISFIT),
    ("did not find expected '-'", _MISFIT),
    ("expected <block end>", _MISFIT),
    ("could not find expected ':'", "a key must be followed by `:` and a space"),
    ("did not find expected ',' or", _GAP),
    ("expected ',' or", _GAP),
    ("but found another document", "a second document starts here (`---`); the file may hold only one"),
    (
        "undefined alias",
        "a `*reference` to an `&anchor` that does not exist; put quotes around text that starts with `*`",
    ),
    ("maximum nesting depth", _TOO_DEEP),
    ("unexpected end of stream", "the text ends before the quote that was opened is closed"),
)
"""Words in the complaints of PyYAML's two parsers, and what to tell people instead."""


def _explain(error: yaml.MarkedYAMLError, text: str) -> YamlProblem:
    """Return the parser's complaint in words for somebody who has never read the YAML specification."""
    mark: Any = error.problem_mark or error.context_mark
    place = _clamp(_place(mark), text) if mark is not None else Place(1, 1)
    complaint = " ".join(str(error.problem or "it cannot be read").split())
    lines = text.splitlines()
    line = lines[place.line - 1] if place.line <= len(lines) else ""
    rest = line[place.column - 1 :]
    since = ""
    if error.context_mark is not None and error.context_mark.line + 1 < place.line:
        since = f" (inside what begins on line {error.context_mark.line + 1})"
    hint = next((hint for words, hint in _HINTS if words in complaint), None)
    if rest.startswith("\t"):
        hint = "a tab is used as indentation; YAML allows only spaces"
    elif "cannot start any token" in complaint and rest:
        hint = f"a value cannot start with `{rest[0]}`; put quotes around it"
    elif place.line >= len(lines) and not rest and hint in (None, _GAP):
        hint = _CUT
    return YamlProblem("", f"not valid YAML: {hint or complaint}{since}", place)


def _place(mark: Any) -> Place:
    return Place(mark.line + 1, mark.column + 1)


def _place_at(text: str, index: int) -> Place:
    return Place(text.count("\n", 0, index) + 1, index - text.rfind("\n", 0, index))


def _clamp(place: Place, text: str) -> Place:
    """Return the place, or the end of the text when it lies behind it (where parsers report an early end)."""
    lines = text.splitlines()
    if place.line <= len(lines) or not lines:
        return place
    return Place(len(lines), len(lines[-1]) + 1)
