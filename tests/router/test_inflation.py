"""Compressed bodies are unpacked in small steps, and told apart from what only claims to be one."""

from __future__ import annotations

import gzip
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.catalog import Limits
from router.errors import BadRequest, UnsupportedMediaType
from router.inflation import STEP_BYTES, make_inflater
from tests.support.http_side import CHAT, http_side, make_catalog

BODY = b'{"model": "smol", "text": "' + b"ab" * 5000 + b'"}'


def raw_deflate(data: bytes) -> bytes:
    packer = zlib.compressobj(wbits=-zlib.MAX_WBITS)
    return packer.compress(data) + packer.flush()


def inflated(encoding: str, *pieces: bytes) -> bytes:
    inflater = make_inflater(encoding)
    made = [part for piece in pieces for part in inflater.feed(piece)]
    inflater.close()
    most = max(STEP_BYTES, *map(len, pieces))
    assert all(len(part) <= most for part in made)
    return b"".join(made)


@pytest.mark.parametrize(
    ("encoding", "packed"),
    [
        ("", BODY),
        ("identity", BODY),
        ("gzip", gzip.compress(BODY)),
        (" GZip ", gzip.compress(BODY)),
        ("x-gzip", gzip.compress(BODY)),
        ("gzip", gzip.compress(BODY[:9]) + gzip.compress(BODY[9:])),
        ("deflate", zlib.compress(BODY)),
        ("deflate", raw_deflate(BODY)),
    ],
)
def test_body_is_what_was_packed_however_its_bytes_are_cut(encoding: str, packed: bytes) -> None:
    assert inflated(encoding, packed) == BODY
    assert inflated(encoding, *(packed[i : i + 1] for i in range(len(packed)))) == BODY


@given(st.binary(max_size=3000), st.integers(1, 3000))
def test_any_bytes_survive(data: bytes, cut: int) -> None:
    packed = gzip.compress(data)
    assert inflated("gzip", packed[:cut], packed[cut:]) == data


@pytest.mark.parametrize("beyond", [1, 258, 259])
def test_the_end_is_found_though_all_packed_bytes_were_taken_before_the_last_step(beyond: int) -> None:
    body = (b"abc" * STEP_BYTES)[: STEP_BYTES + beyond]
    assert inflated("deflate", raw_deflate(body)) == body


def test_few_bytes_that_stand_for_many_come_in_small_steps() -> None:
    parts = make_inflater("gzip").feed(gzip.compress(b"0" * (8 * STEP_BYTES)))
    assert len(next(parts)) == STEP_BYTES


@pytest.mark.parametrize(
    ("encoding", "packed", "reason"),
    [
        ("gzip", b"plain", "incorrect header check"),
        ("gzip", gzip.compress(BODY)[:-1], "it is cut off"),
        ("gzip", gzip.compress(BODY) + b"more", "incorrect header check"),
        ("deflate", zlib.compress(BODY) + b"more", "something follows its end"),
        ("deflate", zlib.compress(BODY)[:20], "it is cut off"),
    ],
)
def test_body_that_is_not_packed_as_it_says_is_refused_with_the_reason(
    encoding: str, packed: bytes, reason: str
) -> None:
    with pytest.raises(BadRequest, match=f"not what `Content-Encoding: {encoding}` says: .*{reason}"):
        inflated(encoding, packed)


@pytest.mark.parametrize("encoding", ["br", "zstd", "compress", "gzip, gzip", "é"])
def test_other_encodings_are_refused_by_name(encoding: str) -> None:
    with pytest.raises(UnsupportedMediaType, match="send it as gzip or deflate"):
        make_inflater(encoding)


@pytest.mark.parametrize("encoding", ["br", "zstd", "x"])
async def test_unknown_encoding_is_a_415_in_json(encoding: str) -> None:
    headers = {"Content-Type": "application/json", "Content-Encoding": encoding}
    async with http_side() as side:
        reply = await side.client.post(CHAT, data=b"\x00\x01", headers=headers)
        error = (await reply.json())["error"]
        assert (reply.status, error["code"]) == (415, "unsupported_media_type")
        assert f"`Content-Encoding: {encoding}`" in error["message"]
        assert reply.headers["X-Request-Id"]


async def test_packed_bytes_that_stand_for_nothing_are_limited_too() -> None:
    async def pieces() -> object:
        for _ in range(100):
            yield gzip.compress(b"")

    headers = {"Content-Type": "application/json", "Content-Encoding": "gzip"}
    async with http_side(make_catalog(limits=Limits(max_body_bytes=1000))) as side:
        reply = await side.client.post(CHAT, data=pieces(), headers=headers)
        assert reply.status == 413


async def test_compressed_and_chunked_body_reaches_the_worker_plain() -> None:
    packed = gzip.compress(BODY)

    async def pieces() -> object:
        for start in range(0, len(packed), 50):
            yield packed[start : start + 50]

    headers = {"Content-Type": "application/json", "Content-Encoding": "gzip"}
    async with http_side() as side:
        reply = await side.client.post(CHAT, data=pieces(), headers=headers)
        assert reply.status == 200
        [received] = side.worker.received
        assert received.raw == BODY
        assert "Content-Encoding" not in received.headers


@pytest.mark.parametrize("size", [1, 2, 1000])
def test_nothing_may_follow_a_deflated_body_wherever_it_was_cut(size: int) -> None:
    body = zlib.compress(b"one") + zlib.compress(b"two")
    with pytest.raises(BadRequest, match="something follows its end"):
        inflated("deflate", *(body[at : at + size] for at in range(0, len(body), size)))
