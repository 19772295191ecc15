"""Responses that are kept in the router: going on from them, reading and deleting them, and whose they are."""

from __future__ import annotations

import gzip
import json
from dataclasses import replace
from typing import Any

import pytest

from router.catalog import RequestRules
from router.dialects import Dialect, error_event
from tests.fakes.other_server import other_server
from tests.fakes.supervisor import EVENTS, Received, Sender
from tests.support.far_side import far, far_side
from tests.support.http_side import HttpSide, http_side, make_catalog, make_spec
from tests.support.openai_types import response_events, strict_event, strict_items
from worker.contract import ErrorPayload, FrameType, Header, encode_frame

PATH = "/v1/responses"
ASK = {"model": "smol", "input": "hi"}


def item(number: int, role: str = "user") -> dict[str, Any]:
    kind = "output_text" if role == "assistant" else "input_text"
    part = {"type": kind, "text": str(number)} | ({"annotations": []} if role == "assistant" else {})
    return {"type": "message", "id": f"msg_{number}", "role": role, "content": [part], "status": "completed"}


def lines(response_id: str, *items: dict[str, Any]) -> bytes:
    """Return what a worker gives of a response whose answer is the last item."""
    head = {"id": response_id, "num_input_items": len(items) - 1}
    return b"\n".join(json.dumps(one).encode() for one in (head, {"id": response_id, "object": "response"}, *items))


def history_of(received: Received) -> bytes:
    return received.raw[: int(received.headers.get(Header.HISTORY_BYTES, "0"))]


def body_of(received: Received) -> Any:
    return json.loads(received.raw[len(history_of(received)) :])


def keeping(*items: dict[str, Any]) -> Any:
    """Return a script that answers and has `items` kept under the request's id."""

    async def answer(received: Received, sender: Sender) -> None:
        response_id = f"resp_{received.headers[Header.REQUEST_ID]}"
        await sender.raw(encode_frame(FrameType.STORE, lines(response_id, *items)))
        await sender.data(json.dumps({"id": response_id}).encode())
        await sender.end()

    return answer


async def ask(side: HttpSide, *items: dict[str, Any], key: str = "", **fields: Any) -> str:
    """Return the id of a response that is kept with `items`."""
    side.worker.script = keeping(*(items or (item(1), item(2, "assistant"))))
    reply = await side.client.post(PATH, json=ASK | fields, headers=bearer(key))
    assert reply.status == 200, await reply.text()
    return str((await reply.json())["id"])


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"} if key else {}


# --- going on -------------------------------------------------------------------------------------------


async def test_a_request_goes_on_with_the_items_that_were_kept_in_front_of_its_body() -> None:
    async with http_side() as side:
        first = await ask(side)
        await ask(side, item(1), item(2, "assistant"), item(3), item(4, "assistant"), previous_response_id=first)
        before, after = side.worker.received
        assert history_of(before) == b""
        assert [json.loads(line)["id"] for line in history_of(after).split(b"\n")] == ["msg_1", "msg_2"]
        assert body_of(after) == ASK | {"previous_response_id": first}


async def test_a_conversation_goes_on_with_another_model_and_under_its_rules() -> None:
    rules = RequestRules(force={"temperature": 0.5}, drop=("user",))
    catalog = make_catalog(make_spec("smol"), make_spec("gem", request=rules))
    async with http_side(catalog) as side:
        first = await ask(side)
        await ask(side, model="gem", user="u", previous_response_id=first)
        received = side.worker.received[-1]
        assert history_of(received).count(b"\n") == 1
        assert body_of(received) == {
            "model": "gem",
            "input": "hi",
            "previous_response_id": first,
            "temperature": 0.5,
        }


@pytest.mark.parametrize("path", [PATH, "/responses", "/v1/responses/input_tokens"])
async def test_a_response_that_is_not_kept_is_refused_as_openai_does(path: str) -> None:
    async with http_side() as side:
        reply = await side.client.post(path, json=ASK | {"previous_response_id": "resp_x"})
        error = (await reply.json())["error"]
        assert reply.status == 400
        assert error["code"] == "previous_response_not_found"
        assert error["param"] == "previous_response_id"
        assert error["message"].startswith("Previous response with id 'resp_x' not found.")
        assert side.worker.received == []


async def test_a_previous_response_must_be_named_by_a_string() -> None:
    async with http_side() as side:
        reply = await side.client.post(PATH, json=ASK | {"previous_response_id": 5})
        assert (reply.status, (await reply.json())["error"]["param"]) == (400, "previous_response_id")


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
async def test_other_routes_do_not_go_on_from_responses(path: str) -> None:
    async with http_side() as side:
        first = await ask(side)
        reply = await side.client.post(path, json={"model": "smol", "previous_response_id": first})
        error = (await reply.json())["error"]
        assert (reply.status, error["code"], error["param"]) == (400, "unsupported_parameter", "previous_response_id")


async def test_a_request_that_no_worker_accepted_is_sent_again_with_its_history() -> None:
    async with http_side() as side:
        first = await ask(side)
        answer = keeping(item(1), item(2, "assistant"))
        times = 0

        async def die_once(received: Received, sender: Sender) -> None:
            nonlocal times
            times += 1
            if times == 1:
                sender.cut()
            else:
                await answer(received, sender)

        side.worker.script = die_once
        reply = await side.client.post(PATH, json=ASK | {"previous_response_id": first})
        assert reply.status == 200
        assert times == 2
        assert side.worker.received[-1].raw == side.worker.received[-2].raw
        assert history_of(side.worker.received[-1])


async def test_the_memory_for_bodies_counts_the_history_and_gets_it_back() -> None:
    async with http_side(max_body_memory=20_000) as side:
        first = await ask(side, item(1) | {"padding": "x" * 30_000}, item(2, "assistant"))
        reply = await side.client.post(PATH, json=ASK | {"previous_response_id": first})
        assert (reply.status, (await reply.json())["error"]["code"]) == (429, "too_many_bytes")
        assert side.body_memory.num_bytes == 0


async def test_bodies_that_come_compressed_go_on_too() -> None:
    async with http_side() as side:
        first = await ask(side)
        data = gzip.compress(json.dumps(ASK | {"previous_response_id": first}).encode())
        headers = {"Content-Type": "application/json", "Content-Encoding": "gzip"}
        assert (await side.client.post(PATH, data=data, headers=headers)).status == 200
        assert body_of(side.worker.received[-1])["input"] == "hi"


async def test_a_conversation_goes_to_the_worker_that_had_it_last() -> None:
    async with http_side(make_catalog(make_spec("smol", replicas=2))) as side:
        first = await ask(side, instructions="x" * 400)
        second = await ask(side, previous_response_id=first)
        await ask(side, previous_response_id=second)
        one, two, three = side.supervisor.prefixes
        assert two[: len(one)] == one
        assert three[: len(two)] == two
        assert len({len(one), len(two), len(three)}) == 3


async def test_what_a_worker_wants_to_have_kept_must_make_sense() -> None:
    async def junk(_: Received, sender: Sender) -> None:
        await sender.raw(encode_frame(FrameType.STORE, b"junk"))
        await sender.end()

    async with http_side() as side:
        side.worker.script = junk
        reply = await side.client.post(PATH, json=ASK)
        assert (reply.status, (await reply.json())["error"]["code"]) == (500, "broken_reply")


async def test_a_stream_can_be_gone_on_from_as_soon_as_its_client_has_its_end() -> None:
    async with http_side() as side:

        async def told_slowly(received: Received, sender: Sender) -> None:
            response_id = f"resp_{received.headers[Header.REQUEST_ID]}"
            sender.headers[Header.CONTENT_TYPE] = EVENTS
            await sender.raw(encode_frame(FrameType.STORE, lines(response_id, item(1), item(2, "assistant"))))
            await sender.data(b'data: {"id":"%b"}\n\n' % response_id.encode())
            await side.worker.aborted.wait()  # it never ends

        side.worker.script = told_slowly
        reply = await side.client.post(PATH, json=ASK | {"stream": True})
        event = json.loads((await reply.content.readuntil(b"\n\n")).removeprefix(b"data: "))
        assert (await side.client.get(f"{PATH}/{event['id']}")).status == 200
        reply.close()


# --- reading and deleting -------------------------------------------------------------------------------


@pytest.mark.parametrize("prefix", ["/v1", ""])
async def test_a_response_is_read_as_it_was_and_deleted(prefix: str) -> None:
    async with http_side() as side:
        path = f"{prefix}/responses/{await ask(side)}"
        reply = await side.client.get(path)
        assert await reply.json() == {"id": path.rpartition("/")[2], "object": "response"}
        assert (await (await side.client.delete(path)).json())["deleted"] is True
        assert (await side.client.delete(path)).status == 404
        reply = await side.client.get(path)
        assert reply.status == 404
        assert (await reply.json())["error"]["type"] == "invalid_request_error"


@pytest.mark.parametrize(("query", "param"), [("stream=true", "stream"), ("include[]=x", "include")])
async def test_what_reading_cannot_do_is_refused(query: str, param: str) -> None:
    async with http_side() as side:
        reply = await side.client.get(f"{PATH}/{await ask(side)}?{query}")
        assert (reply.status, (await reply.json())["error"]["param"]) == (400, param)


async def test_a_response_that_is_over_cannot_be_cancelled() -> None:
    async with http_side() as side:
        assert (await side.client.post(f"{PATH}/{await ask(side)}/cancel")).status == 400
        assert (await side.client.post(f"{PATH}/resp_x/cancel")).status == 404


async def test_input_items_come_newest_first_and_without_the_answer() -> None:
    async with http_side() as side:
        path = f"{PATH}/{await ask(side, item(1), item(2, 'assistant'), item(3), item(4, 'assistant'))}/input_items"
        listed = strict_items(await (await side.client.get(path)).json())
        assert [one.id for one in listed.data] == ["msg_3", "msg_2", "msg_1"]
        assert (listed.first_id, listed.last_id, listed.has_more) == ("msg_3", "msg_1", False)
        listed = strict_items(await (await side.client.get(path + "?order=asc&limit=2")).json())
        assert ([one.id for one in listed.data], listed.has_more) == (["msg_1", "msg_2"], True)
        listed = strict_items(await (await side.client.get(path + "?order=asc&limit=2&after=msg_2")).json())
        assert ([one.id for one in listed.data], listed.has_more) == (["msg_3"], False)
        assert strict_items(await (await side.client.get(path + "?after=msg_1")).json()).data == []


@pytest.mark.parametrize(
    ("query", "param"),
    [("order=up", "order"), ("limit=0", "limit"), ("limit=101", "limit"), ("limit=x", "limit"), ("after=x", "after")],
)
async def test_a_wrong_page_is_refused(query: str, param: str) -> None:
    async with http_side() as side:
        reply = await side.client.get(f"{PATH}/{await ask(side)}/input_items?{query}")
        assert (reply.status, (await reply.json())["error"]["param"]) == (400, param)


async def test_nobody_sees_the_responses_of_another_key() -> None:
    async with http_side(keys={"api_keys": ("a", "b"), "admin_keys": ("root",)}) as side:
        first = await ask(side, key="a")
        for stranger in ("b", "root"):
            for method, rest in (("GET", ""), ("GET", "/input_items"), ("DELETE", ""), ("POST", "/cancel")):
                reply = await side.client.request(method, f"{PATH}/{first}{rest}", headers=bearer(stranger))
                assert reply.status == 404
            going_on = ASK | {"previous_response_id": first}
            assert (await side.client.post(PATH, json=going_on, headers=bearer(stranger))).status == 400
        assert (await side.client.get(f"{PATH}/{first}", headers=bearer("a"))).status == 200


async def test_old_responses_make_room_within_the_settings() -> None:
    async with http_side(responses_max_count=1) as side:
        first, second = await ask(side), await ask(side)
        assert (await side.client.get(f"{PATH}/{first}")).status == 404
        assert (await side.client.get(f"{PATH}/{second}")).status == 200


# --- counting, failing, other servers -------------------------------------------------------------------


@pytest.mark.parametrize("path", ["/v1/responses/input_tokens", "/v1/chat/completions/input_tokens"])
async def test_counts_come_whole_even_if_a_stream_is_asked_for_and_the_model_loads_long(path: str) -> None:
    async with http_side(stream_open_after_s=0) as side:
        for form in (path, path.removeprefix("/v1")):

            async def count(received: Received, sender: Sender) -> None:
                await sender.data(b'{"object":"response.input_tokens","input_tokens":5}')
                await sender.end()

            side.worker.script = count
            reply = await side.client.post(form, json={"model": "smol", "stream": True})
            assert (await reply.json())["input_tokens"] == 5
            assert side.worker.received[-1].path == path


async def test_a_stream_that_fails_ends_with_an_event_that_the_client_knows() -> None:
    async def fail(_: Received, sender: Sender) -> None:
        sender.headers[Header.CONTENT_TYPE] = EVENTS
        for number, type_ in enumerate(("response.created", "response.in_progress")):
            told = json.dumps({"type": type_, "sequence_number": number, "response": {}})
            await sender.data(f"event: {type_}\ndata: {told}\n\n".encode())
        await sender.error(ErrorPayload(500, "engine_error", "the engine gave up"))
        await sender.end("error")

    async with http_side() as side:
        side.worker.script = fail
        reply = await side.client.post(PATH, json=ASK | {"stream": True})
        *_, last = response_events(await reply.read())
        event = strict_event(last)
        assert event.type == "error"
        assert (event.code, event.message, event.sequence_number) == ("engine_error", "the engine gave up", 2)
        assert last["error"]["message"] == "the engine gave up", "the official client raises what it finds here"


async def test_an_error_before_the_stream_is_open_is_openais() -> None:
    async with http_side() as side:

        async def refuse(_: Received, sender: Sender) -> None:
            await sender.error(ErrorPayload(400, "invalid_request_error", "no", "input"))
            await sender.end("rejected")

        side.worker.script = refuse
        reply = await side.client.post(PATH, json=ASK | {"stream": True})
        assert reply.status == 400
        assert reply.headers["X-Request-Id"]
        assert await reply.json() == {
            "error": {
                "message": "no",
                "type": "invalid_request_error",
                "param": "input",
                "code": "invalid_request_error",
            }
        }


def test_the_event_of_an_error_has_the_documented_fields() -> None:
    told = error_event(Dialect.RESPONSES, ErrorPayload(503, "worker_died", "gone", None), num_events=7)
    assert told.startswith(b"event: error\ndata: ")
    assert told.endswith(b"\n\n")
    event = json.loads(told.split(b"data: ")[1])
    assert {name: event[name] for name in ("type", "code", "message", "param", "sequence_number")} == {
        "type": "error",
        "code": "worker_died",
        "message": "gone",
        "param": None,
        "sequence_number": 7,
    }


async def test_another_server_keeps_its_own_responses() -> None:
    async with far_side() as (side, other):
        body = {"model": "big", "input": "hi", "previous_response_id": "resp_there"}
        assert (await side.client.post(PATH, json=body)).status == 200
        assert other.asked[0].path == PATH
        assert other.asked[0].body == body | {"model": "other-name"}


async def test_a_stream_of_another_server_ends_with_its_last_event() -> None:
    stream = b'event: response.completed\ndata: {"type":"response.completed","response":{"status":"completed"}}\n\n'
    async with other_server() as other, http_side(make_catalog(replace(far(other.url)))) as side:
        other.script = lambda request: other.stream(request, stream[:-1], stream[-1:])
        reply = await side.client.post(PATH, json={"model": "big", "input": "hi", "stream": True})
        assert await reply.read() == stream
        assert side.num_requests(outcome="ok") == 1
