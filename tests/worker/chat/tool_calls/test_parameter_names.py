"""Names of parameters: each family either reads them back as they are or says that it cannot."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest

from tests.support.answer_vectors import parts_of, read
from tests.support.grammar_checks import required_grammars
from worker.chat.answer_reader import AnswerForm
from worker.chat.tool_calls.families import FAMILIES
from worker.chat.tool_calls.family import Family
from worker.chat.tool_calls.tools import Demand, Tool, Tools

NAMES = (
    "city",
    "a b",
    "a-b",
    "größe",
    "3d",
    "",
    " a",
    "a\nb",
    'q"<>',
    "a>b",
    "a,b",
    "a=b",
    "a:b",
    "a&amp;b",
    "a\\b",
    "{",
    "'",
)
THOUGHT_ENDS = ("«<channel|>»", "«<|eom|>»", "«<|close|>»think«<|sep|>»")
LOOSE = [family for family in FAMILIES if not family.is_exact]


def taking(name: str, *, inside: bool = False) -> Tool:
    """Return a tool that demands an argument of this name, or an object with a property of it."""
    schema: Mapping[str, Any] = {"type": "object", "properties": {name: {"type": "integer"}}, "required": [name]}
    schema = {**schema, "additionalProperties": False}
    if inside:
        schema = {"type": "object", "properties": {"of": schema}, "required": ["of"], "additionalProperties": False}
    return Tool("now", None, schema)


def names_read(family: Family, tool: Tool, *, inside: bool) -> set[str]:
    """Return the names of arguments in calls of the tool that its grammars allow."""
    tools = Tools((tool,), Demand.REQUIRED, is_parallel=False)
    found: set[str] = set()
    for grammar in required_grammars(family, tools):
        for seed in range(2):
            form = AnswerForm(grammar.markers, family=family, tools=tools)
            for part in parts_of(read(form, [grammar.walk(seed, phrases=THOUGHT_ENDS)])):
                if part[0] == "call":
                    arguments = json.loads(part[2])
                    found |= set(arguments["of"] if inside else arguments)
    return found


@pytest.mark.parametrize("inside", [False, True], ids=["top", "inside"])
@pytest.mark.parametrize("family", LOOSE, ids=lambda family: family.name)
def test_a_name_is_read_back_or_reported(family: Family, inside: bool) -> None:
    assert family.problem_with(taking("city", inside=inside)) is None
    for name in NAMES:
        tool = taking(name, inside=inside)
        if (problem := family.problem_with(tool)) is None:
            assert names_read(family, tool, inside=inside) == {name}, name
        else:
            assert repr(name) in problem


@pytest.mark.parametrize("family", LOOSE, ids=lambda family: family.name)
def test_a_name_that_is_empty_or_has_two_lines_is_reported(family: Family) -> None:
    assert family.problem_with(taking("")) is not None
    assert family.problem_with(taking("a\nb")) is not None


def test_json_holds_all_names() -> None:
    exact = [family for family in FAMILIES if family.is_exact]
    assert len(exact) > 20
    for family in exact:
        assert all(family.problem_with(taking(name)) is None for name in NAMES)


@pytest.mark.parametrize("family", LOOSE, ids=lambda family: family.name)
def test_names_that_parts_of_the_schema_demand_are_demanded(family: Family) -> None:
    both = {
        "type": "object",
        "allOf": [
            {"properties": {"a": {"type": "integer"}}, "required": ["a"]},
            {"properties": {"b": {"type": "boolean"}}, "required": ["b"]},
        ],
    }
    tools = Tools((Tool("now", None, both),), Demand.REQUIRED, is_parallel=False)
    for grammar in required_grammars(family, tools):
        form = AnswerForm(grammar.markers, family=family, tools=tools)
        [arguments] = [
            part[2] for part in parts_of(read(form, [grammar.walk(1, phrases=THOUGHT_ENDS)])) if part[0] == "call"
        ]
        found = json.loads(arguments)
        assert (type(found["a"]), type(found["b"])) == (int, bool)
