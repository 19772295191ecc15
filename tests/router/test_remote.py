"""Models on other servers: what is sent there, what comes back, how much at the same time, and how they are listed."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from aiohttp import web

from router.catalog import AliasSpec, Remote, RequestRules
from router.errors import RemoteFailed, ShuttingDown
from router.remotes import HOPS, Remotes, remote_headers
from tests.fakes.other_server import EVENTS
from tests.support.far_side import ASK, far, far_side
from tests.support.http_side import CHAT, http_side, make_catalog, make_spec
from tests.support.served import until


async def test_a_request_goes_to_the_other_server_under_the_name_that_is_known_there() -> None:
    async with far_side() as (side, other):
        reply = await side.client.post(CHAT, json=ASK | {"temperature": 0.5, "priority": -1, "cache_salt": "s"})
        assert reply.status == 200
        assert (await reply.json())["choices"][0]["message"]["content"] == "hey"
        assert reply.headers["X-Corral-Model"] == "big"
        (asked,) = other.asked
        assert asked.path == "/v1/chat/completions"
        assert asked.body == ASK | {"model": "other-name", "temperature": 0.5, "cache_salt": "s"}
        assert side.supervisor.granted == [], "no worker of ours has to do with it"


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/embeddings", "/v1/rerank", "/rerank"])
async def test_every_route_of_a_model_is_sent_on(path: str) -> None:
    async with far_side() as (side, other):
        assert (await side.client.post(path, json={"model": "big", "input": "x"})).status == 200
        assert other.asked[0].path == ("/v1/rerank" if path == "/rerank" else path)


async def test_nothing_of_the_client_but_its_json_is_sent_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BIG_KEY", " sk-ours \n")
    async with far_side(key_env="BIG_KEY") as (side, other):
        theirs = {"Authorization": "Bearer sk-theirs", "Cookie": "a=b", "X-Forwarded-For": "1.2.3.4", "Via": "x"}
        reply = await side.client.post(CHAT, json=ASK, headers=theirs)
        sent = {name.lower(): value for name, value in other.asked[0].headers.items()}
        assert sent.pop("host").startswith("127.0.0.1:")
        assert sent.pop("content-length").isdigit()
        assert sent == {
            "authorization": "Bearer sk-ours",
            "content-type": "application/json",
            "accept": "application/json",
            "accept-encoding": "identity",
            "user-agent": "corral",
            "x-request-id": reply.headers["X-Request-Id"],
            HOPS.lower(): "1",
        }


async def test_no_key_is_sent_where_none_is_configured() -> None:
    async with far_side() as (side, other):
        await side.client.post(CHAT, json=ASK, headers={"Authorization": "Bearer sk-theirs"})
        assert "Authorization" not in other.asked[0].headers


async def test_a_stream_passes_byte_for_byte_and_without_the_others_headers() -> None:
    async with far_side() as (side, _):
        reply = await side.client.post(CHAT, json=ASK | {"stream": True})
        assert reply.content_type == "text/event-stream"
        assert await reply.read() == b"".join(EVENTS)
        assert reply.headers["X-Accel-Buffering"] == "no"
        assert "Set-Cookie" not in reply.headers
        assert reply.headers["Server"] == "corral"


async def test_a_stream_is_passed_on_as_it_comes() -> None:
    async with far_side() as (side, other):

        async def first_then_wait(request: web.Request) -> web.StreamResponse:
            response = await other.stream(request, EVENTS[0])
            await other.go_on.wait()
            for event in EVENTS[1:]:
                await response.write(event)
            return response

        other.script = first_then_wait
        reply = await side.client.post(CHAT, json=ASK | {"stream": True})
        assert await reply.content.readuntil(b"\n\n") == EVENTS[0], "the rest is not even said yet"
        other.go_on.set()
        assert await reply.content.read() == b"".join(EVENTS[1:])


@pytest.mark.parametrize("stream", [True, False])
async def test_tokens_are_counted_by_the_usage_that_the_other_server_tells(stream: bool) -> None:
    async with far_side() as (side, _):
        reply = await side.client.post(CHAT, json=ASK | {"stream": stream})
        await reply.read()
        text = side.metrics.render()[0].decode()
        assert 'corral_prompt_tokens_total{model="big",source="computed"} 3.0' in text
        assert 'corral_prompt_tokens_total{model="big",source="cached"} 4.0' in text
        assert 'corral_generated_tokens_total{model="big"} 3.0' in text
        assert side.num_requests(model="big", route=CHAT, outcome="ok") == 1


async def test_an_aliass_rules_hold_for_a_model_of_another_server() -> None:
    alias = AliasSpec("calm", RequestRules(force={"temperature": 0}, drop=("top_k",)))
    async with far_side(aliases={"calm": alias}) as (side, other):
        reply = await side.client.post(CHAT, json=ASK | {"model": "calm", "top_k": 5, "temperature": 2})
        assert other.asked[0].body == ASK | {"model": "other-name", "temperature": 0}
        assert (reply.headers["X-Corral-Model"], reply.headers["X-Corral-Alias"]) == ("big", "calm")


async def test_connections_are_used_again() -> None:
    async with far_side() as (side, other):
        for stream in (True, False, True, False):
            await (await side.client.post(CHAT, json=ASK | {"stream": stream})).read()
        assert len(other.connections) == 1


async def test_models_of_other_servers_are_listed_as_such() -> None:
    async with far_side(context=4096, aliases={"calm": AliasSpec("calm")}) as (side, _):
        body = await (await side.client.get("/v1/models")).json()
        entries = {entry["id"]: entry for entry in body["data"]}
        assert list(entries) == ["big", "calm", "smol"]
        for name in ("big", "calm"):
            assert (entries[name]["owned_by"], entries[name]["remote"]) == ("corral", True)
            assert (entries[name]["context_length"], entries[name]["state"]) == (4096, "remote")
        assert "remote" not in entries["smol"]
        statuses = {entry["id"]: entry["status"] for entry in (await (await side.client.get("/models")).json())["data"]}
        assert (statuses["big"], statuses["smol"]) == ({"value": "loaded"}, {"value": "unloaded"})
        health = await side.client.get("/health?model=big")
        assert (health.status, (await health.json())["state"]) == (200, "remote")


# --- places -----------------------------------------------------------------------------------------------


async def test_more_requests_than_may_be_on_their_way_get_429() -> None:
    async with far_side(max_queue=2) as (side, other):
        other.script = other.wait
        running = [asyncio.create_task(side.client.post(CHAT, json=ASK)) for _ in range(2)]
        await until(lambda: len(other.asked) == 2, what="two requests")
        reply = await side.client.post(CHAT, json=ASK)
        error = (await reply.json())["error"]
        assert (reply.status, error["code"]) == (429, "queue_full")
        assert "max_queue" in error["message"]
        other.go_on.set()
        assert [(await one).status for one in running] == [200, 200]
        assert (await side.client.post(CHAT, json=ASK)).status == 200, "the places are free again"
        assert len(other.asked) == 3


async def test_a_model_without_its_key_is_unavailable_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("BIG_KEY", raising=False)
    for problem in (None, "the environment variable BIG_KEY is not set"):
        async with far_side(key_env="BIG_KEY", problem=problem) as (side, other):
            reply = await side.client.post(CHAT, json=ASK)
            error = (await reply.json())["error"]
            assert (reply.status, error["code"]) == (503, "model_unavailable")
            assert "BIG_KEY is not set" in error["message"]
            assert other.asked == []


async def test_a_drain_waits_for_what_runs_and_lets_nothing_begin() -> None:
    remotes, spec = Remotes({}), far("http://h/v1")
    with remotes.place(spec):
        await remotes.drain(0.01)
        with pytest.raises(ShuttingDown), remotes.place(spec):
            pass
        draining = asyncio.create_task(remotes.drain(60))
        await asyncio.sleep(0)
        assert not draining.done()
    await asyncio.wait_for(draining, 5)


async def test_an_answer_that_is_cut_off_says_why_and_one_that_is_complete_is_left_alone() -> None:
    remotes = Remotes({})

    async def answer_for_ever() -> None:
        async with remotes.answer():
            remotes.cut_off()
            await asyncio.Event().wait()

    with pytest.raises(ShuttingDown, match="cut off"):
        await answer_for_ever()
    async with remotes.answer() as is_complete:
        is_complete()
        remotes.cut_off()
        await asyncio.sleep(0.001)  # it would be cancelled here


def test_requests_that_go_in_a_circle_are_stopped() -> None:
    hops = "0"
    for _ in range(4):
        hops = remote_headers({HOPS: hops}, "id", is_stream=False)[HOPS]
    with pytest.raises(RemoteFailed, match="has passed 4 routers already"):
        remote_headers({HOPS: hops}, "id", is_stream=False)
    for nonsense in ("-1", "x", "", "1" * 5000, "²"):
        assert remote_headers({HOPS: nonsense}, "id", is_stream=False)[HOPS] == "1"


async def test_a_model_that_is_on_its_own_server_answers_with_an_error_instead_of_a_storm() -> None:
    async with http_side(make_catalog(make_spec("smol"))) as side:
        own = Remote(f"http://127.0.0.1:{side.client.port}/v1", "big")
        side.supervisor.catalog = make_catalog(replace(far(""), remote=own))
        reply = await side.client.post(CHAT, json=ASK)
        assert reply.status == 502
        assert "on each other's servers" in (await reply.json())["error"]["message"]
        assert side.num_requests(model="big") == 5
