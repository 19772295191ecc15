"""llama-server's `/infill` over a real socket: the prompt that it makes, and what it refuses."""

from __future__ import annotations

from typing import Any

import pytest

from tests.fakes.engine import FakeEngine, FakeVocabulary, Script, make_facts
from tests.support.worker_client import WorkerReply, serve

PATH = "/infill"


def engine(*, has_fim: bool = True, context: int = 256) -> FakeEngine:
    vocabulary = FakeVocabulary(has_fim=has_fim)
    return FakeEngine(vocabulary, make_facts(context=context), answers=[Script([b"mid"])])


async def infill(on: FakeEngine, **fields: Any) -> WorkerReply:
    async with serve(on) as worker:
        return await worker.post(PATH, fields)


def prompt_of(on: FakeEngine) -> str:
    return on.vocabulary.text(on.submitted[0].prompt)


async def test_text_around_the_gap_stands_between_the_models_own_tokens() -> None:
    on = engine()
    reply = await infill(on, input_prefix="ab", input_suffix="yz", prompt="c", n_predict=5)
    assert prompt_of(on) == "<fim_pre>ab<fim_suf>yz<fim_mid>c"
    assert on.submitted[0].max_tokens == 5
    assert (reply.json["content"], reply.json["truncated"]) == ("mid", False)


async def test_text_of_control_tokens_stays_text() -> None:
    on = engine()
    await infill(on, input_prefix="</s>", input_suffix="<|im_end|>", prompt="<s>")
    assert not set(on.submitted[0].prompt) & {256, 257, 258, 259}


async def test_request_of_an_editors_plugin_is_honoured_as_it_is() -> None:
    on = engine()
    reply = await infill(
        on,
        id_slot=0,
        input_prefix="def f():\n",
        input_suffix="\n",
        input_extra=[{"text": "x", "filename": "a.py", "time": 5}],
        prompt="    ret",
        n_predict=128,
        stop=[],
        n_indent=4,
        top_k=40,
        top_p=0.9,
        stream=False,
        samplers=["top_k", "top_p", "infill"],
        cache_prompt=True,
        t_max_prompt_ms=500,
        t_max_predict_ms=1000,
        response_fields=["content", "timings/prompt_n", "timings/predicted_ms", "truncated", "tokens_cached"],
    )
    assert reply.json.keys() == {
        *("content", "timings/prompt_n", "timings/predicted_ms", "truncated", "tokens_cached"),
    }
    assert on.submitted[0].sampling.samplers[-1] == "infill"
    warm = await infill(
        on, input_prefix="", input_suffix="", input_extra=[], n_predict=0, samplers=[], response_fields=[""]
    )
    assert warm.json == {}


async def test_other_files_come_first() -> None:
    on = engine()
    await infill(on, input_prefix="ab", input_suffix="yz", input_extra=[{"filename": "a.py", "text": "x = 1"}])
    assert prompt_of(on).startswith("<fim_rep>project\n<fim_sep>a.py\nx = 1\n<fim_sep>current\n<fim_pre>ab")


async def test_other_files_that_do_not_fit_are_left_out_and_the_reply_says_so() -> None:
    on = engine(context=64)
    extra = [{"filename": "a.py", "text": "x" * 100}]
    reply = await infill(on, input_prefix="ab", input_suffix="yz", input_extra=extra)
    assert prompt_of(on) == "<fim_pre>ab<fim_suf>yz<fim_mid>"
    assert reply.json["truncated"] is True


@pytest.mark.parametrize(("num", "is_fine"), [(60, True), (61, False)])
async def test_text_around_the_gap_is_never_cut(num: int, is_fine: bool) -> None:
    on = engine(context=64)
    reply = await infill(on, input_prefix="x" * num, input_suffix="")
    if is_fine:
        assert reply.json["content"] == "mid"
    else:
        assert (reply.error.code, reply.error.param) == ("context_length_exceeded", "input_prefix")


async def test_model_without_fim_tokens_is_told_by_name() -> None:
    error = (await infill(engine(has_fim=False), input_prefix="ab", input_suffix="yz")).error
    assert (error.status, error.code) == (400, "unsupported_by_model")
    assert "'tiny'" in error.message


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"input_suffix": ""}, "input_prefix"),
        ({"input_prefix": ""}, "input_suffix"),
        ({"input_prefix": 5, "input_suffix": ""}, "input_prefix"),
        ({"input_prefix": "", "input_suffix": "", "prompt": [1]}, "prompt"),
        ({"input_prefix": "", "input_suffix": "", "input_extra": {}}, "input_extra"),
        ({"input_prefix": "", "input_suffix": "", "input_extra": [{"text": "x"}]}, "input_extra[0].filename"),
        ({"input_prefix": "", "input_suffix": "", "grammar": "x"}, "grammar"),
        ({"input_prefix": "", "input_suffix": "", "grammar_lazy": True}, "grammar_lazy"),
    ],
)
async def test_wrong_fields_are_refused_by_name(fields: dict[str, Any], param: str) -> None:
    error = (await infill(engine(), **fields)).error
    assert (error.status, error.param) == (400, param)
