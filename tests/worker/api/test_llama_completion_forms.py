"""The form of what llama-server's own completions answer: schemas, grammars, patterns, over a real socket."""

from __future__ import annotations

from typing import Any

import pytest

from tests.fakes.engine import EOS, FakeVocabulary
from tests.support.worker_client import serve
from tests.worker.api.test_llama_completion import complete, engine, events
from worker.engine.constraint import Constraint

# --- the form of the answer -------------------------------------------------------------------------------

NUMBER = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"], "additionalProperties": False}


def lets_through(constraint: Constraint, text: str) -> bool:
    """Return whether an answer may be `text`, from its first token to its end."""
    tokens = list(text.encode())
    if constraint.num_allowed(tokens) < len(tokens):
        return False
    for token in tokens:
        constraint.accept(token)
    if constraint.is_over:
        return True
    [allowed] = constraint.allowed([])
    return allowed == EOS if isinstance(allowed, int) else allowed is None or bool(allowed[EOS])


@pytest.mark.parametrize(
    ("fields", "fits", "others"),
    [
        ({"grammar": 'root ::= "yes" | "no"'}, "no", ["yes!", "maybe", ""]),
        ({"json_schema": NUMBER}, '{"a": 1}', ['{"a": "1"}', '{"a": 1} ok', "[1]"]),
        ({"json_schema": {}}, "[1, null]", ["[1", "hello"]),
        ({"regex": "[a-c]{2}"}, "ab", ["a", "abc", "xy"]),
        ({"choice": ["red", "blue"]}, "blue", ["green", "re"]),
        ({"lark": "start: /[0-9]+/"}, "42", ["4x", ""]),
        ({"response_format": {"type": "json_object"}}, "{}", ["[]", "ok"]),
        ({"guided_regex": "x+"}, "xx", ["y"]),
        (
            {"grammar": 'root ::= "a"', "grammar_lazy": False, "grammar_triggers": [], "preserved_tokens": []},
            "a",
            ["b"],
        ),
    ],
)
@pytest.mark.parametrize("path", ["/completion", "/infill"])
async def test_answers_are_held_to_the_form_that_is_asked_for(
    path: str, fields: dict[str, Any], fits: str, others: list[str]
) -> None:
    on = engine(vocabulary=FakeVocabulary(has_fim=True))
    place: dict[str, Any] = {"prompt": "x"} if path == "/completion" else {"input_prefix": "x", "input_suffix": "y"}
    async with serve(on) as worker:
        reply = await worker.post(path, place | fields)
    assert reply.end["outcome"] == "ok"
    make = on.submitted[0].constraint
    assert make is not None
    assert lets_through(make(), fits)
    assert not [text for text in others if lets_through(make(), text)]


@pytest.mark.parametrize("fields", [{}, {"grammar": ""}, {"json_schema": None}, {"response_format": {"type": "text"}}])
async def test_answers_have_any_form_unless_one_is_asked_for(fields: dict[str, Any]) -> None:
    on = engine()
    reply = await complete(on, **fields)
    assert on.submitted[0].constraint is None
    assert "corral_format" not in reply.json


async def test_every_answer_to_every_prompt_has_a_constraint_of_its_own() -> None:
    on = engine()
    await complete(on, ["a", "b"], n_cmpl=2, grammar='root ::= "ab"')
    states = [one.constraint() for one in on.submitted if one.constraint is not None]
    assert len(states) == 4
    states[0].accept(ord("a"))
    assert [one.num_allowed([ord("b")]) for one in states] == [1, 0, 0, 0]


async def test_settings_tell_the_grammar_as_it_came() -> None:
    grammar = 'root ::= "a"'
    assert (await complete(engine(b"a"), grammar=grammar)).json["generation_settings"]["grammar"] == grammar
    assert (await complete(engine())).json["generation_settings"]["grammar"] == ""


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("text", "is_valid"), [(b"[1,2]", True), (b"[1,1]", False)])
async def test_what_of_a_schema_cannot_be_enforced_is_checked_and_told(
    text: bytes, is_valid: bool, stream: bool
) -> None:
    schema = {"type": "array", "items": {"type": "integer"}, "uniqueItems": True}
    format_ = {"type": "json_schema", "json_schema": {"name": "numbers", "strict": False, "schema": schema}}
    reply = await complete(engine(text), response_format=format_, stream=stream)
    told = (events(reply)[-1] if stream else reply.json)["corral_format"]
    assert (told["not_enforced"], told["is_valid"]) == (["$.uniqueItems"], is_valid)


async def test_two_forms_at_once_are_refused() -> None:
    error = (await complete(engine(), grammar='root ::= "a"', json_schema={})).error
    assert (error.status, error.param) == (400, "grammar")
    assert "both ask for a form" in error.message


async def test_grammars_that_wait_for_a_trigger_are_refused_with_the_way_out() -> None:
    error = (await complete(engine(), grammar='root ::= "a"', grammar_lazy=True)).error
    assert (error.code, error.param) == ("unsupported_parameter", "grammar_lazy")
    assert "from the first token" in error.message
    assert "POST /v1/chat/completions" in error.message
