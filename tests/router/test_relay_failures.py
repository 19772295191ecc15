"""Whatever goes wrong at a worker looks like a failure to the client, never like a finished answer."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from router.events import ExitReason, WorkerExit
from router.lifecycle import WorkerState
from tests.fakes.supervisor import EVENTS, Received, Sender, make_resident, make_view
from tests.support.http_side import CHAT, http_side
from tests.support.openai_stream import payloads_of
from tests.support.served import until
from worker.contract import ErrorPayload, FrameType, Header, encode_frame

HELLO = {"model": "smol", "messages": [{"role": "user", "content": "hi"}]}
STREAM = HELLO | {"stream": True}
TOO_LONG = ErrorPayload(400, "context_length_exceeded", "2049 tokens are more than 2048", "messages")


# --- errors that the worker tells ---


@pytest.mark.parametrize("body", [HELLO, STREAM])
async def test_error_before_the_first_byte_keeps_its_http_status(body: dict[str, Any]) -> None:
    async def refuse(received: Received, sender: Sender) -> None:
        sender.headers[Header.CONTENT_TYPE] = EVENTS if "stream" in received.body else "application/json"
        await sender.error(TOO_LONG)
        await sender.end("rejected")

    async with http_side() as side:
        side.worker.script = refuse
        reply = await side.client.post(CHAT, json=body)
        assert reply.status == 400
        assert reply.headers["Content-Type"].startswith("application/json")
        assert await reply.json() == {
            "error": {
                "message": TOO_LONG.message,
                "type": "invalid_request_error",
                "param": "messages",
                "code": "context_length_exceeded",
            }
        }
        assert side.num_requests(model="smol", outcome="rejected") == 1


async def test_error_with_advice_to_wait_has_a_retry_after_header() -> None:
    async def busy(received: Received, sender: Sender) -> None:
        await sender.error(ErrorPayload(503, "draining", "going away", None, 1.2))
        await sender.end("rejected")

    async with http_side() as side:
        side.worker.script = busy
        reply = await side.client.post(CHAT, json=HELLO)
        assert (reply.status, reply.headers["Retry-After"]) == (503, "2")


async def test_error_in_an_open_stream_is_its_last_event() -> None:
    async def fail_late(received: Received, sender: Sender) -> None:
        sender.headers[Header.CONTENT_TYPE] = EVENTS
        await sender.data(b'data: {"n":1}\n\n')
        await sender.error(ErrorPayload(500, "engine_failed", "the engine gave up"))
        await sender.end("error")

    async with http_side() as side:
        side.worker.script = fail_late
        reply = await side.client.post(CHAT, json=STREAM)
        first, last = payloads_of(await reply.text())
        assert first == {"n": 1}
        assert last["error"]["code"] == "engine_failed"
        assert side.num_requests(outcome="error") == 1


async def test_error_after_half_an_event_is_still_an_event_of_its_own() -> None:
    async def fail_inside(received: Received, sender: Sender) -> None:
        sender.headers[Header.CONTENT_TYPE] = EVENTS
        await sender.data(b'data: {"n"')
        await sender.error(ErrorPayload(500, "engine_failed", "the engine gave up"))
        await sender.end("error")

    async with http_side() as side:
        side.worker.script = fail_inside
        reply = await side.client.post(CHAT, json=STREAM)
        text = await reply.text()
        assert json.loads(text.split("\n\n")[1].removeprefix("data: "))["error"]["code"] == "engine_failed"


async def test_error_after_a_part_of_a_whole_answer_is_an_http_error() -> None:
    async def fail_late(received: Received, sender: Sender) -> None:
        await sender.data(b'{"text":')
        await sender.error(ErrorPayload(500, "engine_failed", "the engine gave up"))
        await sender.end("error")

    async with http_side() as side:
        side.worker.script = fail_late
        reply = await side.client.post(CHAT, json=HELLO)
        assert reply.status == 500
        assert (await reply.json())["error"]["code"] == "engine_failed"


# --- workers that die or break ---


async def test_stream_whose_worker_dies_ends_with_an_error_and_without_done() -> None:
    async def die(received: Received, sender: Sender) -> None:
        sender.headers[Header.CONTENT_TYPE] = EVENTS
        await sender.data(b'data: {"n":1}\n\n')
        sender.cut()

    exit_ = WorkerExit(ExitReason.CRASHED, "killed by SIGKILL", -9)
    async with http_side() as side:
        side.worker.script = die
        side.supervisor.views["smol"] = make_view("smol", last_exit=exit_)
        reply = await side.client.post(CHAT, json=STREAM)
        first, last = payloads_of(await reply.text())
        assert first == {"n": 1}
        assert last["error"]["code"] == "worker_died"
        assert "killed by SIGKILL" in last["error"]["message"]
        assert side.num_requests(outcome="worker_died") == 1


async def test_body_that_ends_cleanly_without_an_end_frame_is_a_crash() -> None:
    async def forget_the_end(received: Received, sender: Sender) -> None:
        sender.headers[Header.CONTENT_TYPE] = EVENTS
        await sender.data(b"data: 1\n\ndata: [DONE]\n\n")

    async with http_side() as side:
        side.worker.script = forget_the_end
        reply = await side.client.post(CHAT, json=STREAM)
        assert "worker_died" in await reply.text()


async def test_whole_answer_whose_worker_dies_is_a_503() -> None:
    async def die(received: Received, sender: Sender) -> None:
        await sender.data(b'{"text":"half')
        sender.cut()

    async with http_side() as side:
        side.worker.script = die
        reply = await side.client.post(CHAT, json=HELLO)
        assert reply.status == 503
        assert (await reply.json())["error"]["code"] == "worker_died"
        assert int(reply.headers["Retry-After"]) >= 1
        assert len(side.worker.received) == 3, "it may be asked for again, but not for ever"


async def test_cause_of_death_is_waited_for_until_the_fleet_knows_it() -> None:
    async def die(received: Received, sender: Sender) -> None:
        await sender.data(b"x")
        sender.cut()

    async with http_side() as side:
        side.worker.script = die
        side.supervisor.views["smol"] = make_view("smol", WorkerState.READY, residents=(make_resident("smol"),))
        pending = asyncio.ensure_future(side.client.post(CHAT, json=HELLO))
        await side.worker.arrived.wait()
        exit_ = WorkerExit(ExitReason.NO_MEMORY, "out of memory", 66)
        asyncio.get_running_loop().call_later(
            0.05, side.supervisor.views.__setitem__, "smol", make_view("smol", last_exit=exit_)
        )
        reply = await pending
        assert "out of memory" in (await reply.json())["error"]["message"]


async def test_request_that_a_dead_worker_never_read_is_sent_to_the_next_one() -> None:
    async with http_side() as side:
        side.supervisor.sockets = [side.folder / "dead.sock", side.worker.socket_path]
        reply = await side.client.post(CHAT, json=HELLO)
        assert reply.status == 200
        assert len(side.supervisor.granted) == 2
        assert side.num_requests(outcome="ok") == 1


async def test_connection_cut_before_any_reply_is_tried_once_more_and_not_again() -> None:
    async def vanish(received: Received, sender: Sender) -> None:
        sender.cut()

    async with http_side() as side:
        side.worker.script = vanish
        reply = await side.client.post(CHAT, json=HELLO)
        assert reply.status == 503
        assert (await reply.json())["error"]["code"] == "worker_died"
        assert len(side.worker.received) == 2


@pytest.mark.parametrize("body", [HELLO, STREAM])
async def test_request_that_kills_every_worker_that_accepts_it_is_not_sent_for_ever(body: dict[str, Any]) -> None:

    async def die(received: Received, sender: Sender) -> None:
        sender.headers[Header.CONTENT_TYPE] = EVENTS if "stream" in received.body else "application/json"
        await sender.start()
        sender.cut()

    async with http_side() as side:
        side.worker.script = die
        reply = await side.client.post(CHAT, json=body)
        assert reply.status == 503
        error = (await reply.json())["error"]
        assert (error["code"], "before it had an answer" in error["message"]) == ("worker_died", True)
        assert error["message"].endswith(". Please ask again.")
        assert len(side.worker.received) == len(side.supervisor.granted) == 3


@pytest.mark.parametrize("body", [HELLO, STREAM])
async def test_body_is_not_held_while_the_worker_generates(body: dict[str, Any]) -> None:
    generate = asyncio.Event()

    async def generate_long(received: Received, sender: Sender) -> None:
        sender.headers[Header.CONTENT_TYPE] = EVENTS if "stream" in received.body else "application/json"
        await sender.start()
        await generate.wait()
        await sender.data(b"data: 1\n\n")
        await sender.end()

    async with http_side() as side:
        side.worker.script = generate_long
        pending = asyncio.ensure_future(side.client.post(CHAT, json=body))

        async def is_forgotten() -> bool:
            return bool(side.worker.received) and side.body_memory.num_bytes == 0

        await until(is_forgotten, what="a forgotten body")
        assert not pending.done()
        generate.set()
        assert (await pending).status == 200


async def test_junk_in_place_of_frames_is_an_error_of_the_server() -> None:
    async def junk(received: Received, sender: Sender) -> None:
        await sender.raw(b"<html>not frames</html>")

    async with http_side() as side:
        side.worker.script = junk
        reply = await side.client.post(CHAT, json=HELLO)
        assert (reply.status, (await reply.json())["error"]["code"]) == (500, "broken_reply")


async def test_reply_that_is_not_framed_is_an_error_of_the_server() -> None:
    async def unframed(received: Received, sender: Sender) -> None:
        sender.headers["Content-Type"] = "text/html"
        await sender.raw(b"hello")

    async with http_side() as side:
        side.worker.script = unframed
        reply = await side.client.post(CHAT, json=HELLO)
        assert (reply.status, (await reply.json())["error"]["code"]) == (500, "broken_reply")


@pytest.mark.parametrize("payload", [b"not json", b"[]"])
async def test_unreadable_error_frame_is_an_error_of_the_server(payload: bytes) -> None:
    async def bad_error(received: Received, sender: Sender) -> None:
        await sender.raw(encode_frame(FrameType.ERROR, payload))

    async with http_side() as side:
        side.worker.script = bad_error
        assert (await side.client.post(CHAT, json=HELLO)).status == 500


async def test_end_that_tells_a_failure_without_a_reason_is_not_a_success() -> None:
    async def give_up(received: Received, sender: Sender) -> None:
        await sender.data(b"{}")
        await sender.end("error")

    async with http_side() as side:
        side.worker.script = give_up
        assert (await side.client.post(CHAT, json=HELLO)).status == 500
