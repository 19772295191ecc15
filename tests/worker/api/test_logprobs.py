"""Log-probabilities: OpenAI's shapes of them, the same streamed and whole, and the fields that ask for them."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai.types import Completion
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from tests.fakes.engine import IM_END, FakeEngine, FakeVocabulary, Script, make_pick
from tests.support.worker_client import WorkerReply, serve
from tests.worker.api.test_openai_chat import chat
from worker.api.logprobs import PickQueue, PlacedPick, chat_logprobs, completion_logprobs
from worker.engine.detokenizer import TextStream
from worker.engine.request import FinishReason, Pick

WORDS = FakeVocabulary()
HELLO, WORLD = WORDS.words["Hello"], WORDS.words[" world"]
ASKED: dict[str, Any] = {"logprobs": True, "top_logprobs": 2}


def engine(*steps: Any, finish: FinishReason = FinishReason.STOP) -> FakeEngine:
    return FakeEngine(answers=[Script(steps or ([HELLO], [WORLD, 33]), finish)])


async def complete(on: FakeEngine, **fields: Any) -> WorkerReply:
    async with serve(on) as worker:
        return await worker.complete("x", **fields)


def pick_of(token: int, num_top: int = 0) -> Pick:
    return make_pick(token, num_top, WORDS.num_vocab)


def placed(*picks: Pick) -> list[PlacedPick]:
    return [PlacedPick(pick, offset) for offset, pick in enumerate(picks)]


# --- chat ---------------------------------------------------------------------------------------------------


async def test_a_whole_chat_reply_has_an_entry_for_each_token() -> None:
    reply = await chat(engine(), **ASKED)
    [choice] = ChatCompletion.model_validate(reply.json, strict=True).choices
    assert choice.logprobs is not None
    assert choice.logprobs.content is not None
    assert [one.token for one in choice.logprobs.content] == ["Hello", " world", "!"]
    assert [one.logprob for one in choice.logprobs.content] == [pick_of(one).logprob for one in (HELLO, WORLD, 33)]
    assert [one.bytes for one in choice.logprobs.content] == [list(b"Hello"), list(b" world"), [33]]
    best = choice.logprobs.content[2].top_logprobs
    assert [(one.token, one.logprob, one.bytes) for one in best] == [("!", -0.125, [33]), ('"', -0.625, [34])]
    assert choice.logprobs.refusal is None


async def test_a_streamed_chat_reply_has_the_same_entries_each_beside_its_text() -> None:
    whole = await chat(engine(), **ASKED)
    stream = await chat(engine(), stream=True, **ASKED)
    chunks = [ChatCompletionChunk.model_validate(event, strict=True) for event in stream.events]
    first, *middle, last = [chunk.choices[0] for chunk in chunks]
    assert (first.logprobs, last.logprobs) == (None, None)
    entries = []
    for choice in middle:
        assert choice.logprobs is not None
        assert choice.logprobs.content is not None
        assert "".join(one.token for one in choice.logprobs.content) == choice.delta.content
        entries += choice.logprobs.content
    assert len(middle) == 2
    assert [one.model_dump() for one in entries] == whole.json["choices"][0]["logprobs"]["content"]


async def test_tokens_that_nobody_sees_have_their_entries_in_the_last_chunk() -> None:
    reply = await chat(engine(b"a", b"X", b"Y"), stream=True, stop="XY", logprobs=True)
    *_, last = reply.events
    ChatCompletionChunk.model_validate(last, strict=True)
    assert [one["token"] for one in last["choices"][0]["logprobs"]["content"]] == ["X", "Y"]
    assert last["choices"][0]["finish_reason"] == "stop"


@pytest.mark.parametrize("stream", [True, False])
async def test_an_empty_answer_has_no_entries(stream: bool) -> None:
    reply = await chat(engine(b""), stream=stream, logprobs=True)
    if stream:
        assert [event["choices"][0]["logprobs"] for event in reply.events] == [None, None]
    else:
        assert reply.json["choices"][0]["logprobs"] == {"content": [], "refusal": None}


async def test_each_choice_has_entries_of_its_own() -> None:
    on = FakeEngine(answers=[Script([b"ab"]), Script([b"c"])])
    reply = await chat(on, n=2, logprobs=True)
    told = [[one["token"] for one in choice["logprobs"]["content"]] for choice in reply.json["choices"]]
    assert told == [["a", "b"], ["c"]]


@pytest.mark.parametrize(
    ("fields", "num"),
    [
        ({}, None),
        ({"logprobs": False, "top_logprobs": 0}, None),
        ({"logprobs": None, "top_logprobs": None}, None),
        ({"logprobs": True}, 0),
        ({"logprobs": True, "top_logprobs": 20.0}, 20),
    ],
)
async def test_chat_asks_the_engine_for_as_many_as_the_client_wants(fields: dict[str, Any], num: int | None) -> None:
    on = engine()
    reply = await chat(on, **fields)
    assert on.submitted[0].num_logprobs == num
    assert (reply.json["choices"][0]["logprobs"] is None) == (num is None)


@pytest.mark.parametrize(
    ("fields", "param", "words"),
    [
        ({"logprobs": 2}, "logprobs", "'logprobs' is 2, but it must be true or false"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs", "is 21, but it must be an integer from 0 to 20"),
        ({"logprobs": True, "top_logprobs": -1}, "top_logprobs", "is -1, but it must be an integer from 0 to 20"),
        ({"top_logprobs": 2}, "top_logprobs", "Set 'logprobs' to true as well"),
        ({"logprobs": False, "top_logprobs": 2}, "top_logprobs", "Set 'logprobs' to true as well"),
        ({"post_sampling_probs": True}, "post_sampling_probs", "Ask for them as well"),
    ],
)
async def test_chat_refuses_fields_that_do_not_fit(fields: dict[str, Any], param: str, words: str) -> None:
    on = engine()
    error = (await chat(on, **fields)).error
    assert (error.status, error.code, error.param) == (400, "invalid_request_error", param)
    assert words in error.message
    assert on.submitted == []


# --- completions --------------------------------------------------------------------------------------------


async def test_a_whole_completion_has_four_parallel_lists() -> None:
    reply = await complete(engine(), logprobs=2)
    [choice] = Completion.model_validate(reply.json, strict=True).choices
    assert choice.logprobs is not None
    assert choice.logprobs.tokens == ["Hello", " world", "!"]
    assert choice.logprobs.token_logprobs == [pick_of(one).logprob for one in (HELLO, WORLD, 33)]
    assert choice.logprobs.text_offset == [0, 5, 11]
    assert choice.logprobs.top_logprobs is not None
    assert choice.logprobs.top_logprobs[2] == {"!": -0.125, '"': -0.625}


async def test_a_streamed_completion_has_the_same_lists_in_pieces() -> None:
    whole = (await complete(engine(), logprobs=2)).json["choices"][0]["logprobs"]
    events = (await complete(engine(), logprobs=2, stream=True)).events
    *middle, last = [event["choices"][0] for event in events]
    for choice in middle:
        assert "".join(choice["logprobs"]["tokens"]) == choice["text"]
    joined = {name: [value for one in middle for value in one["logprobs"][name]] for name in whole}
    assert joined == whole
    assert (len(middle), last["logprobs"]) == (2, None)


@pytest.mark.parametrize(("value", "num"), [(0, 0), (1, 1), (5.0, 5), (20, 20), (None, None), (False, None)], ids=repr)
async def test_completions_ask_the_engine_for_as_many_as_the_client_wants(value: Any, num: int | None) -> None:
    on = engine()
    reply = await complete(on, logprobs=value)
    assert on.submitted[0].num_logprobs == num
    assert (reply.json["choices"][0]["logprobs"] is None) == (num is None)


@pytest.mark.parametrize("value", [True, -1, 21, "2", 1.5])
async def test_completions_refuse_other_numbers(value: Any) -> None:
    error = (await complete(engine(), logprobs=value)).error
    assert (error.status, error.param) == (400, "logprobs")
    assert "it must be an integer from 0 to 20" in error.message


async def test_the_token_itself_is_among_the_most_likely_ones_though_it_is_not() -> None:
    pick = Pick(98, -3.0, ((97, -0.5), (99, -1.0)))
    told = completion_logprobs(WORDS, placed(pick))
    assert told["top_logprobs"] == [{"a": -0.5, "c": -1.0, "b": -3.0}]


async def test_bytes_that_are_no_text_have_distinct_names_in_completions() -> None:
    pick = Pick(0xF0, -1.0, ((0xF0, -1.0), (0x9F, -2.0)))
    told = completion_logprobs(WORDS, placed(pick))
    assert told["tokens"] == ["bytes:\\xf0"]
    assert told["top_logprobs"] == [{"bytes:\\xf0": -1.0, "bytes:\\x9f": -2.0}]


# --- both ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [True, False, None])
async def test_post_sampling_reaches_the_engine(value: bool | None) -> None:
    for ask in (chat, complete):
        on = engine()
        fields: dict[str, Any] = {"logprobs": True if ask is chat else 1}
        await ask(on, post_sampling_probs=value, **fields)
        assert on.submitted[0].post_sampling_logprobs is bool(value)


async def test_completions_refuse_post_sampling_without_log_probabilities() -> None:
    assert (await complete(engine(), post_sampling_probs=True)).error.param == "post_sampling_probs"


async def test_reproducible_and_the_longest_gap_reach_the_engine() -> None:
    for ask in (chat, complete):
        on = engine()
        await ask(on, reproducible=True, itl_target_ms=250)
        await ask(on, reproducible=False)
        await ask(on)
        told = [(one.reproducible, one.itl_target_ms) for one in on.submitted]
        assert told == [(True, 250.0), (False, None), (False, None)]


def test_bytes_that_are_no_text_are_told_exactly_in_chat() -> None:
    told = chat_logprobs(WORDS, placed(pick_of(0xF0)))["content"][0]
    assert (told["token"], told["bytes"]) == ("\ufffd", [0xF0])


def test_control_tokens_have_a_name_and_no_bytes() -> None:
    pick = Pick(97, -1.0, ((IM_END, -0.5),))
    [told] = chat_logprobs(WORDS, placed(pick))["content"][0]["top_logprobs"]
    assert (told["token"], told["bytes"]) == ("<|im_end|>", [])
    assert completion_logprobs(WORDS, placed(pick))["top_logprobs"] == [{"<|im_end|>": -0.5, "a": -1.0}]


@pytest.mark.parametrize("impossible", [-math.inf, math.nan])
def test_what_json_cannot_say_becomes_the_least_number(impossible: float) -> None:
    pick = Pick(97, impossible, ((98, impossible),))
    [told] = chat_logprobs(WORDS, placed(pick))["content"]
    assert (told["logprob"], told["top_logprobs"][0]["logprob"]) == (-9999.0, -9999.0)
    assert completion_logprobs(WORDS, placed(pick))["token_logprobs"] == [-9999.0]


def test_tokens_within_a_character_begin_where_it_begins() -> None:
    queue = PickQueue(WORDS)
    queue.push([pick_of(one) for one in "a😀b".encode()])
    queue.show(3, is_over=False)
    assert [one.offset for one in queue.take()] == [0, 1, 1, 1, 1, 2]
    assert not queue


@given(st.lists(st.binary(max_size=6), max_size=12))
def test_picks_that_are_out_are_those_whose_text_is_out(steps: list[bytes]) -> None:
    # One-byte tokens without stop strings: the text that is out is the decoded bytes of the picks that are out.
    stream, queue = TextStream(WORDS), PickQueue(WORDS)
    text, tokens = "", []
    for step in steps:
        queue.push([pick_of(one) for one in step])
        shown = stream.push(list(step))
        text += shown
        queue.show(len(shown), is_over=False)
        tokens += [one.pick.token for one in queue.take()]
        assert bytes(tokens).decode("utf-8", "replace") == text
        assert bool(queue) == stream.has_held_text
    text += (rest := stream.flush())
    queue.show(len(rest), is_over=True)
    tokens += [one.pick.token for one in queue.take()]
    assert bytes(tokens) == b"".join(steps)
    assert bytes(tokens).decode("utf-8", "replace") == text
