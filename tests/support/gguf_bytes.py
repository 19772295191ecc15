"""GGUF files made by hand with `struct`, so that tests can make them wrong in every way."""

from __future__ import annotations

import struct
from collections.abc import Sequence

U8, I8, U16, I16, U32, I32, F32, BOOL, STRING, ARRAY, U64, I64, F64 = range(13)
_FORMS = {U8: "B", I8: "b", U16: "H", I16: "h", U32: "I", I32: "i", F32: "f", BOOL: "?"} | {
    U64: "Q",
    I64: "q",
    F64: "d",
}

Key = tuple[str, int, object]
Tensor = tuple[str, Sequence[int], int, int]
"""Name, dimensions, type, offset."""

LLAMA: list[Key] = [
    ("general.architecture", STRING, "llama"),
    ("general.name", STRING, "Tiny"),
    ("llama.context_length", U32, 2048),
    ("llama.block_count", U32, 2),
    ("general.file_type", U32, 0),
]


def string(text: str | bytes) -> bytes:
    raw = text.encode() if isinstance(text, str) else text
    return struct.pack("<Q", len(raw)) + raw


def value(kind: int, content: object) -> bytes:
    """Return a value's bytes; of an array: `(item type, items)`."""
    if kind == STRING:
        assert isinstance(content, str | bytes)
        return string(content)
    if kind == ARRAY:
        assert isinstance(content, tuple)
        item_kind, items = content
        return struct.pack("<IQ", item_kind, len(items)) + b"".join(value(item_kind, i) for i in items)
    return struct.pack("<" + _FORMS[kind], content)


def gguf_bytes(
    keys: Sequence[Key] = LLAMA,
    tensors: Sequence[Tensor] = (("w", (8, 4), 0, 0),),
    *,
    version: int = 3,
    num_keys: int | None = None,
    num_tensors: int | None = None,
    data: bytes | None = None,
    alignment: int = 32,
) -> bytes:
    """Return a file with these keys and tensors; `data` None = as much as 128 bytes."""
    out = b"GGUF" + struct.pack(
        "<IQQ",
        version,
        len(tensors) if num_tensors is None else num_tensors,
        len(keys) if num_keys is None else num_keys,
    )
    for name, kind, content in keys:
        out += string(name) + struct.pack("<I", kind) + value(kind, content)
    for name, dimensions, kind, offset in tensors:
        out += string(name) + struct.pack("<I", len(dimensions))
        out += b"".join(struct.pack("<Q", length) for length in dimensions)
        out += struct.pack("<IQ", kind, offset)
    return out + bytes(-len(out) % alignment) + (bytes(128) if data is None else data)
