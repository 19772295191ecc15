"""GLM's calls with and without line breaks, Hunyuan's in a block."""

from __future__ import annotations

import pytest

from tests.support.answer_vectors import Vector, check_vector
from tests.support.grammar_checks import ONE, check_accepted, check_refused, check_walks
from worker.chat.reasoning import Tags
from worker.chat.tool_calls.glm import Glm, Hunyuan3


def written(tool: str, *arguments: tuple[str, str], line: str = "\n") -> str:
    """Return a call as the templates of GLM write it, in lines or without."""
    pairs = "".join(
        f"«<arg_key>»{name}«</arg_key>»{line}«<arg_value>»{value}«</arg_value>»{line}" for name, value in arguments
    )
    return f"«<tool_call>»{tool}{line}{pairs}«</tool_call>»"


CALL = written("get_weather", ("city", "Paris"), ("days", "2"))
SHORT = written("get_weather", ("city", "Paris"), ("days", "2"), line="")
MEANS = ("call", "get_weather", '{"city": "Paris", "days": 2}')
MEANS_NOW = ("call", "now", "{}")
THINK = Tags("<think>", "</think>")
HUNYUAN = (
    "«<tool_calls:opensource>»\n«<tool_call:opensource>»get_weather«<tool_sep:opensource>»\n"
    "«<arg_key:opensource>»city«</arg_key:opensource>»\n«<arg_value:opensource>»Paris«</arg_value:opensource>»\n"
    "«<arg_key:opensource>»days«</arg_key:opensource>»\n«<arg_value:opensource>»2«</arg_value:opensource>»\n"
    "«</tool_call:opensource>»\n«<tool_call:opensource>»now«<tool_sep:opensource>»\n«</tool_call:opensource>»\n"
    "«</tool_calls:opensource>»"
)

VECTORS = (
    Vector("text alone", "Hello, 1 < 2 <arg", [("text", "Hello, 1 < 2 <arg")]),
    Vector("one call", CALL, [MEANS]),
    Vector("one call without line breaks", SHORT, [MEANS]),
    Vector("line breaks at some places", CALL.replace("»\n«<arg_v", "»«<arg_v"), [MEANS]),
    Vector(
        "text around calls",
        f"First.\n{CALL}\nThen.{written('now', line='')}Done.",
        [("text", "First."), MEANS, ("text", "Then."), MEANS_NOW, ("text", "Done.")],
    ),
    Vector(
        "thoughts in front",
        f"\n«<think>»They want it.«</think>»\n{CALL}\n{written('now')}",
        [("reasoning", "They want it."), MEANS, MEANS_NOW],
        tags=THINK,
    ),
    Vector(
        "values that are no strings",
        written("search", ("query", "1\n\"2\""), ("tags", '["</arg_value>"]'), ("filter", "{}")),
        [("call", "search", '{"query": "1\\n\\"2\\"", "tags": ["</arg_value>"], "filter": {}}')],
    ),
    Vector(
        "the end of a value was forgotten",
        "«<tool_call>»get_weather\n«<arg_key>»city«</arg_key>»\n«<arg_value>»Paris\n«</tool_call>»Done.",
        [("call", "get_weather", '{"city": "Paris\\n"}'), ("text", "Done.")],
        only="tokens",
    ),
    Vector(
        "an unknown tool",
        f"«<tool_call>»rm\n«</tool_call>»{SHORT}",
        [("text", "<tool_call>rm\n</tool_call>"), MEANS],
    ),
    Vector(
        "a name without a value",
        "«<tool_call>»now\n«<arg_key>»a«</arg_key>»\n1«</tool_call>»",
        [MEANS_NOW, ("text", "<arg_key>a</arg_key>\n1</tool_call>")],
    ),
    Vector("a call that ends early", "«<tool_call>»now\n", [MEANS_NOW]),
    Vector(
        "a cut call stays cut",
        "«<tool_call>»search«<arg_key>»query«</arg_key>»«<arg_value>»a «</arg_value>»«<arg_key>»tags«</arg_key>»",
        [("call", "search", '{"query": "a "')],
        is_cut=True,
    ),
)  # fmt: skip
HUNYUAN_VECTORS = (
    Vector("two calls", HUNYUAN, [MEANS, MEANS_NOW]),
    Vector(
        "thoughts and text in front",
        f"Hm.«</think:opensource>»I look it up.{HUNYUAN}",
        [("reasoning", "Hm."), ("text", "I look it up."), MEANS, MEANS_NOW],
        tags=Tags("<think:opensource>", "</think:opensource>"),
        starts_inside=True,
    ),
    Vector(
        "an unknown tool",
        "«<tool_calls:opensource>»\n«<tool_call:opensource>»rm«<tool_sep:opensource>»\n",
        [("text", "<tool_calls:opensource>\n<tool_call:opensource>rm<tool_sep:opensource>\n")],
    ),
)


@pytest.mark.parametrize("vector", VECTORS, ids=lambda vector: vector.name)
def test_outputs_mean_the_same_however_they_are_cut(vector: Vector) -> None:
    check_vector(Glm(), vector)


@pytest.mark.parametrize("vector", HUNYUAN_VECTORS, ids=lambda vector: vector.name)
def test_outputs_of_hunyuan_mean_the_same_however_they_are_cut(vector: Vector) -> None:
    check_vector(Hunyuan3(), vector)


def test_grammar_takes_what_the_models_write_and_no_other_calls() -> None:
    check_accepted(Glm(), ["«<tool_call>»now\n\n«</tool_call>»", CALL.replace("»\n«<arg_k", "»«<arg_k")])
    check_accepted(Glm(), [CALL, SHORT, f"{CALL}\n{written('now')}", f"{SHORT}{written('now', line='')}"])
    check_refused(Glm(), [written("rm"), written("get_weather"), CALL.replace("»2«", "»two«"), "Hello"])
    check_refused(Glm(), [f"{CALL}\n{CALL}"], tools=ONE)
    check_accepted(Hunyuan3(), [HUNYUAN])
    check_refused(Hunyuan3(), [HUNYUAN.replace("now", "rm"), HUNYUAN.replace("»2«", "»two«")])


@pytest.mark.parametrize("family", [Glm(), Hunyuan3()], ids=lambda family: family.name)
def test_what_the_grammar_allows_is_read_as_calls(family: Glm | Hunyuan3, num_walks: int) -> None:
    check_walks(
        family,
        phrases=[f"«{family.layout.value_end}»", f"«{family.layout.call}»", '"</arg_value>"', CALL],
        num_walks=num_walks,
    )
