"""MiniMax M3's calls: elements down into lists and objects."""

from __future__ import annotations

import pytest

from tests.support.answer_vectors import Vector, check_vector
from tests.support.grammar_checks import ONE, check_accepted, check_refused, check_walks
from worker.chat.reasoning import Tags
from worker.chat.tool_calls.minimax_m3 import MiniMaxM3
from worker.chat.tool_calls.tools import Demand, Tool, Tools

N = "«]<]minimax[>[»"
OPEN, CLOSE = f"{N}«<tool_call>»\n", f"{N}«</tool_call>»"
WEATHER = f'{N}<invoke name="get_weather">{N}<city>Paris{N}</city>{N}<days>2{N}</days>{N}</invoke>\n'
NOW = f'{N}<invoke name="now">{N}</invoke>\n'
CALL = f"{OPEN}{WEATHER}{CLOSE}"
TWO = f"{OPEN}{WEATHER}{NOW}{CLOSE}"
SEARCH = (
    f'{OPEN}{N}<invoke name="search">{N}<query>a\nb{N}</query>{N}<tags>{N}<item>1{N}</item>{N}<item>{N}</item>'
    f"{N}</tags>{N}<filter>{N}<year>1999{N}</year>{N}</filter>{N}</invoke>\n{CLOSE}"
)
MEANS = ("call", "get_weather", '{"city": "Paris", "days": 2}')
MEANS_NOW = ("call", "now", "{}")
THINK = Tags("<mm:think>", "</mm:think>")
PLACE = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "at": {"type": "array", "items": {"type": "number"}}},
}
TRIP = Tool(
    "trip",
    None,
    {
        "$defs": {"place": PLACE},
        "properties": {
            "stops": {"type": "array", "items": {"$ref": "#/$defs/place"}},
            "start": PLACE,
            "unit": {"enum": ["km", "mi"]},
        },
        "required": ["stops"],
    },
)

VECTORS = (
    Vector("text alone", "Hello ]<]mini <tool_call", [("text", "Hello ]<]mini <tool_call")]),
    Vector("one call", CALL, [MEANS]),
    Vector("two calls", TWO, [MEANS, MEANS_NOW]),
    Vector(
        "text around blocks",
        f"First.{CALL}Then.\n{TWO}\nDone.",
        [("text", "First."), MEANS, ("text", "Then."), MEANS, MEANS_NOW, ("text", "Done.")],
    ),
    Vector(
        "thoughts in front",
        f"«<mm:think>»They want it.«</mm:think>»I look.{CALL}",
        [("reasoning", "They want it."), ("text", "I look."), MEANS],
        tags=THINK,
    ),
    Vector("no thoughts but their end", f"«</mm:think>»I look.{CALL}", [("text", "I look."), MEANS], tags=THINK),
    Vector(
        "lists and objects",
        SEARCH,
        [("call", "search", '{"query": "a\\nb", "tags": ["1", ""], "filter": {"year": 1999}}')],
    ),
    Vector(
        "lists of objects, empty ones, and JSON",
        f'{OPEN}{N}<invoke name="trip">{N}<stops>{N}<item>{N}<name>5{N}</name>{N}<at>{N}<item>1.5{N}</item>{N}</at>'
        f'{N}</item>{N}<item>{{"name": "b"}}{N}</item>{N}</stops>{N}<start>{N}</start>{N}<more>{N}<a>1{N}</a>{N}</more>'
        f"{N}</invoke>",
        [("call", "trip", '{"stops": [{"name": "5", "at": [1.5]}, {"name": "b"}], "start": {}, "more": {"a": 1}}')],
        tools=Tools((TRIP,), Demand.AUTO),
    ),
    Vector(
        "an unknown tool",
        f'{OPEN}{N}<invoke name="rm">',
        [("text", ']<]minimax[>[<tool_call>\n]<]minimax[>[<invoke name="rm">')],
    ),
    Vector(
        "an element without its end",
        f'{OPEN}{N}<invoke name="search">{N}<query>a{N}</query>{N}<tags>{N}<item>1{N}</tags>{N}</invoke>',
        [
            ("call", "search", '{"query": "a"}'),
            ("text", "]<]minimax[>[<tags>]<]minimax[>[<item>1]<]minimax[>[</tags>]<]minimax[>[</invoke>"),
        ],
    ),
    Vector(
        "a cut call stays cut",
        f'{OPEN}{N}<invoke name="search">{N}<query>a b{N}</query>{N}<tags>{N}<item>1{N}</it',
        [("call", "search", '{"query": "a b"')],
        is_cut=True,
    ),
)  # fmt: skip


@pytest.mark.parametrize("vector", VECTORS, ids=lambda vector: vector.name)
def test_outputs_mean_the_same_however_they_are_cut(vector: Vector) -> None:
    check_vector(MiniMaxM3(), vector)


def test_grammar_takes_what_the_model_writes_and_no_other_calls() -> None:
    check_accepted(MiniMaxM3(), [CALL, TWO, SEARCH])
    check_refused(MiniMaxM3(), [CALL.replace("get_weather", "rm"), CALL.replace(">2", ">two"), "Hello"])
    check_refused(MiniMaxM3(), [TWO], tools=ONE)


def test_grammar_holds_inner_elements_to_their_schemas() -> None:
    tools = Tools((TRIP,), Demand.REQUIRED)
    stops = f'{N}<stops>{N}<item>{{"name": "b"}}{N}</item>{N}</stops>'
    start = f"{N}<start>{N}<name>x{N}</name>{N}<at>{N}<item>1{N}</item>{N}</at>{N}</start>"
    begin, end = f'{OPEN}{N}<invoke name="trip">', f"{N}</invoke>\n{CLOSE}"
    check_accepted(
        MiniMaxM3(), [f"{begin}{stops}{start}{N}<unit>km{N}</unit>{end}", f"{begin}{stops}{end}"], tools=tools
    )
    check_refused(
        MiniMaxM3(),
        [
            f"{begin}{start}{end}",
            f"{begin}{stops}{start.replace('>1', '>one')}{end}",
            f"{begin}{stops}{N}<unit>m{N}</unit>{end}",
        ],
        tools=tools,
    )


def test_what_the_grammar_allows_is_read_as_calls(num_walks: int) -> None:
    check_walks(
        MiniMaxM3(),
        phrases=[f"{N}</city>", f"{N}</query>", f"{N}</item>", f"{N}</tags>", CALL, OPEN, "2"],
        num_walks=num_walks,
    )
