"""What a prompt on the disk looks like, and what must be equal for it to be read again.

Must not know folders, limits, or when anything is written (`prompt_files.py`).

    magic | length of the JSON | JSON: subject, salt, counts | tokens | SHA-256 of all this | KV | CRC-32 of its chunks
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import re
import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path

import numpy as np
import numpy.typing as npt

from worker.contract import EngineOptions
from worker.engine.batch import TokenArray

Bytes = npt.NDArray[np.uint8]

MAGIC = b"corral prompt 1\n"
CHUNK_BYTES = 2**22
"""Checked, written and timed at once."""
MAX_JSON_BYTES = 2**16

_LENGTH = struct.Struct("<I")
_DIGEST_BYTES = 32

IRRELEVANT = frozenset(
    {
        *("gpu_layers", "device", "threads", "batch_size", "ubatch_size", "itl_target_ms", "prompt_cache_bytes"),
        *("prompt_cache_disk_bytes", "draft_max", "flash_attn", "pooling", "mmap", "mlock", "check_tensors"),
        *("split_mode", "main_gpu", "tensor_split", "no_kv_offload", "no_op_offload", "loras"),
    }
)
"""Options that change neither what cells hold nor how it is written. All others do, new ones too; `flash_attn`
counts as what the context really uses, `loras` as their files."""


class Unusable(Exception):
    """Why a file is not believed."""


class Foreign(Unusable):
    """It is sound, and of another model, configuration or release of llama.cpp."""


@dataclass(frozen=True, slots=True)
class PromptFile:
    """What is known of a file without its KV bytes."""

    path: Path
    tokens: TokenArray
    salt: str
    """Of which tenant and adapters it is: see `Sequence.cache_key`."""
    num_bytes: int
    """Of the whole file."""
    kv_start: int
    kv_bytes: int
    used_at: float = 0.0
    """Unix time of its last use."""


def subject_of(model_path: str, options: EngineOptions, *, flash_attn: str, library: str) -> str:
    """Return a digest of all that cells depend on: only equal ones can read each other's files.

    Raises: OSError when a file of the model is not there.
    """
    described = {
        "files": [_identity(path) for path in _parts(Path(model_path))],
        "loras": [_identity(Path(lora.path)) for lora in options.loras],
        "options": {
            one.name: getattr(options, one.name) for one in dataclasses.fields(options) if one.name not in IRRELEVANT
        },
        "flash_attn": flash_attn,
        "library": library,
    }
    return hashlib.sha256(json.dumps(described, sort_keys=True).encode()).hexdigest()


def _identity(path: Path) -> tuple[str, int, int]:
    found = path.stat()
    return str(path.resolve()), found.st_size, found.st_mtime_ns


def _parts(path: Path) -> list[Path]:
    """Return all files of a model that may be split."""
    split = re.fullmatch(r"(.*)-\d{5}-of-(\d{5})\.gguf", path.name)
    if split is None:
        return [path]
    return [path.with_name(f"{split[1]}-{i:05}-of-{split[2]}.gguf") for i in range(1, int(split[2]) + 1)]


def head_of(subject: str, tokens: TokenArray, salt: str, kv_bytes: int) -> bytes:
    told = {"subject": subject, "salt": salt, "tokens": len(tokens), "kv_bytes": kv_bytes}
    text = json.dumps(told).encode()
    head = MAGIC + _LENGTH.pack(len(text)) + text + tokens.astype("<i4").tobytes()
    return head + hashlib.sha256(head).digest()


def read_head(file: BufferedReader, path: Path, subject: str) -> PromptFile:
    """Return what the file says it holds. Raises: Unusable, OSError."""
    size, used_at = (found := os.fstat(file.fileno())).st_size, found.st_mtime
    start = file.read(len(MAGIC) + _LENGTH.size)
    if len(start) < len(MAGIC) + _LENGTH.size or not start.startswith(MAGIC):
        raise Unusable("it is no prompt of this release")
    (length,) = _LENGTH.unpack(start[len(MAGIC) :])
    if length > MAX_JSON_BYTES:
        raise Unusable("its head is damaged")
    text = file.read(length)
    try:
        told = json.loads(text)
        salt, num_tokens, kv_bytes, of = told["salt"], told["tokens"], told["kv_bytes"], told["subject"]
        is_sound = isinstance(salt, str) and type(num_tokens) is type(kv_bytes) is int and min(num_tokens, kv_bytes) > 0
    except (ValueError, TypeError, LookupError, RecursionError):
        is_sound = False
    if not is_sound:
        raise Unusable("its head is damaged")
    kv_start = len(start) + length + 4 * num_tokens + _DIGEST_BYTES
    if kv_start + kv_bytes + 4 * num_chunks(kv_bytes) != size:
        raise Unusable("it is not complete")
    raw = file.read(4 * num_tokens)
    if hashlib.sha256(start + text + raw).digest() != file.read(_DIGEST_BYTES):
        raise Unusable("its head is damaged")
    if of != subject:
        raise Foreign("it is of another model or configuration")
    tokens = np.frombuffer(raw, dtype="<i4").astype(np.int32)
    return PromptFile(path, tokens, salt, size, kv_start, kv_bytes, used_at)


def read_kv(file: BufferedReader, head: PromptFile) -> Bytes:
    """Return the KV bytes. Raises: Unusable, OSError, MemoryError."""
    kv = np.empty(head.kv_bytes, dtype=np.uint8)
    sums = []
    file.seek(head.kv_start)
    for chunk in chunks(kv):
        if file.readinto(chunk) != len(chunk):
            raise Unusable("it is not complete")
        sums.append(zlib.crc32(chunk))
    if file.read() != np.array(sums, dtype="<u4").tobytes():
        raise Unusable("its KV bytes are damaged")
    return kv


def chunks(kv: Bytes) -> Iterator[memoryview]:
    view = kv.data
    for start in range(0, len(kv), CHUNK_BYTES):
        yield view[start : start + CHUNK_BYTES]


def num_chunks(num_bytes: int) -> int:
    return -(-num_bytes // CHUNK_BYTES)


def is_same(one: PromptFile, other: PromptFile) -> bool:
    return one.salt == other.salt and one.kv_bytes == other.kv_bytes and np.array_equal(one.tokens, other.tokens)


def begins_with(tokens: TokenArray, start: TokenArray) -> bool:
    return len(start) < len(tokens) and np.array_equal(tokens[: len(start)], start)
