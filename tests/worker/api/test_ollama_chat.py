"""Ollama's chat over a real socket: its messages, its options, its lines."""

from __future__ import annotations

from typing import Any

import pytest

from tests.fakes.engine import FakeEngine, FakeVocabulary, make_facts
from tests.support.ollama_worker import CHATML, ask, engine, lines, prompt_text, template
from tests.support.worker_client import WorkerReply, serve
from worker.api.ollama_fields import SPEED_OPTIONS
from worker.engine.request import FinishReason

HI = {"role": "user", "content": "hi"}
THINKS = CHATML + "{% if enable_thinking is defined %}[thinking {{ enable_thinking }}]{% endif %}"
EFFORT = CHATML + "[effort {{ reasoning_effort }}]"
NUM_PROMPT = 9
"""Tokens of "hi" in the template."""
HEAD = {"model": "tiny:latest", "created_at": "2023-11-14T22:13:20.000000000Z"}


async def chat(on: FakeEngine, *messages: Any, source: str = CHATML, **fields: Any) -> WorkerReply:
    return await ask(on, "/api/chat", source, **{"model": "tiny:latest", "messages": messages or [HI], **fields})


# --- replies ----------------------------------------------------------------------------------------------


async def test_an_answer_is_a_stream_of_lines_unless_something_else_is_said() -> None:
    reply = await chat(engine())
    *pieces, last = lines(reply)
    assert pieces == [
        HEAD | {"message": {"role": "assistant", "content": text}, "done": False} for text in ("Hello", " you")
    ]
    assert last == HEAD | {
        "message": {"role": "assistant", "content": ""},
        "done": True,
        "done_reason": "stop",
        "total_duration": 2_500_000_000,
        "load_duration": 0,
        "prompt_eval_count": NUM_PROMPT,
        "prompt_eval_duration": 500_000_000,
        "eval_count": 9,
        "eval_duration": 2_000_000_000,
    }


async def test_a_whole_reply_has_the_same_in_one_object() -> None:
    reply = await chat(engine(finish=FinishReason.LENGTH), stream=False)
    assert reply.shown_type == "application/json"
    assert reply.json["message"] == {"role": "assistant", "content": "Hello you"}
    assert (reply.json["done"], reply.json["done_reason"]) == (True, "length")
    assert reply.json["eval_count"] == 9
    assert not reply.body.endswith(b"\n")


async def test_the_wait_for_a_load_is_told_in_nanoseconds() -> None:
    async with serve(engine(), template=template(CHATML, FakeVocabulary()), template_source=CHATML) as worker:
        reply = await worker.post("/api/chat", {"messages": [HI], "stream": False}, X_Corral_Load_Ms="1500")
    assert (reply.json["load_duration"], reply.json["total_duration"]) == (1_500_000_000, 4_000_000_000)


async def test_a_reply_without_a_name_in_the_request_has_the_models_own() -> None:
    reply = await chat(engine(), model=None, stream=False)
    assert reply.json["model"] == "tiny"


@pytest.mark.parametrize("stream", [True, False])
async def test_logprobs_come_with_the_text_that_they_belong_to(stream: bool) -> None:
    reply = await chat(engine(), stream=stream, logprobs=True, top_logprobs=2)
    told = lines(reply) if stream else [reply.json]
    entries = [entry for line in told for entry in line.get("logprobs", [])]
    assert [entry["token"] for entry in entries] == list("Hello you")
    assert all(len(entry["top_logprobs"]) == 2 for entry in entries)
    assert entries[0].keys() == {"token", "logprob", "bytes", "top_logprobs"}


async def test_top_logprobs_alone_are_refused() -> None:
    error = (await chat(engine(), top_logprobs=2)).error
    assert (error.status, error.param) == (400, "top_logprobs")


# --- messages ---------------------------------------------------------------------------------------------


async def test_messages_become_the_prompt() -> None:
    on = engine()
    await chat(on, {"role": "system", "content": "be brief"}, HI)
    expected = "<|im_start|>system\nbe brief<|im_end|>\n<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    assert prompt_text(on) == expected.replace("<|im_end|>\n", "<|im_end|>", 2)


async def test_the_answer_continues_a_last_message_of_the_assistant() -> None:
    on = engine()
    await chat(on, HI, {"role": "assistant", "content": "well"})
    assert prompt_text(on).endswith("assistant\nwell")


async def test_calls_their_answers_and_thoughts_reach_the_template_in_the_form_that_it_knows() -> None:
    on = engine()
    source = (
        "{% for m in messages %}[{{ m.role }}|{{ m.name }}|{{ m.reasoning_content }}|"
        "{% for c in m.tool_calls or [] %}{{ c.function.name }}{{ c.function.arguments.city }}{% endfor %}]{% endfor %}"
    )
    call = {"function": {"name": "weather", "arguments": {"city": "Rome"}}}
    await chat(
        on,
        HI,
        {"role": "assistant", "content": "", "thinking": "hm", "tool_calls": [call]},
        {"role": "tool", "tool_name": "weather", "content": "sunny"},
        source=source,
    )
    assert prompt_text(on) == "[user|||][assistant||hm|weatherRome][tool|weather||]"


@pytest.mark.parametrize(
    ("message", "param", "code"),
    [
        ({"role": "user", "content": "x", "images": ["aGk="]}, "messages[0].images", "unsupported_content"),
        ({"role": "king", "content": "x"}, "messages[0].role", "invalid_request_error"),
        ({"role": "user", "content": 5}, "messages[0].content", "invalid_request_error"),
        ("hi", "messages[0]", "invalid_request_error"),
        ({"role": "tool", "content": "x", "tool_name": 5}, "messages[0].tool_name", "invalid_request_error"),
        ({"role": "assistant", "content": "x", "thinking": []}, "messages[0].thinking", "invalid_request_error"),
    ],
)
async def test_a_message_that_cannot_be_used_is_named(message: Any, param: str, code: str) -> None:
    error = (await chat(engine(), message)).error
    assert (error.status, error.param, error.code) == (400, param, code)


async def test_empty_lists_of_images_and_tools_ask_for_nothing() -> None:
    reply = await chat(engine(), HI | {"images": []}, tools=[], stream=False)
    assert reply.json["done"] is True


# --- thinking ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("think", "told"), [(True, "[thinking True]"), (False, "[thinking False]"), (None, "")])
async def test_a_template_that_can_think_is_told_whether_to(think: bool | None, told: str) -> None:
    on = engine()
    await chat(on, source=THINKS, think=think)
    assert prompt_text(on).endswith("assistant\n" + told)


async def test_thoughts_of_a_model_that_has_none_are_refused_and_none_are_no_promise() -> None:
    error = (await chat(engine(), think=True)).error
    assert (error.status, error.code, error.param) == (400, "unsupported_parameter", "think")
    assert (await chat(engine(), think=False, stream=False)).json["done"] is True


async def test_how_hard_to_think_is_told_to_a_template_that_knows_it() -> None:
    on = engine()
    await chat(on, source=EFFORT, think="high")
    assert prompt_text(on).endswith("[effort high]")
    error = (await chat(engine(), think="high")).error
    assert (error.code, error.param) == ("unsupported_parameter", "think")
    assert (await chat(engine(), think="very")).error.param == "think"


# --- options ----------------------------------------------------------------------------------------------


async def test_options_are_the_sampling_of_the_request() -> None:
    on = engine()
    options = {
        "num_predict": 7,
        "seed": 42,
        "temperature": 0.25,
        "top_k": 3,
        "top_p": 0.5,
        "min_p": 0.1,
        "typical_p": 0.7,
        "repeat_last_n": 33,
        "repeat_penalty": 1.2,
        "presence_penalty": 0.3,
        "frequency_penalty": 0.4,
        "mirostat": 1,
        "mirostat_tau": 4.0,
        "mirostat_eta": 0.2,
        "penalize_newline": True,
        "stop": ["END"],
    }
    await chat(on, options=options)
    [request] = on.submitted
    assert request.max_tokens == 7
    for name in options.keys() - {"num_predict", "penalize_newline", "stop"}:
        assert getattr(request.sampling, name) == options[name], name


@pytest.mark.parametrize(
    ("options", "param"),
    [
        ({"id_slot": 999}, "options.id_slot"),
        ({"lora": [{"id": 3}]}, "options.lora"),
        ({"logit_bias": {"999999": 1}}, "options.logit_bias"),
        ({"post_sampling_probs": True}, "options.post_sampling_probs"),
        ({"typ_p": 0.5, "typical_p": 0.6}, "options.typical_p"),
        ({"num_ctx": 1}, "options.num_ctx"),
    ],
)
async def test_what_is_wrong_with_an_option_is_told_with_its_place(options: dict[str, Any], param: str) -> None:
    error = (await chat(engine(), options=options)).error
    assert (error.status, error.param) == (400, param)
    assert "options" in error.message


async def test_a_stop_string_of_the_options_ends_the_answer() -> None:
    reply = await chat(engine(b"one two"), options={"stop": " t"}, stream=False)
    assert reply.json["message"]["content"] == "one"


@pytest.mark.parametrize("num_predict", [-1, -2, None])
async def test_an_answer_without_a_limit_may_take_all_the_room(num_predict: int | None) -> None:
    on = engine(facts=make_facts(context=64))
    await chat(on, options={"num_predict": num_predict})
    [request] = on.submitted
    assert request.max_tokens == 64 - len(request.prompt)


async def test_num_ctx_bounds_prompt_and_answer_together() -> None:
    on = engine(facts=make_facts(context=64))
    await chat(on, options={"num_ctx": 32})
    [request] = on.submitted
    assert request.max_tokens == 32 - len(request.prompt)


async def test_a_num_ctx_above_the_models_context_changes_nothing_while_the_prompt_fits() -> None:
    on = engine(facts=make_facts(context=64))
    await chat(on, options={"num_ctx": 131072, "num_predict": 9})
    assert on.submitted[0].max_tokens == 9
    await chat(on, options={"num_ctx": 131072})
    assert on.submitted[1].max_tokens == 64 - len(on.submitted[1].prompt)


@pytest.mark.parametrize(("num_ctx", "words"), [(8, "'options.num_ctx' allows 8"), (4096, "in models.yaml")])
async def test_a_prompt_that_does_not_fit_is_refused_with_what_to_change(num_ctx: int, words: str) -> None:
    error = (await chat(engine(facts=make_facts(context=NUM_PROMPT)), options={"num_ctx": num_ctx})).error
    assert (error.status, error.code, error.param) == (400, "context_length_exceeded", "options.num_ctx")
    assert words in error.message


async def test_options_about_speed_are_passed_over_whatever_they_say() -> None:
    reply = await chat(engine(), options=dict.fromkeys(SPEED_OPTIONS, 99), stream=False)
    assert reply.json["done"] is True


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"options": {"temperature": "hot"}}, "options.temperature"),
        ({"options": {"num_predict": 0}}, "options.num_predict"),
        ({"options": {"num_predict": -3}}, "options.num_predict"),
        ({"options": {"num_ctx": 0}}, "options.num_ctx"),
        ({"options": {"stop": 5}}, "options.stop"),
        ({"options": {"penalize_newline": False}}, "options.penalize_newline"),
        ({"options": {"tfs_z": 0.5}}, "options.tfs_z"),
        ({"options": {"rope_frequency_base": 1e6}}, "options.rope_frequency_base"),
        ({"options": []}, "options"),
        ({"format": "yaml"}, "format"),
        ({"format": ["json"]}, "format"),
        ({"template": "{{ .Prompt }}"}, "template"),
        ({"tools": {}}, "tools"),
        ({"shift": True}, "shift"),
        ({"continue_final_message": True}, "continue_final_message"),
        ({"add_generation_prompt": False}, "add_generation_prompt"),
        ({"truncate": 1}, "truncate"),
        ({"stream": "yes"}, "stream"),
        ({"messages": "hi"}, "messages"),
    ],
)
async def test_what_cannot_be_honoured_is_refused_by_name(fields: dict[str, Any], param: str) -> None:
    on = engine()
    error = (await chat(on, **fields)).error
    assert (error.status, error.param) == (400, param)
    assert param.rpartition(".")[2] in error.message
    assert not on.submitted


async def test_formats_and_templates_that_ask_for_nothing_pass() -> None:
    reply = await chat(engine(), format="", template="", shift=False, truncate=True, options=None, stream=False)
    assert reply.json["done"] is True


async def test_variables_of_the_template_may_be_set() -> None:
    on = engine()
    await chat(on, source=CHATML + "[{{ tone }}]", chat_template_kwargs={"tone": "dry"})
    assert prompt_text(on).endswith("[dry]")


@pytest.mark.parametrize(("name", "value"), [("grammar", "root ::= x"), ("n", 2), ("response_format", {"type": "x"})])
async def test_options_that_other_dialects_refuse_are_refused_here_too(name: str, value: Any) -> None:
    error = (await chat(engine(), options={name: value})).error
    assert (error.status, error.param) == (400, f"options.{name}")
