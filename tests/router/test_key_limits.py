"""Limits of API keys as clients meet them: refusals in every dialect, headers, and counts that come back to 0."""

from __future__ import annotations

import asyncio
import hashlib
import re
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from router.api_keys import KeyLimits
from router.auth import Grant, KeyRing, Scope
from router.errors import ModelUnavailable
from router.kept_streams import CONVERSATION, NEW
from tests.fakes.supervisor import Received, Sender
from tests.support.http_side import CHAT, HttpSide, http_side, make_catalog, make_spec
from worker.contract import FrameType, encode_frame

HELLO = {"model": "smol", "messages": [{"role": "user", "content": "hi"}]}
TEAM = {"Authorization": "Bearer team"}
ROOT = {"Authorization": "Bearer root"}


def entry(key: str, limits: KeyLimits, scope: Scope = Scope.INFERENCE) -> tuple[bytes, Grant]:
    return hashlib.sha256(key.encode()).digest(), Grant(key, frozenset({scope}), limits=limits)


@asynccontextmanager
async def limited(**limits: Any) -> AsyncIterator[HttpSide]:
    """The server has a key `team` with these limits, and `root` without any."""
    ring = KeyRing([entry("team", KeyLimits(**limits)), entry("root", KeyLimits(), Scope.ADMIN)])
    async with http_side(ring=ring) as side:
        yield side


async def usage_of(side: HttpSide, key: str = "team") -> dict[str, Any]:
    reply = await side.client.get("/admin/keys", headers=ROOT)
    assert reply.status == 200
    found: dict[str, Any] = next(one for one in await reply.json() if one["id"] == key)
    return found


async def usage_at_rest(side: HttpSide) -> dict[str, Any]:
    """Return the usage of `team` when none of its requests runs any more."""
    async with asyncio.timeout(5):
        while (found := await usage_of(side))["running"]:
            pass
    return found


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        (CHAT, "openai"),
        ("/v1/responses", "openai"),
        ("/v1/embeddings", "openai"),
        ("/v1/messages", "anthropic"),
        ("/api/chat", "ollama"),
        ("/completion", "llama"),
    ],
)
async def test_too_many_requests_are_refused_in_the_dialects_own_form(path: str, kind: str) -> None:
    async with limited(requests_per_min=1) as side:
        assert (await side.client.post(path, json=HELLO, headers=TEAM)).status == 200
        reply = await side.client.post(path, json=HELLO, headers=TEAM)
        body = await reply.json()
    assert reply.status == 429
    assert int(reply.headers["Retry-After"]) == 60
    error = body["error"]
    message = error if isinstance(error, str) else error["message"]
    assert message == (
        "the API key 'team' has reached its `requests_per_min`: it has sent its 1 requests a minute; try again in 60 s"
    )
    match kind:
        case "openai":
            assert (error["type"], error["code"]) == ("rate_limit_error", "rate_limit_exceeded")
        case "anthropic":
            assert (body["type"], error["type"]) == ("error", "rate_limit_error")
            assert reply.headers["anthropic-ratelimit-requests-remaining"] == "0"
        case "llama":
            assert (error["type"], error["code"]) == ("rate_limit_error", 429)
    if kind != "anthropic":
        assert reply.headers["x-ratelimit-remaining-requests"] == "0"


async def test_every_answer_tells_what_is_left_whether_it_is_whole_a_stream_or_an_error() -> None:
    async with limited(requests_per_min=10, tokens_per_min=100) as side:
        bodies: list[Mapping[str, Any]] = [HELLO, HELLO | {"stream": True}, {"model": "nobody"}]
        replies = [await side.client.post(CHAT, json=body, headers=TEAM) for body in bodies]
        for reply in replies:
            await reply.read()
        assert [reply.status for reply in replies] == [200, 200, 404]
        assert [reply.headers["x-ratelimit-remaining-requests"] for reply in replies] == ["9", "8", "7"]
        assert [reply.headers["x-ratelimit-remaining-tokens"] for reply in replies] == ["100", "95", "90"]
        assert replies[0].headers["x-ratelimit-limit-tokens"] == "100"
        assert re.fullmatch(r"2\.\d+s|3s", replies[1].headers["x-ratelimit-reset-tokens"])


async def test_a_key_without_limits_and_a_server_without_keys_see_no_headers_of_limits() -> None:
    async with limited() as side:
        reply = await side.client.post(CHAT, json=HELLO, headers=TEAM)
        assert not [name for name in reply.headers if "ratelimit" in name.lower()]
    async with http_side() as side:
        reply = await side.client.post(CHAT, json=HELLO)
        assert not [name for name in reply.headers if "ratelimit" in name.lower()]


async def test_tokens_are_taken_when_the_answer_ends_and_the_next_request_waits_for_them() -> None:
    async with limited(tokens_per_min=5) as side:
        assert (await side.client.post(CHAT, json=HELLO, headers=TEAM)).status == 200, "it takes 5 of them"
        reply = await side.client.post(CHAT, json=HELLO, headers=TEAM)
        assert reply.status == 429
        assert "`tokens_per_min`" in (await reply.json())["error"]["message"]
        assert 11 <= int(reply.headers["Retry-After"]) <= 12
        assert side.supervisor.shares == [("team", 1.0, 5)]


async def test_requests_that_only_wait_count_and_all_are_given_back() -> None:
    async with limited(max_concurrent=2) as side:
        side.supervisor.gate = asyncio.Event()
        waiting = []
        for _ in range(2):
            waiting.append(asyncio.ensure_future(side.client.post(CHAT, json=HELLO, headers=TEAM)))
            await side.supervisor.waiting.wait()
            side.supervisor.waiting.clear()
        refused = await side.client.post(CHAT, json=HELLO, headers=TEAM)
        assert (refused.status, refused.headers["Retry-After"]) == (429, "1")
        assert "2 of its requests run or wait already" in (await refused.json())["error"]["message"]
        assert (await usage_of(side))["running"] == 2
        side.supervisor.gate.set()
        assert [(await reply).status for reply in waiting] == [200, 200]
        found = await usage_of(side)
        assert (found["running"], found["requests"], found["refused"], found["tokens"]) == (0, 2, 1, 10)


async def cut_off(received: Received, sender: Sender) -> None:
    sender.cut()


@pytest.mark.parametrize("how", ["no model", "bad body", "refused lease", "dead worker", "no worker needed"])
async def test_however_a_request_ends_it_no_longer_counts_as_running(how: str) -> None:
    async with limited(max_concurrent=1) as side:
        path, body = CHAT, HELLO
        match how:
            case "no model":
                body = HELLO | {"model": "nobody"}
            case "bad body":
                body = HELLO | {"stream": "maybe"}
            case "refused lease":
                side.supervisor.refusal = ModelUnavailable("no")
            case "dead worker":
                side.worker.script = cut_off
            case _:
                path, body = "/api/chat", {"model": "smol"}
        for _ in range(2):
            reply = await side.client.post(path, json=body, headers=TEAM)
            await reply.read()
            assert reply.status != 429
        found = await usage_of(side)
        assert (found["running"], found["requests"]) == (0, 2)


async def test_of_a_stream_that_its_client_leaves_the_tokens_are_charged_that_had_come() -> None:
    step = b'[{"choice":0,"token_ids":[1,2,3],"timings":{"prompt_tokens":40}}]'

    async def endless(received: Received, sender: Sender) -> None:
        sender.headers["X-Corral-Content-Type"] = "text/event-stream"
        await sender.data(b"data: 1\n\n")
        await sender.raw(encode_frame(FrameType.RESUME, step))
        await asyncio.Event().wait()

    async with limited(max_concurrent=1, tokens_per_min=1000) as side:
        side.worker.script = endless
        reply = await side.client.post(CHAT, json=HELLO | {"stream": True}, headers=TEAM)
        await reply.content.readany()
        reply.close()
        await side.worker.aborted.wait()
        found = await usage_at_rest(side)
        assert found["tokens"] == 43
        assert side.supervisor.shares == [("team", 1.0, 43)]


async def test_an_answer_that_goes_on_without_its_client_counts_until_its_end() -> None:
    may_end = asyncio.Event()

    async def slow(received: Received, sender: Sender) -> None:
        sender.headers["X-Corral-Content-Type"] = "text/event-stream"
        await sender.data(b"data: 1\n\n")
        await may_end.wait()
        await sender.end(usage={"prompt_tokens": 7, "completion_tokens": 5})

    async with limited(max_concurrent=1) as side:
        side.worker.script = slow
        headers = TEAM | {CONVERSATION: NEW}
        reply = await side.client.post(CHAT, json=HELLO | {"stream": True}, headers=headers)
        await reply.content.readany()
        reply.close()
        assert (await side.client.post(CHAT, json=HELLO, headers=TEAM)).status == 429
        assert (await usage_of(side))["running"] == 1
        may_end.set()
        found = await usage_at_rest(side)
        assert found["tokens"] == 12


async def test_usage_belongs_to_the_id_and_outlives_new_keys_and_limits() -> None:
    ring = KeyRing([entry("team", KeyLimits(requests_per_min=1))])
    async with http_side(ring=ring) as side:
        assert (await side.client.post(CHAT, json=HELLO, headers=TEAM)).status == 200
        ring.adopt(KeyRing([entry("team", KeyLimits(requests_per_min=1)), entry("x", KeyLimits())]))
        assert (await side.client.post(CHAT, json=HELLO, headers=TEAM)).status == 429
        ring.adopt(KeyRing([entry("team", KeyLimits(requests_per_min=2))]))
        assert (await side.client.post(CHAT, json=HELLO, headers=TEAM)).status == 200


async def test_requests_to_models_of_other_servers_count_as_well() -> None:
    from router.catalog import Remote

    far = make_spec("far", remote=Remote("http://127.0.0.1:9/v1", "far"))
    ring = KeyRing([entry("team", KeyLimits(requests_per_min=1))])
    async with http_side(make_catalog(far), ring=ring) as side:
        assert (await side.client.post(CHAT, json=HELLO | {"model": "far"}, headers=TEAM)).status == 503
        assert (await side.client.post(CHAT, json=HELLO | {"model": "far"}, headers=TEAM)).status == 429


async def test_lists_and_other_routes_that_run_no_model_are_free() -> None:
    async with limited(requests_per_min=1) as side:
        for _ in range(3):
            assert (await side.client.get("/v1/models", headers=TEAM)).status == 200


async def test_refusals_are_counted_by_key_and_limit() -> None:
    async with limited(requests_per_min=1) as side:
        for _ in range(3):
            await side.client.post(CHAT, json=HELLO, headers=TEAM)
        families = text_string_to_metric_families(side.metrics.render()[0].decode())
        [found] = [family for family in families if family.name == "corral_key_refusals"]
        counts = {(one.labels["key"], one.labels["reason"]): one.value for one in found.samples}
        assert counts == {
            ("team", "max_concurrent"): 0.0,
            ("team", "requests_per_min"): 2.0,
            ("team", "tokens_per_min"): 0.0,
        }
        assert side.num_requests(outcome="rejected") == 2


async def test_the_weight_of_a_key_goes_with_its_requests() -> None:
    async with limited(weight=2.5) as side:
        await side.client.post(CHAT, json=HELLO, headers=TEAM)
        assert side.supervisor.shares == [("team", 2.5, 5)]


async def test_the_list_of_keys_is_for_operators_and_holds_no_key() -> None:
    async with limited(max_concurrent=3, tokens_per_min=700, models=("smol",)) as side:
        assert (await side.client.get("/admin/keys", headers=TEAM)).status == 403
        reply = await side.client.get("/admin/keys", headers=ROOT)
        found = await reply.json()
        assert [one["id"] for one in found] == ["team", "root"]
        assert found[0] == {
            "id": "team",
            "scopes": ["inference"],
            "models": ["smol"],
            "priority": 0,
            "max_priority": None,
            "weight": 1.0,
            "max_concurrent": 3,
            "running": 0,
            "requests_per_min": None,
            "tokens_per_min": {"limit": 700, "remaining": 700, "full_in_s": 0.0},
            "requests": 0,
            "refused": 0,
            "tokens": 0,
        }
        assert hashlib.sha256(b"team").hexdigest() not in await reply.text()
