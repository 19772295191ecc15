"""Pages that the operator names may use the server from a browser; nobody else's may."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from router.auth import KeyProblem
from router.catalog import Catalog
from router.cors import Cors, read_origin
from router.errors import Forbidden
from router.host_guard import HostGuard
from router.reload import read_keys
from router.settings import SettingsError, read_settings
from tests.fakes.supervisor import EVENTS, Received, Sender
from tests.support.http_side import CHAT, http_side
from worker.contract import ErrorPayload, Header

PAGE = "http://localhost:3000"
HELLO = {"model": "smol", "messages": [{"role": "user", "content": "hi"}]}
ASKS = {
    "Origin": PAGE,
    "Access-Control-Request-Method": "POST",
    "Access-Control-Request-Headers": "authorization,content-type,x-api-key,x-stainless-os,anthropic-beta",
}


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    import os

    for name in os.environ:
        if name.startswith("CORRAL_"):
            monkeypatch.delenv(name)


def allowing(*origins: str, **options: Any) -> Any:
    return http_side(cors_origins=origins, **options)


# --- the decision ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("origin", "is_allowed"),
    [
        (PAGE, True),
        ("HTTP://LOCALHOST:3000", True),
        ("https://app.example.com", True),
        ("http://app.example.com", False),
        ("https://app.example.com:8443", False),
        ("https://app.example.com.evil.net", False),
        ("null", False),
        ("", False),
        (None, False),
    ],
)
def test_only_listed_origins_are_allowed(origin: str | None, is_allowed: bool) -> None:
    assert Cors((PAGE, "https://App.example.com/")).allows(origin) is is_allowed


def test_without_a_list_there_is_no_cors() -> None:
    cors = Cors()
    assert not cors.is_on
    assert (cors.headers(PAGE), cors.is_preflight("OPTIONS", ASKS)) == ({}, False)


def test_headers_name_the_one_origin_and_vary_by_it_even_without_one() -> None:
    cors = Cors((PAGE,))
    assert cors.headers(PAGE)["Access-Control-Allow-Origin"] == PAGE
    assert cors.headers(None) == cors.headers("https://evil.example") == {"Vary": "Origin"}
    assert Cors(("*",)).headers("https://x.example")["Access-Control-Allow-Origin"] == "https://x.example"


@pytest.mark.parametrize("asked", ["x\r\nSet-Cookie: a=b", "x" * 8001, "é"])
def test_only_names_of_headers_are_repeated(asked: str) -> None:
    headers = Cors((PAGE,)).preflight_headers({"Access-Control-Request-Headers": asked})
    assert "Access-Control-Allow-Headers" not in headers


@pytest.mark.parametrize("text", ["localhost:3000", "null", "https://a.example/path", "https://", "a b", "**", ""])
def test_what_is_no_origin_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(ValueError, match=r"such as https://app\.example\.com"):
        read_origin(text)


# --- settings -------------------------------------------------------------------------------------------


def test_origins_come_from_the_environment_and_a_wrong_one_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CORRAL_CORS_ORIGINS", "http://localhost:3000/, HTTPS://App.Example.com")
    assert read_settings().cors_origins == (PAGE, "https://app.example.com")
    monkeypatch.setenv("CORRAL_CORS_ORIGINS", "app.example.com")
    with pytest.raises(SettingsError, match=r"^CORRAL_CORS_ORIGINS: 'app\.example\.com' is not the origin of a page"):
        read_settings()


def test_every_page_is_allowed_only_where_keys_protect_the_server() -> None:
    catalog = Catalog({}, path=Path("models.yaml"))
    with pytest.raises(KeyProblem, match=r"refusing CORRAL_CORS_ORIGINS=\* without API keys"):
        read_keys(read_settings(cors_origins=("*",)), catalog, {})
    assert not read_keys(read_settings(cors_origins=("*",), api_keys="k"), catalog, {}).is_empty
    assert read_keys(read_settings(cors_origins=(PAGE,)), catalog, {}).is_empty


def test_page_that_may_read_may_send_but_not_under_a_foreign_name_of_the_server() -> None:
    guard = HostGuard(host="127.0.0.1", has_keys=False, cors=Cors((PAGE,)))
    guard.check("localhost:8080", PAGE)
    with pytest.raises(Forbidden, match="CORRAL_CORS_ORIGINS"):
        guard.check("localhost:8080", "http://localhost:3001")
    with pytest.raises(Forbidden, match="Host header"):
        guard.check("evil.example", PAGE)


# --- on the wire ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", [CHAT, "/v1/messages", "/v1/models", "/v1/models/org/smol:fast", "/nowhere"])
async def test_preflight_allows_whatever_headers_the_page_will_send_and_needs_no_key(path: str) -> None:
    async with allowing(PAGE, keys={"api_keys": "k"}) as side:
        reply = await side.client.options(path, headers=ASKS)
        assert (reply.status, await reply.read()) == (204, b"")
        assert reply.headers.getall("Access-Control-Allow-Origin") == [PAGE]
        assert reply.headers["Access-Control-Allow-Headers"] == ASKS["Access-Control-Request-Headers"]
        assert "POST" in reply.headers["Access-Control-Allow-Methods"]
        assert reply.headers.getall("Vary") == ["Origin"]
        assert "Access-Control-Allow-Credentials" not in reply.headers
        assert side.num_requests() == 0
        assert side.worker.received == []


async def test_preflight_of_a_public_page_is_told_that_this_machine_may_be_asked() -> None:
    async with allowing(PAGE) as side:
        reply = await side.client.options(CHAT, headers=ASKS | {"Access-Control-Request-Private-Network": "true"})
        assert reply.headers["Access-Control-Allow-Private-Network"] == "true"


async def test_preflight_of_a_stranger_is_refused_without_headers() -> None:
    async with allowing(PAGE) as side:
        reply = await side.client.options(CHAT, headers=ASKS | {"Origin": "https://evil.example"})
        assert reply.status == 403
        assert not [name for name in reply.headers if name.startswith("Access-Control")]


async def test_preflight_is_refused_where_cors_is_off() -> None:
    async with http_side() as side:
        reply = await side.client.options(CHAT, headers=ASKS | {"Origin": str(side.client.make_url("")).rstrip("/")})
        assert reply.status == 405
        assert not [name for name in reply.headers if name.startswith("Access-Control") or name == "Vary"]


async def test_options_without_a_preflight_is_no_preflight() -> None:
    async with allowing(PAGE) as side:
        assert (await side.client.options(CHAT, headers={"Origin": PAGE})).status == 405


@pytest.mark.parametrize("stream", [False, True])
async def test_answers_carry_the_headers_once_streamed_or_not(stream: bool) -> None:
    async with allowing(PAGE) as side:
        reply = await side.client.post(CHAT, json=HELLO | {"stream": stream}, headers={"Origin": PAGE})
        assert reply.status == 200
        assert reply.headers.getall("Access-Control-Allow-Origin") == [PAGE]
        assert "X-Request-Id" in reply.headers["Access-Control-Expose-Headers"]
        assert reply.headers.getall("Vary") == ["Origin"]
        without = await side.client.post(CHAT, json=HELLO | {"stream": stream})
        assert "Access-Control-Allow-Origin" not in without.headers
        assert without.headers["Vary"] == "Origin"


@pytest.mark.parametrize(
    ("path", "body", "headers", "status"),
    [
        (CHAT, {"model": "smool"}, {"Authorization": "Bearer k"}, 404),
        ("/nowhere", {}, {"Authorization": "Bearer k"}, 404),
        (CHAT, [], {"Authorization": "Bearer k"}, 400),
        (CHAT, HELLO, {}, 401),
    ],
)
async def test_errors_carry_the_headers_too(path: str, body: Any, headers: dict[str, str], status: int) -> None:
    async with allowing(PAGE, keys={"api_keys": "k"}) as side:
        reply = await side.client.post(path, json=body, headers=headers | {"Origin": PAGE})
        assert reply.status == status
        assert reply.headers.getall("Access-Control-Allow-Origin") == [PAGE]
        assert "message" in (await reply.json())["error"]


async def test_worker_cannot_set_the_headers() -> None:
    async def loud(received: Received, sender: Sender) -> None:
        sender.headers.update({Header.CONTENT_TYPE: EVENTS, "Access-Control-Allow-Origin": "*", "Vary": "x"})
        await sender.data(b"data: [DONE]\n\n")
        await sender.end()

    async with allowing(PAGE) as side:
        side.worker.script = loud
        reply = await side.client.post(CHAT, json=HELLO | {"stream": True}, headers={"Origin": PAGE})
        assert await reply.read() == b"data: [DONE]\n\n"
        assert reply.headers.getall("Access-Control-Allow-Origin") == [PAGE]
        assert reply.headers.getall("Vary") == ["Origin"]


async def test_refusal_of_the_worker_carries_the_headers() -> None:
    async def refuse(received: Received, sender: Sender) -> None:
        error = ErrorPayload(400, "unsupported_parameter", "no", "tools")
        await sender.error(error)
        await sender.end(outcome="rejected")

    async with allowing(PAGE) as side:
        side.worker.script = refuse
        reply = await side.client.post(CHAT, json=HELLO | {"stream": True}, headers={"Origin": PAGE})
        assert (reply.status, reply.headers["Access-Control-Allow-Origin"]) == (400, PAGE)
