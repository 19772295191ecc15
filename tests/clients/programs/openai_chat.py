"""OpenAI's Python SDK: conversations, streamed and not."""

from __future__ import annotations

import asyncio
from typing import Any

import openai
from checking import EXACT, GPT, KEY, QUESTION, SLASHED, SMOL, TAGGED, TINY, URL, main, refusal
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from typed import strictly

client = openai.OpenAI(base_url=f"{URL}/v1", api_key=KEY, max_retries=0, timeout=120)
ASKED: list[Any] = [{"role": "user", "content": QUESTION}]
OURS = {"timings", "seed"}
"""What our replies tell beyond OpenAI's: llama-server's timings, and the seed that was used."""


def ask(**fields: Any) -> ChatCompletion:
    """Return the reply to the question, read strictly."""
    body = {"model": EXACT, "messages": ASKED, "max_tokens": 8, "temperature": 0} | fields
    return strictly(ChatCompletion, client.chat.completions.create(**body), OURS)


def ask_streamed(**fields: Any) -> list[ChatCompletionChunk]:
    """Return the chunks of the reply to the question, each read strictly."""
    body = {"model": EXACT, "messages": ASKED, "max_tokens": 8, "temperature": 0} | fields
    chunks = client.chat.completions.create(stream=True, **body)
    return [strictly(ChatCompletionChunk, chunk, OURS) for chunk in chunks]


def text_of(chunks: list[ChatCompletionChunk], index: int = 0) -> str:
    """Return the text that one choice of a stream came to."""
    choices = [one for chunk in chunks for one in chunk.choices if one.index == index]
    return "".join(one.delta.content or "" for one in choices)


def check_a_reply_is_what_the_types_say() -> None:
    reply = ask()
    (choice,) = reply.choices
    assert (reply.model, choice.index, choice.finish_reason) == (SMOL, 0, "length")
    assert choice.message.role == "assistant"
    assert choice.message.content
    assert choice.logprobs is None
    assert reply.system_fingerprint
    assert reply.usage is not None
    assert reply.usage.completion_tokens == 8
    assert reply.usage.total_tokens == reply.usage.prompt_tokens + 8


def check_a_reply_tells_which_request_it_answers() -> None:
    reply = client.chat.completions.create(model=SMOL, messages=ASKED, max_tokens=1)
    assert reply._request_id
    assert reply._request_id in reply.id


def check_every_name_of_a_model_reaches_it() -> None:
    assert {ask(model=name, max_tokens=1).model for name in (SMOL, GPT, SLASHED, TAGGED)} == {SMOL}


def check_a_repeated_prompt_is_counted_as_cached() -> None:
    messages = [{"role": "user", "content": "Write one sentence about a lighthouse that nobody has visited."}]
    first, second = (ask(model=SMOL, messages=messages).usage for _ in range(2))
    assert first is not None
    assert second is not None
    assert second.prompt_tokens_details is not None
    assert 0 < (second.prompt_tokens_details.cached_tokens or 0) < second.prompt_tokens
    assert second.prompt_tokens == first.prompt_tokens


def check_a_stream_is_what_the_types_say() -> None:
    chunks = ask_streamed()
    assert {(chunk.id, chunk.model, chunk.created) for chunk in chunks} == {(chunks[0].id, SMOL, chunks[0].created)}
    assert [chunk.choices[0].delta.role for chunk in chunks if chunk.choices[0].delta.role] == ["assistant"]
    assert chunks[0].choices[0].delta.role == "assistant"
    assert text_of(chunks) == ask().choices[0].message.content


def check_a_stream_has_one_finish_reason_for_each_choice_at_its_end() -> None:
    chunks = ask_streamed(model=SMOL, n=2, seed=3, temperature=1)
    reasons = [(one.index, one.finish_reason) for chunk in chunks for one in chunk.choices]
    assert sorted(reason for reason in reasons if reason[1] is not None) == [(0, "length"), (1, "length")]
    for index in (0, 1):
        assert [reason for at, reason in reasons if at == index][:-1].count(None) == reasons.count((index, None))


def check_a_stream_tells_usage_only_when_asked() -> None:
    for options in ({}, {"stream_options": {"include_usage": False}}):
        chunks = ask_streamed(**options)
        assert all(chunk.usage is None for chunk in chunks)
        assert all(chunk.choices for chunk in chunks)
        assert all("usage" not in chunk.to_dict() for chunk in chunks)
    *others, last = ask_streamed(stream_options={"include_usage": True})
    assert all(chunk.usage is None and "usage" in chunk.to_dict() and chunk.choices for chunk in others)
    assert last.choices == []
    assert last.usage is not None
    assert last.usage.completion_tokens == 8
    assert last.usage.prompt_tokens_details is not None
    assert last.usage.prompt_tokens_details.cached_tokens is not None


def check_log_probabilities_are_the_same_streamed_and_not() -> None:
    same: dict[str, Any] = {"logprobs": True, "top_logprobs": 3}
    whole = ask(**same).choices[0].logprobs
    assert whole is not None
    assert whole.content is not None
    assert len(whole.content) == 8
    for entry in whole.content:
        assert entry.bytes is not None
        assert entry.logprob <= 0
        assert len(entry.top_logprobs) == 3
        assert entry.top_logprobs[0].logprob >= entry.top_logprobs[-1].logprob
    chunks = ask_streamed(**same)
    streamed = [
        entry
        for chunk in chunks
        for one in chunk.choices
        if one.logprobs is not None
        for entry in one.logprobs.content or []
    ]
    assert streamed == whole.content
    assert bytes(byte for entry in streamed for byte in entry.bytes or []).decode() == text_of(chunks)


def check_log_probabilities_are_only_told_when_asked() -> None:
    one = ask(logprobs=True, top_logprobs=0).choices[0].logprobs
    assert one is not None
    assert one.content is not None
    assert all(entry.top_logprobs == [] for entry in one.content)
    assert ask(logprobs=False).choices[0].logprobs is None
    for wrong in ({"logprobs": True, "top_logprobs": 21}, {"top_logprobs": 3}):
        with refusal(openai.BadRequestError) as refused:
            ask(**wrong)
        assert refused.error.param == "top_logprobs"


def check_n_answers_have_distinct_indexes_and_differ() -> None:
    drawn: dict[str, Any] = {"model": SMOL, "n": 3, "seed": 7, "temperature": 1.5, "max_tokens": 12}
    reply = ask(**drawn)
    assert [one.index for one in reply.choices] == [0, 1, 2]
    assert len({one.message.content for one in reply.choices}) > 1
    assert reply.usage is not None
    assert reply.usage.completion_tokens > 12
    chunks = ask_streamed(**drawn)
    assert {one.index for chunk in chunks for one in chunk.choices} == {0, 1, 2}
    for n in (0, 100):
        with refusal(openai.BadRequestError) as refused:
            ask(n=n)
        assert refused.error.param == "n"


def check_both_names_of_the_maximum_are_honoured_and_bad_ones_refused() -> None:
    for name in ("max_tokens", "max_completion_tokens"):
        reply = ask(**{"max_tokens": openai.omit, name: 5})
        assert reply.usage is not None
        assert (reply.usage.completion_tokens, reply.choices[0].finish_reason) == (5, "length")
        for value in (0, -1, 2.5):
            with refusal(openai.BadRequestError) as refused:
                ask(**{"max_tokens": openai.omit, name: value})
            assert refused.error.param == name
    with refusal(openai.BadRequestError):
        ask(max_tokens=5, max_completion_tokens=6)
    assert ask(max_tokens=None, max_completion_tokens=3).usage.completion_tokens == 3


def check_an_answer_ends_before_a_stop_string() -> None:
    whole = ask(max_tokens=24).choices[0].message.content or ""
    stop = whole[len(whole) // 2 :][:3]
    until = whole[: whole.index(stop)]
    for said in (stop, ["never said", stop]):
        choice = ask(max_tokens=24, stop=said).choices[0]
        assert (choice.message.content, choice.finish_reason) == (until, "stop")
    assert text_of(ask_streamed(max_tokens=24, stop=stop)) == until


def check_equal_seeds_draw_equal_answers() -> None:
    one, same, other = (
        ask(seed=seed, temperature=1, max_tokens=16).choices[0].message.content for seed in (11, 11, 12)
    )
    assert one == same
    assert one != other


def check_the_stream_manager_makes_a_whole_reply_of_the_chunks() -> None:
    whole = ask(max_tokens=24).choices[0].message.content or ""
    stop = whole[len(whole) // 2 :][:3]  # the manager takes an answer that was cut off for a failure
    with client.chat.completions.stream(
        model=EXACT, messages=ASKED, max_tokens=24, temperature=0, stop=stop, stream_options={"include_usage": True}
    ) as stream:
        kinds = [event.type for event in stream]
        final = stream.get_final_completion()
    assert {"chunk", "content.delta", "content.done"} <= set(kinds)
    assert final.choices[0].message.content == whole[: whole.index(stop)]
    assert final.usage is not None


def check_a_conversation_of_many_roles_is_understood() -> None:
    messages = [
        {"role": "developer", "content": "Answer with one word."},
        {"role": "system", "content": [{"type": "text", "text": "Be "}, {"type": "text", "text": "kind."}]},
        {"role": "user", "content": "Hi", "name": "Ann"},
        {"role": "user", "content": "Are you there?"},
        {"role": "assistant", "content": "Yes", "refusal": None},
        {"role": "user", "content": [{"type": "text", "text": "And now?"}]},
    ]
    assert ask(messages=messages).choices[0].message.content


def check_a_dumped_reply_can_be_sent_back() -> None:
    first = client.chat.completions.create(model=SMOL, messages=ASKED, max_tokens=8, temperature=0)
    again = [*ASKED, first.choices[0].message.to_dict(), {"role": "user", "content": "More."}]
    assert ask(messages=again).choices[0].message.content


def check_what_cannot_be_honoured_is_refused_by_name() -> None:
    with refusal(openai.BadRequestError) as refused:
        ask(web_search_options={})
    assert (refused.error.code, refused.error.param) == ("unsupported_parameter", "web_search_options")
    picture: Any = [{"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}]
    with refusal(openai.BadRequestError) as refused:
        ask(messages=[{"role": "user", "content": picture}])
    assert refused.error.code == "unsupported_content"


def check_fields_that_mean_nothing_here_are_passed_over() -> None:
    assert ask(user="ann", metadata={"team": "red"}, safety_identifier="x", service_tier="auto", store=False).choices


def check_the_sdks_own_headers_do_no_harm_and_no_page_is_let_in() -> None:
    raw = client.chat.completions.with_raw_response.create(model=SMOL, messages=ASKED, max_tokens=1)
    sent = raw.http_response.request.headers
    assert [name for name in sent if name.lower().startswith("x-stainless-")]
    assert [name for name in raw.headers if name.lower().startswith("access-control-")] == []
    assert raw.retries_taken == 0


async def check_many_streams_at_once_do_not_mix() -> None:
    async with openai.AsyncOpenAI(base_url=f"{URL}/v1", api_key=KEY, max_retries=0, timeout=120) as many:

        async def stream(word: str) -> str:
            pieces = []
            async for chunk in await many.completions.create(
                model=TINY, prompt=f"tell {word}", max_tokens=12, temperature=0, stream=True
            ):
                pieces += [one.text for one in chunk.choices]
            return "".join(pieces)

        words = ["the", "hello", "world", "story", "red", "marker", "user", "system"]
        together = await asyncio.gather(*map(stream, words))
        alone = [await stream(word) for word in words]
    assert together == alone
    assert len(set(together)) > 1


if __name__ == "__main__":
    main(globals())
