"""Tools that a request offers: what is one, which of them are left, and what of them cannot be enforced."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from worker.api.anthropic_tools import read_tools
from worker.api.fields import read_fields
from worker.api.function_fields import ToolFields
from worker.api.responses_fields import ResponsesFields
from worker.api.tool_fields import MAX_TOOLS, NO_TOOLS, OfferedTools, choose_tools, make_tool
from worker.chat.tool_calls.tools import NO_PARAMETERS, Demand, Tool
from worker.errors import RequestError, UnsupportedParameter

UNENFORCED = {"properties": {"a": {"type": "array", "uniqueItems": True}}}


def made(name: Any = "f", schema: Any = None, *, is_strict: bool = False, description: Any = None) -> Any:
    return make_tool(
        name, description, schema, is_strict=is_strict, place="tools[0]", schema_place="tools[0].parameters"
    )


def offered(*names: str, **choice: Any) -> OfferedTools:
    return choose_tools([made(name) for name in names], choice.pop("demand", Demand.AUTO), **choice)


def test_a_tool_without_a_schema_takes_no_arguments() -> None:
    tool, relaxed = made()
    assert (tool, relaxed) == (Tool("f", None, NO_PARAMETERS, tool.enforced), ())
    assert tool.grammar_schema == NO_PARAMETERS


def test_a_schema_that_says_no_type_is_one_of_an_object() -> None:
    tool, _ = made(schema={"properties": {"a": {"type": "integer"}}})
    assert tool.parameters["type"] == "object"
    assert tool.type_of("a") == "integer"


def test_what_cannot_be_enforced_is_let_go_by_its_place_unless_the_tool_is_strict() -> None:
    tool, relaxed = made(schema=UNENFORCED)
    assert relaxed == ("tools[0].parameters.properties.a.uniqueItems",)
    assert tool.parameters["properties"] == UNENFORCED["properties"]
    with pytest.raises(UnsupportedParameter) as caught:
        made(schema=UNENFORCED, is_strict=True)
    assert caught.value.param == "tools[0].parameters"


@pytest.mark.parametrize("name", ["f", "get_weather", "fs.read-file", "server:tool", "a/b", "x" * 128])
def test_names_of_all_servers_pass(name: str) -> None:
    assert made(name)[0].name == name


@pytest.mark.parametrize("name", [None, "", 5, "a b", 'a"b', "é", "x" * 129, "a\n"])
def test_other_names_are_refused(name: Any) -> None:
    with pytest.raises(RequestError) as caught:
        made(name)
    assert caught.value.param == "tools[0].name"


@pytest.mark.parametrize(
    ("options", "param"),
    [
        ({"schema": {"type": "array"}}, "tools[0].parameters"),
        ({"schema": {"type": ["object", "null"]}}, "tools[0].parameters"),
        ({"schema": []}, "tools[0].parameters"),
        ({"schema": {"properties": {"a": {"type": "strnig"}}}}, "tools[0].parameters"),
        ({"description": 5}, "tools[0].description"),
    ],
)
def test_what_is_no_tool_is_refused_by_its_place(options: dict[str, Any], param: str) -> None:
    with pytest.raises(RequestError) as caught:
        made(**options)
    assert caught.value.param == param


def test_the_choice_leaves_what_may_be_called() -> None:
    assert [tool.name for tool in offered("f", "g").tools.offered] == ["f", "g"]
    only = offered("f", "g", "h", only=["h", "f"])
    assert [tool.name for tool in only.tools.offered] == ["f", "h"]
    assert only.tools.demand is Demand.AUTO


def test_tools_that_may_not_be_called_are_none() -> None:
    assert offered("f", demand=Demand.NONE) == NO_TOOLS
    assert offered() == NO_TOOLS
    assert offered("f", only=[]) == NO_TOOLS


def test_one_that_must_be_called_by_its_name_is_called_once() -> None:
    assert not offered("f", "g", demand=Demand.REQUIRED, only=["g"]).tools.is_parallel
    assert offered("f", demand=Demand.REQUIRED).tools.is_parallel
    assert offered("f", "g", demand=Demand.REQUIRED, only=["f", "g"]).tools.is_parallel
    assert not offered("f", is_parallel=False).tools.is_parallel


def test_only_what_is_left_is_told_as_relaxed() -> None:
    tools = [made("f", UNENFORCED), made("g")]
    assert choose_tools(tools, Demand.AUTO).relaxed == ("tools[0].parameters.properties.a.uniqueItems",)
    assert choose_tools(tools, Demand.AUTO, only=["g"]).relaxed == ()
    assert choose_tools(tools, Demand.NONE).relaxed == ()


@pytest.mark.parametrize(
    ("names", "options", "param", "words"),
    [
        (["f", "f"], {}, "tools", "more than one tool with the name 'f'"),
        (["f"], {"only": ["g"]}, "tool_choice", "names the tool 'g', which is not offered. Offered are: f."),
        ([], {"only": ["g"]}, "tool_choice", "'tools' offers none"),
        ([], {"demand": Demand.REQUIRED}, "tool_choice", "demands a call, but 'tools' offers no tool"),
        (["f"], {"demand": Demand.REQUIRED, "only": []}, "tool_choice", "demands a call, but it allows no tool"),
        (["f", "f"], {"tools_param": "functions"}, "functions", "'functions'"),
    ],
)
def test_a_choice_that_cannot_be_is_refused(names: list[str], options: Any, param: str, words: str) -> None:
    with pytest.raises(RequestError, match=r"^'") as caught:
        offered(*names, **options)
    assert caught.value.param == param
    assert words in caught.value.message


def test_too_many_tools_are_refused_before_any_is_looked_at() -> None:
    too_many: list[dict[str, Any]] = [{"type": "function", "function": {"name": "!"}}] * (MAX_TOOLS + 1)
    reads: list[Callable[[], object]] = [
        read_fields(ToolFields, {"tools": too_many}).read_tools,
        lambda: read_tools(too_many, None),
        read_fields(ResponsesFields, {"input": "x", "tools": [{"type": "function", "name": "!"}] * 600}).read_tools,
    ]
    for read in reads:
        with pytest.raises(RequestError, match=f"at most {MAX_TOOLS}") as caught:
            read()
        assert caught.value.param == "tools"
