"""What completions have beside the sampling: `echo`, `suffix`, `best_of`, and the seed that is told."""

from __future__ import annotations

from typing import Any

import pytest
from openai.types import Completion

from tests.fakes.engine import EOS, IM_START, FakeEngine, FakeVocabulary, Script, make_facts
from tests.support.worker_client import WorkerReply, serve
from worker.engine.request import FinishReason
from worker.engine.vocabulary import FimTokens

FIM = FimTokens(prefix=1, suffix=2, middle=3)


def engine(*steps: Any, finish: FinishReason = FinishReason.STOP, **options: Any) -> FakeEngine:
    return FakeEngine(answers=[Script(steps or (b"Hello", b" you"), finish)], **options)


def engine_for_code() -> FakeEngine:
    vocabulary = FakeVocabulary()
    vocabulary.fim = FIM
    return engine(vocabulary=vocabulary)


async def complete(on: FakeEngine, prompt: Any = "x", **fields: Any) -> WorkerReply:
    async with serve(on) as worker:
        return await worker.complete(prompt, **fields)


def streamed_texts(reply: WorkerReply) -> dict[int, str]:
    texts: dict[int, str] = {}
    for event in reply.events:
        for choice in event["choices"]:
            texts[choice["index"]] = texts.get(choice["index"], "") + choice["text"]
    return texts


# --- echo -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("prompt", "shown"),
    [
        ("Say: ", ["Say: "]),
        (["a", "é😀"], ["a", "é😀"]),
        ([72, 105], ["Hi"]),
        ([[72], [0xF0, 0x9F, 0x98, 0x80, IM_START]], ["H", "😀<|im_start|>"]),
        ([0xFF], ["\ufffd"]),
    ],
)
async def test_echo_puts_the_prompt_in_front_of_each_answer_streamed_or_not(prompt: Any, shown: list[str]) -> None:
    whole = Completion.model_validate((await complete(engine(), prompt, echo=True, n=2)).json, strict=True)
    expected = [f"{text}Hello you" for text in shown for _ in range(2)]
    assert [choice.text for choice in whole.choices] == expected
    stream = await complete(engine(), prompt, echo=True, n=2, stream=True)
    assert streamed_texts(stream) == dict(enumerate(expected))
    for index in range(len(expected)):
        mine = [event["choices"][0]["text"] for event in stream.events if event["choices"][0]["index"] == index]
        assert mine[0] == shown[index // 2]


async def test_echoed_text_is_no_place_for_stop_strings_and_counts_as_prompt() -> None:
    reply = await complete(engine(b"one two"), "stop here: ", echo=True, stop=["stop"])
    assert reply.json["choices"][0]["text"] == "stop here: one two"
    assert reply.json["usage"]["completion_tokens"] == 7


async def test_echo_comes_even_where_the_answer_is_empty() -> None:
    empty = FakeEngine(answers=[Script([], FinishReason.STOP)])
    assert streamed_texts(await complete(empty, "x", echo=True, stream=True)) == {0: "x"}
    assert (await complete(empty, "x", echo=True)).json["choices"][0]["text"] == "x"


async def test_echo_false_echoes_nothing() -> None:
    assert (await complete(engine(), "x", echo=False)).json["choices"][0]["text"] == "Hello you"


@pytest.mark.parametrize("logprobs", [0, 3])
async def test_echo_with_log_probabilities_is_refused_as_the_prompt_has_none(logprobs: int) -> None:
    on = engine()
    error = (await complete(on, echo=True, logprobs=logprobs)).error
    assert (error.status, error.code, error.param) == (400, "unsupported_parameter", "echo")
    assert "'logprobs'" in error.message
    assert on.submitted == []


# --- suffix ---------------------------------------------------------------------------------------------


async def test_suffix_puts_the_models_own_tokens_around_plain_text() -> None:
    on = engine_for_code()
    reply = await complete(on, ["a<|im_end|>", "b"], suffix="</s>z")
    assert [request.prompt for request in on.submitted] == [
        (1, *b"a<|im_end|>", 2, *b"</s>z", 3),
        (1, *b"b", 2, *b"</s>z", 3),
    ]
    assert EOS not in on.submitted[0].prompt
    assert [choice["text"] for choice in reply.json["choices"]] == ["Hello you", "Hello you"]


async def test_empty_suffix_asks_for_no_gap() -> None:
    on = engine()
    await complete(on, "ab", suffix="")
    assert on.submitted[0].prompt == (97, 98)


async def test_suffix_is_refused_by_a_model_without_such_tokens() -> None:
    on = engine()
    error = (await complete(on, suffix="end")).error
    assert (error.status, error.code, error.param) == (400, "unsupported_by_model", "suffix")
    assert on.submitted == []


async def test_suffix_goes_with_text_alone() -> None:
    error = (await complete(engine_for_code(), [1, 2], suffix="end")).error
    assert (error.status, error.param) == (400, "suffix")


async def test_gap_that_does_not_fit_is_refused_with_both_counts() -> None:
    vocabulary = FakeVocabulary()
    vocabulary.fim = FIM
    error = (await complete(engine(vocabulary=vocabulary, facts=make_facts(context=10)), "x" * 4, suffix="y" * 3)).error
    assert (error.code, error.param) == ("context_length_exceeded", "prompt")
    assert "resulted in 10 tokens" in error.message


# --- best_of --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fields", [{"best_of": 1}, {"best_of": 2, "n": 2}, {"best_of": None, "n": 2}])
async def test_best_of_that_chooses_nothing_is_accepted(fields: dict[str, Any]) -> None:
    reply = await complete(engine(), **fields)
    assert [choice["index"] for choice in reply.json["choices"]] == list(range(fields.get("n", 1)))


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"best_of": 2}, "unsupported_parameter"),
        ({"best_of": 3, "n": 2}, "unsupported_parameter"),
        ({"best_of": 1, "n": 2}, "invalid_request_error"),
        ({"best_of": 0}, "invalid_request_error"),
        ({"best_of": "2"}, "invalid_request_error"),
    ],
)
async def test_best_of_that_would_choose_is_refused(fields: dict[str, Any], code: str) -> None:
    on = engine()
    error = (await complete(on, **fields)).error
    assert (error.status, error.code, error.param) == (400, code, "best_of")
    assert on.submitted == []


# --- the seed -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("asked", "told"),
    [(5, 5), (-2, -2), (None, 7), (-1, 7), (2.0, 2), (1e30, int(1e30) % 2**64), (2**64 - 1, 2**64 - 1)],
)
async def test_seed_is_told_once_beside_the_timings(asked: Any, told: int) -> None:
    assert (await complete(engine(), seed=asked)).json["seed"] == told
    stream = await complete(engine(), seed=asked, stream=True)
    assert [event.get("seed") for event in stream.events] == [None, None, told]
    counted = await complete(engine(), seed=asked, stream=True, stream_options={"include_usage": True})
    assert [event.get("seed") for event in counted.events] == [None, None, None, told]
