"""Anthropic's dialect of the real SmolLM2 through a real `corral serve`."""

from __future__ import annotations

import json
from typing import Any

from tests.support.real_server import Api

ASK: dict[str, Any] = {
    "model": "main",
    "max_tokens": 8,
    "temperature": 0,
    "messages": [{"role": "user", "content": "Count from one to five."}],
}
LONG = "You are an agent that answers in one short line. " * 25
COUNTED = ("input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens")


async def post(api: Api, path: str, **fields: Any) -> dict[str, Any]:
    async with api.session.post(api.server.url + path, json=ASK | fields) as reply:
        assert reply.status == 200, await reply.text()
        body: dict[str, Any] = await reply.json()
        return body


async def stream(api: Api, **fields: Any) -> list[dict[str, Any]]:
    """Return the events, each named as its type."""
    async with api.session.post(api.server.url + "/v1/messages", json=ASK | fields | {"stream": True}) as reply:
        assert reply.status == 200, await reply.text()
        assert reply.headers["request-id"] == reply.headers["X-Request-Id"]
        text = await reply.text()
    found = []
    for block in text.removesuffix("\n\n").split("\n\n"):
        name, data = block.split("\n")
        found.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {found[-1]['type']}"
    return [event for event in found if event["type"] != "ping"]


def text_of(events: list[dict[str, Any]]) -> str:
    return "".join(event["delta"]["text"] for event in events if event["type"] == "content_block_delta")


async def test_a_stream_says_what_the_whole_message_says(api: Api) -> None:
    whole = await post(api, "/v1/messages", cache_prompt=False)
    events = await stream(api, cache_prompt=False)
    assert [block["type"] for block in whole["content"]] == ["text"]
    assert text_of(events) == whole["content"][0]["text"] != ""
    assert (whole["stop_reason"], whole["usage"]["output_tokens"]) == ("max_tokens", 8)
    assert [event["type"] for event in events if event["type"] != "content_block_delta"] == [
        *("message_start", "content_block_start", "content_block_stop", "message_delta", "message_stop")
    ]
    assert events[-2]["delta"] == {"stop_reason": "max_tokens", "stop_sequence": None}
    assert events[-2]["usage"]["output_tokens"] == 8
    assert whole["model"] == events[0]["message"]["model"] == "main"


async def test_the_first_event_knows_the_prompt_and_what_of_it_was_cached_whatever_line_changes_in_it(api: Api) -> None:
    def system(nonce: str) -> list[dict[str, Any]]:
        header = f"x-anthropic-billing-header: cc_version=1; cch={nonce};"
        return [{"type": "text", "text": text} for text in (header, LONG)]

    counted = await post(api, "/v1/messages/count_tokens", system=system("ccccc"))
    usages = []
    for nonce in ("aaaaa", "bbbbb"):
        events = await stream(api, system=system(nonce))
        usage, end = events[0]["message"]["usage"], events[-2]["usage"]
        assert sum(usage[name] for name in COUNTED) == counted["input_tokens"] > 200
        assert [usage[name] for name in COUNTED] == [end[name] for name in COUNTED]
        usages.append(usage)
    assert usages[1]["cache_read_input_tokens"] > 0.95 * counted["input_tokens"]


async def test_an_answer_continues_the_assistants_words_up_to_a_stop_sequence(api: Api) -> None:
    begun = [*ASK["messages"], {"role": "assistant", "content": "One, two, three,"}]
    message = await post(api, "/v1/messages", messages=begun, stop_sequences=["five"], max_tokens=16)
    assert message["content"] == [{"type": "text", "text": " four, "}]
    assert (message["stop_reason"], message["stop_sequence"]) == ("stop_sequence", "five")


async def test_a_prompt_can_be_computed_without_an_answer(api: Api) -> None:
    words = [{"role": "user", "content": "A question that nobody has asked before: " + "why? " * 20}]
    warmed = await post(api, "/v1/messages", messages=words, max_tokens=0)
    assert (warmed["usage"]["output_tokens"], warmed["content"]) == (0, [{"type": "text", "text": ""}])
    asked = await post(api, "/v1/messages", messages=words)
    assert asked["usage"]["cache_read_input_tokens"] > 0.9 * sum(asked["usage"][name] for name in COUNTED)


async def test_a_prompt_that_is_too_long_is_refused_in_the_words_that_agents_know(api: Api) -> None:
    words = [{"role": "user", "content": "word " * 400}]
    counted = await post(api, "/v1/messages/count_tokens", model="narrow", messages=words)
    body = ASK | {"model": "narrow", "messages": words, "stream": True}
    async with api.session.post(api.server.url + "/v1/messages", json=body) as reply:
        error = (await reply.json())["error"]
    assert reply.status == 400
    assert error == {
        "type": "invalid_request_error",
        "message": f"prompt is too long: {counted['input_tokens']} tokens > 255 maximum",
    }
