"""Arguments in a notation that is not JSON are held to their schema, and what fits it can be written."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from tests.support.grammar_checks import check_accepted, check_refused
from worker.chat.tool_calls.lfm2 import Lfm2
from worker.chat.tool_calls.tools import Demand, Tool, Tools

NUMBER: Mapping[str, Any] = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
CASES: Mapping[str, tuple[Mapping[str, Any], list[str], list[str]]] = {
    "a reference": ({"$ref": "#/$defs/a", "$defs": {"a": NUMBER}}, ["n=1"], ["", "n='x'", "m=1"]),
    "a property that must not be there": (
        {"type": "object", "properties": {"a": False, "b": {"type": "integer"}}},
        ["", "b=1"],
        ["a=1", "a=1, b=1"],
    ),
    "items by their places": (
        {
            "type": "object",
            "properties": {"a": {"type": "array", "prefixItems": [{"type": "integer"}], "items": {"type": "string"}}},
        },
        ["a=[1, 'x']", "a=[]"],
        ["a=1"],
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_arguments_are_held_to_their_schema_as_far_as_it_can_be_told(name: str) -> None:
    schema, good, bad = CASES[name]
    tools = Tools((Tool("go", None, schema),), Demand.REQUIRED)
    check_accepted(Lfm2(), [_call(one) for one in good], tools=tools)
    check_refused(Lfm2(), [_call(one) for one in bad], tools=tools)


def _call(arguments: str) -> str:
    return f"«<|tool_call_start|>»[go({arguments})]«<|tool_call_end|>»"
