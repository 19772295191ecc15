"""Around every handler: one error shape, request ids, host check, keys."""

from __future__ import annotations

import asyncio
import json
import logging
import re

import openai
import pytest

from router.app import all_routes
from router.catalog import AliasSpec
from router.dialects import Dialect, error_body
from router.errors import ModelUnavailable
from router.later import ROUTES as LATER
from router.lifecycle import WorkerState
from router.routes import describe_missing
from tests.fakes.supervisor import FakeSupervisor, make_view
from tests.support.http_side import CHAT, http_side, make_catalog, make_spec
from worker.contract import ErrorPayload

KEYS = {"api_keys": "user", "metrics_keys": "prom", "admin_keys": "root"}


async def test_unknown_route_is_a_json_404_with_the_nearest_one() -> None:
    async with http_side() as side:
        reply = await side.client.post("/v1/chat/completion", json={})
        error = (await reply.json())["error"]
        assert (reply.status, error["code"]) == (404, "not_found")
        assert "/v1/chat/completions" in error["message"]
        assert reply.headers["X-Request-Id"]


@pytest.mark.parametrize("path", ["//v1/chat/completions", "/v1/chat/completions/", "/v1/v1/chat/completions"])
async def test_address_that_is_nearly_right_is_told_the_right_one(path: str) -> None:
    async with http_side() as side:
        site = f"http://{side.client.host}:{side.client.port}"
        reply = await side.client.session.post(site + path, json={})
        assert reply.status == 404
        assert "did you mean /v1/chat/completions?" in (await reply.json())["error"]["message"]


@pytest.mark.parametrize(
    "path", ["/v1/conversations", "/v1/assistants", "/admins/abc", "/api/copi", "/v1", "/x" * 2000]
)
async def test_address_that_is_like_no_route_that_answers_gets_no_hint(path: str) -> None:
    async with http_side() as side:
        reply = await side.client.post(path, json={})
        assert reply.status == 404
        error = (await reply.json())["error"]
        message = error if isinstance(error, str) else error["message"]
        assert "did you mean" not in message
        assert message.endswith("GET / lists all routes")


@pytest.mark.parametrize(
    ("path", "meant"),
    [
        ("/openai/v1/chat/completions", "/v1/chat/completions"),
        ("/v1/chat", "/v1/chat/completions"),
        ("/v1/embedding", "/v1/embeddings"),
        ("/tags", "/api/tags"),
        ("/heath", "/health"),
    ],
)
def test_hint_is_the_route_with_the_same_parts(path: str, meant: str) -> None:
    known = [route.path for route in all_routes() if route not in LATER]
    assert f"did you mean {meant}? " in describe_missing("GET", path, known)


async def test_wrong_method_is_a_json_405_with_the_allowed_ones() -> None:
    async with http_side() as side:
        reply = await side.client.get(CHAT)
        assert (reply.status, (await reply.json())["error"]["code"]) == (405, "method_not_allowed")
        assert reply.headers["Allow"] == "POST"


_PATHS = sorted(
    {(route.path.partition("{")[0].rstrip("/"), route.dialect) for route in all_routes() if route.is_counted}
)


@pytest.mark.parametrize(("path", "dialect"), [*_PATHS, ("/props", Dialect.LLAMA), ("/models/load", Dialect.LLAMA)])
@pytest.mark.parametrize("below", ["", "/nothing/here"])
async def test_wrong_method_and_address_below_a_route_are_told_in_its_dialect(
    path: str, dialect: Dialect, below: str
) -> None:
    async with http_side() as side:
        reply = await side.client.patch(path + below, json={})
        body = await reply.json()
    if dialect is Dialect.ANTHROPIC:
        body["request_id"] = None
    error = body["error"]
    message = error if isinstance(error, str) else error["message"]
    code = {404: "not_found", 405: "method_not_allowed", 501: "not_available_yet", 403: "forbidden"}[reply.status]
    assert body == json.loads(error_body(dialect, ErrorPayload(reply.status, code, message)))


@pytest.mark.parametrize("path", [CHAT, "/v1/responses", "/v1/messages", "/completion", "/api/chat", "/api/show"])
async def test_unknown_model_hints_at_an_alias_in_each_dialect(path: str) -> None:
    catalog = make_catalog(make_spec("smol", aliases={"claude-*": AliasSpec("claude-*", listed=False)}))
    async with http_side(catalog) as side:
        reply = await side.client.post(path, json={"model": "gpt-4o", "messages": []})
        error = (await reply.json())["error"]
        message = error if isinstance(error, str) else error["message"]
        assert reply.status == 404
        assert "To answer under this name, add it to a model's `aliases`" in message
        assert (await side.client.post(path, json={"model": "claude-x", "messages": [{}]})).status == 200


async def test_head_is_answered_where_get_is() -> None:
    async with http_side() as side:
        reply = await side.client.head("/health")
        assert (reply.status, await reply.read()) == (200, b"")


@pytest.mark.parametrize("path", [re.sub(r"\{.*\}", "x", route.path) for route in LATER])
@pytest.mark.parametrize("method", ["GET", "POST"])
async def test_route_of_a_later_release_says_what_is_missing(path: str, method: str) -> None:
    async with http_side() as side:
        reply = await side.client.request(method, path)
        error = (await reply.json())["error"]
        assert reply.status == 501
        assert path in (error if isinstance(error, str) else error["message"]), "each dialect has its own form"


@pytest.mark.parametrize(
    ("method", "path", "label", "status"),
    [
        ("POST", "/v1/messages/batches", "/v1/messages/batches", 501),
        ("GET", "/api/push", "/api/push", 501),
        ("POST", "/api/copy", "/api/copy", 501),
        ("GET", "/favicon.ico", "other", 404),
        ("GET", CHAT, "other", 405),
    ],
)
async def test_request_to_what_is_not_there_is_logged_and_counted_under_a_label_of_ours(
    method: str, path: str, label: str, status: int, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "router.requests")
    async with http_side() as side:
        assert (await side.client.request(method, path)).status == status
        assert side.num_requests(model="", route=label, outcome="rejected") == 1
        (record,) = (record for record in caplog.records if record.name == "router.requests")
        fields = vars(record)
        assert (record.levelname, fields["route"], fields["outcome"]) == ("INFO", label, "rejected")


async def test_clients_are_told_not_to_repeat_what_cannot_succeed() -> None:
    catalog = make_catalog(make_spec("lost", problem="no file"), make_spec("bad"), make_spec("shaky"))
    async with http_side(catalog) as side:
        side.supervisor.views["bad"] = make_view("bad", WorkerState.FAILED)
        side.supervisor.views["shaky"] = make_view("shaky", WorkerState.BACKOFF)
        side.supervisor.refusal = ModelUnavailable("no", retry_after_s=2.0)
        told = {
            model: (await side.client.post(CHAT, json={"model": model})).headers.get("x-should-retry")
            for model in ("lost", "bad", "shaky")
        }
        assert told == {"lost": "false", "bad": "false", "shaky": None}
        assert (await side.client.get("/api/push")).headers["x-should-retry"] == "false"
        assert "x-should-retry" not in (await side.client.get("/nothing")).headers


async def test_openai_client_sends_a_request_that_cannot_succeed_once() -> None:
    async with http_side(make_catalog(make_spec("bad"))) as side:
        side.supervisor.views["bad"] = make_view("bad", WorkerState.FAILED)
        side.supervisor.refusal = ModelUnavailable("no", retry_after_s=0.01)
        url = f"http://{side.client.host}:{side.client.port}/v1"
        async with openai.AsyncOpenAI(base_url=url, api_key="none", max_retries=2) as client:
            with pytest.raises(openai.InternalServerError):
                await client.chat.completions.create(model="bad", messages=[{"role": "user", "content": "hi"}])
        assert side.num_requests(model="bad") == 1


async def test_fault_of_the_router_is_a_json_500_that_names_the_log_entry(caplog: pytest.LogCaptureFixture) -> None:
    async with http_side() as side:
        side.supervisor.snapshot = None  # type: ignore[assignment]
        reply = await side.client.get("/v1/models")
        error = (await reply.json())["error"]
        assert (reply.status, error["code"]) == (500, "internal_error")
        assert reply.headers["X-Request-Id"] in error["message"]
        assert "NoneType" not in error["message"]
        assert any(record.exc_info for record in caplog.records)


async def test_fault_of_the_router_in_an_open_stream_is_an_error_event(monkeypatch: pytest.MonkeyPatch) -> None:
    gate = asyncio.Event()

    async def break_later(*_: object) -> None:
        await gate.wait()
        raise KeyError("oops")

    async with http_side(stream_open_after_s=0) as side:
        monkeypatch.setattr("router.relay.Relay._attempt", break_later)
        reply = await side.client.post(CHAT, json={"model": "smol", "stream": True})
        await reply.content.readuntil(b": ping\n\n")
        gate.set()
        assert b'"internal_error"' in await reply.content.read()


async def test_every_reply_has_an_id_of_its_own() -> None:
    async with http_side() as side:
        ids = set()
        for path in ("/", "/health", "/v1/models", "/nothing", "/props"):
            reply = await side.client.get(path, headers={"X-Request-Id": "mine"})
            ids.add(reply.headers["X-Request-Id"])
        assert len(ids) == 5
        assert "mine" not in ids


async def test_cors_is_off() -> None:
    async with http_side() as side:
        host = f"http://{side.client.host}:{side.client.port}"
        preflight = await side.client.options(CHAT, headers={"Origin": host, "Access-Control-Request-Method": "POST"})
        assert preflight.status == 405
        reply = await side.client.get("/v1/models", headers={"Origin": host})
        assert reply.status == 200
        for answer in (preflight, reply):
            assert not [name for name in answer.headers if name.lower().startswith("access-control-")]


async def test_foreign_host_or_page_is_refused_before_anything_else() -> None:
    async with http_side() as side:
        for headers in ({"Host": "evil.example"}, {"Origin": "http://evil.example"}):
            for path in ("/health", "/v1/models", "/nothing"):
                reply = await side.client.get(path, headers=headers)
                assert reply.status == 403
                assert "CORRAL_ALLOWED_HOSTS" in (await reply.json())["error"]["message"]
            order = await side.client.post("/models/load", json={"model": "smol"}, headers=headers)
            assert order.status == 403
        assert side.supervisor.loaded == []


EVERYTHING = [
    ("POST", CHAT, "user"),
    ("POST", "/v1/completions", "user"),
    ("GET", "/v1/models", "user"),
    ("GET", "/v1/models/smol", "user"),
    ("GET", "/models", "user"),
    ("GET", "/slots", "user"),
    ("GET", "/slots", "prom"),
    ("GET", "/metrics", "prom"),
    ("POST", "/models/load", "root"),
    ("POST", "/models/unload", "root"),
    ("GET", "/props", "user"),
    ("POST", "/completion", "user"),
    ("POST", "/tokenize", "user"),
    ("GET", "/lora-adapters?model=smol", "user"),
    ("GET", "/nothing", "user"),
    ("POST", "/admin/reload", "root"),
]


@pytest.mark.parametrize(("method", "path", "key"), EVERYTHING)
async def test_route_is_closed_without_a_key_and_open_with_the_right_one(method: str, path: str, key: str) -> None:
    async with http_side(keys=KEYS) as side:
        body = {"json": {"model": "smol"}} if method == "POST" and path != "/admin/reload" else {}
        for headers in ({}, {"Authorization": "Bearer wrong"}, {"x-api-key": "wrong"}):
            reply = await side.client.request(method, path, headers=headers, **body)
            assert reply.status == 401
            assert (await reply.json())["error"]["type"] == "authentication_error"
            assert reply.headers["WWW-Authenticate"] == "Bearer"
        for good in (key, "root"):
            reply = await side.client.request(method, path, headers={"Authorization": f"Bearer {good}"}, **body)
            assert reply.status in (200, 404, 422, 501)  # 422: there is no file that could be read again


@pytest.mark.parametrize(
    ("method", "path", "key"),
    [
        ("POST", "/models/load", "user"),
        ("POST", "/models/unload", "user"),
        ("POST", "/admin/reload", "user"),
        ("GET", "/metrics", "user"),
        ("POST", CHAT, "prom"),
        ("GET", "/v1/models", "prom"),
    ],
)
async def test_key_without_the_scope_is_told_which_one_it_lacks(method: str, path: str, key: str) -> None:
    async with http_side(keys=KEYS) as side:
        reply = await side.client.request(method, path, headers={"x-api-key": key})
        assert reply.status == 403
        assert "scope" in (await reply.json())["error"]["message"]


@pytest.mark.parametrize("path", ["/", "/health", "/health?model=smol"])
async def test_health_and_start_page_need_no_key(path: str) -> None:
    async with http_side(keys=KEYS) as side:
        assert (await side.client.get(path)).status == 200


async def test_key_in_the_address_is_not_accepted() -> None:
    async with http_side(keys=KEYS) as side:
        assert (await side.client.get("/v1/models?api_key=user&key=user")).status == 401


async def test_refused_keys_are_counted_and_never_reach_a_worker() -> None:
    async with http_side(keys=KEYS) as side:
        await side.client.post(CHAT, json={"model": "smol"})
        assert side.num_requests(outcome="rejected") == 1
        assert side.supervisor.granted == []


async def test_client_that_waits_for_leave_to_send_its_body_gets_it() -> None:
    async with http_side() as side:
        reply = await side.client.post(CHAT, json={"model": "smol"}, expect100=True)
        assert reply.status == 200


def test_fake_supervisor_has_what_the_real_one_has() -> None:
    from router.supervisor import Supervisor

    shared = (
        "lease",
        "load",
        "unload",
        "snapshot",
        "status",
        "fetches",
        "pin",
        "waiters",
        "earlier_status",
        "context_of",
    )
    assert all(hasattr(Supervisor, name) and hasattr(FakeSupervisor, name) for name in shared)
