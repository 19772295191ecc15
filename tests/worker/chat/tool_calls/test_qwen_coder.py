"""Qwen3-Coder's and Seed-OSS's calls: values in lines, values of all types, what the models forget."""

from __future__ import annotations

import pytest

from tests.support.answer_vectors import NOW, TOOLS, Vector, check_vector
from tests.support.grammar_checks import ONE, check_accepted, check_refused, check_walks
from worker.chat.reasoning import Tags
from worker.chat.tool_calls.qwen_coder import QwenCoder, SeedOss
from worker.chat.tool_calls.tools import Demand, Tool, Tools

THINK = Tags("<think>", "</think>")
SEED_THINK = Tags("<seed:think>", "</seed:think>")


def written(tool: str, *arguments: tuple[str, str]) -> str:
    """Return a call as the templates of Qwen3-Coder write it."""
    parameters = "".join(f"<parameter={name}>\n{value}\n</parameter>\n" for name, value in arguments)
    return f"«<tool_call>»\n<function={tool}>\n{parameters}</function>\n«</tool_call>»"


CALL = written("get_weather", ("city", "Paris"), ("days", "2"))
SECOND = written("now")
MEANS = ("call", "get_weather", '{"city": "Paris", "days": 2}')
MEANS_NOW = ("call", "now", "{}")
SEED_CALL = (
    "«<seed:tool_call>»\n<function=get_weather>\n<parameter=city>Paris</parameter>\n<parameter=days>2</parameter>\n"
    "</function>\n«</seed:tool_call>»"
)
LOOSE = Tool(
    "loose",
    None,
    {
        "$defs": {"when": {"anyOf": [{"type": "string"}, {"type": "null"}]}},
        "properties": {"when": {"$ref": "#/$defs/when"}, "any": {}, "either": {"type": ["string", "integer"]}},
    },
)
LOOSE_TOOLS = Tools((LOOSE, NOW), Demand.AUTO)

VECTORS = (
    Vector("text alone", "Use <parameter=x> and <tool", [("text", "Use <parameter=x> and <tool")]),
    Vector("one call", CALL, [MEANS]),
    Vector(
        "text around calls",
        f"First.\n\n{CALL}\nThen.\n{SECOND}\nDone.",
        [("text", "First."), MEANS, ("text", "Then."), MEANS_NOW, ("text", "Done.")],
    ),
    Vector("two calls", f"{CALL}\n{SECOND}", [MEANS, MEANS_NOW]),
    Vector(
        "thoughts in front",
        f"Is it <function=now>?\n«</think>»\n\n{CALL}",
        [("reasoning", "Is it <function=now>?"), MEANS],
        tags=THINK,
        starts_inside=True,
    ),
    Vector(
        "lists and objects are JSON, truth is as in Python",
        written("search", ("query", "a"), ("tags", '["x", "</parameter>"]'), ("filter", '{"year": 1999}'))
        + written("get_weather", ("city", "5"), ("exact", "True")),
        [
            ("call", "search", '{"query": "a", "tags": ["x", "</parameter>"], "filter": {"year": 1999}}'),
            ("call", "get_weather", '{"city": "5", "exact": true}'),
        ],
    ),
    Vector(
        "lists as Python writes them",
        written("search", ("query", "None"), ("tags", "['x', 'y']"), ("filter", "{'year': None}")),
        [("call", "search", '{"query": "None", "tags": ["x", "y"], "filter": {"year": null}}')],
    ),
    Vector(
        "strings keep all but the line breaks around them",
        written("search", ("query", '\n  "a"\\b\n<tool_call>\n')),
        [("call", "search", '{"query": "\\n  \\"a\\"\\\\b\\n<tool_call>\\n"}')],
    ),
    Vector(
        "an empty string", "«<tool_call>»<function=search><parameter=query></parameter></function>«</tool_call>»",
        [("call", "search", '{"query": ""}')],
    ),
    Vector(
        "strings that may be null, and values of any type",
        written("loose", ("when", "null"), ("any", "[1]"), ("either", "5"))
        + written("loose", ("when", "nul"), ("any", "[1"), ("either", "5.5"))
        + written("loose", ("when", "nulls"), ("any", "NaN"), ("other", "true")),
        [
            ("call", "loose", '{"when": null, "any": [1], "either": 5}'),
            ("call", "loose", '{"when": "nul", "any": "[1", "either": "5.5"}'),
            ("call", "loose", '{"when": "nulls", "any": "NaN", "other": true}'),
        ],
        tools=LOOSE_TOOLS,
    ),
    Vector(
        "a value of a wrong type is a string",
        written("get_weather", ("city", "Paris"), ("days", " two ")),
        [("call", "get_weather", '{"city": "Paris", "days": "two"}')],
    ),
    Vector(
        "two calls in one block",
        CALL.removesuffix("«</tool_call>»") + SECOND.removeprefix("«<tool_call>»\n"),
        [MEANS, MEANS_NOW],
    ),
    Vector(
        "the beginning of the block was forgotten",
        f"I look.\n{CALL.removeprefix('«<tool_call>»')}",
        [("text", "I look."), MEANS],
    ),
    Vector(
        "the end of a value was forgotten",
        CALL.replace("2\n</parameter>\n</function>\n", "2\n") + " Done.",
        [MEANS, ("text", "Done.")],
        only="tokens",
    ),
    Vector(
        "an unknown tool",
        f"{written('rm', ('path', '/'))}\n{SECOND}",
        [
            ("text", "<tool_call>\n<function=rm>\n<parameter=path>\n/\n</parameter>\n</function>\n</tool_call>"),
            MEANS_NOW,
        ],
    ),
    Vector("no call", "«<tool_call>»\nnow()\n«</tool_call>»", [("text", "<tool_call>\nnow()\n</tool_call>")]),
    Vector(
        "what is none of a call ends it",
        "«<tool_call>»\n<function=now>\n<parameter=a\n>1</parameter>",
        [MEANS_NOW, ("text", "<parameter=a\n>1</parameter>")],
    ),
    Vector(
        "an end without the last tags",
        "«<tool_call>»\n<function=search>\n<parameter=query>\na\n",
        [("call", "search", '{"query": "a"}')],
    ),
    *(
        Vector(f"a call that is cut stays cut: {end}", f"«<tool_call>»\n<function=search>\n{end}", [
            ("call", "search", arguments)
        ], is_cut=True)
        for end, arguments in (
            ("", ""),
            ("<param", ""),
            ("<parameter=que", ""),
            ("<parameter=query>\nab", '{"query": "ab'),
            ("<parameter=query>\nab\n</para", '{"query": "ab'),
            ("<parameter=query>\nab\n</parameter>\n<parameter=tags>\n[1", '{"query": "ab"'),
        )
    ),
)  # fmt: skip
SEED_VECTORS = (
    Vector("one call", SEED_CALL, [MEANS]),
    Vector(
        "thoughts and text in front",
        f"«<seed:think>»\nHm.\n«</seed:think>»\nI look it up.\n{SEED_CALL}\n{SEED_CALL}",
        [("reasoning", "Hm."), ("text", "I look it up."), MEANS, MEANS],
        tags=SEED_THINK,
    ),
    Vector(
        "line breaks belong to the value",
        "«<seed:tool_call>»\n<function=search>\n<parameter=query>\na\n</parameter>\n</function>\n«</seed:tool_call>»",
        [("call", "search", '{"query": "\\na\\n"}')],
    ),
)


@pytest.mark.parametrize("vector", VECTORS, ids=lambda vector: vector.name)
def test_outputs_mean_the_same_however_they_are_cut(vector: Vector) -> None:
    check_vector(QwenCoder(), vector)


@pytest.mark.parametrize("vector", SEED_VECTORS, ids=lambda vector: vector.name)
def test_outputs_of_seed_mean_the_same_however_they_are_cut(vector: Vector) -> None:
    check_vector(SeedOss(), vector)


def test_grammar_takes_what_the_models_write_and_no_other_calls() -> None:
    more = written("search", ("query", "two\nlines"), ("tags", '["x"]'), ("filter", '{"year": 1}'))
    check_accepted(QwenCoder(), [CALL, SECOND, f"{CALL}\n{SECOND}", f"{CALL}{SECOND}", more])
    check_accepted(
        QwenCoder(), [written("get_weather", ("city", "a"), ("exact", truth)) for truth in ("True", "false")]
    )
    check_refused(
        QwenCoder(),
        [
            "Hello",
            written("rm"),
            written("get_weather"),
            written("get_weather", ("days", "2")),
            written("get_weather", ("city", "Paris"), ("days", "two")),
            written("get_weather", ("days", "2"), ("city", "Paris")),
            written("now", ("city", "Paris")),
        ],
    )
    check_refused(QwenCoder(), [f"{CALL}\n{SECOND}"], tools=ONE)
    check_accepted(SeedOss(), [SEED_CALL, f"{SEED_CALL}\n{SEED_CALL}"])


def test_grammar_takes_choices_of_strings_and_any_parameters_where_the_schema_lets_it() -> None:
    unit = {"type": "string", "enum": ["C", "F"]}
    tools = Tools(
        (Tool("convert", None, {"properties": {"unit": unit}, "required": ["unit"]}), Tool("any", None, {})),
        Demand.REQUIRED,
    )
    check_accepted(
        QwenCoder(),
        [written("convert", ("unit", "F")), written("any"), written("any", ("a", "1"), ("b", ""))],
        tools=tools,
    )
    check_refused(QwenCoder(), [written("convert", ("unit", "K")), written("any", ("0", "1"))], tools=tools)


@pytest.mark.parametrize("family", [QwenCoder(), SeedOss()], ids=lambda family: family.name)
def test_what_the_grammar_allows_is_read_as_calls(family: QwenCoder | SeedOss, num_walks: int) -> None:
    check_walks(
        family,
        phrases=["</parameter>", "\n</parameter>", "<function=now>", "«<tool_call>»", '"</parameter>"'],
        num_walks=num_walks,
    )


def test_tools_of_the_vectors_are_those_of_the_grammar() -> None:
    assert LOOSE_TOOLS.by_name["now"] == TOOLS.by_name["now"]
