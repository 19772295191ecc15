"""YAML text -> plain nodes that remember the line and column of every key and value.

Owns what YAML we accept: no duplicate keys, no tags but the standard scalars, no cycles, bounded depth and size, and
numbers, booleans and null as people expect them (`1e6` is a number, `2024-01-01` and `1:30` are text).
Must not know what a model is, and must never construct a Python object from a tag.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import yaml
from yaml.composer import ComposerError

try:
    from yaml import CSafeLoader as _Parser  # about ten times as fast
except ImportError:  # PyYAML built without libyaml
    from yaml import SafeLoader as _Parser  # type: ignore[assignment]

MAX_DEPTH = 64
"""Deeper documents are refused; a catalogue with a JSON schema inside needs about fifteen."""

MAX_NODES = 1_000_000
"""Counted with every `*reference` written out, so that a few lines cannot stand for gigabytes."""


class Place(NamedTuple):
    """Where something starts in the text. Both numbers count from 1; the column counts characters."""

    line: int
    column: int


class YamlScalar(NamedTuple):
    """A single value, and its text as written."""

    value: str | int | float | bool | None
    text: str
    place: Place


@dataclass(frozen=True, slots=True)
class YamlList:
    """A list."""

    items: tuple[YamlNode, ...]
    place: Place


class YamlEntry(NamedTuple):
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
    parser = _Parser(text)
    reader = _Reader(parser.get_event)
    try:
        root, num_nodes = reader.read_document()
    except yaml.MarkedYAMLError as error:
        return YamlDocument(None, (_explain(error, text),))
    finally:
        parser.dispose()
    if num_nodes > MAX_NODES:
        message = f"the document has {num_nodes} values when its `*references` are written out; {MAX_NODES} are allowed"
        return YamlDocument(None, (YamlProblem("", message, Place(1, 1)),))
    return YamlDocument(root, tuple(reader.problems))


_UNPRINTABLE = re.compile("[^\t\n\r\x20-\x7e\x85\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_TOO_DEEP = f"values are nested more than {MAX_DEPTH} levels deep"

_STANDARD = "tag:yaml.org,2002:"
_STR, _MERGE = _STANDARD + "str", _STANDARD + "merge"
_NULL, _BOOL, _INT, _FLOAT = _STANDARD + "null", _STANDARD + "bool", _STANDARD + "int", _STANDARD + "float"
_LIST, _MAP = _STANDARD + "seq", _STANDARD + "map"


_Resolver = tuple[str, Callable[[str], object]]
_RESOLVERS: dict[str, list[_Resolver]] = {}
"""By its first character, what a word without quotes may be: the tag, and whether the text matches."""

for _tag, _pattern, _first in (
    (_NULL, r"~|null|Null|NULL|", ["~", "n", "N", ""]),
    (_BOOL, r"(?i:true|false|yes|no|on|off)", list("tTfFyYnNoO")),
    (_INT, r"[-+]?(?:0|[1-9][0-9_]*)|0x[0-9a-fA-F]+", list("-+0123456789")),
    (
        _FLOAT,
        r"[-+]?(?:[0-9]+\.[0-9]*|\.[0-9]+|[0-9]+(?=[eE]))(?:[eE][-+]?[0-9]+)?|[-+]?\.(?i:inf)|\.(?i:nan)",
        list("-+.0123456789"),
    ),
):
    for _character in _first:
        _RESOLVERS.setdefault(_character, []).append((_tag, re.compile(_pattern).fullmatch))


class _Reader:
    """Turns the parser's events into nodes as they come; what is referenced many times is one node.

    Source: yaml/composer.py, whose checks of references and documents are made here. Its own graph of nodes is not
    needed, and took more than half of the time.
    """

    def __init__(self, next_event: Callable[[], Any]) -> None:
        self.problems: list[YamlProblem] = []
        self._next = next_event
        self._anchors: dict[str, tuple[YamlNode, int] | None] = {}
        """None = what stands there is still being read."""
        self._num_merged = 0

    def read_document(self) -> tuple[YamlNode | None, int]:
        """Return the root, None if there is nothing, and how many nodes it stands for. Raises: MarkedYAMLError."""
        self._next()  # the start of the stream
        start = self._next()
        if isinstance(start, yaml.StreamEndEvent):
            return None, 0
        result = self._node(self._next(), "", 1)
        self._next()  # the end of the document
        after = self._next()
        if not isinstance(after, yaml.StreamEndEvent):
            raise ComposerError(None, None, "but found another document", after.start_mark)
        return result

    def _node(self, event: Any, where: str, depth: int) -> tuple[YamlNode, int]:
        """Return the node that begins with `event`, and how many nodes it stands for, itself included.

        Mutates: `problems`. Raises: MarkedYAMLError.
        """
        mark = event.start_mark
        place = Place(mark.line + 1, mark.column + 1)
        if isinstance(event, yaml.ScalarEvent) and event.anchor is None:  # nearly all
            return self._scalar(event, where, place), 1
        if isinstance(event, yaml.AliasEvent):
            return self._referenced(event, where, place)
        anchor: str | None = event.anchor
        if anchor is not None:
            if anchor in self._anchors:
                raise ComposerError(
                    None,
                    None,
                    "this anchor (`&NAME`) is written twice; put quotes around text that begins with `&`",
                    event.start_mark,
                )
            self._anchors[anchor] = None
        result: tuple[YamlNode, int]
        if isinstance(event, yaml.ScalarEvent):
            result = self._scalar(event, where, place), 1
        elif depth > MAX_DEPTH:
            raise ComposerError(None, None, _TOO_DEEP, event.start_mark)
        elif isinstance(event, yaml.MappingStartEvent):
            result = self._map(event, where, depth, place)
        else:
            assert isinstance(event, yaml.SequenceStartEvent)
            result = self._list(event, where, depth, place)
        if anchor is not None:
            self._anchors[anchor] = result
        return result

    def _referenced(self, event: Any, where: str, place: Place) -> tuple[YamlNode, int]:
        if event.anchor not in self._anchors:
            raise ComposerError(None, None, "found undefined alias", event.start_mark)
        found = self._anchors[event.anchor]
        if found is None:
            self._add(where, "this `*reference` points at something that contains it", place)
            return YamlScalar(None, "", place), 1
        return found

    def _list(self, event: Any, where: str, depth: int, place: Place) -> tuple[YamlNode, int]:
        if event.tag not in (None, "!", _LIST):
            self._refuse_tag(where, place)
        items: list[YamlNode] = []
        size = 1
        while not isinstance(item := self._next(), yaml.SequenceEndEvent):
            node, num_nodes = self._node(item, f"{where}[{len(items)}]", depth + 1)
            items.append(node)
            size += num_nodes
        return YamlList(tuple(items), place), size

    def _map(self, event: Any, where: str, depth: int, place: Place) -> tuple[YamlNode, int]:
        if event.tag not in (None, "!", _MAP):
            self._refuse_tag(where, place)
        own: dict[str, YamlEntry] = {}
        merged: dict[str, YamlEntry] = {}
        size = 1
        next_event = self._next
        while not isinstance(key_event := next_event(), yaml.MappingEndEvent):
            mark = key_event.start_mark
            key_place = Place(mark.line + 1, mark.column + 1)
            key, is_merge = self._key(key_event, where, depth)
            path = f"{where}.{key}" if where else key
            value, num_nodes = self._node(next_event(), path, depth + 1)
            size += num_nodes
            if not key:
                self._add(where, "a key must be a word or quoted text before a `:`", key_place)
            elif is_merge:
                for entries in self._merge_sources(value, path):
                    for name, entry in entries.items():
                        merged.setdefault(name, entry)
            elif key in own:
                first = own[key].place
                self._add(path, f"`{key}` is written twice in this map; the first is on line {first.line}", key_place)
            else:
                own[key] = YamlEntry(value, key_place)
        return YamlMap({**merged, **own} if merged else own, place), size

    def _key(self, event: Any, where: str, depth: int) -> tuple[str, bool]:
        """Return a key's text, "" if it is not text, and whether it is the sign for merging."""
        if isinstance(event, yaml.ScalarEvent) and event.anchor is None:
            is_plain = event.implicit[0] if event.tag is None else event.tag == _MERGE
            return event.value, is_plain and event.value == "<<"
        node, _ = self._node(event, where, depth + 1)
        return node.text if isinstance(node, YamlScalar) else "", False

    def _merge_sources(self, value: YamlNode, where: str) -> Iterator[Mapping[str, YamlEntry]]:
        for source in value.items if isinstance(value, YamlList) else (value,):
            if not isinstance(source, YamlMap):
                self._add(where, "`<<` merges a map or a list of maps, for example `<<: *base`", source.place)
                continue
            self._num_merged += len(source.entries)
            if self._num_merged <= MAX_NODES:  # beyond it the document is refused for its size anyway
                yield source.entries

    def _scalar(self, event: Any, where: str, place: Place) -> YamlScalar:
        text: str = event.value
        tag: str | None = event.tag
        if tag is None or tag == "!":
            tag = _STR
            if event.implicit[0]:
                for name, matches in _RESOLVERS.get(text[:1], ()):
                    if matches(text) is not None:
                        tag = name
                        break
            if tag == _STR:
                return YamlScalar(text, text, place)
        value: str | int | float | bool | None = text
        try:
            match tag:
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
                    self._refuse_tag(where, place)
        except (ValueError, KeyError):
            self._add(where, "this cannot be read as the type that is written for it", place)
        return YamlScalar(value, text, place)

    def _refuse_tag(self, where: str, place: Place) -> None:
        # Not quoted: it may well be a password that begins with `!`.
        message = "this tag (`!NAME`) is not supported: leave it out; put quotes around text that begins with `!`"
        self._add(where, message, place)

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
    ("undefined tag handle", "put quotes around text that begins with `!`"),
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
    before = (text[:index] + "x").splitlines()  # lines end in more ways than one, for the parser too
    return Place(len(before), len(before[-1]))


def _clamp(place: Place, text: str) -> Place:
    """Return the place, or the end of the text when it lies behind it (where parsers report an early end)."""
    lines = text.splitlines()
    if place.line <= len(lines) or not lines:
        return place
    return Place(len(lines), len(lines[-1]) + 1)
