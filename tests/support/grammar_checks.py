"""What holds for the grammar of every family of tool calls, checked with its own reader."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence

from jsonschema import Draft202012Validator  # type: ignore[import-untyped]

from tests.support.answer_vectors import TOOLS, parts_of, read
from tests.support.byte_tokenizer import Grammar, markers_of
from worker.chat.answer_reader import AnswerForm
from worker.chat.marks import Markers
from worker.chat.tool_calls.family import Family
from worker.chat.tool_calls.grammar import GrammarWriter
from worker.chat.tool_calls.tools import Demand, Tools

REQUIRED = Tools(TOOLS.offered, Demand.REQUIRED)
ONE = Tools(TOOLS.offered, Demand.REQUIRED, is_parallel=False)


def required_grammars(family: Family, tools: Tools = REQUIRED) -> Iterator[Grammar]:
    """Yield the grammar of calls alone, with the family's markers as tokens and as plain text."""
    for markers in (markers_of(family.markers), Markers()):
        write = GrammarWriter(markers)
        yield Grammar(write.grammar(family.required_calls(write, tools)), markers)


def free_grammars(family: Family, tools: Tools = TOOLS) -> Iterator[Grammar]:
    """Yield the grammar of text and calls, with the family's markers as tokens and as plain text."""
    for markers in (markers_of(family.markers), Markers()):
        write = GrammarWriter(markers)
        yield Grammar(write.grammar(family.free_calls(write, tools)), markers)


def check_accepted(family: Family, outputs: Sequence[str], *, tools: Tools = REQUIRED) -> None:
    """Outputs of calls alone may be written, whether calls are demanded or free."""
    for grammar in (*required_grammars(family, tools), *free_grammars(family, tools)):
        for output in outputs:
            assert not grammar.refused_at(output), f"{output!r}: {grammar.refused_at(output)!r} is refused"


def check_refused(family: Family, outputs: Sequence[str], *, tools: Tools = REQUIRED) -> None:
    """Outputs may not be written where calls are demanded."""
    for grammar in required_grammars(family, tools):
        for output in outputs:
            assert grammar.refused_at(output), f"{output!r} is accepted"


def check_walks(family: Family, *, num_walks: int, phrases: Sequence[str] = (), has_thoughts: bool = False) -> None:
    """Whatever the grammars allow is read as calls that their tools take, and demanded calls are alone.

    Random outputs show it, so many of each grammar.
    """
    for tools in (REQUIRED, ONE):
        for grammar in required_grammars(family, tools):
            for seed in range(num_walks):
                parts = _parts(family, tools, grammar.markers, grammar.walk(seed, phrases=phrases))
                calls = [part for part in parts if part[0] == "call"]
                assert calls
                assert tools.is_parallel or len(calls) == 1
                assert has_thoughts or len(calls) == len(parts), parts
                assert all(part[0] != "text" for part in parts), parts
    for grammar in free_grammars(family):
        for seed in range(num_walks):
            _parts(family, TOOLS, grammar.markers, grammar.walk(seed, phrases=phrases))


def _parts(family: Family, tools: Tools, markers: Markers, output: str) -> list[tuple[str, ...]]:
    form = AnswerForm(markers, family=family, tools=tools)
    parts = parts_of(read(form, [output]))
    for part in parts:
        if part[0] == "call":
            tool = tools.by_name[part[1]]
            problems = list(Draft202012Validator(dict(tool.parameters)).iter_errors(_value(part[2], output)))
            assert not problems, f"{output!r}: {problems}"
    return parts


def _value(arguments: str, output: str) -> object:
    try:
        return json.loads(arguments)
    except ValueError as error:
        raise AssertionError(f"{arguments!r} is no JSON: {error}, in {output!r}") from error
