"""Outputs of models with what they mean, and the check that no way to cut an output changes that.

In the outputs markers stand in « and »: `«<tool_call>»`. They are read twice, as tokens of their own and as plain text.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from tests.support.deltas import join_deltas
from worker.chat.answer_reader import AnswerForm, AnswerReader
from worker.chat.deltas import CallArguments, CallStart, Delta, ReasoningDelta, TextDelta
from worker.chat.marks import Markers, marked
from worker.chat.reasoning import Tags
from worker.chat.tool_calls.family import Family
from worker.chat.tool_calls.tools import Demand, Tool, Tools

_MARKER = re.compile("«(.*?)»", re.DOTALL)
Part = tuple[str, ...]
"""("text", "..."), ("reasoning", "..."), ("call", name, arguments as JSON)."""

WEATHER = Tool(
    "get_weather",
    "Tells the weather",
    {
        "type": "object",
        "properties": {"city": {"type": "string"}, "days": {"type": "integer"}, "exact": {"type": "boolean"}},
        "required": ["city"],
    },
)
SEARCH = Tool(
    "search",
    "Finds documents",
    {
        "type": "object",
        "properties": {
            "query": {"type": "string"},
            "tags": {"type": "array", "items": {"type": "string"}},
            "filter": {"type": "object", "properties": {"year": {"type": "integer"}}},
        },
        "required": ["query"],
    },
)
NOW = Tool("now", "Tells the time")
TOOLS = Tools((WEATHER, SEARCH, NOW), Demand.AUTO)


@dataclass(frozen=True)
class Vector:
    """One output and what it means."""

    name: str
    output: str
    parts: Sequence[Part]
    tags: Tags | None = None
    starts_inside: bool = False
    tools: Tools = field(default_factory=lambda: TOOLS)
    is_cut: bool = False
    only: str = ""
    """"tokens" or "plain" where the two readings differ."""
    ids: Sequence[str | None] = ()
    """Ids that the model itself gave its calls."""


def check_vector(family: Family | None, vector: Vector) -> None:
    """The output means what the vector says, whole and in pieces, whatever the markers are."""
    for kind, markers, text in _readings(vector):
        if vector.only not in ("", kind):
            continue
        form = AnswerForm(
            markers,
            vector.tags,
            vector.starts_inside,
            family,
            vector.tools,
            lambda index, name: "" if family is None else family.call_id("0123456789abcdef" * 2, index, name),
        )
        whole = read(form, [text], is_cut=vector.is_cut)
        assert parts_of(whole) == [_canonical(part) for part in vector.parts], f"{vector.name}, {kind}"
        given = [one.id for one in whole if isinstance(one, CallStart)]
        for id_, wanted in zip(given, vector.ids, strict=False):
            assert wanted is None or id_ == wanted
        assert len(set(given)) == len(given), "ids are unique"
        for pieces in _cuts(text):
            assert read(form, pieces, is_cut=vector.is_cut) == whole, f"{vector.name}, {kind}: {pieces}"


def read(form: AnswerForm, pieces: Sequence[str], *, is_cut: bool = False) -> list[Delta]:
    """Return what a reader makes of the pieces, joined."""
    reader = AnswerReader(form)
    deltas = [delta for piece in pieces for delta in reader.push(piece)]
    return join_deltas(deltas + reader.flush(is_cut=is_cut))


def parts_of(deltas: Sequence[Delta]) -> list[Part]:
    """Return joined deltas as parts; arguments must be JSON of an object, unless the answer was cut in them."""
    parts: list[Part] = []
    for delta in deltas:
        match delta:
            case TextDelta(text):
                parts.append(("text", text))
            case ReasoningDelta(text):
                parts.append(("reasoning", text))
            case CallStart(_, _, name):
                parts.append(("call", name, ""))
            case CallArguments(_, text):
                kind, name, before = parts[-1]
                assert kind == "call"
                parts[-1] = ("call", name, before + text)
    return [_canonical(part) for part in parts]


def plain_text(vector: Vector) -> str:
    """Return the output as it looks in plain text."""
    return _MARKER.sub(r"\1", vector.output)


def _readings(vector: Vector) -> Iterator[tuple[str, Markers, str]]:
    found = dict.fromkeys(_MARKER.findall(vector.output))
    tokens = Markers({one: number for number, one in enumerate(found, 1000)})
    yield "tokens", tokens, _MARKER.sub(lambda match: marked(match[1]), vector.output)
    yield "plain", Markers(), plain_text(vector)


def _canonical(part: Part) -> Part:
    if part[0] != "call":
        return part
    try:
        return ("call", part[1], json.dumps(json.loads(part[2]), sort_keys=True))
    except ValueError:
        return part


def _cuts(text: str) -> Iterator[list[str]]:
    yield list(text)
    yield re.findall(r"\s*\w+|\s*\W|\s+$", text)  # much as tokens are
    dice = random.Random(text)
    for _ in range(12):
        places = sorted(dice.sample(range(len(text) + 1), min(len(text), dice.randrange(1, 12))))
        yield [text[a:b] for a, b in zip([0, *places], [*places, len(text)], strict=True)]
