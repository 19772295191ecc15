"""OpenAI's Python SDK: lists of models, errors as its own exceptions, and patience with models that load."""

from __future__ import annotations

import time
from typing import Any

import openai
from checking import CLAUDE, COLD_S, EXACT, GPT, HASTY, KEY, SLASHED, SMOL, TAGGED, URL, main, refusal
from openai.types import Model
from typed import strictly

client = openai.OpenAI(base_url=f"{URL}/v1", api_key=KEY, max_retries=0, timeout=120)
usual = openai.OpenAI(base_url=f"{URL}/v1", api_key=KEY)
"""With the retries and time-outs that come by themselves."""
ASKED: list[Any] = [{"role": "user", "content": "Hi"}]

OF_MODELS = {
    *("root", "parent", "state", "context_length", "max_model_len", "aliases", "description", "tags"),
    "alias_patterns",
    *("size_bytes", "num_params", "capabilities", "slots", "kv_tokens", "replicas", "memory"),
    *("gpu_layers", "total_layers", "devices", "workers", "reason", "retry_in_s", "progress", "last_exit"),
}
"""What our lists of models tell beyond OpenAI's."""


def check_the_list_of_models_has_every_name() -> None:
    listed = {model.id: strictly(Model, model, OF_MODELS) for model in client.models.list()}
    assert {SMOL, GPT, SLASHED, CLAUDE, TAGGED, "mini", "tiny", "broken"} <= set(listed)
    assert EXACT not in listed, "it is an alias that is not to be listed"
    for name in (GPT, SLASHED, TAGGED):
        assert listed[name].to_dict()["root"] == SMOL
        assert listed[name].to_dict()["parent"] == SMOL


def check_models_are_retrieved_by_names_with_slashes_and_colons() -> None:
    for name in (SMOL, GPT, SLASHED, TAGGED):
        found = strictly(Model, client.models.retrieve(name), OF_MODELS)
        assert (found.id, found.object, found.to_dict()["root"]) == (name, "model", SMOL)


def check_a_model_that_is_not_there_is_not_found() -> None:
    for ask in (
        lambda: client.models.retrieve("smoll"),
        lambda: client.chat.completions.create(model="smoll", messages=ASKED),
        lambda: client.embeddings.create(model="smoll", input="x"),
        lambda: list(client.completions.create(model="smoll", prompt="x", stream=True)),
    ):
        with refusal(openai.NotFoundError) as refused:
            ask()
        assert refused.error.code == "model_not_found"
        assert "smol" in refused.error.message.replace("smoll", "")


def check_a_wrong_key_is_told_as_such() -> None:
    for key in ("wrong", "sk-" + "0" * 48):
        stranger = openai.OpenAI(base_url=f"{URL}/v1", api_key=key, max_retries=0)
        for ask in (
            lambda stranger=stranger: list(stranger.models.list()),
            lambda stranger=stranger: stranger.chat.completions.create(model=SMOL, messages=ASKED, stream=True),
        ):
            with refusal(openai.AuthenticationError) as refused:
                ask()
            assert refused.error.type == "authentication_error"
            assert key not in refused.error.message


def check_a_bad_field_is_named() -> None:
    for fields, param in (
        ({"temperature": "hot"}, "temperature"),
        ({"top_p": 3}, "top_p"),
        ({"messages": []}, "messages"),
        ({"stop": [1]}, "stop"),
        ({"logit_bias": {"999999999": 1}}, "logit_bias"),
    ):
        for stream in (False, True):
            body: dict[str, Any] = {"model": SMOL, "messages": ASKED, "stream": stream} | fields
            with refusal(openai.BadRequestError) as refused:
                client.chat.completions.create(**body)
            error = refused.error
            assert error.type == "invalid_request_error"
            assert (error.param or "").startswith(param), error.param
            assert param in error.message
            assert error.request_id


def check_a_prompt_that_is_too_long_has_openais_code() -> None:
    long: list[Any] = [{"role": "user", "content": "word " * 5000}]
    for stream in (False, True):
        with refusal(openai.BadRequestError) as refused:
            client.chat.completions.create(model=SMOL, messages=long, stream=stream)
        assert refused.error.code == "context_length_exceeded"


def check_an_address_that_is_none_is_not_found() -> None:
    with refusal(openai.NotFoundError):
        client.images.generate(prompt="a cow", model=SMOL)
    with refusal(openai.NotFoundError):
        client.files.list()


def check_a_model_that_cannot_be_loaded_says_why_and_is_not_tried_again() -> None:
    start_s = time.monotonic()
    with refusal(openai.InternalServerError) as refused:
        usual.chat.completions.create(model="broken", messages=ASKED)
    assert refused.error.status_code == 503
    assert refused.error.code == "model_unavailable"
    assert "GGUF" in refused.error.message
    assert refused.error.response.headers["x-should-retry"] == "false"
    assert time.monotonic() - start_s < 10, "it was tried again, after the time that `Retry-After` told"


def check_a_stream_that_breaks_off_does_not_look_like_one_that_ended() -> None:
    endless: dict[str, Any] = {"model": HASTY, "stream": True, "extra_body": {"ignore_eos": True}}
    for stream in (
        client.chat.completions.create(messages=ASKED, max_tokens=2000, **endless),
        client.completions.create(prompt="Once", max_tokens=2000, **endless),
        client.responses.create(input="Hi", max_output_tokens=2000, **endless),
    ):
        seen = []
        with refusal(openai.APIError) as refused:
            for event in stream:
                seen.append(event)  # noqa: PERF402 - what came before the error is wanted
        assert "request_timeout_s" in refused.error.message
        assert refused.error.code == "request_timeout"
        assert not [choice for event in seen for choice in getattr(event, "choices", []) if choice.finish_reason]
        assert not [event for event in seen if getattr(event, "type", "") == "response.completed"]


def check_a_model_that_loads_is_waited_for_without_a_retry() -> None:
    start_s = time.monotonic()
    raw = usual.chat.completions.with_raw_response.create(model="cold-openai", messages=ASKED, max_tokens=4)
    assert raw.parse().choices[0].finish_reason == "length"
    assert raw.retries_taken == 0
    assert time.monotonic() - start_s > COLD_S - 0.5, "it was loaded already, so nothing was shown"


def check_a_stream_of_a_model_that_loads_is_open_meanwhile_and_models_are_listed() -> None:
    start_s = time.monotonic()
    with usual.chat.completions.with_streaming_response.create(
        model="cold-openai-stream", messages=ASKED, max_tokens=4, stream=True
    ) as raw:
        opened_s = time.monotonic() - start_s
        assert opened_s < COLD_S - 1, "the stream was not opened early"
        listed = client.models.retrieve("cold-openai-stream").to_dict()
        assert listed["state"] in ("starting", "loading")
        assert time.monotonic() - start_s < COLD_S - 1, "the list of models waited for the model"
        chunks = list(raw.parse(to=openai.Stream[openai.types.chat.ChatCompletionChunk]))
        assert raw.retries_taken == 0
    assert chunks[-1].choices[0].finish_reason == "length"
    assert time.monotonic() - start_s > COLD_S - 0.5, "it was loaded already, so nothing was shown"


if __name__ == "__main__":
    main(globals())
