"""Reading a request's body: bounded, JSON, and no more of it than the router has to know.

Owns size limits, the media type rule, exact messages for broken JSON, and the top-level keys that are the router's.
Must not judge any other field: the worker does that. Bodies are held as bytes; the parsed form lives only as long as
it takes to read the keys.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import orjson
from aiohttp import web

from router.errors import BadRequest, BodyTooLarge, BodyTooSlow, RouterError, TooManyRequests, UnsupportedMediaType
from router.inflation import STEP_BYTES, make_inflater
from router.keep_alive import read_keep_alive

SCAN_INLINE_BYTES = 256 * 1024
"""Longer bodies are parsed in a thread: at about 1 ms for this much, other streams do not notice."""

BODY_TIMEOUT_S = web.AppKey("body_timeout_s", float)
"""How long a body may take to come; 0 = any time."""
_LEAST_BYTES_PER_S = 16 * 1024
"""Each so many bytes that have come give a body a second more: a long one may come over a slow line."""

_FORM = "application/x-www-form-urlencoded"
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_MAX_PRIORITY = 100


class BodyMemory:
    """Counts the bytes of all request bodies that are held at the same time."""

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        """May be set anew; what is held already stays."""
        self.num_bytes = 0

    @contextmanager
    def share(self) -> Iterator[BodyShare]:
        """Yield one request's share; what it took is given back at the end."""
        share = BodyShare(self)
        try:
            yield share
        finally:
            share.give_back()

    def _take(self, num_bytes: int) -> None:
        if self.num_bytes + num_bytes > self.max_bytes:
            raise TooManyRequests(
                f"the server holds {self.num_bytes} bytes of other requests' bodies and may hold "
                f"{self.max_bytes} in all (CORRAL_MAX_BODY_MEMORY_BYTES); try again when some are answered",
                code="too_many_bytes",
                retry_after_s=2.0,
            )
        self.num_bytes += num_bytes


@dataclass(slots=True)
class BodyShare:
    """What one request holds of the `BodyMemory`."""

    memory: BodyMemory
    num_bytes: int = 0

    def take(self, num_bytes: int) -> None:
        """Count `num_bytes` more. Raises: TooManyRequests when that is too much for all requests together."""
        self.memory._take(num_bytes)
        self.num_bytes += num_bytes

    def give_back(self) -> None:
        """Count nothing any more: the body is gone. Idempotent."""
        self.memory.num_bytes -= self.num_bytes
        self.num_bytes = 0


@dataclass(frozen=True, slots=True)
class OwnedKeys:
    """The top-level keys of a request that the router acts on."""

    model: str | None
    stream: bool
    priority: int
    cache_salt: str | None
    """A digest of the client's salt, fit for a header."""
    keep_alive_s: float | None = None
    """How long the model stays when it is idle; -1 = idleness does not unload it, None = nothing is said."""
    previous_response_id: str | None = None
    """The response that this request goes on from."""


@dataclass(frozen=True, slots=True)
class JsonBody:
    """A body that is one JSON object."""

    raw: bytes
    fields: Mapping[str, Any] = field(repr=False)


def check_media_type(request: web.Request) -> None:
    """Return if the body may be read as JSON.

    A missing type and the one that `curl -d` sends by itself pass, unless a page sent them: a page can send these
    without the browser's asking first whether it may.

    Raises: UnsupportedMediaType.
    """
    given = request.headers.get("Content-Type")
    kind = "" if given is None else given.partition(";")[0].strip().lower()
    if kind == "application/json" or (kind.startswith("application/") and kind.endswith("+json")):
        return
    if kind in ("", _FORM) and "Origin" not in request.headers:
        return
    raise UnsupportedMediaType(
        f"the body must be JSON, sent with the header `Content-Type: application/json` (got {given[:100]!r})"
        if given
        else "the body must be JSON, sent with the header `Content-Type: application/json`"
    )


async def read_body(request: web.Request, max_bytes: int, share: BodyShare) -> bytes:
    """Return the whole body, decompressed if it came so.

    Raises: BodyTooLarge as soon as the limit is passed (or announced to be), TooManyRequests when all bodies together
    are too much, UnsupportedMediaType for an unknown encoding, BadRequest when it is not what its encoding says,
    BodyTooSlow when it does not come in time.
    """
    timeout_s = request.app.get(BODY_TIMEOUT_S, 0.0)
    try:
        async with asyncio.timeout(timeout_s or None) as deadline:
            return await _read_body(request, max_bytes, share, deadline)
    except TimeoutError:
        if not deadline.expired():
            raise  # of something else that took too long
        raise BodyTooSlow(
            f"the request body did not come in time: {timeout_s:g} s (CORRAL_REQUEST_BODY_TIMEOUT_S), and one more for "
            f"each {_LEAST_BYTES_PER_S // 1024} KiB"
        ) from None


async def _read_body(request: web.Request, max_bytes: int, share: BodyShare, deadline: asyncio.Timeout) -> bytes:
    due_s = deadline.when()
    inflater = make_inflater(request.headers.get("Content-Encoding", ""))
    if request.content_length is not None and request.content_length > max_bytes:
        raise _too_large(max_bytes, f"{request.content_length} bytes")
    chunks: list[bytes] = []
    num_bytes = num_packed = 0
    try:
        async for packed in request.content.iter_any():
            num_packed += len(packed)
            if due_s is not None:
                deadline.reschedule(due_s + num_packed / _LEAST_BYTES_PER_S)
            if num_packed > max_bytes:  # packed bytes may stand for none at all
                raise _too_large(max_bytes, "longer")
            for chunk in inflater.feed(packed):
                num_bytes += len(chunk)
                if num_bytes > max_bytes:
                    raise _too_large(max_bytes, "longer")
                share.take(len(chunk))
                chunks.append(chunk)
                if len(chunk) == STEP_BYTES:  # much of a little: others have their turn meanwhile
                    await asyncio.sleep(0)
        inflater.close()
    except web.RequestPayloadError as error:
        raise BadRequest(f"the request body is not valid HTTP: {error.__cause__ or error}") from None
    return b"".join(chunks).removeprefix(_BYTE_ORDER_MARK)


async def parse_body(raw: bytes) -> JsonBody:
    """Return the JSON object in `raw`. Raises: BadRequest that tells where and why it is none."""
    if len(raw) > SCAN_INLINE_BYTES:
        return await asyncio.to_thread(_parse, raw)
    return _parse(raw)


async def dump_body(fields: Mapping[str, Any]) -> bytes:
    """Return `fields` as JSON."""
    return await asyncio.to_thread(orjson.dumps, fields)


def owned_keys(fields: Mapping[str, Any], *, streams_by_default: bool = False, may_go_on: bool = False) -> OwnedKeys:
    """Return what the router must know; `may_go_on` from a response that is kept.

    Raises: BadRequest naming the key whose type is wrong or that is refused.
    """
    model = fields.get("model")
    if model is not None and not isinstance(model, str):
        raise BadRequest(f"'model' must be a string, not {_kind(model)}", param="model")
    priority = fields.get("priority")
    if isinstance(priority, float) and priority.is_integer():
        priority = int(priority)  # some languages have only one kind of number
    if priority is None:
        priority = 0
    elif isinstance(priority, bool) or not isinstance(priority, int) or abs(priority) > _MAX_PRIORITY:
        raise BadRequest(
            f"'priority' must be a whole number from -{_MAX_PRIORITY} to {_MAX_PRIORITY}", param="priority"
        )
    salt = fields.get("cache_salt")
    if salt is not None and not isinstance(salt, str):
        raise BadRequest(f"'cache_salt' must be a string, not {_kind(salt)}", param="cache_salt")
    return OwnedKeys(
        model=model,
        stream=fields.get("stream") is True or (streams_by_default and fields.get("stream") is None),
        priority=priority,
        cache_salt=None if salt is None else hashlib.sha256(salt.encode("utf-8", "replace")).hexdigest()[:32],
        keep_alive_s=_keep_alive_s(fields),
        previous_response_id=_previous_response_id(fields, may_go_on=may_go_on),
    )


def _previous_response_id(fields: Mapping[str, Any], *, may_go_on: bool) -> str | None:
    value = fields.get("previous_response_id")
    if value is not None and not may_go_on:
        raise BadRequest(
            "'previous_response_id' is not supported here: send the conversation so far in 'messages', or use POST "
            "/v1/responses",
            code="unsupported_parameter",
            param="previous_response_id",
        )
    if value is not None and not isinstance(value, str):
        raise BadRequest(f"'previous_response_id' must be a string, not {_kind(value)}", param="previous_response_id")
    return value


def _keep_alive_s(fields: Mapping[str, Any]) -> float | None:
    value = fields.get("keep_alive")
    try:
        return None if value is None else read_keep_alive(value)
    except ValueError as error:
        raise BadRequest(f"'keep_alive' {error}", param="keep_alive") from None


_MAX_CONTAINERS = 250_000
_MAX_VALUES = 2_000_000
"""Counted by their brackets and commas, those inside strings too. The parser takes a value in 50 ns to 1 us and some
thirty times its bytes, and nobody else runs meanwhile."""
_MAX_DEPTH = 200
"""Lists and objects inside each other. Bodies and parts of them are written as JSON again, which orjson does to a depth
of 254, though it reads 1024."""


def _parse(raw: bytes) -> JsonBody:
    if raw.count(b"[") + raw.count(b"{") > _MAX_CONTAINERS or raw.count(b",") > _MAX_VALUES:
        raise BadRequest(
            f"the request body has more than {_MAX_CONTAINERS:,} lists and objects or {_MAX_VALUES:,} values; "
            f"no request needs so many"
        )
    try:
        fields = orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        raise _broken_json(raw, error) from None
    if not isinstance(fields, dict):
        raise BadRequest(f"the request body must be a JSON object, not {_kind(fields)}")
    if raw.count(b"[") + raw.count(b"{") > _MAX_DEPTH and _is_deeper(fields, _MAX_DEPTH):
        raise _too_deep()
    return JsonBody(raw, fields)


def _is_deeper(value: dict[str, Any], depth: int) -> bool:
    """Return whether more than `depth` lists and objects are inside each other."""
    level: list[Any] = [value]
    for _ in range(depth):
        inner = (one.values() if isinstance(one, dict) else one for one in level)
        level = [child for children in inner for child in children if type(child) in (list, dict)]
        if not level:
            return False
    return True


def _broken_json(raw: bytes, error: orjson.JSONDecodeError) -> RouterError:
    if not raw.strip():
        return BadRequest("the request body is empty; a JSON object is expected")
    if raw[:2] in (b"\xff\xfe", b"\xfe\xff") or b"\x00" in raw[:4]:
        return BadRequest("the request body is UTF-16 or UTF-32 text; JSON must be sent as UTF-8")
    try:
        raw.decode("utf-8")
    except UnicodeDecodeError as problem:
        return BadRequest(
            f"the request body is not valid UTF-8 at byte {problem.start} "
            f"(0x{raw[problem.start]:02x}: {problem.reason}); JSON must be sent as UTF-8"
        )
    if "depth" in error.msg or "ecursion" in error.msg:
        return _too_deep()
    return BadRequest(
        f"the request body is not valid JSON: {error.msg} at line {error.lineno}, column {error.colno} "
        f"(character {error.pos})"
    )


def _too_deep() -> BadRequest:
    return BadRequest(f"the request body nests lists or objects too deep: more than {_MAX_DEPTH} inside each other")


def _too_large(max_bytes: int, got: str) -> BodyTooLarge:
    return BodyTooLarge(
        f"the request body may have {max_bytes} bytes (limits.max_body_bytes in models.yaml); this one is {got}"
    )


def _kind(value: object) -> str:
    """Return the JSON name of the type of `value`, with its article."""
    match value:
        case None:
            return "null"
        case bool():
            return "a boolean"
        case int() | float():
            return "a number"
        case str():
            return "a string"
        case list():
            return "a list"
        case _:
            return "an object"
