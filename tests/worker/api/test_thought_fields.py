"""What a request says of thoughts, with a model that thinks: whether it does, for how long, and where they are told."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.fakes.engine import FakeEngine, Script, make_facts
from tests.support.held_answers import HERMES, THINKS, SpeakingVocabulary, may_be
from tests.support.worker_client import serve
from tests.worker.api.test_openai_chat import CHATML, template
from tests.worker.api.test_openai_tools import TOOLS, ask, call_of, scripts
from worker.api.fields import read_fields
from worker.api.thought_fields import ThoughtFields
from worker.errors import RequestError, UnsupportedParameter

ALWAYS = THINKS + CHATML
SWITCHED = "{% if enable_thinking is defined and not enable_thinking %}quiet{% endif %}" + ALWAYS
OPENS = THINKS + CHATML.replace("assistant\n", "assistant\n<think>\n")
CHANNELS = ("<|start|>", "<|channel|>", "<|constrain|>", "<|message|>", "<|end|>", "<|call|>", "<|return|>")
THOUGHT = "«<think>»\nHm, 2.\n«</think>»\n\nTwo."


def read(**fields: Any) -> ThoughtFields:
    return read_fields(ThoughtFields, fields)


async def message(output: str, source: str = ALWAYS, **fields: Any) -> dict[str, Any]:
    told: dict[str, Any] = (await ask(scripts(output), source=source, **fields)).json["choices"][0]["message"]
    return told


async def asked(source: str = ALWAYS, **fields: Any) -> Any:
    on = scripts(THOUGHT)
    reply = await ask(on, source=source, **fields)
    assert reply.end["outcome"] == "ok", reply.frames
    return on.submitted[0]


def ended_by(request: Any, written: str, vocabulary: SpeakingVocabulary | None = None) -> str:
    """Return what must come behind this beginning of an answer, as far as it is one token after another."""
    vocabulary = vocabulary or SpeakingVocabulary()
    constraint = request.constraint()
    for token in vocabulary.tokens(written):
        constraint.accept(token)
    forced: list[int] = []
    while isinstance(token := constraint.allowed([])[0], int):
        constraint.accept(token)
        forced.append(token)
    return vocabulary.text(forced)


# --- fields ---------------------------------------------------------------------------------------------


def test_a_budget_has_two_names_and_minus_one_is_no_limit() -> None:
    assert (read(thinking_budget_tokens=5).thought_budget, read(reasoning_budget_tokens=5).thought_budget) == (5, 5)
    assert read(thinking_budget_tokens=0).thought_budget == 0
    assert read(thinking_budget_tokens=-1).thought_budget is None
    assert read().thought_budget is None
    assert read(reasoning_budget_tokens=1).budget_param == "reasoning_budget_tokens"
    with pytest.raises(RequestError) as caught:
        _ = read(thinking_budget_tokens=5, reasoning_budget_tokens=6).thought_budget
    assert caught.value.param == "thinking_budget_tokens"


@pytest.mark.parametrize(("value", "splits"), [(None, True), ("auto", True), ("deepseek", True), ("none", False)])
def test_thoughts_are_told_apart_unless_the_client_says_no(value: Any, splits: bool) -> None:
    assert read(reasoning_format=value).splits_thoughts is splits


def test_other_forms_of_thoughts_are_refused() -> None:
    with pytest.raises(UnsupportedParameter) as caught:
        read(reasoning_format="deepseek-legacy")
    assert caught.value.param == "reasoning_format"


@pytest.mark.parametrize(
    ("name", "value"), [("thinking_budget_tokens", -2), ("enable_thinking", "yes"), ("reasoning_effort", 3)]
)
def test_a_wrong_value_is_refused_by_name(name: str, value: Any) -> None:
    with pytest.raises(RequestError) as caught:
        read(**{name: value})
    assert caught.value.param == name


# --- replies --------------------------------------------------------------------------------------------


async def test_thoughts_are_told_beside_the_answer() -> None:
    told = await message(THOUGHT)
    assert (told["reasoning_content"], told["content"]) == ("Hm, 2.", "Two.")
    usage = (await ask(scripts(THOUGHT), source=ALWAYS)).json["usage"]
    assert 0 < usage["completion_tokens_details"]["reasoning_tokens"] < usage["completion_tokens"]


async def test_a_thought_that_the_prompt_has_begun_is_one() -> None:
    told = await message("Hm, 2.\n«</think>»\n\nTwo.", OPENS)
    assert (told["reasoning_content"], told["content"]) == ("Hm, 2.", "Two.")


async def test_a_stream_tells_thoughts_before_the_text() -> None:
    events = (await ask(scripts(THOUGHT), source=ALWAYS, stream=True)).events
    deltas = [event["choices"][0]["delta"] for event in events]
    assert "".join(delta.get("reasoning_content") or "" for delta in deltas) == "Hm, 2."
    assert "".join(delta.get("content") or "" for delta in deltas) == "Two."
    kinds = [name for delta in deltas for name in delta if name == "reasoning_content" or delta.get("content")]
    assert kinds == sorted(kinds, reverse=True)


async def test_thoughts_that_are_left_in_the_text_have_their_tags() -> None:
    told = await message(THOUGHT, reasoning_format="none")
    assert "reasoning_content" not in told
    assert told["content"] == "<think>\nHm, 2.\n</think>\n\nTwo."


async def test_a_call_comes_behind_a_thought_and_not_within() -> None:
    call = call_of("now", {})
    told = await message(f"«<think>»{call}«</think>»{call}", HERMES + ALWAYS, tools=TOOLS)
    assert [one["function"]["name"] for one in told["tool_calls"]] == ["now"]
    assert "now" in told["reasoning_content"]


# --- forms behind thoughts ------------------------------------------------------------------------------


@pytest.mark.parametrize("fields", [{"choice": ["Two."]}, {"regex": "Two[.]"}])
async def test_a_form_holds_behind_the_thoughts(fields: dict[str, Any]) -> None:
    request = await asked(**fields)
    for right in (THOUGHT, "Two.", "«<think>»«</think>»Two."):
        assert may_be(request, right), right
    for wrong in ("«<think>»Hm«</think>»Three", "«<think>»Two.", "Hm Two."):
        assert not may_be(request, wrong), wrong
    begun = await asked(OPENS, **fields)
    assert may_be(begun, "Hm.\n«</think>»\n\nTwo.")
    assert not may_be(begun, "Two.")


async def test_demanded_calls_come_behind_the_thoughts() -> None:
    request = await asked(HERMES + ALWAYS, tools=TOOLS, tool_choice="required")
    assert may_be(request, "«<think>»Hm«</think>»\n\n" + call_of("now", {}))
    assert not may_be(request, "«<think>»Hm«</think>»\n\nHello")


async def test_what_could_not_be_enforced_is_checked_without_the_thoughts_that_were_left() -> None:
    schema = {"type": "array", "uniqueItems": True, "items": {"type": "integer"}}
    form = {"type": "json_schema", "json_schema": {"schema": schema, "strict": False}}
    for written, is_valid in (("[1, 2]", True), ("[1, 1]", False)):
        for way in ("auto", "none"):
            output = f"«<think>»Hm.«</think>»{written}"
            reply = await ask(scripts(output), source=ALWAYS, response_format=form, reasoning_format=way)
            assert reply.json["choices"][0]["corral_format"]["is_valid"] is is_valid


# --- budgets and switches -------------------------------------------------------------------------------


async def test_a_thought_is_ended_when_its_budget_is_used_up() -> None:
    request = await asked(thinking_budget_tokens=3)
    assert ended_by(request, "«<think>»Hm") == ""
    assert ended_by(request, "«<think>»Hm.") == "\n</think>\n\n"
    assert ended_by(request, "Hm. Hm.") == ""
    assert ended_by(await asked(OPENS, thinking_budget_tokens=2), "Hm") == "\n</think>\n\n"


async def test_a_budget_and_a_form_go_together() -> None:
    request = await asked(thinking_budget_tokens=3, choice=["Two."])
    assert ended_by(request, "«<think>»Hm.") == "\n</think>\n\n"
    assert may_be(request, "«<think>»Hm.\n«</think>»\n\nTwo.")
    assert not may_be(request, "«<think>»Hm.\n«</think>»\n\nThree")


@pytest.mark.parametrize("name", ["thinking_budget_tokens", "reasoning_budget_tokens"])
async def test_responses_have_the_same_budget(name: str) -> None:
    on = scripts(THOUGHT, THOUGHT)
    assert isinstance(on.vocabulary, SpeakingVocabulary)
    async with serve(on, template=template(ALWAYS, on.vocabulary), **on.vocabulary.speaks(ALWAYS)) as worker:
        await worker.post("/v1/responses", json.dumps({"input": "hi", name: 3}).encode())
        await worker.post("/v1/responses", json.dumps({"input": "hi", name: -1}).encode())
    assert ended_by(on.submitted[0], "«<think>»Hm.") == "\n</think>\n\n"
    assert on.submitted[1].constraint is None


@pytest.mark.parametrize("fields", [{}, {"choice": ["Two."]}, {"tools": TOOLS}])
async def test_a_budget_holds_for_thoughts_in_channels(fields: Any) -> None:
    vocabulary = SpeakingVocabulary(CHANNELS)
    on = FakeEngine(vocabulary, make_facts(context=2048), [Script([vocabulary.tokens("Two.")])])
    await ask(on, source="{# <|channel|><|message|>{{ tools }} #}" + CHATML, thinking_budget_tokens=3, **fields)
    [request] = on.submitted
    thought = "«<|channel|>»analysis«<|message|>»Hm"
    assert ended_by(request, thought, vocabulary) == ""
    assert ended_by(request, thought + ".", vocabulary) == "\n<|end|><|start|>assistant"
    assert ended_by(request, "«<|channel|>»final«<|message|>»Two.", vocabulary) == ""


@pytest.mark.parametrize("fields", [{"enable_thinking": False}, {"reasoning_effort": "none"}])
async def test_thoughts_in_channels_are_ended_at_once_where_there_shall_be_none(fields: Any) -> None:
    vocabulary = SpeakingVocabulary(CHANNELS)
    on = FakeEngine(vocabulary, make_facts(context=2048), [Script([vocabulary.tokens("Two.")])])
    await ask(on, source="{# <|channel|><|message|> #}" + CHATML, **fields)
    thought = "«<|channel|>»analysis«<|message|>»"
    assert ended_by(on.submitted[0], thought, vocabulary) == "\n<|end|><|start|>assistant"


@pytest.mark.parametrize("fields", [{"enable_thinking": False}, {"reasoning_effort": "none"}])
async def test_a_model_that_shall_not_think_is_told_so_or_its_thoughts_are_ended_at_once(fields: Any) -> None:
    on = scripts("Two.")
    await ask(on, source=SWITCHED, **fields)
    assert on.vocabulary.text(on.submitted[0].prompt).startswith("quiet")
    assert on.submitted[0].constraint is None
    assert ended_by(await asked(ALWAYS, **fields), "«<think>»") == "\n</think>\n\n"
    assert ended_by(await asked(OPENS, **fields), "") == "\n</think>\n\n"
    assert (await asked(CHATML, **fields)).constraint is None


async def test_what_is_said_of_tokens_wins_over_the_switch() -> None:
    request = await asked(ALWAYS, enable_thinking=False, thinking_budget_tokens=2)
    assert ended_by(request, "«<think>»") == ""
    assert ended_by(request, "«<think>»Hm") == "\n</think>\n\n"


@pytest.mark.parametrize(
    ("source", "fields", "param"),
    [
        (CHATML, {"thinking_budget_tokens": 5}, "thinking_budget_tokens"),
        (CHATML, {"reasoning_budget_tokens": 0}, "reasoning_budget_tokens"),
        (CHATML, {"enable_thinking": True}, "enable_thinking"),
        (ALWAYS, {"reasoning_effort": "low"}, "reasoning_effort"),
        (SWITCHED, {"enable_thinking": True, "reasoning_effort": "none"}, "reasoning_effort"),
    ],
)
async def test_what_would_have_no_effect_is_refused(source: str, fields: dict[str, Any], param: str) -> None:
    error = (await ask(scripts("x"), source=source, **fields)).error
    assert (error.status, error.param) == (400, param)


async def test_a_model_that_always_thinks_may_be_asked_to() -> None:
    assert (await asked(ALWAYS, enable_thinking=True)).constraint is None
