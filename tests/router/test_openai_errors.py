"""Whatever goes wrong, OpenAI's clients find their four fields, a status that fits and the id of the request."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import openai
import pytest

from router.catalog import Limits
from router.errors import ModelUnavailable, QueueTimeout, RouterError, ShuttingDown, TooManyRequests
from tests.fakes.supervisor import Received, Sender
from tests.support.http_side import CHAT, HttpSide, http_side, make_catalog
from worker.contract import ErrorPayload

HELLO: dict[str, Any] = {"model": "smol", "messages": [{"role": "user", "content": "hi"}]}
ROOT = {"Authorization": "Bearer k"}


def saying(error: ErrorPayload) -> Callable[[Received, Sender], Awaitable[None]]:
    async def refuse(received: Received, sender: Sender) -> None:
        await sender.error(error)
        await sender.end(outcome="rejected")

    return refuse


@dataclass(frozen=True)
class Case:
    """One way to fail."""

    status: int
    type: str
    code: str
    path: str = CHAT
    body: Any = None
    headers: dict[str, str] | None = None
    worker_says: ErrorPayload | None = None
    param: str | None = None


OVERFLOW = ErrorPayload(400, "context_length_exceeded", "This model's maximum context length is 8 tokens.", "messages")
CASES = {
    "broken JSON": Case(400, "invalid_request_error", "invalid_request_error", body=b"{"),
    "a list": Case(400, "invalid_request_error", "invalid_request_error", body=b"[]"),
    "null": Case(400, "invalid_request_error", "invalid_request_error", body=b"null"),
    "no UTF-8": Case(400, "invalid_request_error", "invalid_request_error", body=b'{"model": "\xff"}'),
    "too deep": Case(400, "invalid_request_error", "invalid_request_error", body=b'{"x":' + b"[" * 90_000),
    "a wrong type": Case(400, "invalid_request_error", "invalid_request_error", body=b'{"model": 5}', param="model"),
    "an overflow": Case(400, "invalid_request_error", OVERFLOW.code, worker_says=OVERFLOW, param="messages"),
    "no key": Case(401, "authentication_error", "invalid_api_key", headers={}),
    "a scope": Case(403, "permission_error", "forbidden", path="/admin/reload", body=b""),
    "no model": Case(404, "invalid_request_error", "model_not_found", body=b'{"model": "smool"}', param="model"),
    "no route": Case(404, "invalid_request_error", "not_found", path="/v1/chat/completion"),
    "too large": Case(413, "invalid_request_error", "request_too_large", body=b'{"x":"' + b"x" * 200_000 + b'"}'),
    "no JSON": Case(415, "invalid_request_error", "unsupported_media_type", headers=ROOT | {"Content-Type": "text/x"}),
    "a fault": Case(500, "server_error", "engine_error", worker_says=ErrorPayload(500, "engine_error", "it broke")),
}


@asynccontextmanager
async def server() -> AsyncIterator[HttpSide]:
    async with http_side(make_catalog(limits=Limits(max_body_bytes=100_000)), keys={"api_keys": "k"}) as side:
        yield side


@pytest.mark.parametrize("name", sorted(CASES))
@pytest.mark.parametrize("stream", [False, True])
async def test_error_has_four_fields_a_fitting_status_and_an_id(name: str, stream: bool) -> None:
    case = CASES[name]
    async with server() as side:
        if case.worker_says is not None:
            side.worker.script = saying(case.worker_says)
        headers = {"Content-Type": "application/json"} | (ROOT if case.headers is None else case.headers)
        sent: dict[str, Any] = {"data": case.body} if case.body is not None else {"json": HELLO | {"stream": stream}}
        if "json" in sent and "Content-Type" in (case.headers or {}):
            sent = {"data": b"{}"}
        elif "json" in sent:
            headers.pop("Content-Type")
        reply = await side.client.post(case.path, headers=headers, **sent)
        assert reply.status == case.status
        assert reply.headers["Content-Type"].startswith("application/json")
        assert len(reply.headers["X-Request-Id"]) == 24
        body = await reply.json()
        assert body.keys() == {"error"}
        assert body["error"].keys() == {"message", "type", "param", "code"}
        assert (body["error"]["type"], body["error"]["code"]) == (case.type, case.code)
        assert body["error"]["param"] == case.param
        assert body["error"]["message"]


@pytest.mark.parametrize(
    ("refusal", "status", "error_type"),
    [
        (TooManyRequests("the line is full", retry_after_s=2.0), 429, "rate_limit_error"),
        (ModelUnavailable("it pauses", retry_after_s=3.0), 503, "server_error"),
        (QueueTimeout("it took too long", retry_after_s=1.0), 503, "server_error"),
        (ShuttingDown("the server stops"), 503, "server_error"),
    ],
)
async def test_who_must_wait_is_told_for_how_long(refusal: RouterError, status: int, error_type: str) -> None:
    async with server() as side:
        side.supervisor.refusal = refusal
        reply = await side.client.post(CHAT, json=HELLO, headers=ROOT)
        assert (reply.status, (await reply.json())["error"]["type"]) == (status, error_type)
        assert ("Retry-After" in reply.headers) is (refusal.retry_after_s is not None)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("an overflow", openai.BadRequestError),
        ("no model", openai.NotFoundError),
        ("a fault", openai.InternalServerError),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
async def test_openais_client_raises_its_own_error_with_code_and_id(
    name: str, kind: type[openai.APIStatusError], stream: bool
) -> None:
    case = CASES[name]
    async with server() as side:
        if case.worker_says is not None:
            side.worker.script = saying(case.worker_says)
        url = str(side.client.make_url("/v1"))
        model = "smool" if name == "no model" else "smol"
        async with openai.AsyncOpenAI(base_url=url, api_key="k", max_retries=0) as client:
            with pytest.raises(kind) as caught:
                await client.chat.completions.create(
                    model=model, messages=[{"role": "user", "content": "hi"}], stream=stream
                )
    assert (caught.value.code, caught.value.param) == (case.code, case.param)
    assert caught.value.request_id
