"""llama-server's own completions over a real socket: forms of a prompt, fields, and the shape of replies."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from tests.fakes.engine import FakeEngine, FakeVocabulary, Script
from tests.support.worker_client import WorkerReply, serve
from worker.api.llama_completion import read_llama_completion
from worker.api.llama_fields import MAX_PROBS
from worker.api.served import Envelope, ServedModel
from worker.chat.deltas import PlainText
from worker.engine.request import FinishReason, PrefillProgress

PATH = "/completion"


def engine(*steps: Any, finish: FinishReason = FinishReason.STOP, **options: Any) -> FakeEngine:
    return FakeEngine(answers=[Script(steps or (b"Hello", b" you"), finish)], **options)


async def complete(on: FakeEngine, prompt: Any = "x", **fields: Any) -> WorkerReply:
    async with serve(on) as worker:
        return await worker.post(PATH, {"prompt": prompt, **fields})


def events(reply: WorkerReply) -> list[dict[str, Any]]:
    """Return the events of a stream, which has no `[DONE]`."""
    *lines, end = reply.body.decode().split("\n\n")
    assert end == ""
    return [json.loads(line.removeprefix("data: ")) for line in lines]


# --- replies ----------------------------------------------------------------------------------------------

FINAL = {
    *("index", "content", "tokens", "id_slot", "stop", "model", "tokens_predicted", "tokens_evaluated"),
    *("generation_settings", "prompt", "has_new_line", "truncated", "stop_type", "stopping_word"),
    *("tokens_cached", "timings"),
}


async def test_a_whole_reply_has_every_field_of_llama_servers() -> None:
    reply = await complete(engine(b"one\n", num_cached=[1]), "xyz", n_predict=9, temperature=0.5, seed=3)
    body = reply.json
    settings = body.pop("generation_settings")
    timings = body.pop("timings")
    assert body == {
        "index": 0,
        "content": "one\n",
        "tokens": [],
        "id_slot": 0,
        "stop": True,
        "model": "tiny",
        "tokens_predicted": 4,
        "tokens_evaluated": 3,
        "prompt": "xyz",
        "has_new_line": True,
        "truncated": False,
        "stop_type": "eos",
        "stopping_word": "",
        "tokens_cached": 1,
    }
    assert (timings["cache_n"], timings["prompt_n"], timings["predicted_n"]) == (1, 2, 4)
    assert (settings["n_predict"], settings["temperature"], settings["seed"]) == (9, 0.5, 3)
    assert settings["samplers"][-1] == "temperature"


async def test_a_stream_has_pieces_and_one_end_with_everything() -> None:
    reply = await complete(engine(), stream=True)
    assert reply.shown_type == "text/event-stream"
    first, second, last = events(reply)
    assert first == {
        "index": 0,
        "content": "Hello",
        "tokens": list(b"Hello"),
        "stop": False,
        "id_slot": 0,
        "tokens_predicted": 5,
        "tokens_evaluated": 1,
    }
    assert (second["content"], second["tokens_predicted"]) == (" you", 9)
    assert last.keys() == FINAL
    assert (last["content"], last["stop"], last["stop_type"], last["tokens_predicted"]) == ("", True, "eos", 9)


async def test_each_answer_tells_the_prompt_that_it_is_to() -> None:
    told = [one["prompt"] for one in (await complete(engine(), ["ab", "cd"], n_cmpl=2)).json]
    assert told == ["ab", "ab", "cd", "cd"]


async def test_token_ids_are_returned_when_asked_for() -> None:
    reply = await complete(engine(b"ab"), return_tokens=True)
    assert reply.json["tokens"] == [97, 98]


@pytest.mark.parametrize(
    ("steps", "finish", "stop_type", "word"),
    [
        ([b"ab"], FinishReason.STOP, "eos", ""),
        ([b"ab"], FinishReason.LENGTH, "limit", ""),
        ([b"a", b"END"], None, "word", "END"),
    ],
)
async def test_a_reply_tells_why_it_ended(steps: list[bytes], finish: Any, stop_type: str, word: str) -> None:
    for stream in (False, True):
        reply = await complete(engine(*steps, finish=finish), stop=["END"], stream=stream)
        last = events(reply)[-1] if stream else reply.json
        assert (last["stop_type"], last["stopping_word"]) == (stop_type, word)


async def test_stop_string_over_tokens_is_never_shown_not_even_its_beginning() -> None:
    reply = await complete(engine(b"J K", b" L", b" M N", finish=None), stop="K L M", stream=True)
    assert "".join(one["content"] for one in events(reply)) == "J "
    assert all("K" not in one["content"] for one in events(reply))


async def test_text_that_might_have_become_a_stop_string_comes_at_the_end() -> None:
    on = engine(b"J K", b" L")
    streamed = "".join(one["content"] for one in events(await complete(on, stop=["K L M"], stream=True)))
    assert streamed == "J K L"


async def test_character_of_several_tokens_comes_in_one_piece() -> None:
    smile = "😀中é".encode()
    on = engine(*([byte] for byte in smile))
    assert (await complete(on)).json["content"] == "😀中é"
    contents = [one["content"] for one in events(await complete(on, stream=True))]
    assert contents == ["😀", "中", "é", ""]


async def test_character_that_is_cut_off_becomes_one_replacement() -> None:
    on = engine("a😀".encode()[:3], finish=FinishReason.LENGTH)
    assert (await complete(on)).json["content"] == "a\ufffd"


# --- fields -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "max_tokens"),
    [({}, 255), ({"n_predict": -1}, 255), ({"n_predict": 7}, 7), ({"max_tokens": 7}, 7), ({"n_predict": 0}, 0)],
)
async def test_answer_has_the_length_that_was_asked_for(fields: dict[str, Any], max_tokens: int) -> None:
    on = engine(b"")
    await complete(on, **fields)
    assert on.submitted[0].max_tokens == max_tokens


async def test_fields_reach_the_engine() -> None:
    on = engine()
    await complete(
        on,
        n_probs=MAX_PROBS,
        post_sampling_probs=True,
        id_slot=2,
        cache_prompt=False,
        return_progress=True,
        timings_per_token=True,
        min_tokens=3,
        mirostat=2,
        dynatemp_range=0.5,
        samplers=["top_k"],
        logit_bias=[[97, -1.0]],
    )
    request = on.submitted[0]
    assert (request.num_logprobs, request.post_sampling_logprobs) == (MAX_PROBS, True)
    assert (request.slot, request.cache_prompt, request.min_tokens) == (2, False, 3)
    assert (request.wants_progress, request.wants_timings) == (True, True)
    assert (request.sampling.mirostat, request.sampling.dynatemp_range) == (2, 0.5)
    assert request.sampling.logit_bias == ((97, -1.0),)


async def test_settings_tell_what_the_request_has_come_to() -> None:
    vocabulary = FakeVocabulary()
    vocabulary.sampling_defaults = {"temperature": 0.25}
    reply = await complete(
        engine(vocabulary=vocabulary), top_k=7, logit_bias={"97": False}, stop=["x"], n_keep=-1, n_probs=2
    )
    settings = reply.json["generation_settings"]
    assert (settings["temperature"], settings["top_k"], settings["seed"]) == (0.25, 7, 7)
    assert settings["logit_bias"] == [{"bias": False, "token": 97}]
    assert (settings["stop"], settings["n_keep"], settings["n_probs"]) == (["x"], -1, 2)


async def test_only_the_fields_that_are_asked_for_are_in_the_final_object() -> None:
    paths = ["content", "generation_settings/n_predict", "timings/predicted_n", "nothing", "content/deeper"]
    for stream in (False, True):
        reply = await complete(engine(b"ab"), n_predict=5, response_fields=paths, stream=stream)
        last = events(reply)[-1] if stream else reply.json
        content = "" if stream else "ab"
        assert last == {"content": content, "generation_settings/n_predict": 5, "timings/predicted_n": 2}


async def test_probabilities_have_the_same_numbers_streamed_or_not() -> None:
    on = engine(b"ab", b"c")
    whole = (await complete(on, n_probs=2)).json["completion_probabilities"]
    shown = events(await complete(on, n_probs=2, stream=True))
    assert [one for event in shown for one in event.get("completion_probabilities", [])] == whole
    assert whole[0] == {
        "id": 97,
        "token": "a",
        "bytes": [97],
        "logprob": -0.125,
        "top_logprobs": [
            {"id": 97, "token": "a", "bytes": [97], "logprob": -0.125},
            {"id": 98, "token": "b", "bytes": [98], "logprob": -0.625},
        ],
    }


async def test_probabilities_after_sampling_are_between_0_and_1() -> None:
    reply = await complete(engine(b"a"), n_probs=1, post_sampling_probs=True)
    [one] = reply.json["completion_probabilities"]
    assert one["prob"] == pytest.approx(0.8825, abs=1e-4)
    assert one["top_probs"][0].keys() == {"id", "token", "bytes", "prob"}
    assert "logprob" not in one


async def test_tokens_of_text_that_is_held_keep_their_probabilities() -> None:
    on = engine(b"a", b"EN", b"D", finish=None)
    shown = events(await complete(on, n_probs=1, stop=["END"], stream=True))
    told = [one["id"] for event in shown for one in event.get("completion_probabilities", [])]
    assert told == list(b"aEND")


@pytest.mark.parametrize("fields", [{}, {"n_probs": 0}, {"post_sampling_probs": True}])
async def test_no_probabilities_are_told_unless_asked_for(fields: dict[str, Any]) -> None:
    reply = await complete(engine(), **fields)
    assert "completion_probabilities" not in reply.json


async def test_timings_come_with_every_piece_when_asked_for() -> None:
    reply = await complete(engine(), stream=True, timings_per_token=True)
    assert all("timings" in event for event in events(reply))


async def test_progress_comes_before_the_text_when_asked_for() -> None:
    on = FakeEngine()
    async with serve(on) as worker:
        asking = asyncio.create_task(worker.post(PATH, {"prompt": "xyz", "stream": True, "return_progress": True}))
        await on.submissions(1)
        on.step({1: ()}, progress=PrefillProgress(3, 1, 2, 0.25))
        await asyncio.sleep(0)
        on.step({1: b"ab"}, finish=FinishReason.STOP)
        reply = await asking
    first, second, last = events(reply)
    assert first["prompt_progress"] == {"total": 3, "cache": 1, "processed": 2, "time_ms": 250}
    assert (first["content"], first["stop"], second["content"], last["stop"]) == ("", False, "ab", True)


def test_what_the_model_writes_is_shown_as_it_is_and_for_so_long_as_is_asked() -> None:
    on = engine()
    model = ServedModel("tiny", on, on.vocabulary)
    job = read_llama_completion(model, b'{"prompt": "x", "t_max_predict_ms": 500}', Envelope())
    assert (type(job.plan.parser(0)), job.limits.max_predict_s) == (PlainText, 0.5)
    job = read_llama_completion(model, b'{"prompt": "x", "t_max_predict_ms": 0}', Envelope())
    assert job.limits.max_predict_s is None


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("n_predict", -2),
        ("n_predict", "7"),
        ("n_probs", MAX_PROBS + 1),
        ("n_probs", -1),
        ("id_slot", 4),
        ("id_slot", -2),
        ("stop", [""]),
        ("stream", "yes"),
        ("response_fields", "content"),
        ("response_fields", [1]),
        ("return_tokens", 1),
        ("n_keep", -2),
        ("n_cmpl", 0),
        ("temperature", -1),
        ("grammar", "root ::= missing"),
        ("grammar", 5),
        ("json_schema", {"type": "nothing"}),
        ("json_schema", []),
        ("regex", "("),
        ("choice", []),
        ("choice", [""]),
        ("lark", "start: missing"),
        ("grammar_lazy", True),
        ("grammar_triggers", [{"type": 0, "value": "<tool_call>"}]),
        ("preserved_tokens", ["<tool_call>"]),
        ("grammar_string", 'root ::= "a"'),
        ("thinking_budget_tokens", 5),
        ("tools", [{"type": "function", "function": {"name": "f"}}]),
        ("n_indent", -1),
        ("n_discard", 5),
        ("logprobs", 5),
        ("image_data", [{"data": "", "id": 1}]),
        ("echo", True),
        ("suffix", "x"),
        ("best_of", 2),
        ("stream_options", {"include_usage": True}),
        ("stop_token_ids", [1]),
        ("max_tokens", -2),
    ],
)
async def test_what_cannot_be_honoured_is_refused_by_name(field: str, value: Any) -> None:
    on = engine()
    error = (await complete(on, **{field: value})).error
    assert error.status == 400
    assert (error.param or "").startswith(field)
    assert on.submitted == []


@pytest.mark.parametrize(
    "fields", [{"n_predict": 5, "max_tokens": 6}, {"n": 2, "n_cmpl": 3}, {"n_cmpl": 16, "prompt": ["x"] * 17}]
)
async def test_contradictions_and_too_many_answers_are_refused(fields: dict[str, Any]) -> None:
    async with serve(engine()) as worker:
        error = (await worker.post(PATH, {"prompt": "x"} | fields)).error
    assert error.status == 400
