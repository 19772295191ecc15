"""Anthropic's dialect over a real socket; the engine is a fake with a script."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from tests.fakes.engine import FakeEngine, FakeVocabulary, Script, make_facts
from tests.support.worker_client import WorkerReply, serve
from tests.worker.api.test_anthropic_reply import events_of, put_together
from worker.api.speech import find_markers, speech_of
from worker.chat.template import ChatTemplate
from worker.contract import FrameType
from worker.engine.request import FinishReason

CHATML = (
    "{%- for m in messages %}<|im_start|>{{ m.role }}\n"
    "{% if m.reasoning_content %}({{ m.reasoning_content }}){% endif %}{{ m.content }}<|im_end|>\n{%- endfor %}"
    "{%- if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
SWITCHED = "{#- </think> #}{{ 'on' if enable_thinking else 'off' if enable_thinking is defined else 'free' }}|" + CHATML
LEVELLED = "{{ reasoning_effort }}|" + CHATML
NONCE = "x-anthropic-billing-header: cc_version=1; cch=aaaaa;"
HI: Mapping[str, Any] = {"messages": [{"role": "user", "content": "hi"}]}
MAX = 64


def engine(*steps: Any, finish: FinishReason = FinishReason.STOP, **options: Any) -> FakeEngine:
    return FakeEngine(answers=[Script(steps or (b"Hello", b" you"), finish)], **options)


def template(source: str, vocabulary: FakeVocabulary) -> ChatTemplate:
    return ChatTemplate(
        source,
        bos_text=vocabulary.bos_text,
        eos_text=vocabulary.eos_text,
        control_texts=vocabulary.control_texts,
    )


async def ask(on: FakeEngine, path: str, body: Mapping[str, Any], source: str = CHATML, **model: Any) -> WorkerReply:
    compiled, speech = template(source, on.vocabulary), speech_of(source, find_markers(on.vocabulary.marker))
    async with serve(on, template=compiled, template_source=source, speech=speech, **model) as worker:
        return await worker.post(path, body)


async def send(
    on: FakeEngine, *, source: str = CHATML, model: Mapping[str, Any] | None = None, **fields: Any
) -> WorkerReply:
    return await ask(on, "/v1/messages", {"max_tokens": MAX, **HI, **fields}, source, **(model or {}))


async def count(on: FakeEngine, *, source: str = CHATML, **fields: Any) -> WorkerReply:
    return await ask(on, "/v1/messages/count_tokens", {**HI, **fields}, source)


def prompt_text(on: FakeEngine) -> str:
    return on.vocabulary.text(on.submitted[0].prompt)


# --- replies --------------------------------------------------------------------------------------------


async def test_a_whole_reply_is_a_message() -> None:
    reply = await send(engine(num_cached=[4]))
    prompt = reply.end["usage"]["prompt_tokens"]
    assert reply.shown_type == "application/json"
    message = reply.json
    timings, seed = message.pop("timings"), message.pop("seed")
    assert message == {
        "id": "msg_r1",
        "type": "message",
        "role": "assistant",
        "model": "tiny",
        "content": [{"type": "text", "text": "Hello you"}],
        "stop_reason": "end_turn",
        "stop_sequence": None,
        "usage": {
            "input_tokens": prompt - 4,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": 4,
            "output_tokens": 9,
            "service_tier": "standard",
        },
    }
    assert (timings["cache_n"], timings["predicted_n"], seed) == (4, 9, 7)


async def test_a_stream_is_events_in_their_order_and_its_first_one_knows_the_prompt() -> None:
    reply = await send(engine(num_cached=[4]), stream=True)
    assert reply.shown_type == "text/event-stream"
    start, *blocks, delta, stop = events_of(reply.body)
    usage = start["message"]["usage"]
    prompt = reply.end["usage"]["prompt_tokens"]
    assert (start["type"], start["message"]["id"], start["message"]["model"]) == ("message_start", "msg_r1", "tiny")
    assert (usage["input_tokens"], usage["cache_read_input_tokens"]) == (prompt - 4, 4)
    assert put_together(blocks) == [{"type": "text", "text": "Hello you"}]
    assert [event["type"] for event in blocks].count("content_block_delta") == 2
    assert (delta["type"], delta["delta"]) == ("message_delta", {"stop_reason": "end_turn", "stop_sequence": None})
    assert (delta["usage"]["input_tokens"], delta["usage"]["output_tokens"]) == (prompt - 4, 9)
    assert stop == {"type": "message_stop"}


async def test_an_empty_answer_still_is_a_message() -> None:
    assert (await send(engine(b""))).json["content"] == [{"type": "text", "text": ""}]
    kinds = [event["type"] for event in events_of((await send(engine(b""), stream=True)).body)]
    assert kinds == ["message_start", "content_block_start", "content_block_stop", "message_delta", "message_stop"]


@pytest.mark.parametrize("is_stream", [False, True])
@pytest.mark.parametrize("field", ["stop_sequences", "stop"])
async def test_a_stop_sequence_ends_the_answer_and_is_told(field: str, is_stream: bool) -> None:
    reply = await send(engine(b"one", b" EN", b"D two"), stream=is_stream, **{field: ["END", "two"]})
    told = events_of(reply.body)[-2]["delta"] if is_stream else reply.json
    assert (told["stop_reason"], told["stop_sequence"]) == ("stop_sequence", "END")
    text = put_together(events_of(reply.body)[1:-2])[0]["text"] if is_stream else reply.json["content"][0]["text"]
    assert text == "one "


async def test_length_is_told_as_max_tokens_and_the_limit_reaches_the_engine() -> None:
    on = engine(finish=FinishReason.LENGTH)
    reply = await send(on, max_tokens=3)
    assert reply.json["stop_reason"] == "max_tokens"
    assert on.submitted[0].max_tokens == 3


async def test_a_failure_in_the_answer_is_an_error_and_no_end() -> None:
    on = FakeEngine(answers=[Script([b"Hello", b""], FinishReason.ERROR, "out of cells")])
    reply = await send(on, stream=True)
    assert [frame.type for frame in reply.frames][-2:] == [FrameType.ERROR, FrameType.END]
    assert b"message_stop" not in reply.body
    assert b"message_delta" not in reply.body


# --- prompts ----------------------------------------------------------------------------------------------


async def test_system_prompt_and_blocks_reach_the_template() -> None:
    on = engine()
    blocks = [{"type": "text", "text": "a", "cache_control": {"type": "ephemeral"}}, {"type": "text", "text": "b"}]
    thought = [{"type": "thinking", "thinking": "hm", "signature": "x"}, {"type": "text", "text": "yes"}]
    messages = [
        {"role": "user", "content": blocks},
        {"role": "assistant", "content": thought},
        {"role": "user", "content": "c"},
    ]
    await send(on, system=[{"type": "text", "text": "Be brief."}], messages=messages)
    assert prompt_text(on) == (
        "<|im_start|>system\nBe brief.<|im_end|><|im_start|>user\na\nb<|im_end|>"
        "<|im_start|>assistant\n(hm)yes<|im_end|><|im_start|>user\nc<|im_end|><|im_start|>assistant\n"
    )


async def test_an_answer_continues_the_assistants_last_message() -> None:
    on = engine()
    await send(on, messages=[*HI["messages"], {"role": "assistant", "content": "It is"}])
    assert prompt_text(on).endswith("<|im_start|>assistant\nIt is")


async def test_results_of_tools_come_after_their_calls_and_a_new_turn_begins() -> None:
    on = engine()
    use = {"type": "tool_use", "id": "toolu_1", "name": "now", "input": {}}
    result = {"type": "tool_result", "tool_use_id": "toolu_1", "content": "noon"}
    messages = [{"role": "assistant", "content": [use]}, {"role": "user", "content": [result]}]
    await send(on, messages=[*HI["messages"], *messages])
    assert prompt_text(on).endswith("<|im_start|>tool\nnoon<|im_end|><|im_start|>assistant\n")


async def test_prompts_that_differ_in_the_billing_line_alone_are_equal() -> None:
    prompts = []
    for nonce in ("aaaaa", "bbbbb"):
        on = engine()
        header = {"type": "text", "text": NONCE.replace("aaaaa", nonce)}
        await send(on, system=[header, {"type": "text", "text": "Be brief."}])
        prompts.append(prompt_text(on))
    assert prompts[0] == prompts[1]
    assert "Be brief." in prompts[0]


async def test_the_billing_line_stays_for_a_model_that_keeps_it() -> None:
    on = engine()
    await send(on, system=NONCE, model={"drops_billing_header": False})
    assert NONCE in prompt_text(on)


async def test_message_that_the_template_refuses_is_a_400_in_its_own_words() -> None:
    refusing = "{{ raise_exception('No system prompts, please.') }}" + CHATML
    error = (await send(engine(), source=refusing, system="Be brief.")).error
    assert (error.status, "No system prompts, please." in error.message) == (400, True)


# --- counting ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"system": [{"type": "text", "text": NONCE}, {"type": "text", "text": "Be brief."}]},
        {"messages": [*HI["messages"], {"role": "assistant", "content": "It is"}]},
        {"thinking": {"type": "enabled", "budget_tokens": 1024}, "source": SWITCHED},
    ],
)
async def test_tokens_are_counted_as_the_request_would_have_them(fields: dict[str, Any]) -> None:
    on = engine()
    await send(on, **fields)
    counted = await count(engine(), **fields)
    assert counted.json == {"input_tokens": len(on.submitted[0].prompt)}
    assert counted.end["usage"]["prompt_tokens"] == len(on.submitted[0].prompt)
    assert counted.end["usage"]["completion_tokens"] == 0


async def test_counting_generates_nothing_and_counts_what_would_not_fit() -> None:
    on = engine(facts=make_facts(context=16))
    reply = await count(on, messages=[{"role": "user", "content": "x" * 500}])
    assert reply.json["input_tokens"] > 500
    assert not on.submitted


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tools": [{"input_schema": {}}]}, "tools[0].name"),
        ({"container": "c"}, "container"),
        ({"stream": True}, "stream"),
        ({"continue_final_message": True}, "continue_final_message"),
        ({"add_generation_prompt": False}, "add_generation_prompt"),
    ],
)
async def test_counting_refuses_what_the_request_would_refuse_and_streams(fields: dict[str, Any], param: str) -> None:
    error = (await count(engine(), **fields)).error
    assert (error.status, error.param) == (400, param)


# --- too long ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("num_chars", [300, 200_000])
async def test_overflow_is_told_in_the_words_that_agents_know(num_chars: int) -> None:
    on = engine(facts=make_facts(context=64))
    error = (await send(on, messages=[{"role": "user", "content": "x" * num_chars}])).error
    assert (error.status, error.code, error.param) == (400, "context_length_exceeded", "messages")
    words = error.message.split()
    assert words[:4] == ["prompt", "is", "too", "long:"]
    assert words[5:7] == ["tokens", ">"]
    assert int(words[4]) > int(words[7]) == 63
    assert words[8] == "maximum"


async def test_a_prompt_that_fits_with_one_token_is_not_too_long() -> None:
    num_prompt = (await count(engine())).json["input_tokens"]
    fitting, too_long = make_facts(context=num_prompt + 1), make_facts(context=num_prompt)
    assert (await send(engine(facts=fitting))).json["content"]
    message = (await send(engine(facts=too_long))).error.message
    assert message == f"prompt is too long: {num_prompt} tokens > {num_prompt - 1} maximum"


# --- thinking, effort, tools ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("thinking", "told"),
    [
        ({"type": "enabled", "budget_tokens": 1024}, "on|"),
        ({"type": "disabled"}, "off|"),
        ({"type": "adaptive"}, "free|"),
        ({"type": "adaptive", "display": "omitted"}, "free|"),
        (None, "free|"),
    ],
)
async def test_a_template_with_a_switch_is_told_whether_to_think(thinking: Any, told: str) -> None:
    on = engine()
    await send(on, source=SWITCHED, thinking=thinking)
    assert prompt_text(on).startswith(told)


async def test_a_model_without_a_switch_cannot_be_made_to_think_but_may_not_think() -> None:
    error = (await send(engine(), thinking={"type": "enabled", "budget_tokens": 1024})).error
    assert (error.status, error.code, error.param) == (400, "unsupported_parameter", "thinking")
    for harmless in ("disabled", "adaptive"):
        assert (await send(engine(), thinking={"type": harmless})).json["content"]


async def test_variables_of_the_template_win_over_thinking() -> None:
    on = engine()
    await send(on, source=SWITCHED, thinking={"type": "enabled"}, chat_template_kwargs={"enable_thinking": False})
    assert prompt_text(on).startswith("off|")


async def test_effort_reaches_a_template_that_knows_it_and_is_refused_by_others() -> None:
    on = engine()
    await send(on, source=LEVELLED, output_config={"effort": "low"})
    assert prompt_text(on).startswith("low|")
    error = (await send(engine(), output_config={"effort": "low"})).error
    assert (error.status, error.param) == (400, "output_config.effort")
    assert (await send(engine(), output_config={"effort": "high"})).json["content"], "that is what holds anyway"


TOOLS = [{"name": "now", "input_schema": {"type": "object"}}]


async def test_a_model_without_a_template_takes_no_messages_and_so_no_tools() -> None:
    async with serve(engine()) as worker:
        error = (await worker.post("/v1/messages", {"max_tokens": MAX, **HI, "tools": TOOLS})).error
    assert (error.status, error.code) == (400, "no_chat_template")


async def test_tools_that_may_not_be_called_are_not_shown() -> None:
    on = engine()
    await send(on, tools=TOOLS, tool_choice={"type": "none"})
    assert "now" not in prompt_text(on)
    assert (await send(engine(), tools=[], tool_choice={"type": "auto"})).json["content"]
