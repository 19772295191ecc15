"""Anthropic's dialect through the router: errors, streams, pings and ids are what its clients expect."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from router.errors import ModelUnavailable, RouterError, TooManyRequests
from tests.fakes.supervisor import EVENTS, Received, Sender
from tests.support.http_side import http_side, make_catalog, make_spec
from worker.contract import ErrorPayload, Header

MESSAGES = "/v1/messages"
COUNT = "/v1/messages/count_tokens"
HELLO: dict[str, Any] = {"model": "smol", "max_tokens": 5, "messages": [{"role": "user", "content": "hi"}]}
STREAM = HELLO | {"stream": True}
START = b'event: message_start\ndata: {"type":"message_start"}\n\n'
STOP = b'event: message_stop\ndata: {"type":"message_stop"}\n\n'
PING = b'event: ping\ndata: {"type":"ping"}\n\n'


async def say(received: Received, sender: Sender) -> None:
    if received.body.get("stream"):
        sender.headers[Header.CONTENT_TYPE] = EVENTS
        await sender.data(START)
        await sender.data(STOP)
    else:
        await sender.data(b'{"type":"message"}')
    await sender.end()


async def refuse(received: Received, sender: Sender) -> None:
    await sender.error(ErrorPayload(400, "context_length_exceeded", "prompt is too long: 9 tokens > 8 maximum", "x"))
    await sender.end("rejected")


async def error_of(reply: Any, status: int, type_: str) -> str:
    """Return the message of an error in Anthropic's shape, with the id of its request in all places."""
    assert reply.status == status
    assert reply.content_type == "application/json"
    body = await reply.json()
    assert body.keys() == {"type", "error", "request_id"}
    assert (body["type"], body["error"]["type"]) == ("error", type_)
    assert body["error"].keys() == {"type", "message"}
    assert body["request_id"] == reply.headers["request-id"] == reply.headers["X-Request-Id"]
    return str(body["error"]["message"])


# --- replies ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", [MESSAGES, COUNT])
async def test_requests_go_to_the_worker_whatever_betas_they_name(path: str) -> None:
    async with http_side() as side:
        side.worker.script = say
        headers = {"anthropic-version": "2023-06-01", "anthropic-beta": "nobody-knows-2031-01-01,other"}
        reply = await side.client.post(f"{path}?beta=true", json=HELLO, headers=headers)
        assert (reply.status, await reply.json()) == (200, {"type": "message"})
        assert reply.headers["request-id"] == reply.headers["X-Request-Id"]
        (received,) = side.worker.received
        assert (received.path, received.body) == (path, HELLO)
        assert not any(name.lower().startswith("anthropic-") for name in received.headers)


async def test_a_stream_has_the_headers_that_keep_proxies_from_holding_it_back_each_once() -> None:
    async with http_side() as side:
        side.worker.script = say
        reply = await side.client.post(MESSAGES, json=STREAM)
        assert await reply.read() == START + STOP
        for name, value in {
            "Content-Type": "text/event-stream",
            "Cache-Control": "no-cache",
            "X-Accel-Buffering": "no",
            "request-id": reply.headers["X-Request-Id"],
        }.items():
            assert reply.headers.getall(name) == [value]


async def test_a_silent_stream_is_pinged_by_events_from_before_its_first_one() -> None:
    release = asyncio.Event()

    async def wait(received: Received, sender: Sender) -> None:
        sender.headers[Header.CONTENT_TYPE] = EVENTS
        await sender.start()
        await release.wait()
        await sender.data(START + STOP)
        await sender.end()

    async with http_side(stream_open_after_s=0.01, ping_interval_s=0.02) as side:
        side.worker.script = wait
        reply = await side.client.post(MESSAGES, json=STREAM)
        assert await reply.content.readexactly(2 * len(PING)) == 2 * PING
        release.set()
        rest = await reply.read()
        assert rest.replace(PING, b"") == START + STOP


async def test_a_chat_stream_stays_openais_whatever_headers_come_with_it() -> None:
    release = asyncio.Event()

    async def wait(received: Received, sender: Sender) -> None:
        sender.headers[Header.CONTENT_TYPE] = EVENTS
        await sender.start()
        await release.wait()
        await sender.end()

    async with http_side(stream_open_after_s=0.01) as side:
        side.worker.script = wait
        headers = {"anthropic-version": "2023-06-01"}
        reply = await side.client.post("/v1/chat/completions", json=STREAM, headers=headers)
        assert await reply.content.readline() == b": ping\n"
        release.set()
        await reply.read()


# --- errors -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", [MESSAGES, COUNT])
async def test_overflow_is_told_in_the_words_that_agents_know(path: str) -> None:
    async with http_side() as side:
        side.worker.script = refuse
        message = await error_of(await side.client.post(path, json=HELLO), 400, "invalid_request_error")
        assert message == "prompt is too long: 9 tokens > 8 maximum"


async def test_unknown_model_is_a_404_with_the_nearest_name() -> None:
    async with http_side() as side:
        reply = await side.client.post(MESSAGES, json=HELLO | {"model": "smoll"})
        assert "`smol`" in await error_of(reply, 404, "not_found_error")


@pytest.mark.parametrize("path", ["/v1/messagez", "/v1/messages/count"])
async def test_unknown_address_near_theirs_is_a_404_in_their_shape(path: str) -> None:
    async with http_side() as side:
        reply = await side.client.post(path, json=HELLO, headers={"anthropic-version": "2023-06-01"})
        assert "/v1/messages" in await error_of(reply, 404, "not_found_error")


async def test_wrong_method_is_a_405_in_their_shape() -> None:
    async with http_side() as side:
        await error_of(await side.client.get(MESSAGES), 405, "invalid_request_error")


async def test_keys_come_as_x_api_key_or_as_a_bearer_and_a_wrong_one_is_a_401() -> None:
    async with http_side(keys={"api_keys": ("secret",)}) as side:
        side.worker.script = say
        for headers in ({"x-api-key": "secret"}, {"Authorization": "Bearer secret"}):
            assert (await side.client.post(MESSAGES, json=HELLO, headers=headers)).status == 200
        reply = await side.client.post(MESSAGES, json=HELLO, headers={"x-api-key": "wrong"})
        await error_of(reply, 401, "authentication_error")


async def test_wrong_json_and_wrong_types_are_a_400_in_their_shape() -> None:
    async with http_side() as side:
        for body in (b"{", b"[]", b'{"model": 5}'):
            reply = await side.client.post(MESSAGES, data=body, headers={"Content-Type": "application/json"})
            await error_of(reply, 400, "invalid_request_error")


async def test_a_body_that_is_too_long_is_a_413_in_their_shape() -> None:
    catalog = make_catalog(make_spec("smol"))
    async with http_side(catalog) as side:
        body = HELLO | {"messages": "x" * (catalog.limits.max_body_bytes + 1)}
        await error_of(await side.client.post(MESSAGES, json=body), 413, "request_too_large")


@pytest.mark.parametrize(
    ("refusal", "status", "type_"),
    [
        (TooManyRequests("the line is full", retry_after_s=2.0), 429, "rate_limit_error"),
        (ModelUnavailable("it fails to load", retry_after_s=3.0), 503, "overloaded_error"),
    ],
)
async def test_who_must_wait_is_told_for_how_long(refusal: RouterError, status: int, type_: str) -> None:
    async with http_side() as side:
        side.supervisor.refusal = refusal
        reply = await side.client.post(MESSAGES, json=STREAM)
        assert await error_of(reply, status, type_) == str(refusal)
        assert reply.headers["Retry-After"] == str(int(refusal.retry_after_s or 0))


async def test_a_fault_is_a_500_in_their_shape() -> None:
    async def fail(received: Received, sender: Sender) -> None:
        await sender.error(ErrorPayload(500, "engine_error", "it broke"))
        await sender.end("error")

    async with http_side() as side:
        side.worker.script = fail
        assert await error_of(await side.client.post(MESSAGES, json=HELLO), 500, "api_error") == "it broke"


@pytest.mark.parametrize("dies", [True, False])
async def test_a_failure_in_an_open_stream_is_an_error_event_and_no_end(dies: bool) -> None:
    async def break_off(received: Received, sender: Sender) -> None:
        sender.headers[Header.CONTENT_TYPE] = EVENTS
        await sender.data(START)
        if dies:
            sender.cut()
        else:
            await sender.error(ErrorPayload(500, "engine_error", "it broke"))
            await sender.end("error")

    async with http_side() as side:
        side.worker.script = break_off
        reply = await side.client.post(MESSAGES, json=STREAM)
        assert reply.status == 200
        text = (await reply.read()).decode()
        start, error, rest = text.split("\n\n")
        assert (f"{start}\n\n".encode(), rest) == (START, "")
        name, data = error.split("\n")
        body = json.loads(data.removeprefix("data: "))
        assert (name, body["type"]) == ("event: error", "error")
        assert body["error"]["type"] == ("overloaded_error" if dies else "api_error")
        assert body["request_id"] == reply.headers["request-id"]
        assert "message_stop" not in text


@pytest.mark.parametrize(
    ("method", "path"),
    [("post", "/v1/messages/batches"), ("get", "/v1/messages/batches"), ("get", "/v1/messages/batches/b1/results")],
)
async def test_batches_are_a_501_that_says_what_to_use(method: str, path: str) -> None:
    async with http_side() as side:
        reply = await side.client.request(method, path)
        assert "POST /v1/messages" in await error_of(reply, 501, "api_error")
        assert reply.headers["x-should-retry"] == "false"


# --- lists of models --------------------------------------------------------------------------------------

THEIRS = {"anthropic-version": "2023-06-01"}


async def page(side: Any, **query: str) -> dict[str, Any]:
    reply = await side.client.get("/v1/models", params=query, headers=THEIRS)
    assert reply.status == 200
    assert reply.headers["request-id"]
    body: dict[str, Any] = await reply.json()
    return body


def ids(body: dict[str, Any]) -> list[str]:
    return [entry["id"] for entry in body["data"]]


async def test_models_are_listed_in_their_shape_for_those_who_name_its_version() -> None:
    async with http_side() as side:
        body = await page(side)
        assert ids(body) == ["smol", "gpt", "org/smol:fast", "gem"]
        assert body["data"][0] == {
            "type": "model",
            "id": "smol",
            "display_name": "smol",
            "created_at": "2023-11-14T22:13:20Z",
            "lifecycle": "active",
            "max_input_tokens": 2048,
            "max_tokens": 2048,
        }
        assert (body["first_id"], body["last_id"], body["has_more"]) == ("smol", "gem", False)
        assert (await (await side.client.get("/v1/models")).json())["object"] == "list", "others get OpenAI's"


async def test_pages_of_models_lead_to_all_of_them_in_both_directions() -> None:
    async with http_side() as side:
        first = await page(side, limit="3")
        assert (ids(first), first["has_more"]) == (["smol", "gpt", "org/smol:fast"], True)
        second = await page(side, limit="3", after_id=first["last_id"])
        assert (ids(second), second["has_more"], second["first_id"]) == (["gem"], False, "gem")
        back = await page(side, limit="2", before_id="gem")
        assert (ids(back), back["has_more"]) == (["gpt", "org/smol:fast"], True)
        assert (ids(await page(side, limit="2", before_id="gpt"))) == ["smol"]
        empty = await page(side, after_id="gem")
        assert empty == {"data": [], "first_id": None, "last_id": None, "has_more": False}


async def test_a_page_has_twenty_models_unless_more_are_asked_for() -> None:
    async with http_side(make_catalog(*(make_spec(f"m{number}", context=64) for number in range(25)))) as side:
        assert (len(ids(await page(side))), (await page(side))["has_more"]) == (20, True)
        assert len(ids(await page(side, limit="1000"))) == 25


@pytest.mark.parametrize(
    "query",
    [{"limit": "0"}, {"limit": "1001"}, {"limit": "x"}, {"after_id": "nope"}, {"after_id": "smol", "before_id": "gem"}],
)
async def test_a_page_that_cannot_be_is_a_400_in_their_shape(query: dict[str, str]) -> None:
    async with http_side() as side:
        reply = await side.client.get("/v1/models", params=query, headers=THEIRS)
        await error_of(reply, 400, "invalid_request_error")


async def test_one_model_is_found_by_every_name_and_an_unknown_one_is_a_404() -> None:
    async with http_side() as side:
        for name in ("smol", "org/smol:fast", "secret"):
            found = await (await side.client.get(f"/v1/models/{name}", headers=THEIRS)).json()
            assert (found["type"], found["id"]) == ("model", name)
        reply = await side.client.get("/v1/models/smoll", headers=THEIRS)
        assert "`smol`" in await error_of(reply, 404, "not_found_error")
