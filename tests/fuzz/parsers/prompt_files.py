"""Prompts that were kept on the disk: a file is believed as a whole, or not at all."""

from __future__ import annotations

import hashlib
import io
import json
import os
import struct
import tempfile
import zlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from tests.fuzz.parsers.subject import Subject
from worker.engine.prompt_format import MAGIC, Unusable, head_of, num_chunks, read_head, read_kv

_SUBJECT = "model a"
_folder = tempfile.TemporaryDirectory(prefix="corral-fuzz-", dir="/dev/shm" if os.path.isdir("/dev/shm") else None)
_path = Path(_folder.name) / "prompt"


def check(data: bytes) -> None:
    _read(data)
    # Few random changes get past a checksum: the same once more with all sums put right.
    text, _, rest = data.partition(b"\n")
    for num_tokens in (len(rest) // 8, 1):
        tokens, kv = rest[: 4 * num_tokens], rest[4 * num_tokens :]
        head = MAGIC + struct.pack("<I", len(text)) + text + tokens
        _read(head + hashlib.sha256(head).digest() + kv + struct.pack("<I", zlib.crc32(kv)))


def _read(content: bytes) -> None:
    _path.write_bytes(content)
    with _path.open("rb") as file:
        try:
            head = read_head(file, _path, _SUBJECT)
            kv = read_kv(file, head)
        except Unusable as error:
            if not str(error):
                raise AssertionError("no reason is told") from error
            return
    assert isinstance(head.salt, str)
    assert 0 < len(head.tokens) <= len(content) // 4
    assert head.num_bytes == len(content) == head.kv_start + head.kv_bytes + 4 * num_chunks(head.kv_bytes)
    assert kv.tobytes() == content[head.kv_start : head.kv_start + head.kv_bytes]
    assert io.BytesIO(content).read(len(MAGIC)) == MAGIC
    assert head.tokens.tobytes() in content


def seeds() -> Iterator[bytes]:
    tokens = np.arange(3, dtype=np.int32)
    kv = bytes(range(20))
    whole = head_of(_SUBJECT, tokens, "tenant", len(kv)) + kv
    yield whole + struct.pack("<I", zlib.crc32(kv))
    yield whole
    yield whole[:30]
    told = {"subject": _SUBJECT, "salt": "", "tokens": 2, "kv_bytes": 10}
    yield json.dumps(told).encode() + b"\n" + bytes(18)
    yield json.dumps(told | {"tokens": 1, "kv_bytes": 14}).encode() + b"\n" + bytes(18)
    yield json.dumps(told | {"subject": "other"}).encode() + b"\n" + bytes(18)


SUBJECT = Subject(
    "prompt_files",
    check,
    seeds,
    (
        *(
            MAGIC,
            b'"subject": "model a"',
            b'"salt": ""',
            b'"tokens": 1',
            b'"tokens": -1',
            b'"kv_bytes": 1',
            b'"kv_bytes": 1e3',
        ),
        *(
            b"true",
            b"null",
            b"1" * 30,
            b"1" * 5000,
            b"[" * 3000,
            b"NaN",
            b"\n",
            b"{",
            b"}",
            b'"\\ud800"',
            b"\xff\xff\xff\xff",
        ),
    ),
    max_size=1500,
)
