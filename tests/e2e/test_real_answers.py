"""What the real SmolLM2 answers through a real `corral serve`: limits, stop strings, characters, seeds, errors."""

from __future__ import annotations

import asyncio
import itertools

import pytest

from tests.support.models import smollm2_path
from tests.support.plain_llama import plain_greedy
from tests.support.real_server import Api
from worker.contract import EngineOptions
from worker.engine.llama import LlamaBackend
from worker.engine.llama_vocabulary import LlamaVocabulary

CONTEXT = 256
"""Of the model `narrow`."""
ALONE = {"cache_prompt": False}
"""Each request computes its whole prompt, so that equal requests are computed equally."""


@pytest.fixture(scope="module")
def words() -> LlamaVocabulary:
    """The model's tokenizer."""
    return LlamaBackend.load(str(smollm2_path()), EngineOptions(context=32, slots=1)).vocabulary


def filler(length: int) -> list[int]:
    """Return a prompt of so many tokens."""
    return [1000 + 7 * index for index in range(length)]


# --- greedy -----------------------------------------------------------------------------------------------


async def test_greedy_answer_is_the_one_of_plain_llama_cpp(api: Api, words: LlamaVocabulary) -> None:
    prompt = "<|im_start|>user\nHello there<|im_end|>\n<|im_start|>assistant\n"
    answer = await api.complete("narrow", prompt, 16, **ALONE)
    tokens = words.tokenize(prompt, add_special=False, parse_special=True)
    expected = await asyncio.to_thread(plain_greedy, smollm2_path(), tokens, 16)
    expected = list(itertools.takewhile(lambda token: token not in words.eog, expected))
    assert answer.text == b"".join(map(words.piece, expected)).decode()


@pytest.mark.slow
async def test_same_greedy_request_gives_the_same_text_twice(api: Api) -> None:
    first, second = [await api.chat("narrow", "Tell me a story about a red dog.", 32, **ALONE) for _ in range(2)]
    assert first.text == second.text
    assert first.counts[1] == 32


async def test_repeated_request_reuses_its_prompt(api: Api) -> None:
    first, second = [await api.chat("main", "Which colour has the sea in winter?", 4) for _ in range(2)]
    assert second.usage["prompt_tokens_details"]["cached_tokens"] == first.counts[0] - 1


# --- context ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("max_tokens", [1, 50, None])
@pytest.mark.parametrize("stream", [True, False])
async def test_prompt_that_leaves_room_for_one_token_gets_one(api: Api, stream: bool, max_tokens: int | None) -> None:
    answer = await api.complete("narrow", filler(CONTEXT - 1), max_tokens, stream=stream, ignore_eos=True)
    assert answer.status == 200
    assert answer.counts == (CONTEXT - 1, 1)
    assert answer.finish_reason == "length"


@pytest.mark.parametrize("length", [CONTEXT, CONTEXT + 1])
@pytest.mark.parametrize("stream", [True, False])
async def test_prompt_that_leaves_no_room_is_refused_with_both_counts(api: Api, stream: bool, length: int) -> None:
    answer = await api.complete("narrow", filler(length), 1, stream=stream)
    assert answer.status == 400
    assert answer.error is not None
    assert answer.error["code"] == "context_length_exceeded"
    assert f"{CONTEXT} tokens" in answer.error["message"]
    assert f"{length} tokens" in answer.error["message"]
    assert answer.headers["Content-Type"].startswith("application/json"), "no stream is opened for a refusal"


@pytest.mark.parametrize("stream", [True, False])
async def test_context_that_fills_up_ends_the_answer_with_length(api: Api, stream: bool) -> None:
    answer = await api.complete("narrow", filler(CONTEXT - 10), 1000, stream=stream, ignore_eos=True)
    assert (answer.finish_reason, answer.counts) == ("length", (CONTEXT - 10, 10))
    assert answer.usage["total_tokens"] == CONTEXT
    assert answer.text
    assert answer.error is None


# --- text -------------------------------------------------------------------------------------------------


async def test_text_of_users_never_becomes_a_control_token(api: Api) -> None:
    plain = await api.chat("main", "a", 1)
    for control in ("<|im_start|>", "<|im_end|>", "<|endoftext|>"):
        attack = await api.chat("main", control, 1)
        assert attack.counts[0] >= plain.counts[0] + 3, f"{control} counts as its letters"
    raw = await api.complete("main", "<|im_start|>", 1)
    assert raw.counts[0] == 1, "a raw prompt is its author's own: there the same text is one token"


@pytest.mark.parametrize("stream", [True, False])
async def test_answer_ends_before_a_stop_string_that_spans_tokens(
    api: Api, words: LlamaVocabulary, stream: bool
) -> None:
    prompt = "A B C D E F G H"
    whole = await api.complete("narrow", prompt, 40, **ALONE)
    stop = whole.text[9:14]
    assert len(words.tokenize(stop, add_special=False, parse_special=False)) > 1
    answer = await api.complete("narrow", prompt, 40, stream=stream, stop=["never there", stop], **ALONE)
    assert answer.text == whole.text[: whole.text.index(stop)]
    assert answer.finish_reason == "stop"
    assert answer.counts[1] < 40


async def test_text_held_back_for_a_stop_string_comes_when_the_answer_ends_without_it(api: Api) -> None:
    prompt = "A B C D E F G H"
    whole = await api.complete("narrow", prompt, 12, **ALONE)
    answer = await api.complete("narrow", prompt, 12, stream=True, stop=[whole.text[-4:] + "#"], **ALONE)
    assert answer.text == whole.text
    assert answer.finish_reason == "length"


async def test_characters_of_several_tokens_come_whole(api: Api) -> None:
    prompt = "🦙🎉🙂 🦙🎉🙂 🦙🎉🙂 🦙🎉🙂 🦙🎉"
    whole = await api.complete("narrow", prompt, 24, **ALONE)
    stream = await api.complete("narrow", prompt, 24, stream=True, **ALONE)
    assert "🎉" in whole.text
    assert stream.text == whole.text
    complete = whole.text.removesuffix("\ufffd")  # the last character may have been cut off by max_tokens
    assert "\ufffd" not in complete
    assert len(stream.pieces) < 24, "some tokens are only a part of a character"


# --- chance -----------------------------------------------------------------------------------------------


async def test_seed_decides_the_text(api: Api) -> None:
    asked = {"temperature": 1.0, "top_p": 1.0, "min_p": 0.0, "top_k": 0} | ALONE
    texts = [(await api.complete("narrow", "Once upon a time", 16, seed=seed, **asked)).text for seed in (42, 42, 43)]
    assert texts[0] == texts[1]
    assert texts[1] != texts[2]


async def test_requests_without_a_seed_differ(api: Api) -> None:
    texts = [(await api.complete("main", "Once upon a time", 16, temperature=1.5)).text for _ in range(2)]
    assert texts[0] != texts[1]


@pytest.mark.parametrize("stream", [True, False])
async def test_several_choices_have_their_index_and_their_own_text(api: Api, stream: bool) -> None:
    answer = await api.chat("main", "Tell a joke", 12, n=3, temperature=1.5, seed=5, stream=stream)
    assert sorted(answer.texts) == [0, 1, 2]
    assert len(set(answer.texts.values())) == 3
    assert set(answer.finish) == {0, 1, 2}
    assert answer.counts[1] <= 36


# --- refusals ---------------------------------------------------------------------------------------------


async def test_unknown_model_is_refused_with_the_nearest_names(api: Api) -> None:
    answer = await api.chat("fragille", "hi", 1)
    assert (answer.status, answer.body["error"]["code"]) == (404, "model_not_found")
    assert "fragile" in answer.body["error"]["message"]
    assert "cold" not in answer.body["error"]["message"]


@pytest.mark.parametrize("body", [b'{"model": "main", "messages": [', b"", b"[1, 2]", b"\xff\xfe"])
async def test_body_that_is_no_json_object_is_refused(api: Api, body: bytes) -> None:
    status, content = await api.post("/v1/chat/completions", body)
    assert status == 400
    assert content["error"]["type"] == "invalid_request_error"
    assert content["error"]["message"]


@pytest.mark.parametrize(
    ("field", "value"),
    [("temperature", "hot"), ("max_tokens", -3), ("messages", "hi"), ("stop", [1]), ("n", 0), ("seed", 1.5)],
)
async def test_field_of_a_wrong_type_is_refused_by_name(api: Api, field: str, value: object) -> None:
    body = {"model": "main", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 1} | {field: value}
    status, content = await api.post("/v1/chat/completions", body)
    assert status == 400
    assert content["error"]["param"] == field
    assert field in content["error"]["message"]
