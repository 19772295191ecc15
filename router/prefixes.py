"""The beginnings of a conversation as numbers, so that it can be recognised when it goes on.

Owns where a conversation is cut. Pure: must not know workers, nor judge what a request's fields mean to one.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from typing import Any

import orjson

from worker.contract import without_billing_header

MAX_PREFIXES = 64
_MAX_FIRST = 32
"""Of more than `MAX_PREFIXES`, so many of the shortest are kept, and then the longest."""

MIN_BYTES = 256
"""A beginning that is shorter is computed again sooner than it is worth a choice of workers: without this, every
conversation that starts with "You are a helpful assistant." would go to the same one."""

MAX_BYTES = 256 * 1024
"""What lies behind is not looked at: so long a beginning tells conversations apart well enough."""

_HEAD = ("tools", "functions", "chat_template", "chat_template_kwargs", "lora")
"""Fields that change the prompt from its beginning on."""


def prefix_hashes(fields: Mapping[str, Any], salt: str = "", *, drops_billing_header: bool = True) -> tuple[int, ...]:
    """Return 64-bit hashes of the beginnings of a request's conversation, the shortest first; () = it has none.

    Each covers all that lies before it: what comes ahead of the messages, then the messages up to some place. A text
    is cut at powers of two. Requests of different `salt` have nothing in common. The last one, which counts most, is
    that of `prompt_cache_key`: clients that send it know what belongs together. `drops_billing_header` says
    whether the worker takes that line out.
    """
    hashes = list(_cut(fields, salt, drops_billing_header=drops_billing_header))
    own = _named(fields, salt)
    most = MAX_PREFIXES - len(own)
    if len(hashes) > most:
        hashes = hashes[:_MAX_FIRST] + hashes[_MAX_FIRST - most :]
    return (*hashes, *own)


def continued(
    prefixes: tuple[int, ...], response_id: str, fields: Mapping[str, Any], salt: str = ""
) -> tuple[int, ...]:
    """Return those of a request that goes on from a response whose own request had `prefixes`."""
    own = (_hash(orjson.dumps([salt, "response", response_id])), *_named(fields, salt))
    return (*prefixes, *own)[-MAX_PREFIXES:]


def _named(fields: Mapping[str, Any], salt: str) -> list[int]:
    """Return the hash of the conversation's name, if the request has one."""
    key = fields.get("prompt_cache_key")
    return [_hash(orjson.dumps([salt, key]))] if isinstance(key, str) and key else []


def _cut(fields: Mapping[str, Any], salt: str, *, drops_billing_header: bool) -> Iterator[int]:
    head = orjson.dumps([salt, [fields.get(name) for name in _HEAD]])
    messages, prompt = fields.get("messages"), fields.get("prompt")
    if messages is None:
        messages = _items(fields)
    if isinstance(messages, list):
        system = _system(fields, drops_billing_header=drops_billing_header)
        yield from _pieces(head, map(orjson.dumps, (*system, *map(_unmarked, messages))))
    elif isinstance(prompt, str):
        yield from _pieces(head, _doubling(prompt[:MAX_BYTES].encode()))
    elif (
        isinstance(prompt, list)
        and (tokens := prompt[: MAX_BYTES // 4])
        and all(type(token) is int for token in tokens)
    ):
        yield from _pieces(head, _doubling(orjson.dumps(tokens)[:-1]))


def _items(fields: Mapping[str, Any]) -> list[Any] | None:
    """Return a conversation of OpenAI's Responses API; None = this is none."""
    items, instructions = fields.get("input"), fields.get("instructions")
    if isinstance(instructions, str) and isinstance(items, str | list):
        return [instructions, *(items if isinstance(items, list) else [items])]
    return items if isinstance(items, list) and items and isinstance(items[0], dict) else None


def _system(fields: Mapping[str, Any], *, drops_billing_header: bool) -> list[Any]:
    """Return what Anthropic's API has beside the messages, as the worker reads it."""
    system = fields.get("system")
    blocks = [{"text": system}] if isinstance(system, str) else system if isinstance(system, list) else []
    if drops_billing_header:
        blocks = [_without_billing_header(block) for block in blocks]
    return [_without_mark(block) for block in blocks if not (isinstance(block, dict) and block.get("text") == "")]


def _without_billing_header(block: Any) -> Any:
    text = block.get("text") if isinstance(block, dict) else None
    return {**block, "text": without_billing_header(text)} if isinstance(text, str) else block


def _unmarked(message: Any) -> Any:
    """Return the message without the marks by which clients tell what to cache: they move as a conversation grows."""
    content = message.get("content") if isinstance(message, dict) else None
    if not isinstance(content, list):
        return message
    return {**message, "content": [_without_mark(part) for part in content]}


def _without_mark(part: Any) -> Any:
    if isinstance(part, dict) and "cache_control" in part:
        return {name: value for name, value in part.items() if name != "cache_control"}
    return part


def _pieces(head: bytes, pieces: Iterator[bytes]) -> Iterator[int]:
    """Yield a hash after each piece, once there is enough to make it worth while."""
    state = hashlib.blake2b(head, digest_size=8)
    num_bytes = len(head)
    for piece in pieces:
        state.update(len(piece).to_bytes(8, "big") + piece)
        num_bytes += len(piece)
        if num_bytes >= MIN_BYTES:
            yield int.from_bytes(state.digest(), "big")
        if num_bytes >= MAX_BYTES:
            return


def _doubling(text: bytes) -> Iterator[bytes]:
    """Yield the text in pieces that end at `MIN_BYTES` and each of its doubles."""
    at, end = 0, MIN_BYTES
    while at < len(text):
        yield text[at:end]
        at, end = end, 2 * end


def _hash(data: bytes) -> int:
    return int.from_bytes(hashlib.blake2b(data, digest_size=8).digest(), "big")
