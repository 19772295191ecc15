"""What a GGUF file says of itself, read without loading it.

Owns a bounded scanner: it walks over token lists without keeping them, and gives up with a reason at the first
thing that cannot be. Must not trust any number in the file, and must not map the file into memory: a file
that shrinks under a mapping kills the process that reads it.

Source: the GGUF specification (ggml, docs/gguf.md), versions 2 and 3, little-endian.
"""

from __future__ import annotations

import os
import stat
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, TypeVar

from router.tensor_sums import TENSOR_BLOCKS, TensorCounter, TensorSums

_T = TypeVar("_T")

MAX_HEADER_BYTES: Final = 128 * 2**20
"""Real headers have at most some 30 MiB (a million tokens with their merges)."""
MAX_KEYS: Final = 16_384
MAX_TENSORS: Final = 131_072
MAX_WALKED_ITEMS: Final = 4_000_000
"""Strings (and, sixteen times as dear, inner lists) that are stepped over one by one, in the whole file."""
MAX_KEY_BYTES: Final = 65_535
MAX_STRING_BYTES: Final = 16 * 2**20
MAX_ARRAY_DEPTH: Final = 4
MAX_KEPT_KEYS: Final = 512
MAX_KEPT_STRING_BYTES: Final = 1024
MAX_KEPT_LISTS: Final = 64
MAX_KEPT_ITEMS: Final = 1024
"""Of a list of numbers: such lists have an entry for each layer."""
_MAX_NAME_BYTES: Final = 1024
_MAX_DIMENSIONS: Final = 8
_WINDOW_BYTES: Final = 2**20

_U32 = struct.Struct("<I")
_U64 = struct.Struct("<Q")
_STRING: Final = 8
_ARRAY: Final = 9
# Value types by number. Source: enum gguf_type in gguf.h.
_SCALARS: Final[Mapping[int, struct.Struct]] = {
    0: struct.Struct("<B"),
    1: struct.Struct("<b"),
    2: struct.Struct("<H"),
    3: struct.Struct("<h"),
    4: _U32,
    5: struct.Struct("<i"),
    6: struct.Struct("<f"),
    7: struct.Struct("<?"),
    10: _U64,
    11: struct.Struct("<q"),
    12: struct.Struct("<d"),
}


class GgufError(ValueError):
    """The file is not a complete GGUF file that can be read; the message says why, without the file's name."""


@dataclass(frozen=True, slots=True)
class GgufHeader:
    """What the header says. `metadata` has the scalar keys only: no long strings, and short lists in `lists`."""

    architecture: str
    name: str | None
    trained_context: int | None
    num_layers: int | None
    size_bytes: int
    """Of this one file; the other parts of a split model are not in it."""
    file_type: int | None
    has_chat_template: bool
    split_count: int
    """Number of files of the model; 1 = it is not split."""
    metadata: Mapping[str, int | float | bool | str]
    num_tensors: int
    num_params: int
    """Weights in this one file."""
    num_vocab: int = 0
    """Tokens of the vocabulary; 0 = the file has none."""
    lists: Mapping[str, tuple[int | float | bool, ...]] = field(default_factory=dict)
    """The short lists of numbers: what differs from layer to layer."""
    tensors: TensorSums = field(default_factory=TensorSums)
    """Bytes by part of the model, in this one file."""


def read_gguf_header(path: Path) -> GgufHeader:
    """Return the header of `path`, whose tensors are all known to lie inside the file.

    Reads at most `MAX_HEADER_BYTES`, in windows no longer than the longest string that is allowed.

    Raises: GgufError, also when the file cannot be opened.
    """
    return _open(path, _read)


def read_tensor_sums(path: Path) -> TensorSums:
    """Return what the tensors of one file take; of a split model's later parts there is no more to know.

    Raises: as `read_gguf_header`.
    """
    return _open(path, _read_part)


def _open(path: Path, read: Callable[[_Cursor], _T]) -> _T:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        raise GgufError(f"it cannot be opened: {error.strerror}") from None
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise GgufError("it is not a regular file")
        return read(_Cursor(descriptor, status.st_size))
    except OSError as error:
        raise GgufError(f"it cannot be read: {error.strerror}") from None
    finally:
        os.close(descriptor)


class _Cursor:
    """A position in the file and the bytes around it; every move is checked against the file's end."""

    def __init__(self, descriptor: int, size: int) -> None:
        self.size = size
        self.position = 0
        self._descriptor = descriptor
        self._window = b""
        self._start = 0
        self._walked = 0

    def _at(self, num_bytes: int) -> int:
        """Return where in the window the next `num_bytes` lie, after reading them if need be."""
        at = self.position - self._start
        if at + num_bytes <= len(self._window) and at >= 0:
            return at
        end = self.position + num_bytes
        self._check(end)
        self._window = os.pread(self._descriptor, max(num_bytes, _WINDOW_BYTES), self.position)
        self._start = self.position
        if len(self._window) < num_bytes:
            raise self._truncated()
        return 0

    def _check(self, end: int) -> None:
        if end > self.size:
            raise self._truncated()
        if end > MAX_HEADER_BYTES:
            raise GgufError(f"its header is longer than {MAX_HEADER_BYTES // 2**20} MiB")

    def _truncated(self) -> GgufError:
        return GgufError(
            f"it is truncated: the header goes on after the file's end ({self.size} bytes); fetch it again"
        )

    def scalar(self, form: struct.Struct) -> int | float | bool:
        at = self._at(form.size)
        self.position += form.size
        value: int | float | bool = form.unpack_from(self._window, at)[0]
        return value

    def u32(self) -> int:
        return int(self.scalar(_U32))

    def u64(self) -> int:
        return int(self.scalar(_U64))

    def string(self, limit: int, what: str) -> bytes:
        length = self.u64()
        if length > limit:
            raise GgufError(f"it is damaged: {what} is {length} bytes long (at most {limit} make sense)")
        at = self._at(length)
        self.position += length
        return self._window[at : at + length]

    def skip(self, num_bytes: int) -> None:
        self._check(self.position + num_bytes)
        self.position += num_bytes

    def walk(self, count: int) -> None:
        """Count items that are stepped over one by one. Raises: GgufError beyond `MAX_WALKED_ITEMS`."""
        self._walked += count
        if self._walked > MAX_WALKED_ITEMS:
            raise GgufError(f"its lists have more than {MAX_WALKED_ITEMS} items; that is not a model's header")

    def skip_strings(self, count: int) -> None:
        """Step over `count` strings by their lengths alone: a vocabulary in some tens of milliseconds."""
        self.walk(count)
        unpack = _U64.unpack_from
        while count:
            at = self._at(8)
            window = self._window
            last = len(window) - 8
            while count and at <= last:
                at += 8 + unpack(window, at)[0]
                count -= 1
            self.position = self._start + at
            self._check(self.position)

    def array(self) -> tuple[int, tuple[int | float | bool, ...]]:
        """Return a list's length and, if it is a short one of numbers, its items."""
        item_type, count = self.u32(), self.u64()
        if item_type not in _SCALARS or count > MAX_KEPT_ITEMS:
            self._skip_items(item_type, count, 1)
            return count, ()
        return count, tuple(self.scalar(_SCALARS[item_type]) for _ in range(count))

    def _skip_items(self, item_type: int, count: int, depth: int) -> None:
        if item_type == _STRING:
            self.skip_strings(count)
        elif item_type == _ARRAY:
            if depth >= MAX_ARRAY_DEPTH:
                raise GgufError(f"it is damaged: lists are nested more than {MAX_ARRAY_DEPTH} deep")
            self.walk(16 * count)  # an inner list costs more time than a string, and no model has any
            for _ in range(count):
                self._skip_items(self.u32(), self.u64(), depth + 1)
        elif item_type in _SCALARS:
            self.skip(count * _SCALARS[item_type].size)
        else:
            raise _unknown_type(item_type)


def _unknown_type(number: int) -> GgufError:
    return GgufError(f"it is damaged or newer than this program: it uses the value type {number}")


def _read(cursor: _Cursor) -> GgufHeader:
    num_tensors, num_keys = _read_counts(cursor)
    said = _read_metadata(cursor, num_keys)
    metadata = said.scalars
    num_params, tensors = _read_tensors(cursor, num_tensors, metadata)
    architecture = metadata.get("general.architecture")
    if not isinstance(architecture, str) or not architecture:
        raise GgufError("it does not name an architecture (general.architecture), so it is not a model")
    name = metadata.get("general.name")
    return GgufHeader(
        architecture=architecture,
        name=name if isinstance(name, str) and name else None,
        trained_context=_count(metadata, f"{architecture}.context_length"),
        num_layers=_count(metadata, f"{architecture}.block_count"),
        size_bytes=cursor.size,
        file_type=_count(metadata, "general.file_type"),
        has_chat_template=said.template_bytes > 0,
        split_count=_count(metadata, "split.count") or 1,
        metadata=metadata,
        num_tensors=num_tensors,
        num_params=num_params,
        num_vocab=said.num_vocab,
        lists=said.lists,
        tensors=tensors,
    )


def _read_part(cursor: _Cursor) -> TensorSums:
    num_tensors, num_keys = _read_counts(cursor)
    return _read_tensors(cursor, num_tensors, _read_metadata(cursor, num_keys).scalars)[1]


def _read_counts(cursor: _Cursor) -> tuple[int, int]:
    """Return the numbers of tensors and of keys, after magic and version were found good."""
    if cursor.size < 4:
        raise GgufError("it is empty" if cursor.size == 0 else "it is not a GGUF file: it is far too short")
    magic = cursor.u32().to_bytes(4, "little")
    if magic != b"GGUF":
        raise GgufError(f"it is not a GGUF file: it begins with {_shown(magic)} instead of 'GGUF'")
    version = cursor.u32()
    if version not in {2, 3}:
        if version & 0xFFFF == 0 and version:
            raise GgufError("it is a big-endian GGUF file; this program reads little-endian ones")
        raise GgufError(f"it has GGUF version {version}; versions 2 and 3 can be read, convert it again")
    num_tensors, num_keys = cursor.u64(), cursor.u64()
    if num_tensors > MAX_TENSORS:
        raise GgufError(f"it is damaged: it claims {num_tensors} tensors (at most {MAX_TENSORS} make sense)")
    if num_keys > MAX_KEYS:
        raise GgufError(f"it is damaged: it claims {num_keys} metadata keys (at most {MAX_KEYS} make sense)")
    return num_tensors, num_keys


@dataclass(slots=True)
class _Metadata:
    scalars: dict[str, int | float | bool | str] = field(default_factory=dict)
    lists: dict[str, tuple[int | float | bool, ...]] = field(default_factory=dict)
    num_vocab: int = 0
    template_bytes: int = 0


def _read_metadata(cursor: _Cursor, num_keys: int) -> _Metadata:
    said = _Metadata()
    seen = set()
    for _ in range(num_keys):
        key = cursor.string(MAX_KEY_BYTES, "a metadata key").decode("utf-8", "replace")
        if key in seen:
            raise GgufError(f"it is damaged: the metadata key {key[:100]!r} is there twice")
        seen.add(key)
        value_type = cursor.u32()
        value: int | float | bool | str
        if value_type == _ARRAY:
            length, items = cursor.array()
            if key == "tokenizer.ggml.tokens":
                said.num_vocab = length
            elif items and len(said.lists) < MAX_KEPT_LISTS:
                said.lists[key] = items
            continue
        if value_type == _STRING:
            raw = cursor.string(MAX_STRING_BYTES, f"the value of {key[:100]!r}")
            if key == "tokenizer.chat_template":
                said.template_bytes = len(raw)
                continue
            if len(raw) > MAX_KEPT_STRING_BYTES:
                continue
            value = raw.decode("utf-8", "replace")
        elif value_type in _SCALARS:
            value = cursor.scalar(_SCALARS[value_type])
        else:
            raise _unknown_type(value_type)
        # Real headers have some dozens of scalars; a damaged or hostile one may not fill the memory.
        if len(said.scalars) < MAX_KEPT_KEYS:
            said.scalars[key] = value
    return said


def _read_tensors(
    cursor: _Cursor, num_tensors: int, metadata: Mapping[str, int | float | bool | str]
) -> tuple[int, TensorSums]:
    """Return the number of weights and their bytes, after every tensor was found to lie inside the file."""
    num_params = 0
    counter = TensorCounter()
    end, last = 0, ""
    for _ in range(num_tensors):
        name = cursor.string(_MAX_NAME_BYTES, "a tensor's name").decode("utf-8", "replace")
        num_dimensions = cursor.u32()
        if num_dimensions > _MAX_DIMENSIONS:
            raise GgufError(f"it is damaged: the tensor {name!r} has {num_dimensions} dimensions")
        num_elements, row = 1, 1
        for axis in range(num_dimensions):
            length = cursor.u64()
            num_elements *= length
            row = length if axis == 0 else row
        tensor_type, offset = cursor.u32(), cursor.u64()
        block, block_bytes = TENSOR_BLOCKS.get(tensor_type, (1, 0))
        if row % block:
            raise GgufError(f"it is damaged: the rows of the tensor {name!r} do not fit its type {tensor_type}")
        num_params += num_elements
        counter.add(name, num_elements // block * (block_bytes or 1))  # an unknown type is most likely a small one
        if offset + num_elements // block * block_bytes >= end:
            end, last = offset + num_elements // block * block_bytes, name
    alignment = _count(metadata, "general.alignment") or 32
    if alignment > 2**20 or alignment & (alignment - 1):
        raise GgufError(f"it is damaged: an alignment of {alignment} bytes is impossible")
    expected = -(-cursor.position // alignment) * alignment + end
    if num_tensors and expected > cursor.size:
        raise GgufError(
            f"it is truncated: the tensor {last!r} ends at byte {expected}, the file has {cursor.size}; fetch it again"
        )
    return num_params, counter.sums()


def _count(metadata: Mapping[str, int | float | bool | str], key: str) -> int | None:
    """Return the whole number under `key`; None if there is none or it makes no sense."""
    value = metadata.get(key)
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        return None
    return value


def _shown(magic: bytes) -> str:
    if magic in {b"lmgg", b"tjgg", b"fmgg", b"algg", b"ggml", b"ggjt", b"ggmf", b"ggla"}:
        return "the mark of the older GGML format"
    if magic[:2] == b"PK":
        return "the mark of a zip archive"
    if magic.strip().startswith(b"<"):
        return "text that looks like a web page"
    if magic == b"vers":
        return "what looks like a Git LFS pointer (fetch the real file with `git lfs pull`)"
    return repr(magic.decode("latin-1"))
