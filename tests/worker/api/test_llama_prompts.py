"""The forms of a prompt of llama-server's own, over a real socket: what each means, and what is none."""

from __future__ import annotations

from typing import Any

import pytest

from tests.fakes.engine import BOS, IM_START, FakeEngine, FakeVocabulary, Script, make_facts
from tests.support.worker_client import serve
from tests.worker.api.test_llama_completion import PATH, complete, engine, events


@pytest.mark.parametrize(
    ("prompt", "tokens"),
    [
        ("ab", [97, 98]),
        ([97, 98], [97, 98]),
        ([97, "b", 99], [97, 98, 99]),
        (["a", 98], [97, 98]),
        ({"prompt_string": "ab"}, [97, 98]),
        ({"prompt_string": "ab", "multimodal_data": []}, [97, 98]),
        (["ab"], [97, 98]),
        ("<|im_start|>", [IM_START]),
    ],
)
async def test_every_form_of_one_prompt_is_read(prompt: Any, tokens: list[int]) -> None:
    on = engine()
    reply = await complete(on, prompt)
    assert [list(one.prompt) for one in on.submitted] == [tokens]
    assert reply.json["stop"] is True


@pytest.mark.parametrize(("prompt", "has_bos"), [("a", True), (["a", 98], True), ([97, "b"], False), ([97], False)])
async def test_begin_token_stands_before_prompts_that_begin_with_text(prompt: Any, has_bos: bool) -> None:
    on = engine(vocabulary=FakeVocabulary(add_bos=True))
    await complete(on, prompt)
    assert (on.submitted[0].prompt[0] == BOS) is has_bos


async def test_several_prompts_give_a_list_of_replies_in_their_order() -> None:
    on = FakeEngine(answers=[Script([b"A"]), Script([b"B"]), Script([b"C"]), Script([b"D"])])
    reply = await complete(on, ["x", [98, "c"], {"prompt_string": "y"}, [100]])
    assert [(one["index"], one["content"], one["prompt"]) for one in reply.json] == [
        (0, "A", "x"),
        (1, "B", "bc"),
        (2, "C", "y"),
        (3, "D", "d"),
    ]


async def test_pieces_and_ends_of_several_prompts_name_their_prompt() -> None:
    on = FakeEngine(answers=[Script([b"A"]), Script([b"BB"])])
    shown = events(await complete(on, ["x", "yy"], stream=True))
    ends = {one["index"]: one for one in shown if one["stop"]}
    assert {one["index"]: one["content"] for one in shown if not one["stop"]} == {0: "A", 1: "BB"}
    assert {index: one["tokens_evaluated"] for index, one in ends.items()} == {0: 1, 1: 2}
    assert {index: one["timings"]["predicted_n"] for index, one in ends.items()} == {0: 1, 1: 2}


async def test_several_answers_to_one_prompt_are_a_list() -> None:
    reply = await complete(engine(), n_cmpl=2)
    assert [one["index"] for one in reply.json] == [0, 1]


@pytest.mark.parametrize(
    ("prompt", "message"),
    [
        (None, "'prompt' is null"),
        (5, "'prompt' is 5"),
        ([], "'prompt' is an empty list"),
        ({}, "'prompt' is an empty object"),
        ([1, True], "'prompt' is a list"),
        ([1, [2]], "'prompt' is a list"),
        (["a", []], "'prompt' has an empty list at index 1"),
        (["a", None], "'prompt' has null at index 1"),
        ([97, 100_000], "'prompt' has the token id 100000"),
        ([-1], "'prompt' has the token id -1"),
        ("", "'prompt' is empty"),
    ],
)
async def test_what_is_no_prompt_is_refused(prompt: Any, message: str) -> None:
    error = (await complete(engine(), prompt)).error
    assert (error.status, error.param) == (400, "prompt")
    assert error.message.startswith(message)


async def test_missing_prompt_is_named() -> None:
    async with serve(engine()) as worker:
        error = (await worker.post(PATH, {})).error
    assert error.message.startswith("'prompt' is missing")


async def test_images_are_refused_by_name() -> None:
    error = (await complete(engine(), {"prompt_string": "<__media__>", "multimodal_data": ["aGk="]})).error
    assert (error.status, error.code, error.param) == (400, "unsupported_content", "prompt.multimodal_data")


@pytest.mark.parametrize(("num_tokens", "is_fine"), [(15, True), (16, False), (17, False)])
@pytest.mark.parametrize("fields", [{}, {"n_predict": 1}, {"stream": True}])
async def test_prompt_that_leaves_no_room_is_refused_with_both_counts(
    num_tokens: int, is_fine: bool, fields: dict[str, Any]
) -> None:
    on = engine(facts=make_facts(context=16))
    reply = await complete(on, [97] * num_tokens, **fields)
    if is_fine:
        assert reply.end["outcome"] == "ok"
        return
    assert (reply.error.status, reply.error.code) == (400, "context_length_exceeded")
    assert "16 tokens" in reply.error.message
    assert f"{num_tokens} tokens" in reply.error.message
    assert on.submitted == []
