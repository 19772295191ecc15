"""Bodies are read within limits, and what is wrong with them is said precisely."""

from __future__ import annotations

import gzip
import json
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import make_mocked_request

from router.body import SCAN_INLINE_BYTES, BodyMemory, owned_keys, parse_body, read_body
from router.catalog import AliasSpec, Limits, RequestRules
from router.errors import BadRequest, TooManyRequests
from tests.support.http_side import CHAT, http_side, make_catalog, make_spec

JSON = {"Content-Type": "application/json"}


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        (b"", "empty"),
        (b"  \n", "empty"),
        (b'{"a": 1,\n "b": }', "line 2, column 7"),
        (b'{"a": nan}', "not valid JSON"),
        (b'{"a": 1} x', "not valid JSON"),
        (b"[1]", "must be a JSON object, not a list"),
        (b"null", "not null"),
        (b"1", "not a number"),
        (b'"x"', "not a string"),
        (b"true", "not a boolean"),
        (b'{"a": "\xff"}', "not valid UTF-8 at byte 7 (0xff"),
        ('{"a": 1}'.encode("utf-16"), "UTF-16"),
        ('{"a": 1}'.encode("utf-32-le"), "UTF-16 or UTF-32"),
        (b'{"a":' + b"[" * 5000 + b"]" * 5000 + b"}", "too deep"),
        (b'{"a": "\\ud800"}', "surrogate"),
    ],
)
async def test_broken_body_is_described(raw: bytes, words: str) -> None:
    with pytest.raises(BadRequest) as error:
        await parse_body(raw)
    assert words in error.value.message
    assert error.value.http_status == 400


async def test_long_body_is_parsed_in_a_thread_to_the_same_result() -> None:
    fields = {"model": "smol", "prompt": "x" * (SCAN_INLINE_BYTES + 1)}
    body = await parse_body(json.dumps(fields).encode())
    assert body.fields == fields


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"model": 1}, "model"),
        ({"model": ["smol"]}, "model"),
        ({"priority": "high"}, "priority"),
        ({"priority": True}, "priority"),
        ({"priority": 101}, "priority"),
        ({"cache_salt": 5}, "cache_salt"),
        ({"keep_alive": "soon"}, "keep_alive"),
        ({"keep_alive": True}, "keep_alive"),
    ],
)
def test_wrong_type_of_a_key_of_the_routers_is_named(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(BadRequest) as error:
        owned_keys(fields)
    assert error.value.param == param
    assert f"'{param}'" in error.value.message


@pytest.mark.parametrize(
    ("key", "value", "instead"),
    [("previous_response_id", "resp_1", "'messages'")],
)
def test_keys_that_cannot_be_honoured_are_refused_like_other_unsupported_fields(
    key: str, value: str, instead: str
) -> None:
    with pytest.raises(BadRequest) as error:
        owned_keys({key: value})
    assert (error.value.code, error.value.param) == ("unsupported_parameter", key)
    assert instead in error.value.message


def test_null_counts_as_absent() -> None:
    fields = dict.fromkeys(("model", "stream", "priority", "cache_salt", "keep_alive", "previous_response_id"))
    keys = owned_keys(fields)
    assert (keys.model, keys.stream, keys.priority, keys.cache_salt) == (None, False, 0, None)
    assert keys.keep_alive_s is None


def test_keep_alive_is_read_in_seconds() -> None:
    assert owned_keys({"keep_alive": "1h30m"}).keep_alive_s == 5400.0


@pytest.mark.parametrize("stream", [1, "true", [True], False, None])
def test_only_true_makes_a_stream(stream: Any) -> None:
    assert not owned_keys({"stream": stream}).stream


def test_memory_of_all_bodies_together_is_bounded_and_given_back() -> None:
    memory = BodyMemory(100)
    with memory.share() as first, memory.share() as second:
        first.take(60)
        with pytest.raises(TooManyRequests, match="CORRAL_MAX_BODY_MEMORY_BYTES"):
            second.take(50)
        first.give_back()
        second.take(50)
        first.give_back()
        assert memory.num_bytes == 50
    assert memory.num_bytes == 0


# --- over HTTP ---


async def test_announced_long_body_is_refused_before_it_is_read() -> None:
    async with http_side(make_catalog(limits=Limits(max_body_bytes=1000))) as side:
        reply = await side.client.post(CHAT, data=b"x" * 1001, headers=JSON)
        error = (await reply.json())["error"]
        assert (reply.status, error["code"]) == (413, "request_too_large")
        assert "limits.max_body_bytes" in error["message"]
        assert "1000 bytes" in error["message"]


async def test_long_body_of_unknown_length_is_refused_when_the_limit_is_passed() -> None:
    num_sent = 0

    async def endless() -> Any:
        nonlocal num_sent
        for _ in range(10_000):
            num_sent += 1
            yield b"x" * 1000

    async with http_side(make_catalog(limits=Limits(max_body_bytes=5000))) as side:
        reply = await side.client.post(CHAT, data=endless(), headers=JSON)
        assert reply.status == 413
        assert side.body_memory.num_bytes == 0


async def test_body_larger_than_aiohttps_own_default_passes() -> None:
    async with http_side() as side:
        fields = {"model": "smol", "prompt": "x" * 3_000_000}
        reply = await side.client.post("/v1/completions", json=fields)
        assert reply.status == 200
        assert side.worker.received[0].body == fields


async def test_compressed_body_is_unpacked_and_counted_unpacked() -> None:
    headers = JSON | {"Content-Encoding": "gzip"}
    async with http_side(make_catalog(limits=Limits(max_body_bytes=100_000))) as side:
        good = await side.client.post(CHAT, data=gzip.compress(b'{"model": "smol"}'), headers=headers)
        assert good.status == 200
        assert side.worker.received[0].raw == b'{"model": "smol"}'
        bomb = gzip.compress(b'{"model": "smol", "x": "' + b"0" * 50_000_000 + b'"}')
        assert len(bomb) < 100_000
        reply = await side.client.post(CHAT, data=bomb, headers=headers)
        assert reply.status == 413


async def test_body_that_is_not_compressed_as_it_says_is_a_400() -> None:
    async with http_side() as side:
        reply = await side.client.post(CHAT, data=b"plain", headers=JSON | {"Content-Encoding": "gzip"})
        assert reply.status == 400
        assert "error" in await reply.json()


async def test_too_many_bytes_in_flight_are_refused_with_advice_to_wait() -> None:
    async with http_side(max_body_memory=10) as side:
        reply = await side.client.post(CHAT, json={"model": "smol"})
        assert reply.status == 429
        assert "Retry-After" in reply.headers


@pytest.mark.parametrize(
    "content_type",
    ["application/json", "application/json; charset=utf-8", "application/x-www-form-urlencoded", "application/x+json"],
)
async def test_json_is_accepted_under_its_own_types_and_the_one_that_curl_sends(content_type: str) -> None:
    async with http_side() as side:
        reply = await side.client.post(CHAT, data=b'{"model":"smol"}', headers={"Content-Type": content_type})
        assert reply.status == 200


@pytest.mark.parametrize(
    ("content_type", "origin"),
    [
        ("text/plain", None),
        ("multipart/form-data; boundary=x", None),
        ("application/x-www-form-urlencoded", "http://{host}"),
        ("text/plain", "http://{host}"),
    ],
)
async def test_types_that_a_page_can_send_unasked_are_refused(content_type: str, origin: str | None) -> None:
    async with http_side() as side:
        headers = {"Content-Type": content_type}
        if origin is not None:
            headers["Origin"] = origin.format(host=f"{side.client.host}:{side.client.port}")
        reply = await side.client.post(CHAT, data=b'{"model":"smol"}', headers=headers)
        assert reply.status == 415
        assert "Content-Type: application/json" in (await reply.json())["error"]["message"]


async def test_byte_order_mark_is_taken_off() -> None:
    async with http_side() as side:
        reply = await side.client.post(CHAT, data=b'\xef\xbb\xbf{"model":"smol"}', headers=JSON)
        assert reply.status == 200
        assert side.worker.received[0].raw == b'{"model":"smol"}'


async def test_request_rules_of_model_and_alias_change_what_the_worker_gets() -> None:
    spec = make_spec(
        "smol",
        request=RequestRules(defaults={"temperature": 0.5}, force={"top_k": 1}, drop=("logprobs",)),
        aliases={"warm": AliasSpec("warm", RequestRules(force={"temperature": 2}))},
    )
    async with http_side(make_catalog(spec)) as side:
        await side.client.post(CHAT, json={"model": "smol", "top_k": 40, "logprobs": True})
        await side.client.post(CHAT, json={"model": "warm", "temperature": 0})
        first, second = (received.body for received in side.worker.received)
        assert first == {"model": "smol", "temperature": 0.5, "top_k": 1}
        assert second == {"model": "warm", "temperature": 2, "top_k": 1}


@pytest.mark.parametrize("raw", [b'{"a":[' + b"[]," * 300_000 + b"[]]}", b'{"a":[' + b"1," * 2_100_000 + b"1]}"])
async def test_body_of_very_many_values_is_refused_before_it_is_parsed(raw: bytes) -> None:
    with pytest.raises(BadRequest, match="no request needs so many"):
        await parse_body(raw)


async def test_lists_and_objects_may_be_200_deep_wherever_they_are() -> None:
    def body(depth: int) -> bytes:
        rest = b'{"a": ' * (depth - 51) + b"1" + b"}" * (depth - 51)
        return b'{"x": [[1], {}], "y": ' + b"[" * 50 + rest + b"]" * 50 + b"}"

    assert await parse_body(body(200))
    with pytest.raises(BadRequest, match="more than 200"):
        await parse_body(body(201))


async def test_a_time_out_of_something_else_is_not_called_a_slow_body(monkeypatch: pytest.MonkeyPatch) -> None:
    async def fail(*_: object) -> bytes:
        raise TimeoutError("another limit")

    monkeypatch.setattr("router.body._read_body", fail)
    request = make_mocked_request("POST", "/", app=web.Application())
    with BodyMemory(10).share() as share, pytest.raises(TimeoutError, match="another limit"):
        await read_body(request, 10, share)
