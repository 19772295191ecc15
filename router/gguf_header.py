"""What a GGUF file says of itself, read without loading it.

Owns a bounded scanner: it walks over token lists without keeping them, and gives up with a reason at the first
thing that cannot be. Must not trust any number in the file, and must not map the file into memory: a file
that shrinks under a mapping kills the process that reads it.

Source: the GGUF specification (ggml, docs/gguf.md), versions 2 and 3, little-endian.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final, TypeVar

from router.file_names import all_parts
from router.gguf_cursor import ARRAY, SCALARS, STRING, Cursor, GgufError, unknown_type
from router.tensor_sums import TENSOR_BLOCKS, UNFIT_TYPES, TensorCounter, TensorSums

__all__ = ["GgufError", "GgufHeader", "GgufTexts", "read_gguf_header", "read_gguf_texts", "read_tensor_sums"]

_T = TypeVar("_T")

MAX_KEYS: Final = 16_384
MAX_TENSORS: Final = 131_072
MAX_KEY_BYTES: Final = 65_535
MAX_STRING_BYTES: Final = 16 * 2**20
MAX_KEPT_KEYS: Final = 512
MAX_KEPT_STRING_BYTES: Final = 1024
MAX_KEPT_LISTS: Final = 64
_MAX_NAME_BYTES: Final = 1024
_MAX_DIMENSIONS: Final = 8


@dataclass(frozen=True, slots=True)
class GgufHeader:
    """What the header says. `metadata` has the scalar keys only: no long strings, and short lists in `lists`."""

    architecture: str
    name: str | None
    trained_context: int | None
    num_layers: int | None
    size_bytes: int
    """Of the file; of a split model, of all its files that are here."""
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
    odd_tensor: str | None = None
    """The first tensor that is no matrix of a type that llama.cpp multiplies with; None = there is none."""
    path: Path = Path()
    """The file that it was read from."""


@dataclass(frozen=True, slots=True)
class GgufTexts:
    """Texts that are too long to be kept for every model. None = the file does not tell."""

    chat_template: str | None
    bos: str | None
    eos: str | None


def read_gguf_header(path: Path) -> GgufHeader:
    """Return the header of `path`, whose tensors are all known to lie inside the file.

    Reads at most `MAX_HEADER_BYTES`, in windows no longer than the longest string that is allowed.

    Raises: GgufError, also when the file cannot be opened.
    """
    header = _open(path, _read)
    return replace(header, path=path, size_bytes=header.size_bytes + _size_of_others(path))


def read_gguf_texts(header: GgufHeader) -> GgufTexts:
    """Return the chat template and the texts of the begin and end tokens.

    Raises: as `read_gguf_header`.
    """
    wanted = {name: _count(header.metadata, f"tokenizer.ggml.{name}_token_id") for name in ("bos", "eos")}
    return _open(header.path, lambda cursor: _read_texts(cursor, wanted))


def _size_of_others(path: Path) -> int:
    """Return the bytes of a split model's other files, less those that are not here."""
    size = 0
    for name in all_parts(path.name):
        if name != path.name:
            with contextlib.suppress(OSError):
                size += path.with_name(name).stat().st_size
    return size


def read_tensor_sums(path: Path) -> TensorSums:
    """Return what the tensors of one file take; of a split model's later parts there is no more to know.

    Raises: as `read_gguf_header`.
    """
    return _open(path, _read_part)


def _open(path: Path, read: Callable[[Cursor], _T]) -> _T:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        raise GgufError(f"it cannot be opened: {error.strerror}") from None
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise GgufError("it is not a regular file")
        return read(Cursor(descriptor, status.st_size))
    except OSError as error:
        raise GgufError(f"it cannot be read: {error.strerror}") from None
    finally:
        os.close(descriptor)


def _read(cursor: Cursor) -> GgufHeader:
    num_tensors, num_keys = _read_counts(cursor)
    said = _read_metadata(cursor, num_keys)
    metadata = said.scalars
    num_params, tensors, odd_tensor = _read_tensors(cursor, num_tensors, metadata)
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
        odd_tensor=odd_tensor,
    )


def _read_part(cursor: Cursor) -> TensorSums:
    num_tensors, num_keys = _read_counts(cursor)
    return _read_tensors(cursor, num_tensors, _read_metadata(cursor, num_keys).scalars)[1]


def _read_counts(cursor: Cursor) -> tuple[int, int]:
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


def _read_metadata(cursor: Cursor, num_keys: int) -> _Metadata:
    said = _Metadata()
    seen = set()
    for _ in range(num_keys):
        key = cursor.string(MAX_KEY_BYTES, "a metadata key").decode("utf-8", "replace")
        if key in seen:
            raise GgufError(f"it is damaged: the metadata key {key[:100]!r} is there twice")
        seen.add(key)
        value_type = cursor.u32()
        value: int | float | bool | str
        if value_type == ARRAY:
            length, items = cursor.array(is_wanted=len(said.lists) < MAX_KEPT_LISTS)
            if key == "tokenizer.ggml.tokens":
                said.num_vocab = length
            elif items:
                said.lists[key] = items
            continue
        if value_type == STRING:
            raw = cursor.string(MAX_STRING_BYTES, f"the value of {key[:100]!r}")
            if key == "tokenizer.chat_template":
                said.template_bytes = len(raw)
                continue
            if len(raw) > MAX_KEPT_STRING_BYTES:
                continue
            value = raw.decode("utf-8", "replace")
        elif value_type in SCALARS:
            value = cursor.scalar(SCALARS[value_type])
        else:
            raise unknown_type(value_type)
        # Real headers have some dozens of scalars; a damaged or hostile one may not fill the memory.
        if len(said.scalars) < MAX_KEPT_KEYS:
            said.scalars[key] = value
    return said


def _read_texts(cursor: Cursor, wanted: Mapping[str, int | None]) -> GgufTexts:
    template: str | None = None
    tokens: dict[int, str] = {}
    _, num_keys = _read_counts(cursor)
    for _ in range(num_keys):
        key = cursor.string(MAX_KEY_BYTES, "a metadata key").decode("utf-8", "replace")
        value_type = cursor.u32()
        if value_type == ARRAY:
            item_type, count = cursor.u32(), cursor.u64()
            if key == "tokenizer.ggml.tokens" and item_type == STRING:
                tokens = _read_tokens(cursor, count, {id_ for id_ in wanted.values() if id_ is not None})
            else:
                cursor.skip_items(item_type, count)
        elif value_type == STRING:
            raw = cursor.string(MAX_STRING_BYTES, f"the value of {key[:100]!r}")
            if key == "tokenizer.chat_template":
                template = raw.decode("utf-8", "replace")
        elif value_type in SCALARS:
            cursor.scalar(SCALARS[value_type])
        else:
            raise unknown_type(value_type)
    found = {name: None if id_ is None else tokens.get(id_) for name, id_ in wanted.items()}
    return GgufTexts(template, found["bos"], found["eos"])


def _read_tokens(cursor: Cursor, count: int, wanted: Collection[int]) -> dict[int, str]:
    """Return the texts of the tokens with these ids, having stepped over the whole list."""
    found: dict[int, str] = {}
    position = 0
    for id_ in sorted(id_ for id_ in wanted if id_ < count):
        cursor.skip_strings(id_ - position)
        found[id_] = cursor.string(MAX_STRING_BYTES, "a token").decode("utf-8", "replace")
        position = id_ + 1
    cursor.skip_strings(count - position)
    return found


def _read_tensors(
    cursor: Cursor, num_tensors: int, metadata: Mapping[str, int | float | bool | str]
) -> tuple[int, TensorSums, str | None]:
    """Return the number of weights, their bytes, and the first tensor that is odd (`GgufHeader.odd_tensor`), after
    every tensor was found to lie inside the file."""
    num_params = 0
    odd: str | None = None
    counter = TensorCounter()
    end, last = 0, ""
    for _ in range(num_tensors):
        name = cursor.string(_MAX_NAME_BYTES, "a tensor's name").decode("utf-8", "replace")
        num_dimensions = cursor.u32()
        if num_dimensions > _MAX_DIMENSIONS:
            raise GgufError(f"it is damaged: the tensor {name!r} has {num_dimensions} dimensions")
        num_elements, row, num_matrices = 1, 1, 1
        for axis in range(num_dimensions):
            length = cursor.u64()
            num_elements *= length
            row = length if axis == 0 else row
            num_matrices *= length if axis > 1 else 1
        tensor_type, offset = cursor.u32(), cursor.u64()
        block, block_bytes = TENSOR_BLOCKS.get(tensor_type, (1, 0))
        if row % block:
            raise GgufError(f"it is damaged: the rows of the tensor {name!r} do not fit its type {tensor_type}")
        if odd is None and (tensor_type in UNFIT_TYPES or (num_matrices != 1 and "_exps." not in name)):
            odd = name
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
    return num_params, counter.sums(), odd


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
