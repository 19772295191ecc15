"""The beginnings of a conversation as numbers, so that it can be recognised when it goes on.

Owns where a conversation is cut. Pure: must not know workers, nor judge what a request's fields mean to one.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from typing import Any

import orjson

MAX_PREFIXES = 64
_MAX_FIRST = 32
"""Of more than `MAX_PREFIXES`, so many of the shortest are kept, and then the longest."""

MIN_BYTES = 256
"""A beginning that is shorter is computed again sooner than it is worth a choice of workers: without this, every
conversation that starts with "You are a helpful assistant." would go to the same one."""

MAX_BYTES = 256 * 1024
"""What lies behind is not looked at: so long a beginning tells conversations apart well enough."""

_HEAD = ("tools", "functions", "chat_template_kwargs", "lora")
"""Fields that change the prompt from its beginning on."""


def prefix_hashes(fields: Mapping[str, Any], salt: str = "") -> tuple[int, ...]:
    """Return 64-bit hashes of the beginnings of a request's conversation, the shortest first; () = it has none.

    Each covers all that lies before it: what comes ahead of the messages, then the messages up to some place. A text
    is cut at powers of two. Requests of different `salt` have nothing in common. The last one, which counts most, is
    that of `prompt_cache_key`: clients that send it know what belongs together.
    """
    hashes = list(_cut(fields, salt))
    key = fields.get("prompt_cache_key")
    own = [_hash(orjson.dumps([salt, key]))] if isinstance(key, str) and key else []
    most = MAX_PREFIXES - len(own)
    if len(hashes) > most:
        hashes = hashes[:_MAX_FIRST] + hashes[_MAX_FIRST - most :]
    return (*hashes, *own)


def _cut(fields: Mapping[str, Any], salt: str) -> Iterator[int]:
    head = orjson.dumps([salt, [fields.get(name) for name in _HEAD]])
    messages, prompt = fields.get("messages"), fields.get("prompt")
    if isinstance(messages, list):
        yield from _pieces(head, map(orjson.dumps, messages))
    elif isinstance(prompt, str):
        yield from _pieces(head, _doubling(prompt[:MAX_BYTES].encode()))
    elif (
        isinstance(prompt, list)
        and (tokens := prompt[: MAX_BYTES // 4])
        and all(type(token) is int for token in tokens)
    ):
        yield from _pieces(head, _doubling(orjson.dumps(tokens)[:-1]))


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
