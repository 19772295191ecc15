"""Text to tokens and back, and messages to a prompt, over a real socket: nothing of it reaches the engine."""

from __future__ import annotations

from typing import Any

import pytest

from tests.fakes.embedder import FakeEmbedder, embedding_engine
from tests.fakes.engine import BOS, EOS, FakeEngine, FakeVocabulary, Script, make_facts
from tests.support.worker_client import WorkerReply, serve
from worker.api.speech import speech_of
from worker.api.tokens import MAX_CONTENT_CHARS
from worker.chat.marks import Markers
from worker.chat.template import ChatTemplate

TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if tools %}[{{ tools | length }} tools]{% endif %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


async def ask(path: str, body: Any, *, on: FakeEngine | None = None, **model: Any) -> WorkerReply:
    on = on or FakeEngine()
    async with serve(on, **model) as worker:
        reply = await worker.post(path, body)
    assert on.submitted == []
    return reply


# --- tokenize ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "tokens"),
    [
        ({"content": "ab"}, [97, 98]),
        ({"content": ""}, []),
        ({"content": [97, "b", 99]}, [97, 98, 99]),
        ({"content": []}, []),
        ({"content": "</s>"}, [EOS]),
        ({"content": "</s>", "parse_special": False}, list(b"</s>")),
        ({"content": "a", "add_special": True}, [BOS, 97]),
        ({"content": ["a", "a"], "add_special": True}, [BOS, 97, 97]),
    ],
)
async def test_text_becomes_tokens(fields: dict[str, Any], tokens: list[int]) -> None:
    reply = await ask("/tokenize", fields, on=FakeEngine(FakeVocabulary(add_bos=True)))
    assert reply.json == {"tokens": tokens}
    assert reply.end["usage"]["prompt_tokens"] == len(tokens)


async def test_pieces_are_text_or_the_bytes_of_half_a_character() -> None:
    reply = await ask("/tokenize", {"content": "a</s>é", "with_pieces": True})
    assert reply.json["tokens"] == [
        {"id": 97, "piece": "a"},
        {"id": EOS, "piece": "</s>"},
        {"id": 0xC3, "piece": [0xC3]},
        {"id": 0xA9, "piece": [0xA9]},
    ]


@pytest.mark.parametrize(
    "content", [None, 5, {}, [True], ["a", None], [[97]], [100_000], [-1], "x" * (MAX_CONTENT_CHARS + 1)]
)
async def test_what_is_no_text_is_refused(content: Any) -> None:
    error = (await ask("/tokenize", {"content": content})).error
    assert (error.status, error.param) == (400, "content")


# --- detokenize -------------------------------------------------------------------------------------------


async def test_tokens_become_text_with_control_tokens() -> None:
    reply = await ask("/detokenize", {"tokens": [97, EOS, *"😀".encode()]})
    assert reply.json == {"content": "a</s>😀"}


async def test_half_a_character_becomes_a_replacement() -> None:
    assert (await ask("/detokenize", {"tokens": [97, 0xF0]})).json == {"content": "a\ufffd"}


@pytest.mark.parametrize(
    ("tokens", "param"),
    [
        (None, "tokens"),
        ("a", "tokens"),
        ([True], "tokens[0]"),
        (["a"], "tokens[0]"),
        ([9999], "tokens"),
        ([-1], "tokens"),
    ],
)
async def test_what_is_no_token_is_refused(tokens: Any, param: str) -> None:
    error = (await ask("/detokenize", {"tokens": tokens})).error
    assert (error.status, error.param) == (400, param)


async def test_ids_are_whole_numbers_in_every_language() -> None:
    assert (await ask("/detokenize", {"tokens": [97.0]})).json == {"content": "a"}


# --- apply-template ---------------------------------------------------------------------------------------


HI = [{"role": "user", "content": "Hi"}]


def template(source: str = TEMPLATE) -> ChatTemplate:
    vocabulary = FakeVocabulary()
    return ChatTemplate(
        source,
        bos_text=vocabulary.bos_text,
        eos_text=vocabulary.eos_text,
        control_texts=vocabulary.control_texts,
    )


async def apply(**fields: Any) -> WorkerReply:
    return await ask("/apply-template", fields, template=template(), template_source=TEMPLATE)


async def test_messages_become_the_text_of_a_prompt() -> None:
    reply = await apply(messages=[{"role": "user", "content": "Hi"}])
    assert reply.json == {"prompt": "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"}


async def test_prompt_depends_on_what_the_chat_route_takes() -> None:
    hi = [{"role": "user", "content": "Hi"}]
    tool = {"type": "function", "function": {"name": "f", "parameters": {}}}
    assert (await apply(messages=hi, add_generation_prompt=False)).json["prompt"].endswith("Hi<|im_end|>\n")
    assert "[1 tools]" in (await apply(messages=hi, tools=[tool])).json["prompt"]
    assert "[1 tools]" not in (await apply(messages=hi, tools=[tool], tool_choice="none")).json["prompt"]
    prefill = [*hi, {"role": "assistant", "content": "Well"}]
    assert (await apply(messages=prefill)).json["prompt"].endswith("<|im_start|>assistant\nWell")


TOOLS = [
    {"type": "function", "function": {"name": name, "parameters": {"type": "object", "properties": {"x": {}}}}}
    for name in ("f", "g")
]
SHOWING = (
    "{% for m in messages %}{{ m.role }}:{{ m.content }}"
    "{{ m.tool_calls | tojson if m.tool_calls else '' }}\n{% endfor %}"
    "{% for t in tools or [] %}{{ t | tojson }}<tool_call>{% endfor %}"
    "{% if enable_thinking is defined and not enable_thinking %}<think></think>{% endif %}"
    "{{ reasoning_effort }}{{ mood }}"
    "{% if add_generation_prompt %}assistant:{% endif %}"
)
CALLED = {"id": "a", "type": "function", "function": {"name": "f", "arguments": '{"x": 1}'}}


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"tools": TOOLS},
        {"tools": TOOLS, "tool_choice": "none"},
        {"tools": TOOLS, "tool_choice": "required", "parallel_tool_calls": False},
        {"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "g"}}},
        {"functions": [TOOLS[0]["function"]], "function_call": "auto"},
        {"tools": TOOLS, "enable_thinking": False},
        {"enable_thinking": True, "reasoning_format": "none"},
        {"reasoning_effort": "low"},
        {"reasoning_effort": "none"},
        {"chat_template_kwargs": {"mood": "good"}},
        {"response_format": {"type": "json_object"}, "max_tokens": 5, "temperature": 0},
        {"messages": [*HI, {"role": "assistant", "content": "", "tool_calls": [CALLED]}]},
        {"messages": [*HI, {"role": "assistant", "content": "Well"}], "tools": TOOLS},
        {"add_generation_prompt": False},
    ],
)
@pytest.mark.parametrize(
    "source", [SHOWING, "plain:{% for m in messages %}{{ m.content }}{% endfor %}{{ reasoning_effort }}enable_thinking"]
)
async def test_prompt_is_the_one_that_the_chat_route_makes(fields: dict[str, Any], source: str) -> None:
    on = FakeEngine(facts=make_facts(context=4096), answers=[Script([b"ok"])])
    body = {"messages": HI} | fields
    async with serve(
        on, template=template(source), template_source=source, speech=speech_of(source, Markers())
    ) as worker:
        made = (await worker.post("/apply-template", body)).json["prompt"]
        assert (await worker.post("/v1/chat/completions", body)).end["outcome"] == "ok"
    assert on.vocabulary.text(on.submitted[0].prompt) == made


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({}, "messages"),
        ({"messages": "Hi"}, "messages"),
        ({"messages": [{"role": "user", "content": "Hi"}], "tools": [{"type": "code"}]}, "tools[0]"),
        ({"messages": [{"role": "user", "content": "Hi"}], "tool_choice": "required"}, "tool_choice"),
        ({"messages": [{"role": "user", "content": "Hi"}], "enable_thinking": True}, "enable_thinking"),
        ({"messages": [{"role": "user", "content": "Hi"}], "chat_template": "x"}, "chat_template"),
    ],
)
async def test_what_makes_no_prompt_is_refused(fields: dict[str, Any], param: str) -> None:
    error = (await apply(**fields)).error
    assert (error.status, error.param) == (400, param)


async def test_model_without_a_template_says_so() -> None:
    reply = await ask("/apply-template", {"messages": [{"role": "user", "content": "Hi"}]})
    assert reply.error.code == "no_chat_template"


async def test_embedding_models_tokenise_too() -> None:
    reply = await ask("/tokenize", {"content": "ab"}, on=embedding_engine(), embedder=FakeEmbedder())
    assert reply.json == {"tokens": [97, 98]}
