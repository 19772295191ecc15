"""Which tokens and picks belong to reasoning, with a parser of the simplest kind; and what replies tell of it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import partial
from typing import Any

import pytest

from tests.fakes.engine import FakeEngine, Script
from tests.fakes.reply import STOP, Run, play
from tests.support.openai_types import response_events
from worker.api.formatter import Formatter
from worker.api.logprobs import chat_logprobs
from worker.api.openai_chat import ChatFormatter
from worker.api.openai_reply import Head
from worker.api.openai_responses import ResponsesFormatter
from worker.api.responses_events import Output
from worker.chat.deltas import Delta, ReasoningDelta, TextDelta
from worker.engine.request import FinishReason

THOUGHTS: Sequence[bytes] = (b"a", b"b", b"c", b"|", b"d", b"e")
"""Three tokens of reasoning, one that shows nothing and counts with what follows it, and two of text."""


class Thinker:
    """All before a `|` is reasoning. An `_` is held until more comes."""

    def __init__(self) -> None:
        self._is_thinking = True
        self._held = ""

    def push(self, text: str) -> list[Delta]:
        text = self._held + text
        self._held = "_" if text.endswith("_") else ""
        text = text.removesuffix("_")
        thought, mark, rest = text.partition("|") if self._is_thinking else ("", "", text)
        self._is_thinking = self._is_thinking and not mark
        deltas = [ReasoningDelta(thought) if thought else None, TextDelta(rest) if rest else None]
        return [one for one in deltas if one is not None]

    def flush(self, *, is_cut: bool = False) -> list[Delta]:
        held, self._held = self._held, ""
        return [ReasoningDelta(held) if self._is_thinking else TextDelta(held)] if held else []


def chat() -> ChatFormatter:
    logprobs = partial(chat_logprobs, FakeEngine().vocabulary)
    return ChatFormatter(Head("c", 0, "m", "fp", 1), includes_usage=True, logprobs=logprobs)


def response() -> ResponsesFormatter:
    output = Output("r1", logprobs=partial(chat_logprobs, FakeEngine().vocabulary))
    return ResponsesFormatter({"id": "resp_r1", "created_at": 0}, 1, output, None)


async def thinking(*steps: Sequence[int], formatter: Formatter | None = None, **options: Any) -> Run:
    return await play(*steps, parser=Thinker, formatter=formatter, **options)


def reasoning_tokens(run: Run) -> int:
    told: int = run.end["usage"]["completion_tokens_details"]["reasoning_tokens"]
    return told


@pytest.mark.parametrize("is_stream", [True, False])
@pytest.mark.parametrize("steps", [THOUGHTS, (b"abc|de",), (b"ab", b"c|d", b"e")], ids=["single", "at once", "mixed"])
async def test_reasoning_is_counted_by_token_however_many_come_at_once(
    steps: Sequence[bytes], *, is_stream: bool
) -> None:
    run = await thinking(*steps, is_stream=is_stream)
    assert reasoning_tokens(run) == 3
    assert run.end["usage"]["completion_tokens"] == 6


@pytest.mark.parametrize(
    ("steps", "expected"),
    [((b"a", b"_", b"|", b"d"), 3), ((b"a", b"_"), 2), ((b"|", b"d"), 0), ((b"abc",), 3), ((b"ab_",), 3)],
)
async def test_a_token_that_is_held_counts_with_what_comes_out_next(steps: Sequence[bytes], expected: int) -> None:
    assert reasoning_tokens(await thinking(*steps)) == expected


async def test_plain_text_has_no_reasoning() -> None:
    assert reasoning_tokens(await play(*THOUGHTS)) == 0


async def test_reasoning_of_all_choices_is_added_up_and_ends_by_its_length_too() -> None:
    scripts = [Script((b"ab", b"c"), FinishReason.LENGTH), Script((b"d|", b"e"), STOP)]
    run = Run(FakeEngine(answers=scripts), n=2, parser=Thinker, is_stream=False)
    await run.reply.run()
    assert reasoning_tokens(run) == 4


@pytest.mark.parametrize("is_stream", [True, False])
async def test_chat_and_responses_tell_it(*, is_stream: bool) -> None:
    run = await thinking(*THOUGHTS, formatter=chat(), is_stream=is_stream, num_logprobs=0)
    reply = json.loads(run.text.split("data: ")[-2]) if is_stream else json.loads(run.text)
    assert reply["usage"]["completion_tokens_details"]["reasoning_tokens"] == 3
    run = await thinking(*THOUGHTS, formatter=response(), is_stream=is_stream, num_logprobs=0)
    told = response_events(run.text.encode())[-1]["response"] if is_stream else json.loads(run.text)
    assert told["usage"]["output_tokens_details"] == {"reasoning_tokens": 3}


@pytest.mark.parametrize("is_stream", [True, False])
@pytest.mark.parametrize("steps", [THOUGHTS, (b"abc|de",)], ids=["single", "at once"])
async def test_a_message_has_no_logprobs_of_reasoning(steps: Sequence[bytes], *, is_stream: bool) -> None:
    run = await thinking(*steps, formatter=response(), is_stream=is_stream, num_logprobs=0)
    told = response_events(run.text.encode())[-1]["response"] if is_stream else json.loads(run.text)
    _, message = told["output"]
    assert message["content"][0]["text"] == "de"
    assert [one["token"] for one in message["content"][0]["logprobs"]] == ["|", "d", "e"]


async def test_what_comes_at_once_is_told_in_as_few_pieces_as_possible() -> None:
    run = await thinking(b"ab|cd", b"e", finish=STOP, num_logprobs=0)
    assert run.text == "0<0:[97, 98];0:cd[124, 99, 100];0:e[101];0>stop!;done"
