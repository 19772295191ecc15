"""Ollama's routes at the router: names, loading without answering, and the shape of failures."""

from __future__ import annotations

import json
from typing import Any

import pytest

from router.catalog import AliasSpec, Remote
from tests.fakes.supervisor import Received, Sender
from tests.support.http_side import HttpSide, http_side, make_catalog, make_spec
from worker.contract import ErrorPayload, Header

NDJSON = "application/x-ndjson"


async def post(side: HttpSide, path: str, key: str | None = None, **fields: Any) -> tuple[int, Any]:
    headers = {} if key is None else {"Authorization": f"Bearer {key}"}
    async with side.client.post(path, json=fields, headers=headers) as reply:
        return reply.status, await reply.json(content_type=None)


async def say_lines(received: Received, sender: Sender) -> None:
    sender.headers[Header.CONTENT_TYPE] = NDJSON
    await sender.data(b'{"response":"a","done":false}\n')
    await sender.data(b'{"response":"","done":true}\n')
    await sender.end()


# --- running ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["/api/generate", "/api/chat"])
async def test_lines_pass_as_the_worker_writes_them_and_a_stream_is_the_default(path: str) -> None:
    async with http_side() as side:
        side.worker.script = say_lines
        async with side.client.post(path, json={"model": "smol", "prompt": "x", "messages": [{}]}) as reply:
            assert (reply.status, reply.headers["Content-Type"]) == (200, NDJSON)
            assert [json.loads(line)["done"] for line in (await reply.text()).splitlines()] == [False, True]
        [received] = side.worker.received
        assert received.path == path
        assert received.headers[Header.LOAD_MS] == "500", "replies of this dialect tell it"


@pytest.mark.parametrize("path", ["/api/embed", "/api/embeddings"])
async def test_embeddings_are_never_a_stream(path: str) -> None:
    async with http_side() as side:
        status, _ = await post(side, path, model="smol", input="x", prompt="x")
        assert status == 200


@pytest.mark.parametrize(
    ("asked", "model"),
    [("smol", "smol"), ("smol:latest", "smol"), ("gpt:latest", "smol"), ("tagged", "t"), ("tagged:latest", "t")],
)
async def test_a_name_is_found_with_and_without_its_tag(asked: str, model: str) -> None:
    aliases = {"gpt": AliasSpec("gpt")}
    catalog = make_catalog(
        make_spec("smol", aliases=aliases),
        make_spec("t", aliases={"tagged:latest": AliasSpec("tagged:latest")}),
    )
    async with http_side(catalog) as side:
        await post(side, "/api/generate", model=asked, prompt="x", stream=False)
        assert [name for name, _, _ in side.supervisor.granted] == [model]


async def test_an_alias_for_any_name_does_not_take_the_place_of_a_model_with_another_tag() -> None:
    catalog = make_catalog(make_spec("smol"), make_spec("any", aliases={"*": AliasSpec("*")}))
    async with http_side(catalog) as side:
        for asked in ("smol:latest", "other:latest"):
            await post(side, "/api/generate", model=asked, prompt="x", stream=False)
        assert [name for name, _, _ in side.supervisor.granted] == ["smol", "any"]


async def test_an_unknown_name_is_told_in_ollamas_words_with_the_nearest_names() -> None:
    async with http_side() as side:
        for path in ("/api/generate", "/api/chat", "/api/show", "/api/embed"):
            status, body = await post(side, path, model="smool:latest")
            assert (status, body.keys()) == (404, {"error"})
            assert body["error"].startswith("model 'smool:latest' not found; did you mean 'smol'")


async def test_a_failure_is_one_object_with_its_reason() -> None:
    async def refuse(_: Received, sender: Sender) -> None:
        await sender.error(ErrorPayload(400, "invalid_request_error", "'prompt' is wrong"))
        await sender.end("rejected")

    async with http_side() as side:
        side.worker.script = refuse
        assert await post(side, "/api/generate", model="smol", prompt="x") == (400, {"error": "'prompt' is wrong"})
        status, body = await post(side, "/api/chat", model=5, messages=[])
        assert (status, "'model' must be a string" in body["error"]) == (400, True)


async def test_a_failure_in_an_open_stream_is_its_last_line() -> None:
    async def break_off(_: Received, sender: Sender) -> None:
        sender.headers[Header.CONTENT_TYPE] = NDJSON
        await sender.data(b'{"response":"a","done":false}\n')
        sender.cut()

    async with http_side() as side:
        side.worker.script = break_off
        async with side.client.post("/api/generate", json={"model": "smol", "prompt": "x"}) as reply:
            first, last = map(json.loads, (await reply.text()).splitlines())
    assert first["response"] == "a"
    assert last.keys() == {"error"}


async def test_a_silent_stream_has_no_pings_and_keeps_its_status() -> None:
    async def refuse_late(_: Received, sender: Sender) -> None:
        await sender.error(ErrorPayload(400, "invalid_request_error", "no"))
        await sender.end("rejected")

    async with http_side(stream_open_after_s=0.01, ping_interval_s=0.01) as side:
        side.worker.script = refuse_late
        assert (await post(side, "/api/generate", model="smol", prompt="x"))[0] == 400


async def test_a_model_of_another_server_is_not_asked_in_this_dialect() -> None:
    far = make_spec("far", remote=Remote("http://127.0.0.1:9/v1", "far"))
    async with http_side(make_catalog(make_spec("smol"), far)) as side:
        status, body = await post(side, "/api/chat", model="far", messages=[{"role": "user", "content": "x"}])
        assert (status, "/v1/chat/completions" in body["error"]) == (400, True)
        assert (await post(side, "/api/show", model="far"))[0] == 400
        tags = await (await side.client.get("/api/tags")).json()
        assert [entry["name"] for entry in tags["models"]] == ["smol:latest"]


# --- loading only -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "fields", "said"),
    [
        ("/api/generate", {}, {"response": ""}),
        ("/api/generate", {"prompt": ""}, {"response": ""}),
        ("/api/chat", {"messages": []}, {"message": {"role": "assistant", "content": ""}}),
    ],
)
async def test_a_request_with_nothing_to_answer_loads_the_model(path: str, fields: Any, said: Any) -> None:
    async with http_side() as side:
        status, body = await post(side, path, model="smol:latest", keep_alive="10m", **fields)
        assert (status, body.pop("created_at")[-1]) == (200, "Z")
        assert body == {"model": "smol:latest", **said, "done": True, "done_reason": "load"}
        assert side.supervisor.granted == [("smol", 0, None)]
        assert side.supervisor.keep_alives == [600.0]
        assert side.worker.received == []


async def test_with_a_keep_alive_of_zero_it_unloads_the_model_and_loads_nothing() -> None:
    async with http_side() as side:
        status, body = await post(side, "/api/generate", model="smol", keep_alive=0)
        assert (status, body["done_reason"]) == (200, "unload")
        assert side.supervisor.kept_alive == [("smol", 0.0)]
        assert side.supervisor.granted == []


async def test_fields_about_an_answer_are_not_looked_at_where_there_is_none() -> None:
    async with http_side() as side:
        status, body = await post(side, "/api/generate", model="smol", format=5, options={"top_k": "x"})
        assert (status, body["done_reason"], side.worker.received) == (200, "load", [])


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        ("/api/generate", {"prompt": "x"}),
        ("/api/generate", {"prompt": "", "suffix": "y"}),
        ("/api/generate", {"prompt": 0}),
        ("/api/chat", {"messages": [{"role": "user", "content": ""}]}),
        ("/api/chat", {"messages": {}}),
        ("/api/generate", {"messages": [{"role": "user", "content": "x"}]}),
        ("/api/generate", {"input": "x"}),
        ("/api/chat", {"prompt": "x"}),
    ],
)
async def test_anything_else_is_the_workers_to_answer(path: str, fields: dict[str, Any]) -> None:
    async with http_side() as side:
        await post(side, path, model="smol", stream=False, **fields)
        assert len(side.worker.received) == 1
