"""Thoughts in Anthropic's dialect over a real socket: how they are told, and how long they may be."""

from __future__ import annotations

from typing import Any

import pytest

from tests.fakes.engine import make_facts
from tests.support.called_tools import ALWAYS, CALLING, CITY, PLAIN, SWITCHED, allows, forced_after, one_by_one
from tests.worker.api.test_anthropic_messages import HI, count, engine, prompt_text, send
from tests.worker.api.test_anthropic_reply import events_of, put_together
from worker.api.anthropic_reply import SIGNATURE
from worker.engine.request import FinishReason

ENABLED = {"type": "enabled", "budget_tokens": 1024}
OFF = {"type": "disabled"}
ENDING = "\n</think>\n\n"


def saying(text: str, finish: FinishReason = FinishReason.STOP) -> Any:
    return engine(*one_by_one(text), finish=finish, facts=make_facts(context=4096))


def thought(text: str) -> dict[str, str]:
    return {"type": "thinking", "thinking": text, "signature": SIGNATURE}


# --- how they are told ------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_stream", [False, True])
@pytest.mark.parametrize(
    ("source", "answer"), [(SWITCHED, "<think>\nHm.\n</think>\n\nFour."), (ALWAYS, "Hm.\n</think>\n\nFour.")]
)
async def test_thoughts_are_signed_blocks_before_the_text(source: str, answer: str, is_stream: bool) -> None:
    reply = await send(saying(answer), source=source, stream=is_stream)
    content = put_together(events_of(reply.body)[1:-2]) if is_stream else reply.json["content"]
    assert content == [thought("Hm."), {"type": "text", "text": "Four."}]


async def test_a_thought_comes_piece_by_piece_and_its_signature_last() -> None:
    events = events_of((await send(saying("Hmmm.\n</think>\n\n4"), source=ALWAYS, stream=True)).body)
    kinds = [event["delta"]["type"] for event in events if event["type"] == "content_block_delta"]
    assert kinds == ["thinking_delta"] * 5 + ["signature_delta", "text_delta"]


@pytest.mark.parametrize("is_stream", [False, True])
async def test_omitted_thoughts_are_blocks_without_text(is_stream: bool) -> None:
    on = saying("Hm.\n</think>\n\nFour.")
    reply = await send(on, source=ALWAYS, thinking=ENABLED | {"display": "omitted"}, stream=is_stream)
    content = put_together(events_of(reply.body)[1:-2]) if is_stream else reply.json["content"]
    assert content == [thought(""), {"type": "text", "text": "Four."}]


@pytest.mark.parametrize("is_stream", [False, True])
async def test_a_thought_that_the_length_cuts_is_a_thought(is_stream: bool) -> None:
    reply = await send(saying("Hm. Wel", FinishReason.LENGTH), source=ALWAYS, stream=is_stream)
    content = put_together(events_of(reply.body)[1:-2]) if is_stream else reply.json["content"]
    told = events_of(reply.body)[-2]["delta"] if is_stream else reply.json
    assert (content, told["stop_reason"]) == ([thought("Hm. Wel")], "max_tokens")


async def test_tags_are_text_for_a_model_that_does_not_think() -> None:
    answer = "<think>\nHm.\n</think>"
    assert (await send(saying(answer), source=PLAIN)).json["content"] == [{"type": "text", "text": answer}]


async def test_thoughts_that_are_sent_back_reach_the_template() -> None:
    on = saying("ok")
    said = [thought("Hm."), {"type": "text", "text": "Four."}]
    await send(on, source=SWITCHED, messages=[*HI["messages"], {"role": "assistant", "content": said}, *HI["messages"]])
    assert "<think>Hm.</think>Four." in prompt_text(on)


# --- whether and how long ---------------------------------------------------------------------------------


async def test_a_budget_ends_the_thought_when_it_is_used_up() -> None:
    for source, begun in ((SWITCHED, "<think>"), (ALWAYS, "")):
        on = saying("Hm.\n</think>\n\n4")
        await send(on, source=source, thinking={"type": "enabled", "budget_tokens": 8})
        assert forced_after(on, f"{begun}Seven..") == ""
        assert forced_after(on, f"{begun}Seven...") == ENDING
        assert not allows(on, f"{begun}Seven....")
        assert allows(on, f"{begun}</think> and then as long as it likes")


async def test_a_budget_leaves_an_answer_without_thoughts_alone() -> None:
    on = saying("Four.")
    await send(on, source=SWITCHED, thinking={"type": "enabled", "budget_tokens": 1})
    assert allows(on, "An answer at once, which is long.")


async def test_without_a_budget_thoughts_are_as_long_as_the_answer_may_be() -> None:
    for thinking in (None, {"type": "adaptive"}, {"type": "enabled"}):
        on = saying("ok")
        await send(on, source=SWITCHED, thinking=thinking)
        assert on.submitted[0].constraint is None


async def test_a_model_that_always_thinks_ends_its_thought_at_once_where_none_is_wanted() -> None:
    on = saying("ok")
    await send(on, source=ALWAYS, thinking=OFF)
    assert forced_after(on, "") == ENDING
    assert forced_after(on, ENDING) == ""


async def test_a_model_with_a_switch_is_told_not_to_think_and_is_held_to_nothing() -> None:
    on = saying("ok")
    await send(on, source=SWITCHED, thinking=OFF)
    assert prompt_text(on).endswith("[off]")
    assert on.submitted[0].constraint is None


async def test_a_model_that_always_thinks_needs_no_switch() -> None:
    on = saying("Hm.\n</think>\n\nFour.")
    assert (await send(on, source=ALWAYS, thinking=ENABLED)).json["content"][0] == thought("Hm.")


@pytest.mark.parametrize(
    ("source", "thinking", "param"),
    [
        (PLAIN, ENABLED, "thinking"),
        (PLAIN, {"type": "adaptive", "budget_tokens": 1024}, "thinking.budget_tokens"),
        (PLAIN + "{{ enable_thinking }}", ENABLED, "thinking.budget_tokens"),
        (SWITCHED, ENABLED | {"budget_tokens": 0}, "thinking.budget_tokens"),
    ],
)
async def test_thinking_that_cannot_be_had_or_limited_is_refused(source: str, thinking: Any, param: str) -> None:
    on = saying("never")
    error = (await send(on, source=source, thinking=thinking)).error
    assert (error.status, error.param) == (400, param)
    assert f"'{param}'" in error.message
    assert not on.submitted


@pytest.mark.parametrize("name", ["thinking_budget_tokens", "reasoning_budget_tokens"])
async def test_a_budget_under_another_name_is_refused_with_the_right_one(name: str) -> None:
    error = (await send(saying("never"), source=SWITCHED, **{name: 100})).error
    assert (error.status, error.param) == (400, name)
    assert "'thinking.budget_tokens'" in error.message


async def test_tokens_are_counted_with_the_switch_that_the_request_would_set() -> None:
    for thinking in (ENABLED, OFF, {"type": "adaptive"}):
        on = saying("ok")
        await send(on, source=SWITCHED, thinking=thinking)
        counted = await count(saying("never"), source=SWITCHED, thinking=thinking)
        assert counted.json["input_tokens"] == len(on.submitted[0].prompt)


async def test_a_form_holds_the_answer_behind_the_thoughts() -> None:
    on = saying("ok")
    form = {"format": {"type": "json_schema", "schema": CITY}}
    await send(on, source=CALLING, output_config=form, thinking={"type": "adaptive"})
    assert allows(on, '<think>What now?</think>\n\n{"city": "Rome"}')
    assert allows(on, '{"city": "Rome"}')
    assert not allows(on, "<think>What now?</think>\n\nRome")
