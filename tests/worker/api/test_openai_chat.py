"""The chat dialect over a real socket, checked with OpenAI's own types; the engine is a fake with a script."""

from __future__ import annotations

from typing import Any

import pytest
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from tests.fakes.engine import BOS, IM_END, IM_START, FakeEngine, FakeVocabulary, Script, make_facts
from tests.support.held_answers import may_be
from tests.support.worker_client import WorkerReply, serve
from worker.chat.template import ChatTemplate
from worker.contract import FrameType
from worker.engine.request import FinishReason

CHATML = (
    "{%- for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{%- endfor %}"
    "{%- if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
HI = ("user", "hi")


def template(source: str = CHATML, vocabulary: FakeVocabulary | None = None) -> ChatTemplate:
    vocabulary = vocabulary or FakeVocabulary()
    return ChatTemplate(
        source,
        bos_text=vocabulary.bos_text,
        eos_text=vocabulary.eos_text,
        control_texts=vocabulary.control_texts,
    )


def engine(*steps: Any, finish: FinishReason = FinishReason.STOP, **options: Any) -> FakeEngine:
    return FakeEngine(answers=[Script(steps or (b"Hello", b" you"), finish)], **options)


async def chat(on: FakeEngine, *messages: Any, source: str = CHATML, **fields: Any) -> WorkerReply:
    model = fields.pop("model_options", {})
    async with serve(on, template=template(source, on.vocabulary), template_source=source, **model) as worker:
        return await worker.chat(*(messages or (HI,)), **fields)


def prompt_text(on: FakeEngine) -> str:
    return on.vocabulary.text(on.submitted[0].prompt)


# --- replies --------------------------------------------------------------------------------------------


async def test_a_whole_reply_is_a_strict_chat_completion() -> None:
    reply = await chat(engine())
    completion = ChatCompletion.model_validate(reply.json, strict=True)
    assert completion.id == "chatcmpl-r1"
    assert completion.created == 1700000000
    assert completion.model == "tiny"
    assert completion.system_fingerprint is not None
    [choice] = completion.choices
    assert (choice.message.role, choice.message.content, choice.message.refusal) == ("assistant", "Hello you", None)
    assert (choice.finish_reason, choice.logprobs) == ("stop", None)
    assert completion.usage is not None
    assert completion.usage.completion_tokens == 9
    assert reply.json["timings"]["predicted_n"] == 9


async def test_a_stream_is_strict_chunks_with_the_role_first_and_one_finish_reason() -> None:
    reply = await chat(engine(), stream=True)
    chunks = [ChatCompletionChunk.model_validate(event, strict=True) for event in reply.events]
    assert {chunk.id for chunk in chunks} == {"chatcmpl-r1"}
    first, *middle, last = chunks
    assert (first.choices[0].delta.role, first.choices[0].delta.content) == ("assistant", "")
    assert [chunk.choices[0].delta.content for chunk in middle] == ["Hello", " you"]
    assert last.choices[0].delta.content is None
    assert [chunk.choices[0].finish_reason for chunk in chunks] == [None, None, None, "stop"]
    assert "usage" not in reply.events[0]
    assert ["timings" in event for event in reply.events] == [False, False, False, True]


async def test_usage_comes_in_a_chunk_of_its_own_and_only_when_asked() -> None:
    reply = await chat(engine(num_cached=[4]), stream=True, stream_options={"include_usage": True})
    *others, last = reply.events
    assert all(event["usage"] is None for event in others)
    assert last["choices"] == []
    chunk = ChatCompletionChunk.model_validate(last, strict=True)
    assert chunk.usage is not None
    assert (chunk.usage.completion_tokens, chunk.usage.total_tokens) == (9, chunk.usage.prompt_tokens + 9)
    assert chunk.usage.prompt_tokens_details is not None
    assert chunk.usage.prompt_tokens_details.cached_tokens == 4
    assert [event for event in reply.events if "timings" in event] == [last]
    without = await chat(engine(), stream=True, stream_options={"include_usage": False})
    assert all("usage" not in event for event in without.events)


async def test_n_choices_have_their_own_index_role_end_and_random_numbers() -> None:
    on = FakeEngine(answers=[Script([b"a"]), Script([b"b", b"c"], FinishReason.LENGTH), Script([b"d"])])
    reply = await chat(on, n=3, seed=5, stream=True)
    chunks = [ChatCompletionChunk.model_validate(event, strict=True) for event in reply.events]
    choices = [choice for chunk in chunks for choice in chunk.choices]
    for index, (text, reason) in enumerate([("a", "stop"), ("bc", "length"), ("d", "stop")]):
        own = [choice for choice in choices if choice.index == index]
        assert own[0].delta.role == "assistant"
        assert "".join(choice.delta.content or "" for choice in own) == text
        assert [choice.finish_reason for choice in own if choice.finish_reason] == [reason]
    assert [(one.sampling.seed, one.sampling.choice) for one in on.submitted] == [(5, 0), (5, 1), (5, 2)]
    whole = ChatCompletion.model_validate((await chat(on, n=3)).json, strict=True)
    assert [choice.index for choice in whole.choices] == [0, 1, 2]


async def test_n_choices_count_their_prompt_once() -> None:
    one, three = await chat(engine()), await chat(engine(), n=3)
    assert three.json["usage"]["prompt_tokens"] == one.json["usage"]["prompt_tokens"]
    assert three.json["usage"]["completion_tokens"] == 3 * one.json["usage"]["completion_tokens"]


async def test_text_with_quotes_newlines_and_emoji_survives_in_both_modes() -> None:
    text = '"quoted"\n\t\\ 😀\u2028</script>\x00'
    whole = await chat(engine(text.encode()))
    stream = await chat(engine(*[[byte] for byte in text.encode()]), stream=True)
    assert whole.json["choices"][0]["message"]["content"] == text
    assert "".join(event["choices"][0]["delta"].get("content") or "" for event in stream.events) == text


async def test_a_stop_string_ends_the_answer_before_it() -> None:
    on = engine(b"one ", b"tw", b"o three", b"more", b"more")
    reply = await chat(on, stop=["two"], stream=True)
    assert "".join(event["choices"][0]["delta"].get("content") or "" for event in reply.events) == "one "
    assert reply.events[-1]["choices"][0]["finish_reason"] == "stop"
    assert len(on.finished) == 1


async def test_resume_frames_cover_what_was_sent() -> None:
    reply = await chat(engine(), stream=True)
    kinds = [frame.type for frame in reply.frames]
    assert kinds.count(FrameType.RESUME) == 2
    assert kinds[-1] is FrameType.END


# --- prompts --------------------------------------------------------------------------------------------


async def test_messages_become_the_prompt_by_the_models_template() -> None:
    on = engine()
    await chat(on, ("system", "be brief"), ("user", "hi"))
    assert prompt_text(on) == (
        "<|im_start|>system\nbe brief<|im_end|><|im_start|>user\nhi<|im_end|><|im_start|>assistant\n"
    )
    assert on.submitted[0].prompt[0] == IM_START


async def test_control_tokens_that_a_user_writes_stay_text() -> None:
    on = engine()
    await chat(on, ("user", "a<|im_end|>b"))
    tokens = list(on.submitted[0].prompt)
    assert tokens.count(IM_END) == 1
    assert "a<|im_end|>b" in prompt_text(on)


async def test_a_template_that_writes_bos_and_a_model_that_wants_it_give_one() -> None:
    vocabulary = FakeVocabulary(add_bos=True)
    on = engine(vocabulary=vocabulary)
    await chat(on, source="{{ bos_token }}" + CHATML)
    assert list(on.submitted[0].prompt).count(BOS) == 1
    on = engine(vocabulary=vocabulary)
    await chat(on, source=CHATML)
    assert on.submitted[0].prompt[0] == BOS


async def test_an_assistant_message_at_the_end_is_continued() -> None:
    on = engine()
    reply = await chat(on, HI, ("assistant", "Sure, "))
    assert prompt_text(on).endswith("<|im_start|>assistant\nSure, ")
    assert reply.json["choices"][0]["message"]["content"] == "Hello you"


async def test_an_assistant_message_at_the_end_is_closed_when_the_client_says_so() -> None:
    on = engine()
    await chat(on, HI, ("assistant", "Sure"), continue_final_message=False)
    assert prompt_text(on).endswith("Sure<|im_end|><|im_start|>assistant\n")
    on = engine()
    await chat(on, HI, ("assistant", "Sure"), add_generation_prompt=False)
    assert prompt_text(on).endswith("Sure<|im_end|>")


async def test_continuing_and_beginning_a_message_at_once_is_refused() -> None:
    reply = await chat(engine(), HI, ("assistant", "x"), continue_final_message=True, add_generation_prompt=True)
    assert reply.error.param == "continue_final_message"


async def test_only_an_assistant_message_can_be_continued() -> None:
    assert (await chat(engine(), HI, continue_final_message=True)).error.param == "messages"


async def test_template_variables_come_from_the_model_and_the_request_wins() -> None:
    source = "{{ mood }}/{{ size }}/{{ messages[0].content }}"
    on = engine()
    options = {"template_kwargs": {"mood": "calm", "size": "big"}}
    await chat(on, source=source, chat_template_kwargs={"size": "small"}, model_options=options)
    assert prompt_text(on) == "calm/small/hi"


async def test_reasoning_effort_is_given_to_templates_that_know_it_and_refused_otherwise() -> None:
    on = engine()
    await chat(on, source="{{ reasoning_effort }}/{{ messages[0].content }}", reasoning_effort="low")
    assert prompt_text(on) == "low/hi"
    refused = await chat(engine(), reasoning_effort="low")
    assert (refused.error.code, refused.error.param) == ("unsupported_parameter", "reasoning_effort")


async def test_a_template_that_prints_the_date_prints_the_one_the_router_set() -> None:
    on = engine()
    await chat(on, source="{{ strftime_now('%Y-%m-%d') }} {{ messages[0].content }}")
    assert prompt_text(on) == "2023-11-14 hi"


# --- limits ---------------------------------------------------------------------------------------------


async def test_the_answer_fills_the_context_unless_the_request_or_the_model_says_less() -> None:
    on = engine(facts=make_facts(context=64))
    for fields, cap, expected in [
        ({}, None, None),
        ({"max_tokens": 5}, None, 5),
        ({}, 7, 7),
        ({"max_tokens": 9999}, None, None),
    ]:
        on = engine(facts=make_facts(context=64))
        await chat(on, model_options={"max_tokens": cap}, **fields)
        room = 64 - len(on.submitted[0].prompt)
        assert on.submitted[0].max_tokens == (room if expected is None else expected)


async def test_a_prompt_one_token_below_the_context_is_served_and_a_longer_one_decodes_nothing() -> None:
    on = engine()
    await chat(on, ("user", ""))
    overhead = len(on.submitted[0].prompt)
    on = engine(facts=make_facts(context=overhead + 11))
    await chat(on, ("user", "x" * 10))
    assert on.submitted[0].max_tokens == 1
    on = engine(facts=make_facts(context=overhead + 11))
    error = (await chat(on, ("user", "x" * 11))).error
    assert (error.status, error.code, error.param) == (400, "context_length_exceeded", "messages")
    assert f"maximum context length is {overhead + 11} tokens" in error.message
    assert f"resulted in {overhead + 11} tokens" in error.message
    assert on.submitted == []


# --- refusals -------------------------------------------------------------------------------------------


async def test_a_model_without_a_template_says_what_to_do() -> None:
    async with serve(engine()) as worker:
        error = (await worker.chat(HI)).error
    assert (error.status, error.code) == (400, "no_chat_template")
    assert "/v1/completions" in error.message
    assert "chat_template" in error.message


async def test_a_broken_template_is_told_with_its_own_reason() -> None:
    async with serve(engine(), template_problem="line 1: unexpected end") as worker:
        error = (await worker.chat(HI)).error
        assert (error.code, error.status) == ("no_chat_template", 400)
        assert "line 1: unexpected end" in error.message
        assert (await worker.complete("x")).end["outcome"] == "ok"


async def test_a_template_that_refuses_the_conversation_gives_its_own_message_as_400() -> None:
    reply = await chat(engine(), source="{{ raise_exception('roles must alternate') }}")
    assert reply.error.status == 400
    assert "roles must alternate" in reply.error.message


async def test_an_image_is_refused_by_its_place() -> None:
    parts = [{"type": "text", "text": "see"}, {"type": "image_url", "image_url": {"url": "data:"}}]
    error = (await chat(engine(), ("user", parts))).error
    assert (error.status, error.param) == (400, "messages[0].content[1]")


@pytest.mark.parametrize("messages", [None, "hi", [], [5], [{"role": "nobody", "content": "x"}]])
async def test_messages_of_a_wrong_shape_are_refused(messages: Any) -> None:
    async with serve(engine(), template=template()) as worker:
        error = (await worker.post("/v1/chat/completions", {"messages": messages})).error
    assert error.status == 400
    assert error.param is not None
    assert error.param.startswith("messages")


async def test_absent_messages_are_refused() -> None:
    async with serve(engine(), template=template()) as worker:
        error = (await worker.post("/v1/chat/completions", {})).error
    assert (error.param, error.message) == ("messages", "'messages' is missing: it must be a list of messages.")


TOOL = {"type": "function", "function": {"name": "f", "parameters": {}}}


async def test_a_form_holds_for_what_is_added_to_a_message_that_is_continued() -> None:
    on = engine()
    await chat(on, HI, ("assistant", "The answer is "), choice=["yes", "no"])
    assert prompt_text(on).endswith("The answer is ")
    assert may_be(on.submitted[0], "yes")
    assert not may_be(on.submitted[0], "The answer is yes")


async def test_a_reply_tells_what_of_a_form_could_only_be_checked() -> None:
    form = {"type": "json_schema", "json_schema": {"schema": {"type": "array", "uniqueItems": True}, "strict": False}}
    for text, is_valid in ((b"[1, 2]", True), (b"[1, 1]", False)):
        [choice] = (await chat(engine(text), response_format=form)).json["choices"]
        assert choice["corral_format"]["not_enforced"] == ["$.uniqueItems"]
        assert choice["corral_format"]["is_valid"] is is_valid
        *others, last = (await chat(engine(text), response_format=form, stream=True)).events
        assert last["choices"][0]["corral_format"] == choice["corral_format"]
        assert not any("corral_format" in event["choices"][0] for event in others)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tools": [TOOL]}, "tools"),
        ({"tools": [TOOL], "tool_choice": "auto"}, "tools"),
        ({"tools": [TOOL], "tool_choice": "required"}, "tools"),
        ({"n_probs": 2}, "n_probs"),
        ({"response_format": {"type": "json_schema", "schema": {"uniqueItems": True}}}, "response_format.schema"),
        ({"chat_template": "x"}, "chat_template"),  # the model does not allow it
    ],
)
async def test_what_this_release_cannot_do_is_refused_by_name(fields: dict[str, Any], param: str) -> None:
    on = engine()
    error = (await chat(on, **fields)).error
    assert (error.status, error.code, error.param) == (400, "unsupported_parameter", param)
    assert on.submitted == []


@pytest.mark.parametrize(
    "fields",
    [
        {"tools": []},
        {"tools": None, "tool_choice": "auto"},
        {"tools": [TOOL], "tool_choice": "none"},
        {"parallel_tool_calls": True},
        {"user": "me", "metadata": {}, "store": False, "service_tier": "auto"},
        {"response_format": {"type": "text"}, "logprobs": False, "top_logprobs": 0, "n": 1},
    ],
)
async def test_fields_that_promise_nothing_are_accepted(fields: dict[str, Any]) -> None:
    assert (await chat(engine(), **fields)).end["outcome"] == "ok"


@pytest.mark.parametrize(("name", "value"), [("n", 0), ("max_tokens", -1), ("temperature", "hot"), ("stop", "")])
async def test_a_wrong_field_is_refused_by_name(name: str, value: Any) -> None:
    error = (await chat(engine(), **{name: value})).error
    assert (error.status, error.param) == (400, name)
    assert f"'{name}'" in error.message


async def test_cache_prompt_false_reaches_the_engine() -> None:
    on = engine()
    await chat(on, cache_prompt=False)
    assert on.submitted[0].cache_prompt is False
