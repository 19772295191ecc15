"""Anthropic's Python SDK: messages, their events, counting, models, errors as its own exceptions."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import anthropic
from anthropic.types import (
    Message,
    MessageTokensCount,
    ModelInfo,
    RawMessageStreamEvent,
    TextBlock,
)
from anthropic.types.beta import BetaMessage
from checking import CLAUDE, COLD_S, EXACT, HASTY, KEY, QUESTION, SLASHED, SMOL, TINY, URL, main, refusal
from typed import strictly

client = anthropic.Anthropic(base_url=URL, api_key=KEY, max_retries=0, timeout=120)
usual = anthropic.Anthropic(base_url=URL, api_key=KEY)
"""With the retries and time-outs that come by themselves."""
ASKED: list[Any] = [{"role": "user", "content": QUESTION}]
GREEDY = {"temperature": 0}
"""A field of the API that the SDK has no name for any more."""
OURS = {"timings", "seed"}
OURS_IN_EVENTS = OURS | {f"message.{name}" for name in OURS}


def ask(**fields: Any) -> Message:
    """Return the message that answers the question, read strictly."""
    body = {"model": TINY, "messages": ASKED, "max_tokens": 8, "extra_body": GREEDY} | fields
    return strictly(Message, client.messages.create(**body), OURS)


def events_of(**fields: Any) -> list[Any]:
    """Return the events of that message, each read strictly."""
    body = {"model": TINY, "messages": ASKED, "max_tokens": 8, "extra_body": GREEDY} | fields
    return [
        strictly(RawMessageStreamEvent, event, OURS_IN_EVENTS) for event in client.messages.create(stream=True, **body)
    ]


def text_of(message: Message) -> str:
    """Return the text of a message, which has nothing else."""
    (block,) = message.content
    assert isinstance(block, TextBlock)
    return block.text


def num_prompt_tokens(message: Message) -> int:
    """Return the tokens of the prompt, cached or not."""
    usage = message.usage
    return usage.input_tokens + (usage.cache_read_input_tokens or 0) + (usage.cache_creation_input_tokens or 0)


def check_a_message_is_what_the_types_say() -> None:
    reply = ask(model=SMOL)
    assert reply.id.startswith("msg_")
    assert (reply.model, reply.role, reply.type) == (SMOL, "assistant", "message")
    assert (reply.stop_reason, reply.stop_sequence) == ("max_tokens", None)
    assert text_of(reply)
    assert reply.usage.output_tokens == 8
    assert num_prompt_tokens(reply) > 0


def check_a_message_tells_which_request_it_answers() -> None:
    reply = client.messages.create(model=SMOL, messages=ASKED, max_tokens=1)
    assert reply._request_id
    assert reply._request_id in reply.id


def check_every_name_of_a_model_reaches_it() -> None:
    assert {ask(model=name).model for name in (SMOL, SLASHED, CLAUDE)} == {SMOL}


def check_a_stream_is_what_the_types_say() -> None:
    events = events_of()
    kinds = [event.type for event in events]
    deltas = [event.delta for event in events if event.type == "content_block_delta"]
    assert kinds == [
        "message_start",
        "content_block_start",
        *["content_block_delta"] * len(deltas),
        "content_block_stop",
        "message_delta",
        "message_stop",
    ]
    assert "".join(delta.text for delta in deltas) == text_of(ask())
    start, end = events[0].message, events[-2]
    assert (start.model, start.content, start.stop_reason) == (TINY, [], None)
    assert num_prompt_tokens(start) == num_prompt_tokens(ask())
    assert end.delta.stop_reason == "max_tokens"
    assert end.usage.output_tokens == 8


def check_the_stream_manager_makes_a_message_of_the_events() -> None:
    with client.messages.stream(model=EXACT, messages=ASKED, max_tokens=8, extra_body=GREEDY) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    assert text == text_of(ask(model=EXACT))
    assert text_of(strictly(Message, final, OURS)) == text
    assert final.stop_reason == "max_tokens"
    assert final.usage.output_tokens == 8


def check_a_stop_sequence_is_named() -> None:
    whole = text_of(ask(max_tokens=24))
    stop = whole[len(whole) // 2 :][:3]
    reply = ask(max_tokens=24, stop_sequences=["never said", stop])
    assert (reply.stop_reason, reply.stop_sequence) == ("stop_sequence", stop)
    assert text_of(reply) == whole[: whole.index(stop)]
    end = events_of(max_tokens=24, stop_sequences=[stop])[-2]
    assert (end.delta.stop_reason, end.delta.stop_sequence) == ("stop_sequence", stop)


def check_system_blocks_prefill_and_turns_are_understood() -> None:
    reply = ask(
        system=[{"type": "text", "text": "Be kind.", "cache_control": {"type": "ephemeral"}}],
        messages=[
            {"role": "user", "content": [{"type": "text", "text": "Hi"}]},
            {"role": "assistant", "content": [{"type": "text", "text": "Hello"}]},
            {"role": "user", "content": "Name one animal."},
            {"role": "assistant", "content": "The animal is a"},
        ],
    )
    assert text_of(reply)


def check_a_dumped_message_can_be_sent_back() -> None:
    again = [*ASKED, ask().to_param(), {"role": "user", "content": "More."}]
    assert text_of(ask(messages=again))


def check_a_changing_billing_line_leaves_the_prompt_cached() -> None:
    def ask_as_an_agent(nonce: str) -> Message:
        system = (
            f"x-anthropic-billing-header: cc_version=1; cch={nonce};\nYou tell of lighthouses and of their keepers."
        )
        return strictly(
            Message,
            client.messages.create(model=SMOL, system=system, messages=ASKED, max_tokens=1, extra_body=GREEDY),
            OURS,
        )

    first, second = ask_as_an_agent("00000"), ask_as_an_agent("a1b2c")
    assert (second.usage.cache_read_input_tokens or 0) > 10
    assert num_prompt_tokens(first) == num_prompt_tokens(second)


def check_a_prompt_can_be_computed_without_an_answer() -> None:
    messages: list[Any] = [{"role": "user", "content": "Tell of the keeper who counted ships until none came."}]
    warmed = ask(model=SMOL, messages=messages, max_tokens=0)
    assert "".join(block.text for block in warmed.content if isinstance(block, TextBlock)) == ""
    assert warmed.usage.output_tokens == 0
    assert (ask(model=SMOL, messages=messages).usage.cache_read_input_tokens or 0) > 5


def check_tokens_are_counted_as_a_message_counts_them() -> None:
    messages: list[Any] = [{"role": "user", "content": "A sentence that nobody has sent here before: zebra, quay."}]
    counted = strictly(MessageTokensCount, client.messages.count_tokens(model=SMOL, messages=messages, system="Hm."))
    assert counted.input_tokens == num_prompt_tokens(ask(model=SMOL, messages=messages, system="Hm."))


def check_models_are_listed_and_retrieved() -> None:
    listed = {model.id: model for model in client.models.list(limit=2)}  # follows the pages
    assert {SMOL, CLAUDE, SLASHED} <= set(listed)
    for model in listed.values():
        strictly(ModelInfo, model)
    for name in (SMOL, CLAUDE, SLASHED):
        assert strictly(ModelInfo, client.models.retrieve(name)).id == name


def check_the_beta_client_works_as_well() -> None:
    reply = client.beta.messages.create(
        model=CLAUDE, messages=ASKED, max_tokens=8, betas=["a-beta-of-tomorrow-2031-01-01"]
    )
    assert strictly(BetaMessage, reply, OURS).usage.output_tokens == 8


def check_the_key_may_come_as_a_bearer_token() -> None:
    bearer = anthropic.Anthropic(base_url=URL, auth_token=KEY, max_retries=0)
    assert bearer.messages.create(model=SMOL, messages=ASKED, max_tokens=1).content


def check_refusals_are_its_own_exceptions() -> None:
    stranger = anthropic.Anthropic(base_url=URL, api_key="wrong", max_retries=0)
    for stream in (False, True):
        with refusal(anthropic.AuthenticationError) as refused:
            stranger.messages.create(model=SMOL, messages=ASKED, max_tokens=1, stream=stream)
        assert refused.error.body["error"]["type"] == "authentication_error"
        with refusal(anthropic.NotFoundError) as refused:
            client.messages.create(model="smoll", messages=ASKED, max_tokens=1, stream=stream)
        assert refused.error.body["error"]["type"] == "not_found_error"
        for fields, named in (
            ({"extra_body": {"temperature": "hot"}}, "temperature"),
            ({"max_tokens": -1}, "max_tokens"),
            ({"messages": []}, "messages"),
            ({"messages": [{"role": "user", "content": "word " * 5000}]}, "token"),
        ):
            body: dict[str, Any] = {"model": SMOL, "messages": ASKED, "max_tokens": 1, "stream": stream} | fields
            with refusal(anthropic.BadRequestError) as refused:
                client.messages.create(**body)
            error = refused.error.body
            assert (error["type"], error["error"]["type"]) == ("error", "invalid_request_error")
            assert named in error["error"]["message"]
            assert refused.error.request_id


def check_what_cannot_be_honoured_is_refused_by_name() -> None:
    search: Any = {"type": "web_search_20250305", "name": "web_search"}
    for fields, named in (
        ({"tools": [search]}, "tools"),
        ({"thinking": {"type": "enabled", "budget_tokens": 1024}, "max_tokens": 2048}, "thinking"),
        ({"messages": [{"role": "user", "content": [PICTURE]}]}, "image"),
    ):
        with refusal(anthropic.BadRequestError) as refused:
            ask(**fields)
        assert named in refused.error.message


PICTURE: Any = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AA=="}}


async def check_async_streams_too() -> None:
    async with anthropic.AsyncAnthropic(base_url=URL, api_key=KEY, max_retries=0, timeout=120) as many:

        async def stream(word: str) -> str:
            async with many.messages.stream(
                model=SMOL, messages=[{"role": "user", "content": f"Say {word}."}], max_tokens=8, extra_body=GREEDY
            ) as events:
                return "".join([text async for text in events.text_stream])

        assert all(await asyncio.gather(*map(stream, ["yes", "no", "maybe"])))


def check_a_stream_that_breaks_off_does_not_look_like_one_that_ended() -> None:
    kinds = []
    with (
        refusal(anthropic.APIStatusError) as refused,
        client.messages.stream(model=HASTY, messages=ASKED, max_tokens=2000, extra_body={"ignore_eos": True}) as stream,
    ):
        for event in stream:
            kinds.append(event.type)  # noqa: PERF401 - what came before the error is wanted
    assert "request_timeout_s" in str(refused.error.body)
    assert "message_stop" not in kinds


def check_a_model_that_loads_is_waited_for_without_a_retry() -> None:
    start_s = time.monotonic()
    raw = usual.messages.with_raw_response.create(model="cold-anthropic", messages=ASKED, max_tokens=4)
    assert raw.parse().stop_reason == "max_tokens"
    assert raw.retries_taken == 0
    assert time.monotonic() - start_s > COLD_S - 0.5, "it was loaded already, so nothing was shown"


def check_pings_of_a_stream_that_waits_are_skipped() -> None:
    start_s = time.monotonic()
    with usual.messages.stream(model="cold-anthropic-stream", messages=ASKED, max_tokens=4) as stream:
        assert time.monotonic() - start_s < COLD_S - 1, "the stream was not opened early"
        kinds = {event.type for event in stream}
        assert stream.get_final_message().stop_reason == "max_tokens"
    assert {"message_start", "message_stop"} <= kinds
    assert "ping" not in kinds
    assert time.monotonic() - start_s > COLD_S - 0.5, "it was loaded already, so nothing was shown"


if __name__ == "__main__":
    main(globals())
