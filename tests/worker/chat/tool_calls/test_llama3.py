"""Calls of Llama 3 and 4: an answer that begins like one is one, and behind the marker there are others."""

from __future__ import annotations

import pytest

from tests.support.answer_vectors import NOW, TOOLS, WEATHER, Vector, check_vector
from tests.support.grammar_checks import ONE, check_accepted, check_refused, check_walks, free_grammars
from worker.chat.tool_calls.llama3 import Llama3, Llama4
from worker.chat.tool_calls.tools import Demand, Tool, Tools

CALL = '{"name": "get_weather", "parameters": {"city": "Paris", "days": 2}}'
SECOND = '{"name": "now", "parameters": {}}'
MEANS = ("call", "get_weather", '{"city": "Paris", "days": 2}')
MEANS_NOW = ("call", "now", "{}")
QUERY = {"type": "object", "properties": {"query": {"type": "string"}}, "required": ["query"]}
CODE = {"type": "object", "properties": {"code": {"type": "string"}}, "required": ["code"]}
BUILT_IN = Tools(
    (Tool("brave_search", None, QUERY), Tool("code_interpreter", None, CODE), NOW),
    Demand.AUTO,
)

SHARED = (
    Vector("text alone", "Use {braces} or <|python, please.", [("text", "Use {braces} or <|python, please.")]),
    Vector("one call", CALL, [MEANS]),
    Vector("one call behind white space", f"\n\n {CALL}\n", [MEANS]),
    Vector("two calls", f"{CALL}; {SECOND}", [MEANS, MEANS_NOW]),
    Vector("two calls on lines of their own", f"{CALL}\n{SECOND};", [MEANS, MEANS_NOW]),
    Vector("with a type", '{"type": "function", "name": "now", "parameters": {}}', [MEANS_NOW]),
    Vector("no parameters", '{"name": "now"}', [MEANS_NOW]),
    Vector("parameters as text", '{"name": "now", "parameters": "{\\"a\\": 1}"}', [("call", "now", '{"a": 1}')]),
    Vector("text behind", f"{CALL} That is it.", [MEANS, ("text", "That is it.")]),
    Vector("a call within text is text", f"I write {CALL} then.", [("text", f"I write {CALL} then.")]),
    Vector("other JSON is text", '{"name": "Bob", "age": 3}', [("text", '{"name": "Bob", "age": 3}')]),
    Vector("JSON of another kind", '{"answer": {"name": "now"}}', [("text", '{"answer": {"name": "now"}}')]),
    Vector("an unknown tool", '{"name": "rm", "parameters": {}}', [("text", '{"name": "rm", "parameters": {}}')]),
    Vector(
        "an unknown tool behind a known one",
        f'{SECOND}; {{"name": "rm", "parameters": {{}}}}',
        [MEANS_NOW, ("text", '{"name": "rm", "parameters": {}}')],
    ),
    Vector(
        "broken arguments are closed",
        '{"name": "now", "parameters": {"a": tru, "b": 1}}',
        [("call", "now", '{"a": true}'), ("text", ', "b": 1}}')],
    ),
    Vector(
        "a cut call stays cut", '{"name": "now", "parameters": {"a": "b', [("call", "now", '{"a": "b')], is_cut=True
    ),
)
TAGGED = (
    Vector("a list", f"[{CALL}, {SECOND}]", [MEANS, MEANS_NOW]),
    Vector("a list behind white space", f"\n[\n  {SECOND}\n]\n", [MEANS_NOW]),
    Vector("a list of other things", '[{"name": "Bob"}]', [("text", '[{"name": "Bob"}]')]),
    Vector("a list within text is text", f"Look: [{SECOND}]", [("text", f"Look: [{SECOND}]")]),
    Vector("a cut list stays cut", '[{"name": "now", "parameters": {"a', [("call", "now", '{"a')], is_cut=True),
    Vector("behind the marker", f"«<|python_tag|>»{CALL}", [MEANS]),
    Vector("text in front of the marker", f"I look it up.\n«<|python_tag|>»{CALL}", [("text", "I look it up."), MEANS]),
    Vector(
        "a built-in tool",
        '«<|python_tag|>»brave_search.call(query="weather in Paris")',
        [("call", "brave_search", '{"query": "weather in Paris"}')],
        tools=BUILT_IN,
    ),
    Vector(
        "a built-in tool behind text",
        "Let me see.«<|python_tag|>»brave_search.call(query='Bob\\'s \"age\"')",
        [("text", "Let me see."), ("call", "brave_search", '{"query": "Bob\'s \\"age\\""}')],
        tools=BUILT_IN,
    ),
    Vector(
        "code",
        '«<|python_tag|>»x = "1\\n"\nprint(x)\n',
        [("call", "code_interpreter", '{"code": "x = \\"1\\\\n\\"\\nprint(x)\\n"}')],
        tools=BUILT_IN,
    ),
    Vector(
        "code that begins like a built-in tool",
        "«<|python_tag|>»brave_search.calls(1)",
        [("call", "code_interpreter", '{"code": "brave_search.calls(1)"}')],
        tools=BUILT_IN,
    ),
    Vector(
        "cut code stays cut",
        "«<|python_tag|>»print(",
        [("call", "code_interpreter", '{"code":"print(')],
        tools=BUILT_IN,
        is_cut=True,
    ),
    Vector(
        "code without a tool that runs it",
        "«<|python_tag|>»print(1)",
        [("text", "<|python_tag|>print(1)")],
    ),
    Vector(
        "an unknown tool behind the marker",
        '«<|python_tag|>»{"name": "rm", "parameters": {}}',
        [("text", '<|python_tag|>{"name": "rm", "parameters": {}}')],
    ),
)
OF_LLAMA_4 = (
    Vector(
        "behind what is said",
        f"«<|python_start|>»I look it up.«<|python_end|>»{CALL}{SECOND}",
        [("text", "I look it up."), MEANS, MEANS_NOW],
    ),
    Vector("nothing is said", f"«<|python_start|>»«<|python_end|>»{CALL}", [MEANS]),
    Vector(
        "a list in Python",
        "[get_weather(city='Paris', days=2), now()]",
        [MEANS, MEANS_NOW],
    ),
    Vector(
        "a list in Python between the markers",
        '«<|python_start|>»[get_weather(city="Paris", days=2)]«<|python_end|>»',
        [MEANS],
    ),
    Vector("a list that is none of calls", "[1, 2] are numbers.", [("text", "[1, 2] are numbers.")]),
)


@pytest.mark.parametrize("vector", [*SHARED, *TAGGED], ids=lambda vector: vector.name)
def test_outputs_of_llama_3_mean_the_same_however_they_are_cut(vector: Vector) -> None:
    check_vector(Llama3(), vector)


@pytest.mark.parametrize("vector", [*SHARED, *OF_LLAMA_4], ids=lambda vector: vector.name)
def test_outputs_of_llama_4_mean_the_same_however_they_are_cut(vector: Vector) -> None:
    check_vector(Llama4(), vector)


@pytest.mark.parametrize("family", [Llama3(), Llama4()], ids=lambda family: family.name)
def test_calls_are_written_in_the_form_of_the_template(family: Llama3) -> None:
    check_accepted(family, [CALL, '{"type": "function", "name": "now", "parameters": {}}'])
    check_refused(
        family,
        [
            "",
            "Hello",
            '{"name": "rm", "parameters": {}}',
            '{"name": "get_weather", "parameters": {}}',
            '{"name": "get_weather", "arguments": {"city": "Paris"}}',
        ],
    )
    check_refused(family, [f"{CALL}; {SECOND}", f"{CALL}{SECOND}"], tools=ONE)


def test_several_calls_are_written_where_the_template_takes_them() -> None:
    both = [f"{CALL}; {SECOND}", f"{CALL}{SECOND}"]
    check_accepted(Llama4(), both)
    check_refused(Llama3(), both)


def test_a_list_of_calls_is_written_where_it_is_read() -> None:
    check_accepted(Llama3(), [f"[{CALL}, {SECOND}]", f"[{SECOND}]"])
    check_refused(Llama3(), [f"[{CALL}, {SECOND}]"], tools=ONE)
    check_refused(Llama4(), [f"[{SECOND}]"])
    for grammar in free_grammars(Llama3()):
        assert not grammar.accepts('[{"name": "get_weather", "parameters": {"city": 1}}]')


def test_an_answer_that_begins_like_a_call_is_one_and_others_are_free() -> None:
    for grammar in free_grammars(Llama3()):
        for text in ("", "Hello", '{"name": "Bob"}', '{"name": ', "[1]", '{"name": "no'):
            assert grammar.accepts(text), text
        assert not grammar.accepts('{"name": "get_weather", "parameters": {"city": 1}}')


def test_behind_the_marker_built_in_tools_and_code_are_written() -> None:
    outputs = [
        '«<|python_tag|>»brave_search.call(query="weather")',
        "«<|python_tag|>»brave_search.call(query='weather')",
        "«<|python_tag|>»print(1)",
        f"«<|python_tag|>»{SECOND}",
        f"Let me see.\n«<|python_tag|>»{SECOND}",
    ]
    tokens, plain = free_grammars(Llama3(), BUILT_IN)
    for output in outputs:
        assert tokens.accepts(output), tokens.refused_at(output)
    assert not tokens.accepts("«<|python_tag|>»«<|python_tag|>»")
    assert plain.accepts("Hello")


@pytest.mark.parametrize("family", [Llama3(), Llama4()], ids=lambda family: family.name)
def test_what_the_grammar_allows_is_read_as_calls(family: Llama3, num_walks: int) -> None:
    check_walks(family, num_walks=num_walks)


def test_code_goes_into_the_first_text_of_a_tool_that_has_no_code() -> None:
    tool = Tool(
        "python", None, {"type": "object", "properties": {"n": {"type": "integer"}, "body": {"type": "string"}}}
    )
    tools = Tools((tool, WEATHER), Demand.AUTO)
    vector = Vector("code", "«<|python_tag|>»1 + 1", [("call", "python", '{"body": "1 + 1"}')], tools=tools)
    check_vector(Llama3(), vector)


def test_no_call_is_read_where_no_tool_may_be_called() -> None:
    check_vector(Llama3(), Vector("none", CALL, [("text", CALL)], tools=Tools(TOOLS.offered, Demand.NONE)))
