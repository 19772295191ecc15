"""Models on other servers that fail, refuse or say nothing: what the client is told, and whose fault it is."""

from __future__ import annotations

import asyncio
import gzip
import json
import socket
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from router.catalog_files import load_catalog
from tests.fakes.other_server import EVENTS, other_server
from tests.support.far_side import ASK, far, far_side
from tests.support.http_side import CHAT, http_side, make_catalog
from tests.support.self_signed import self_signed_server
from tests.support.served import until

JSON = {"Content-Type": "application/json"}

# --- errors of the other server ---------------------------------------------------------------------------


@pytest.mark.parametrize("stream", [True, False])
async def test_an_error_keeps_its_status_and_its_body(stream: bool) -> None:
    error = {"error": {"message": "too long", "type": "x", "code": "context_length_exceeded", "param": None, "n": 1}}

    async def refuse(_: web.Request) -> web.StreamResponse:
        return web.json_response(error, status=400)

    async with far_side() as (side, other):
        other.script = refuse
        reply = await side.client.post(CHAT, json=ASK | {"stream": stream})
        assert (reply.status, await reply.json()) == (400, error)
        assert reply.headers["X-Corral-Model"] == "big"
        assert side.num_requests(model="big", outcome="rejected") == 1


@pytest.mark.parametrize(
    "error",
    [
        {"error": {"message": "slow down", "code": 429}},
        {"error": "slow down"},
        {"object": "error", "message": "slow down", "code": 42901},
        {"detail": "slow down"},
    ],
)
async def test_every_usual_form_of_an_error_passes_with_its_advice_to_wait(error: dict[str, Any]) -> None:
    async def refuse(_: web.Request) -> web.StreamResponse:
        return web.json_response(error, status=429, headers={"Retry-After": "17"})

    async with far_side() as (side, other):
        other.script = refuse
        reply = await side.client.post(CHAT, json=ASK)
        assert (reply.status, await reply.json(), reply.headers["Retry-After"]) == (429, error, "17")


@pytest.mark.parametrize("status", [401, 403])
async def test_a_refusal_of_the_routers_key_does_not_look_like_one_of_the_clients(
    status: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def refuse(_: web.Request) -> web.StreamResponse:
        return web.json_response({"error": {"message": "Incorrect API key provided: sk-o***"}}, status=status)

    monkeypatch.setenv("BIG_KEY", "sk-ours")
    async with far_side(key_env="BIG_KEY") as (side, other):
        other.script = refuse
        reply = await side.client.post(CHAT, json=ASK)
        error = (await reply.json())["error"]
        assert (reply.status, error["code"]) == (502, "remote_refused")
        assert "refuses this server, not you" in error["message"]
        assert "sk-o" not in error["message"]
        assert "BIG_KEY" in caplog.text, "the operator is told which variable it is"
        assert "sk-ours" not in caplog.text


@pytest.mark.parametrize("status", [404, 413, 429, 503])
async def test_a_refusal_without_a_reason_that_can_be_read_keeps_its_status_and_its_advice(status: int) -> None:
    async def refuse(_: web.Request) -> web.StreamResponse:
        return web.Response(
            status=status, text="<html>busy", content_type="text/html", headers={"Retry-After": "999999999"}
        )

    async with far_side() as (side, other):
        other.script = refuse
        reply = await side.client.post(CHAT, json=ASK)
        error = (await reply.json())["error"]
        assert (reply.status, error["code"], reply.headers["Retry-After"]) == (status, "remote_failed", "3600")
        assert f"HTTP {status} and no reason" in error["message"]


async def test_an_error_that_is_compressed_against_our_wish_is_not_unpacked() -> None:
    async def refuse(_: web.Request) -> web.StreamResponse:
        body = gzip.compress(b'{"error": "so many bytes"}')
        return web.Response(status=422, body=body, headers=JSON | {"Content-Encoding": "gzip"})

    async with far_side() as (side, other):
        other.script = refuse
        reply = await side.client.post(CHAT, json=ASK)
        assert (reply.status, (await reply.json())["error"]["code"]) == (422, "remote_failed")


@pytest.mark.parametrize("status", [200, 400, 500])
async def test_the_routers_key_is_taken_out_of_an_error_that_repeats_it(
    status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refuse(_: web.Request) -> web.StreamResponse:
        return web.json_response({"error": {"message": "bad key sk-ours, no sk-ours"}}, status=status)

    monkeypatch.setenv("BIG_KEY", "sk-ours")
    async with far_side(key_env="BIG_KEY") as (side, other):
        other.script = refuse
        reply = await side.client.post(CHAT, json=ASK)
        assert (reply.status, (await reply.json())["error"]["message"]) == (status, "bad key ***, no ***")


async def test_the_routers_key_is_taken_out_of_an_error_in_an_open_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BIG_KEY", "sk-ours")
    async with other_server() as other:
        catalog = make_catalog(far(other.url, key_env="BIG_KEY"))
        async with http_side(catalog, stream_open_after_s=0.02) as side:

            async def refuse_late(_: web.Request) -> web.StreamResponse:
                await other.go_on.wait()
                return web.json_response({"error": {"message": "bad key sk-ours"}})

            other.script = refuse_late
            reply = await side.client.post(CHAT, json=ASK | {"stream": True})
            assert await reply.content.readuntil(b"\n\n") == b": ping\n\n"
            other.go_on.set()
            rest = await reply.content.read()
            assert json.loads(rest.removeprefix(b"data: "))["error"]["message"] == "bad key ***"


async def test_a_key_that_is_not_set_is_told_without_the_address_that_it_is_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("BIG_KEY", raising=False)
    path = tmp_path / "models.yaml"
    path.write_text("models: {big: {url: 'http://10.11.12.13:8000/v1', url_key_env: BIG_KEY}}\n")
    async with http_side(load_catalog(path)) as side:
        reply = await side.client.post(CHAT, json=ASK)
        text = await reply.text()
        assert (reply.status, "BIG_KEY is not set" in text, "10.11.12.13" in text) == (503, True, False)


async def test_an_error_in_a_stream_that_waited_long_is_its_last_event() -> None:
    async with other_server() as other, http_side(make_catalog(far(other.url)), stream_open_after_s=0.02) as side:

        async def refuse_late(_: web.Request) -> web.StreamResponse:
            await other.go_on.wait()
            return web.json_response({"error": {"message": "no luck"}}, status=500)

        other.script = refuse_late
        reply = await side.client.post(CHAT, json=ASK | {"stream": True})
        assert await reply.content.readuntil(b"\n\n") == b": ping\n\n"
        other.go_on.set()
        rest = await reply.content.read()
        assert json.loads(rest.removeprefix(b"data: "))["error"]["message"] == "no luck"


@pytest.mark.parametrize(
    ("response", "words"),
    [
        (web.Response(status=200, text="<html>", content_type="text/html"), "answered with text/html"),
        (web.Response(status=500, text="<html>", content_type="text/html"), "failed with HTTP 500"),
        (web.Response(status=204), "failed with HTTP 204"),
        (web.Response(status=302, headers={"Location": "http://169.254.169.254/"}), "redirects to another address"),
        (web.Response(status=200, body=b"x", headers={"Content-Type": "nonsense"}), "answered with"),
        (web.Response(status=200, text="<html>", content_type="application/json"), "calls its answer JSON"),
        (web.Response(status=200, body=b"[" * 100_000, content_type="application/json"), "calls its answer JSON"),
        (
            web.Response(status=200, body=gzip.compress(b"{}"), headers=JSON | {"Content-Encoding": "gzip"}),
            "in the encoding 'gzip'",
        ),
        (web.Response(status=999, text='{"error": "no"}', content_type="application/json"), "failed with HTTP 999"),
    ],
)
async def test_what_is_no_answer_of_such_an_api_is_told_as_a_failure_of_the_other_server(
    response: web.Response, words: str
) -> None:
    async def answer(_: web.Request) -> web.StreamResponse:
        return web.Response(status=response.status, body=response.body, headers=response.headers)

    async with far_side() as (side, other):
        other.script = answer
        reply = await side.client.post(CHAT, json=ASK)
        error = (await reply.json())["error"]
        assert (reply.status, error["code"]) == (502, "remote_failed")
        assert words in error["message"]
        assert "169.254" not in error["message"]
        assert len(other.asked) == 1
        assert side.num_requests(model="big", outcome="error") == 1


async def test_a_stream_that_was_asked_for_is_a_stream_or_an_error() -> None:
    async def answer(_: web.Request) -> web.StreamResponse:
        return web.json_response(answers.pop(0))

    async with far_side() as (side, other):
        other.script = answer
        answers: list[dict[str, Any]] = [{"choices": []}, {"error": {"message": "no luck"}}]
        reply = await side.client.post(CHAT, json=ASK | {"stream": True})
        error = (await reply.json())["error"]
        assert (reply.status, error["code"]) == (502, "remote_failed")
        assert "no event stream" in error["message"]
        reply = await side.client.post(CHAT, json=ASK | {"stream": True})
        assert await reply.json() == {"error": {"message": "no luck"}}


async def test_answers_that_are_held_count_with_the_bodies_that_are_held() -> None:
    async def answer(_: web.Request) -> web.StreamResponse:
        return web.json_response({"long": "x" * 100_000})

    async with other_server() as other, http_side(make_catalog(far(other.url)), max_body_memory=50_000) as side:
        other.script = answer
        reply = await side.client.post(CHAT, json=ASK)
        assert (reply.status, (await reply.json())["error"]["code"]) == (429, "too_many_bytes")
        await until(lambda: side.body_memory.num_bytes == 0)


@pytest.mark.parametrize("chunks", [EVENTS[:1], (EVENTS[0], b'data: {"choi')])
async def test_a_stream_that_is_cut_off_never_looks_like_a_finished_one(chunks: tuple[bytes, ...]) -> None:
    async with far_side() as (side, other):

        async def cut(request: web.Request) -> web.StreamResponse:
            response = await other.stream(request, *chunks)
            assert request.transport is not None
            request.transport.abort()
            return response

        other.script = cut
        reply = await side.client.post(CHAT, json=ASK | {"stream": True})
        *_, last, end = (await reply.read()).split(b"\n\n")
        assert end == b""
        assert json.loads(last.removeprefix(b"data: "))["error"]["code"] == "remote_failed"
        assert side.num_requests(model="big", outcome="error") == 1


async def test_a_stream_that_ends_without_a_reason_never_looks_like_a_finished_one() -> None:
    async with far_side() as (side, other):
        other.script = lambda request: other.stream(request, EVENTS[0])
        reply = await side.client.post(CHAT, json=ASK | {"stream": True})
        assert b"ended the answer before it was complete" in await reply.read()


async def test_an_error_event_of_the_other_server_passes_and_is_counted() -> None:
    events = (EVENTS[0], b'data: {"error":{"message":"its worker died","code":"worker_died"}}\n\n')
    async with far_side() as (side, other):
        other.script = lambda request: other.stream(request, *events)
        reply = await side.client.post(CHAT, json=ASK | {"stream": True})
        assert await reply.read() == b"".join(events)
        assert side.num_requests(model="big", outcome="error") == 1


async def test_an_answer_that_is_cut_off_is_a_502_and_not_half_an_answer() -> None:
    async def cut(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "application/json", "Content-Length": "100"})
        await response.prepare(request)
        await response.write(b'{"choices":')
        assert request.transport is not None
        request.transport.close()
        return response

    async with far_side() as (side, other):
        other.script = cut
        assert (await side.client.post(CHAT, json=ASK)).status == 502


# --- no answer at all -------------------------------------------------------------------------------------


async def test_a_server_that_cannot_be_reached_is_a_503_that_does_not_show_its_address() -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        port = closed.getsockname()[1]
        async with http_side(make_catalog(far(f"http://127.0.0.1:{port}/v1"))) as side:
            reply = await side.client.post(CHAT, json=ASK | {"model": "big"})
            error = (await reply.json())["error"]
            assert (reply.status, error["code"], reply.headers["Retry-After"]) == (503, "remote_unreachable", "5")
            assert "cannot be reached: connection refused" in error["message"]
            assert str(port) not in error["message"]


async def test_a_server_that_has_just_closed_a_kept_connection_is_asked_once_more() -> None:
    async with far_side() as (side, other):

        async def hang_up(request: web.Request) -> web.StreamResponse:
            if len(other.asked) == 1:
                assert request.transport is not None
                request.transport.abort()
            return await other.say_hey(request)

        other.script = hang_up
        assert (await side.client.post(CHAT, json=ASK)).status == 200
        assert len(other.asked) == 2


async def test_a_server_that_always_hangs_up_is_asked_twice_and_no_more() -> None:
    async with far_side() as (side, other):

        async def hang_up(request: web.Request) -> web.StreamResponse:
            assert request.transport is not None
            request.transport.abort()
            return web.Response()

        other.script = hang_up
        reply = await side.client.post(CHAT, json=ASK)
        assert (reply.status, len(other.asked)) == (503, 2)


async def test_a_server_with_a_certificate_that_nobody_vouches_for_is_not_asked() -> None:
    async with other_server(self_signed_server()) as other, http_side(make_catalog(far(other.url))) as side:
        reply = await side.client.post(CHAT, json=ASK)
        error = (await reply.json())["error"]
        assert (reply.status, error["code"]) == (502, "remote_failed")
        assert "certificate" in error["message"]
        assert other.asked == []


async def test_proxies_of_the_environment_are_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    async with far_side() as (side, _):
        assert (await side.client.post(CHAT, json=ASK)).status == 200


@pytest.mark.parametrize("stream", [True, False])
async def test_an_answer_may_take_as_long_as_the_model_allows(stream: bool) -> None:
    async with far_side(request_timeout_s=0.05) as (side, other):
        other.script = other.wait
        reply = await side.client.post(CHAT, json=ASK | {"stream": stream})
        assert (reply.status, (await reply.json())["error"]["code"]) == (503, "request_timeout")
        await asyncio.wait_for(other.aborted.wait(), 5)
        assert side.num_requests(model="big", outcome="timeout") == 1


@pytest.mark.parametrize("stream", [True, False])
async def test_a_client_that_leaves_ends_its_request_at_the_other_server(stream: bool) -> None:
    async with far_side() as (side, other):
        other.script = other.wait
        asking = asyncio.create_task(side.client.post(CHAT, json=ASK | {"stream": stream}))
        await asyncio.wait_for(other.arrived.wait(), 5)
        asking.cancel()
        await asyncio.wait_for(other.aborted.wait(), 5)
        assert other.num_aborted == 1
