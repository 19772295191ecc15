"""The completions dialect over a real socket, checked with OpenAI's own types."""

from __future__ import annotations

from typing import Any

import pytest
from openai.types import Completion

from tests.fakes.engine import BOS, IM_START, FakeEngine, FakeVocabulary, Script, make_facts
from tests.support.held_answers import may_be
from tests.support.worker_client import WorkerReply, serve
from worker.engine.request import FinishReason


def engine(*steps: Any, finish: FinishReason = FinishReason.STOP, **options: Any) -> FakeEngine:
    return FakeEngine(answers=[Script(steps or (b"Hello", b" you"), finish)], **options)


async def complete(on: FakeEngine, prompt: Any = "x", **fields: Any) -> WorkerReply:
    async with serve(on) as worker:
        return await worker.complete(prompt, **fields)


async def test_a_whole_reply_is_a_strict_completion() -> None:
    reply = await complete(engine())
    completion = Completion.model_validate(reply.json, strict=True)
    assert (completion.id, completion.created, completion.model) == ("cmpl-r1", 1700000000, "tiny")
    [choice] = completion.choices
    assert (choice.text, choice.finish_reason, choice.index, choice.logprobs) == ("Hello you", "stop", 0, None)
    assert completion.usage is not None
    assert (completion.usage.prompt_tokens, completion.usage.completion_tokens) == (1, 9)
    assert reply.json["timings"]["prompt_n"] == 1


async def test_a_stream_is_strict_completions_with_one_finish_reason() -> None:
    reply = await complete(engine(), stream=True)
    *middle, last = reply.events
    assert [event["choices"][0]["text"] for event in middle] == ["Hello", " you"]
    # OpenAI's type has no null here, but its server sends it, and clients wait for something else than null.
    assert [event["choices"][0].pop("finish_reason") for event in middle] == [None, None]
    for event in middle:
        event["choices"][0]["finish_reason"] = "stop"
        Completion.model_validate(event, strict=True)
    final = Completion.model_validate(last, strict=True)
    assert (final.choices[0].text, final.choices[0].finish_reason, final.usage) == ("", "stop", None)
    assert "timings" in last


async def test_usage_comes_in_a_chunk_of_its_own_when_asked() -> None:
    reply = await complete(engine(), stream=True, stream_options={"include_usage": True})
    *others, last = reply.events
    assert all(event["usage"] is None for event in others)
    final = Completion.model_validate(last, strict=True)
    assert final.choices == []
    assert final.usage is not None
    assert final.usage.total_tokens == 10


async def test_an_answer_cut_by_the_limit_says_length() -> None:
    reply = await complete(engine(b"abc", finish=FinishReason.LENGTH), max_tokens=3)
    assert reply.json["choices"][0]["finish_reason"] == "length"
    assert reply.end["finish_reasons"] == ["length"]


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [
        ("ab", [(97, 98)]),
        (["ab", "c"], [(97, 98), (99,)]),
        ([1, 2, 3], [(1, 2, 3)]),
        ([[1, 2], [3]], [(1, 2), (3,)]),
        (["a", [3]], [(97,), (3,)]),
        ("<|im_start|>a", [(IM_START, 97)]),
    ],
)
async def test_a_prompt_may_have_each_of_openais_forms(prompt: Any, expected: list[tuple[int, ...]]) -> None:
    on = engine()
    await complete(on, prompt)
    assert [request.prompt for request in on.submitted] == expected


async def test_several_prompts_with_several_choices_are_answered_in_order() -> None:
    on = FakeEngine(answers=[Script([text]) for text in (b"a", b"b", b"c", b"d")])
    reply = await complete(on, ["p", "q"], n=2)
    completion = Completion.model_validate(reply.json, strict=True)
    assert [(one.index, one.text) for one in completion.choices] == [(0, "a"), (1, "b"), (2, "c"), (3, "d")]
    assert [bytes(request.prompt) for request in on.submitted] == [b"p", b"p", b"q", b"q"]
    assert [request.sampling.choice for request in on.submitted] == [0, 1, 2, 3]
    assert completion.usage is not None
    assert (completion.usage.prompt_tokens, completion.usage.completion_tokens) == (2, 4)


async def test_text_gets_a_bos_where_the_model_wants_one_and_token_ids_never_do() -> None:
    on = engine(vocabulary=FakeVocabulary(add_bos=True))
    await complete(on, ["a", "<s>a", [97]])
    assert [request.prompt for request in on.submitted] == [(BOS, 97), (BOS, 97), (97,)]


@pytest.mark.parametrize(
    ("prompt", "words"),
    [
        (None, "it must be a string"),
        (5, "it must be a string"),
        ([], "is an empty list"),
        ({}, "is an empty object"),
        ([[]], "at index 0"),
        (["a", 5], "at index 1"),
        ([1, 2.5], "at index 0"),
        ([True], "at index 0"),
        ([[1, "a"]], "at index 0"),
        ([1, 269], "token id 269, but the ids of this model are 0 to 268"),
        ([-1], "token id -1"),
        ("", "is empty"),
    ],
)
async def test_a_prompt_that_is_none_of_these_is_refused(prompt: Any, words: str) -> None:
    on = engine()
    error = (await complete(on, prompt)).error
    assert (error.status, error.param) == (400, "prompt")
    assert words in error.message
    assert on.submitted == []


async def test_an_absent_prompt_is_refused() -> None:
    async with serve(engine()) as worker:
        error = (await worker.post("/v1/completions", {})).error
    assert error.param == "prompt"
    assert "is missing" in error.message


async def test_more_answers_than_one_request_may_have_are_refused() -> None:
    on = engine()
    error = (await complete(on, ["p"] * 33, n=8)).error
    assert "asks for 264 answers in all, but at most 256" in error.message
    assert on.submitted == []


@pytest.mark.parametrize(("length", "is_served"), [(9, True), (10, False), (11, False)])
async def test_the_boundary_of_the_context_is_exact_and_nothing_beyond_it_is_decoded(
    length: int, is_served: bool
) -> None:
    for fields in ({"max_tokens": 1}, {}):
        on = engine(facts=make_facts(context=10))
        reply = await complete(on, "x" * length, **fields)
        if is_served:
            assert on.submitted[0].max_tokens == 1
        else:
            assert reply.error.code == "context_length_exceeded"
            assert f"your prompt resulted in {length} tokens" in reply.error.message
            assert on.submitted == []


async def test_one_prompt_too_long_refuses_the_whole_request() -> None:
    on = engine(facts=make_facts(context=10))
    reply = await complete(on, ["ok", "x" * 10])
    assert reply.error.code == "context_length_exceeded"
    assert on.submitted == []


async def test_a_form_is_that_of_the_answer_alone() -> None:
    on = engine()
    await complete(on, ["Is it? ", [104, 105]], echo=True, choice=["yes", "no"], n=2)
    assert len(on.submitted) == 4
    for request in on.submitted:
        assert may_be(request, "yes")
        assert not may_be(request, "Is it? yes")
    on = engine(vocabulary=FakeVocabulary(has_fim=True))
    await complete(on, "a = ", suffix="\n", regex="[0-9]{2}")
    assert may_be(on.submitted[0], "42")


async def test_a_reply_tells_what_of_a_form_could_only_be_checked() -> None:
    form = {"type": "json_schema", "json_schema": {"schema": {"type": "array", "uniqueItems": True}, "strict": False}}
    [choice] = (await complete(engine(b"[1, 1]"), "x", response_format=form)).json["choices"]
    assert choice["corral_format"]["not_enforced"] == ["$.uniqueItems"]
    assert choice["corral_format"]["is_valid"] is False
    *others, last = (await complete(engine(b"[1, 1]"), "x", response_format=form, stream=True)).events
    assert last["choices"][0]["corral_format"] == choice["corral_format"]
    assert not any("corral_format" in event["choices"][0] for event in others)


@pytest.mark.parametrize(
    ("name", "value"), [("best_of", 3), ("n_probs", 2), ("store", True), ("thinking_budget_tokens", 5)]
)
async def test_what_this_release_cannot_do_is_refused_by_name(name: str, value: Any) -> None:
    error = (await complete(engine(), **{name: value})).error
    assert (error.status, error.code, error.param) == (400, "unsupported_parameter", name)
