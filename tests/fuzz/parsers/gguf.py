"""The reader of GGUF headers, and the arithmetic on what they say: bounded reads, and no number is believed."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from router import gguf_cursor
from router.footprint import footprint_of, parts_of
from router.gguf_header import GgufError, GgufHeader, read_gguf_header, read_gguf_texts, read_tensor_sums
from tests.fuzz.parsers.subject import Subject, dice_of
from tests.support.gguf_bytes import ARRAY, BOOL, F32, I32, LLAMA, STRING, U8, U32, U64, Key, gguf_bytes, string
from worker.contract import EngineOptions

_HOLE_BYTES = 2**30
_ONE_IN = 128
"""Of the inputs that go on after their end; that takes long."""
_folder = tempfile.TemporaryDirectory(prefix="corral-fuzz-", dir="/dev/shm" if os.path.isdir("/dev/shm") else None)
_path = Path(_folder.name) / "model.gguf"


def check(data: bytes) -> None:
    _path.write_bytes(data)
    header = _told(lambda: read_gguf_header(_path), limit=4 * len(data) + 64)
    with _windows_of(48):
        assert repr(_told(lambda: read_gguf_header(_path))) == repr(header), "the result depends on the window"
    if isinstance(header, GgufHeader):
        _check_header(header, data)
    elif "the header goes on after the file's end" in header and dice_of(data).randrange(_ONE_IN) == 0:
        os.truncate(_path, len(data) + _HOLE_BYTES)  # nothing but zeros: a lot to walk through
        header = _told(lambda: read_gguf_header(_path), limit=2 * gguf_cursor.MAX_HEADER_BYTES + 2**25)
    if isinstance(header, GgufHeader):
        _check_arithmetic(header)


def _check_header(header: GgufHeader, data: bytes) -> None:
    assert header.size_bytes == len(data)
    assert header.architecture
    assert header.num_params >= 0
    texts = _told(lambda: read_gguf_texts(header))
    with _windows_of(48):
        assert _told(lambda: read_gguf_texts(header)) == texts
    assert repr(_told(lambda: read_tensor_sums(_path))) == repr(header.tensors)


def _check_arithmetic(header: GgufHeader) -> None:
    for options in (EngineOptions(512), EngineOptions(100_000, slots=8, swa_full=False, cache_type_k="q8_0")):
        needs = footprint_of(header, options)
        parts_of(header, options)
        assert needs is not None


def _told(read: Callable[[], Any], limit: int | None = None) -> Any:
    """Return what was read, or why it cannot be. Not more than `limit` bytes may be read for that."""
    with _counted() as counted:
        try:
            found = read()
        except GgufError as error:
            found = str(error)
            assert found
    assert limit is None or counted.num_bytes <= limit, f"{counted.num_bytes} bytes were read"
    return found


@contextmanager
def _counted() -> Iterator[SimpleNamespace]:
    counted = SimpleNamespace(num_bytes=0)

    def pread(descriptor: int, num_bytes: int, position: int) -> bytes:
        read = os.pread(descriptor, num_bytes, position)
        counted.num_bytes += len(read)
        return read

    with _replaced("os", SimpleNamespace(pread=pread)):
        yield counted


def _windows_of(num_bytes: int) -> Any:
    return _replaced("_WINDOW_BYTES", num_bytes)


@contextmanager
def _replaced(name: str, value: object) -> Iterator[None]:
    before = getattr(gguf_cursor, name)
    setattr(gguf_cursor, name, value)
    try:
        yield
    finally:
        setattr(gguf_cursor, name, before)


_VOCABULARY: list[Key] = [
    ("tokenizer.ggml.tokens", ARRAY, (STRING, ["<s>", "</s>", "a", "b", ""])),
    ("tokenizer.ggml.scores", ARRAY, (F32, [0.5] * 5)),
    ("tokenizer.ggml.bos_token_id", U32, 0),
    ("tokenizer.ggml.eos_token_id", U32, 1),
    ("tokenizer.chat_template", STRING, "{{ messages }}"),
]
_SHAPE: list[Key] = [
    ("llama.embedding_length", U32, 64),
    ("llama.attention.head_count", U32, 4),
    ("llama.attention.head_count_kv", ARRAY, (I32, [2, 1])),
    ("llama.attention.sliding_window", U32, 128),
    ("llama.attention.key_length", U32, 16),
    ("llama.ssm.conv_kernel", U32, 4),
    ("llama.ssm.inner_size", U32, 64),
    ("llama.ssm.state_size", U32, 16),
    ("llama.feed_forward_length", U32, 256),
    ("llama.expert_count", U32, 8),
]


def seeds() -> Iterator[bytes]:
    yield gguf_bytes()
    yield gguf_bytes(version=2)
    yield gguf_bytes([*LLAMA, *_SHAPE, *_VOCABULARY])
    yield gguf_bytes([*LLAMA, ("nested", ARRAY, (ARRAY, [(U8, [1, 2]), (STRING, ["a", ""])])), ("b", BOOL, True)])
    yield gguf_bytes(
        [*LLAMA, ("general.alignment", U32, 64)], [("a.weight", (32, 4), 2, 0), ("b", (256,), 12, 128)], alignment=64
    )
    yield gguf_bytes(LLAMA, [("a", (8, 4), 0, 0), ("b", (8, 4), 0, 64)])
    yield gguf_bytes(LLAMA, [("a", (2**62, 4), 0, 2**63)])
    yield gguf_bytes([*LLAMA, ("split.count", U32, 3), ("x", U64, 2**64 - 1)])
    yield gguf_bytes(num_keys=16_384)
    yield gguf_bytes(num_tensors=131_072)
    yield gguf_bytes()[:40]
    yield b"version https://git-lfs.github.com/spec/v1\n"


SUBJECT = Subject(
    "gguf",
    check,
    seeds,
    (
        *(b"GGUF\3\0\0\0", b"GGUF\0\0\0\3", *(bytes([number, 0, 0, 0]) for number in range(14))),
        *(
            b"\xff" * 8,
            b"\0" * 8,
            b"\xff\xff\xff\x7f",
            b"\0\0\0\0\0\0\0\x80",
            b"\0\x20\0\0\0\0\0\0",
            b"\1\0\0\0\0\0\0\0",
        ),
        *(string(name) for name, _, _ in [*LLAMA, *_SHAPE, *_VOCABULARY]),
        *(string("split.count"), string("general.alignment"), string("llama.rope.scaling.type"), string("gemma3")),
        *(string("mamba"), string("bert"), string("deepseek2"), string("gpt-oss"), string("token_embd.weight")),
        *(string("blk.0.attn_k.weight"), string("blk.1.ffn_up_exps.weight"), string("output.weight")),
    ),
)
