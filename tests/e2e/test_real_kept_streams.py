"""A reply whose connection is cut and that is read on later is the reply that it would have been: the real model."""

from __future__ import annotations

import json
import re

import pytest

from router.kept_streams import CONVERSATION
from tests.support.raw_http import ask, read_chunked, read_head, send
from tests.support.real_server import Api
from tests.support.served import until

ID = "d9cb469f-0f8f-ad5b-a165-70867728950e"
MESSAGES = [{"role": "user", "content": "Count from one to twenty in words."}]
ASK = {"model": "main", "max_tokens": 24, "temperature": 0, "seed": 7, "stream": True, "reproducible": True}
ROUTES = {
    "/v1/chat/completions": {"messages": MESSAGES},
    "/v1/messages": {"messages": MESSAGES},
    "/v1/responses": {"input": MESSAGES[0]["content"], "max_output_tokens": 24},
    "/api/chat": {
        "messages": MESSAGES,
        "options": {"temperature": 0, "num_predict": 24, "seed": 7, "reproducible": True},
    },
}


def body_of(path: str) -> dict[str, object]:
    drop = {"/v1/responses": {"max_tokens"}, "/api/chat": {"max_tokens", "temperature", "seed", "reproducible"}}.get(
        path, set()
    )
    return {name: value for name, value in ASK.items() if name not in drop} | ROUTES[path]


def told(path: str, reply: bytes) -> tuple[str, str]:
    """Return the text of a stream, and its last event without what differs between two requests.

    How the text is cut into events is none of this: tokens that come together are one.
    """
    *events, last = [one for one in re.split(rb"\n\n|(?<=})\n", reply) if one]
    bodies = [json.loads(found[0]) for event in events if (found := re.search(rb"\{.*\}", event))]
    match path:
        case "/v1/chat/completions":
            pieces = [body["choices"][0]["delta"].get("content") for body in bodies]
        case "/v1/messages":
            pieces = [body["delta"].get("text") for body in bodies if body["type"] == "content_block_delta"]
        case "/v1/responses":
            pieces = [body["delta"] for body in bodies if body["type"] == "response.output_text.delta"]
        case _:
            pieces = [body["message"]["content"] for body in bodies]
    return "".join(piece or "" for piece in pieces), last.decode()[:12]


@pytest.mark.parametrize(
    "path", [pytest.param(path, marks=pytest.mark.slow if number > 1 else ()) for number, path in enumerate(ROUTES)]
)
async def test_reply_that_was_cut_and_read_on_is_the_undisturbed_one(api: Api, path: str) -> None:
    url, name = api.server.url, {CONVERSATION: ID}
    status, _, undisturbed = await ask(url, "POST", path, body_of(path))
    assert status == 200
    reader, writer = await send(url, "POST", path, body_of(path), name)
    assert (await read_head(reader))[0] == 200
    got = await read_chunked(reader, len(undisturbed) // 3)
    writer.transport.abort()
    assert len(got) < len(undisturbed)
    status, _, rest = await ask(url, "GET", f"/v1/streams/{ID}?from={len(got)}")
    assert status == 200
    assert (await ask(url, "GET", f"/v1/streams/{ID}"))[2] == got + rest
    assert told(path, got + rest) == told(path, undisturbed)
    assert len(told(path, undisturbed)[0]) > 20


async def test_a_stop_frees_the_slot_of_an_answer_that_goes_on_without_its_client(api: Api) -> None:
    url, body = api.server.url, {"model": "main", "prompt": "One", "max_tokens": 1500, "ignore_eos": True}
    reader, writer = await send(url, "POST", "/v1/completions", body | {"stream": True}, {CONVERSATION: ID})
    await read_head(reader)
    await read_chunked(reader, 500)
    writer.transport.abort()

    async def generates() -> bool:
        return "GENERATING" in await api.states("main")

    await until(generates, what="an answer that grows without its client")
    size = int((await ask(url, "HEAD", f"/v1/streams/{ID}"))[1].get("content-length", "-1"))
    assert size == -1  # it is still being made, so nobody knows
    assert (await ask(url, "DELETE", f"/v1/streams/{ID}"))[0] == 204

    async def is_idle() -> bool:
        return await api.is_idle("main")

    await until(is_idle, within_s=1, what="the slot's end")
    error = json.loads((await ask(url, "GET", f"/v1/streams/{ID}"))[2])["error"]
    assert error["code"] == "not_found"
