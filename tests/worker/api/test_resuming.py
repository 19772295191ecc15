"""A reply that another worker has begun goes on as if nothing had happened, wherever it was cut, in every dialect."""

from __future__ import annotations

import asyncio
import itertools
import json
import math
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from tests.fakes.engine import FakeEngine, Script, make_facts
from tests.fakes.reply import settle
from tests.support.held_answers import HERMES, SpeakingVocabulary
from tests.worker.api.test_openai_chat import CHATML, template
from worker.api.logprobs import LEAST
from worker.api.resuming import read_steps, record_of
from worker.api.served import Envelope, Job, ServedModel
from worker.api.stream import Reply
from worker.app import ROUTES
from worker.contract import Frame, FrameDecoder, FrameType
from worker.engine.request import FinishReason, Output, Pick, PrefillProgress, RequestId, RequestTimings
from worker.errors import CannotResume

READ = {route.path: route.read for route in ROUTES}
LENGTH = FinishReason.LENGTH
SAID = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 200, "stream": True}
CALL = '<think>\nhmm\n</think>\n\nSo: «<tool_call>»\n{"name": "weather", "arguments": {"city": "Köln"}}\n«</tool_call>»'
WEATHER = {"name": "weather", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}}
TOOLS = {"tools": [{"type": "function", "function": WEATHER}]}
ANTHROPIC_TOOLS = {"tools": [{"name": "weather", "input_schema": WEATHER["parameters"]}]}
RESPONSES_TOOLS = {"tools": [{"type": "function", **WEATHER}]}
TEXT = "añ😀 bKLKLMzz"


def scripted(*texts: str, finish: FinishReason = FinishReason.STOP) -> Callable[[], FakeEngine]:
    """Return what makes engines that answer so, token by token."""
    vocabulary = SpeakingVocabulary()
    answers = [Script([[token] for token in vocabulary.tokens(text)], finish) for text in texts]
    facts = replace(make_facts(context=2048), num_vocab=1000)
    return lambda: FakeEngine(SpeakingVocabulary(), facts, answers, num_cached=[2], is_by_choice=True)


class Told:
    """What one worker has written of a reply, write by write."""

    def __init__(self) -> None:
        self.writes: list[list[Frame]] = []

    async def write(self, data: bytes) -> None:
        self.writes.append(FrameDecoder().feed(data))

    def data(self, num_writes: int | None = None) -> bytes:
        writes = self.writes[:num_writes]
        return b"".join(one.payload for write in writes for one in write if one.type is FrameType.DATA)

    def lines(self, num_writes: int) -> bytes:
        """What the router has kept when so many writes have come."""
        kept = [one.payload for write in self.writes[:num_writes] for one in write if one.type is FrameType.RESUME]
        return b"".join(line + b"\n" for line in kept)

    @property
    def end(self) -> Any:
        assert self.writes[-1][-1].type is FrameType.END
        return json.loads(self.writes[-1][-1].payload)


def timeless(data: bytes) -> str:
    """Return the text without how long the answer took: that of the lost worker is told by its clock."""
    return re.sub(r'"(predicted_(per_)?[a-z_]+|eval_duration)":[0-9.]+', "", data.decode())


async def reply(
    make: Callable[[], FakeEngine],
    path: str,
    body: dict[str, Any],
    earlier: bytes = b"",
    clock: Callable[[], float] = lambda: 0.0,
) -> Told:
    engine, told = make(), Told()
    assert isinstance(engine.vocabulary, SpeakingVocabulary)
    speaks = engine.vocabulary.speaks(HERMES + CHATML)
    model = replace(ServedModel("tiny", engine, engine.vocabulary, template(HERMES + CHATML)), **speaks)
    job = READ[path](model, json.dumps(body).encode(), Envelope("r1", 1700000000, 7))
    assert isinstance(job, Job)
    await Reply(model, job, told.write, clock=clock, earlier=earlier).run()
    return told


CASES = {
    "chat": ("/v1/chat/completions", SAID, ["Hello there"]),
    "chat with usage in every chunk": (
        "/v1/chat/completions",
        SAID | {"stream_options": {"include_usage": True, "continuous_usage_stats": True}},
        ["Hello"],
    ),
    "two choices": ("/v1/chat/completions", SAID | {"n": 2, "seed": 3}, ["one", "another one"]),
    "half characters and a stop string": ("/v1/chat/completions", SAID | {"stop": ["KLM"]}, [TEXT]),
    "log-probabilities": ("/v1/chat/completions", SAID | {"logprobs": True, "top_logprobs": 2, "stop": "KLM"}, [TEXT]),
    "tools and thoughts": ("/v1/chat/completions", SAID | TOOLS, [CALL]),
    "completions": ("/v1/completions", {"prompt": "x", "stream": True, "logprobs": 1, "echo": False}, [TEXT]),
    "several prompts": ("/v1/completions", {"prompt": ["x", "yy"], "n": 2, "stream": True}, ["a", "bc", "def", "g"]),
    "messages": ("/v1/messages", SAID | {"stop_sequences": ["KLM"]}, [TEXT]),
    "messages with tools": ("/v1/messages", SAID | ANTHROPIC_TOOLS, [CALL]),
    "responses": ("/v1/responses", {"input": "x", "stream": True}, [TEXT]),
    "responses with tools": ("/v1/responses", {"input": "x", "stream": True} | RESPONSES_TOOLS, [CALL]),
    "ollama chat": ("/api/chat", {"messages": SAID["messages"]}, [TEXT]),
    "ollama chat with tools": ("/api/chat", {"messages": SAID["messages"]} | TOOLS, [CALL]),
    "ollama generate": ("/api/generate", {"prompt": "x", "raw": True}, [TEXT]),
    "llama-server": (
        "/completion",
        {"prompt": "x", "stream": True, "return_tokens": True, "n_probs": 1, "stop": ["KLM"]},
        [TEXT],
    ),
    "whole": ("/v1/chat/completions", SAID | {"stream": False, "logprobs": True}, [TEXT * 6]),
    "whole with tools": ("/v1/messages", SAID | ANTHROPIC_TOOLS | {"stream": False}, [CALL]),
    "whole, several": ("/v1/completions", {"prompt": "x", "n": 2}, [TEXT * 4, "b" * 50]),
}


@pytest.mark.parametrize("name", CASES)
async def test_a_reply_that_is_cut_anywhere_goes_on_byte_for_byte(name: str) -> None:
    path, body, texts = CASES[name]
    make = scripted(*texts)
    whole = await reply(make, path, body)
    assert len(whole.writes) > 1
    for num in range(len(whole.writes)):
        rest = await reply(make, path, body, whole.lines(num))
        assert timeless(whole.data(num) + rest.data()) == timeless(whole.data()), f"cut after {num} writes"
        assert rest.end["usage"] == whole.end["usage"]
        assert rest.end["finish_reasons"] == whole.end["finish_reasons"]


@pytest.mark.parametrize("name", ["two choices", "tools and thoughts", "messages with tools", "responses"])
async def test_a_reply_may_be_cut_again_and_again(name: str) -> None:
    path, body, texts = CASES[name]
    make = scripted(*texts)
    whole = await reply(make, path, body)
    told, lines = b"", b""
    for _ in itertools.count():
        rest = await reply(make, path, body, lines)
        if len(rest.writes) <= 2:
            break
        told, lines = told + rest.data(2), lines + rest.lines(2)
    assert (told + rest.data()).decode() == whole.data().decode()


async def test_the_last_words_alone_are_told_when_all_choices_had_ended() -> None:
    path, body, _ = CASES["chat"]
    make = scripted("ab")
    whole = await reply(make, path, body)
    engine = make()
    rest = await reply(lambda: engine, path, body, whole.lines(len(whole.writes)))
    assert engine.submitted == []
    assert rest.data() == b"data: [DONE]\n\n"


async def test_an_answer_whose_stop_string_had_come_is_not_given_to_the_engine_again() -> None:
    path, body, _ = CASES["half characters and a stop string"]
    make = scripted(TEXT)
    whole = await reply(make, path, body)
    place = next(
        n
        for n in range(len(whole.writes))
        if b"M" not in whole.lines(n)
        and f"[{ord('M')}]" in str([json.loads(line)[0].get("token_ids") for line in whole.lines(n).splitlines()])
    )
    engine = make()
    rest = await reply(lambda: engine, path, body, whole.lines(place))
    assert engine.submitted == []
    assert rest.end["finish_reasons"] == ["stop"]
    assert rest.end["usage"] == whole.end["usage"]


async def test_the_engine_learns_where_the_answer_was_and_how_long_it_had_taken() -> None:
    engine = scripted("abc")()
    steps = [
        [{"choice": 0, "token_ids": [97], "timings": {"prompt_s": 0.5, "cached_tokens": 2}, "sampler_state": [1.5]}],
        [{"choice": 0, "token_ids": [98], "generation_s": 4.0, "sampler_state": [2.5]}],
    ]
    lines = b"".join(json.dumps(step).encode() + b"\n" for step in steps)
    await reply(lambda: engine, *CASES["chat"][:2], lines)
    earlier = engine.submitted[0].earlier
    assert earlier is not None
    assert earlier.tokens == (97, 98)
    assert earlier.sampler_state == (2.5,)
    assert earlier.timings == RequestTimings(prompt_s=0.5, cached_tokens=2, generation_s=4.0)


async def test_a_reproducible_answer_is_generated_again_and_what_was_told_is_left_out() -> None:
    path, body, texts = CASES["chat"]
    make = scripted(*texts)
    whole = await reply(make, path, body | {"reproducible": True})
    engine = make()
    rest = await reply(lambda: engine, path, body | {"reproducible": True}, whole.lines(3))
    assert engine.submitted[0].earlier is None
    assert whole.data(3) + rest.data() == whole.data()


@pytest.mark.parametrize("text", ["Hexlo there", "He"])
async def test_a_reproducible_answer_that_comes_out_otherwise_is_not_put_together_with_the_first_one(text: str) -> None:
    path, body, texts = CASES["chat"]
    whole = await reply(scripted(*texts), path, body | {"reproducible": True})
    with pytest.raises(CannotResume, match="other last digits"):
        await reply(scripted(text), path, body | {"reproducible": True}, whole.lines(6))


async def test_tokens_behind_a_limit_of_time_are_not_told_as_what_the_client_has() -> None:
    """The engine brings some more before it obeys; whoever goes on must write their text."""
    engine = scripted("ab\ncdefgh")()
    engine.finish = lambda *_: None  # type: ignore[method-assign]
    body = {"prompt": "x", "stream": True, "t_max_predict_ms": 3000}
    told = await reply(lambda: engine, "/completion", body, clock=itertools.count().__next__)
    recorded = [
        token for line in told.lines(99).splitlines() for one in json.loads(line) for token in one.get("token_ids", ())
    ]
    assert 2 < len(recorded) < 9
    assert len(recorded) == told.end["usage"]["completion_tokens"]


@pytest.mark.parametrize(
    "lines",
    [
        *(b"no json\n", b"{}\n", b"[1]\n", b"\xff\n"),
        *(b'[{"choice": 1}]\n', b'[{"choice": -1}]\n', b'[{"choice": 0, "token_ids": [-1]}]\n'),
        *(b'[{"choice": 0, "token_ids": [100000]}]\n', b'[{"choice": 0, "finish": "perhaps"}]\n'),
        *(b'[{"choice": 0, "timings": {"x": 1}}]\n', b'[{"choice": 0, "picks": [[1]]}]\n', b"[[]]\n"),
    ],
)
async def test_what_is_no_record_of_such_a_reply_never_reaches_the_engine(lines: bytes) -> None:
    engine = scripted("abc")()
    with pytest.raises(CannotResume):
        await reply(lambda: engine, *CASES["chat"][:2], lines)
    assert engine.submitted == []


async def test_how_far_a_prompt_is_never_goes_back() -> None:
    path, body, _ = CASES["chat"]
    engine = scripted("ab")()
    steps = b'[{"choice":0,"progress":{"total_tokens":9,"cached_tokens":0,"processed_tokens":6,"elapsed_s":1.0}}]\n'
    engine.answers.clear()
    told = asyncio.create_task(reply(lambda: engine, path, body | {"return_progress": True}, steps))
    await engine.submissions(1)
    for processed in (3, 6, 9):
        engine.step({1: b""}, progress=PrefillProgress(9, 0, processed, 2.0))
        await settle()
    engine.step({1: b"a"}, finish=FinishReason.STOP)
    shown = [json.loads(line[6:]) for line in (await told).data().decode().split("\n\n") if line.startswith("data: {")]
    assert [one["prompt_progress"]["processed"] for one in shown if "prompt_progress" in one] == [9]


async def test_log_probabilities_that_json_lacks_are_told_as_the_least_there_is() -> None:
    picks = (Pick(97, -math.inf, ((97, -math.inf), (98, math.nan))),)
    output = Output(RequestId(1), (97,), picks=picks)
    (((_, read, _),),) = read_steps(record_of([(0, output)], {}) + b"\n", num_choices=1, num_vocab=200)
    assert read.picks == (Pick(97, LEAST, ((97, LEAST), (98, LEAST))),)
