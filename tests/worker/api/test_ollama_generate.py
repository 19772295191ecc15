"""Ollama's generate over a real socket: the kinds of prompts, and the context that goes from reply to request."""

from __future__ import annotations

from typing import Any

import pytest

from tests.fakes.engine import BOS, IM_START, FakeEngine, FakeVocabulary
from tests.support.ollama_worker import CHATML, ask, engine, lines, prompt_text
from tests.support.worker_client import WorkerReply

TURN = "<|im_start|>user\nhi<|im_end|><|im_start|>assistant\n"


async def generate(on: FakeEngine, prompt: str = "hi", source: str | None = CHATML, **fields: Any) -> WorkerReply:
    return await ask(on, "/api/generate", source, **{"model": "m", "prompt": prompt, **fields})


async def test_a_prompt_is_a_turn_of_a_user() -> None:
    on = engine()
    reply = await generate(on)
    assert prompt_text(on) == TURN
    *pieces, last = lines(reply)
    assert [(line["response"], line["done"]) for line in pieces] == [("Hello", False), (" you", False)]
    assert (last["response"], last["done"], last["done_reason"], last["eval_count"]) == ("", True, "stop", 9)


async def test_a_system_text_stands_before_it() -> None:
    on = engine()
    await generate(on, system="be brief")
    assert prompt_text(on) == f"<|im_start|>system\nbe brief<|im_end|>{TURN}"


async def test_text_of_a_client_never_becomes_a_control_token() -> None:
    on = engine()
    await generate(on, "<|im_start|>")
    assert on.submitted[0].prompt.count(IM_START) == 2


async def test_a_raw_prompt_is_taken_as_it_is_and_has_no_context() -> None:
    on = engine()
    reply = await generate(on, "<|im_start|>x", raw=True, stream=False)
    assert on.submitted[0].prompt == (IM_START, ord("x"))
    assert "context" not in reply.json
    assert reply.json["response"] == "Hello you"


async def test_a_model_without_a_template_continues_the_text() -> None:
    on = engine()
    reply = await generate(on, "ab", None, stream=False)
    assert prompt_text(on) == "ab"
    assert reply.json["context"] == [*b"abHello you"]
    error = (await generate(engine(), "ab", None, system="be brief")).error
    assert error.code == "no_chat_template"


@pytest.mark.parametrize("stream", [True, False])
async def test_the_context_of_a_reply_goes_before_the_next_turn(stream: bool) -> None:
    on = engine(vocabulary=FakeVocabulary(add_bos=True))
    reply = await generate(on, stream=stream)
    context = (lines(reply)[-1] if stream else reply.json)["context"]
    assert context == [BOS, *on.submitted[0].prompt[1:], *b"Hello you"]
    next_one = engine(vocabulary=FakeVocabulary(add_bos=True))
    await generate(next_one, context=context)
    assert prompt_text(next_one) == f"<s>{TURN}Hello you{TURN}"


async def test_tokens_after_a_stop_string_are_in_no_context() -> None:
    reply = await generate(engine(b"one STOP", b" more"), options={"stop": ["STOP"]}, stream=False)
    assert reply.json["response"] == "one "
    assert bytes(reply.json["context"][-8:]) == b"one STOP"


async def test_the_gap_before_a_suffix_is_filled() -> None:
    on = engine(vocabulary=FakeVocabulary(has_fim=True))
    await generate(on, "ab", suffix="yz")
    assert prompt_text(on) == "<fim_pre>ab<fim_suf>yz<fim_mid>"
    error = (await generate(engine(), "ab", suffix="yz")).error
    assert (error.status, error.code, error.param) == (400, "unsupported_by_model", "suffix")


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"context": [1, -1]}, "context"),
        ({"context": [10**6]}, "context"),
        ({"context": "abc"}, "context"),
        ({"context": [1.5]}, "context[0]"),
        ({"prompt": 5}, "prompt"),
        ({"raw": True, "system": "x"}, "system"),
        ({"raw": True, "context": [1]}, "context"),
        ({"raw": True, "prompt": ""}, "prompt"),
        ({"raw": True, "think": True}, "think"),
        ({"suffix": "x", "system": "y"}, "system"),
        ({"suffix": "x", "context": [1]}, "context"),
        ({"images": ["aGk="]}, "images"),
        ({"width": 512}, "width"),
        ({"think": True}, "think"),
    ],
)
async def test_what_cannot_be_honoured_is_refused_by_name(fields: dict[str, Any], param: str) -> None:
    on = engine(vocabulary=FakeVocabulary(has_fim=True))
    error = (await generate(on, **fields)).error
    assert (error.status, error.param) == (400, param)
    assert not on.submitted


async def test_a_context_that_fills_the_model_is_refused() -> None:
    error = (await generate(engine(), context=[97] * 300)).error
    assert error.code == "context_length_exceeded"
