"""A position in a GGUF file, and safe moves from there.

Owns that no number in the file is trusted: every move is checked against the file's end, and everything that is read or
stepped over is bounded. Must not know what keys mean.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Mapping
from typing import Final

MAX_HEADER_BYTES: Final = 128 * 2**20
"""Real headers have at most some 30 MiB (a million tokens with their merges)."""
MAX_WALKED_ITEMS: Final = 4_000_000
"""Strings (and, sixteen times as dear, inner lists) that are stepped over one by one, in the whole file."""
MAX_ARRAY_DEPTH: Final = 4
MAX_KEPT_ITEMS: Final = 1024
"""Of a list of numbers: such lists have an entry for each layer."""
_WINDOW_BYTES: Final = 2**20

_U32 = struct.Struct("<I")
_U64 = struct.Struct("<Q")
STRING: Final = 8
ARRAY: Final = 9
# Value types by number. Source: enum gguf_type in gguf.h.
SCALARS: Final[Mapping[int, struct.Struct]] = {
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


class Cursor:
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
        """Return a number and step over it."""
        at = self._at(form.size)
        self.position += form.size
        value: int | float | bool = form.unpack_from(self._window, at)[0]
        return value

    def u32(self) -> int:
        """Return a 32-bit number and step over it."""
        return int(self.scalar(_U32))

    def u64(self) -> int:
        """Return a 64-bit number and step over it."""
        return int(self.scalar(_U64))

    def string(self, limit: int, what: str) -> bytes:
        """Return a string and step over it. Raises: GgufError naming `what` when it is longer than `limit`."""
        length = self.u64()
        if length > limit:
            raise GgufError(f"it is damaged: {what} is {length} bytes long (at most {limit} make sense)")
        at = self._at(length)
        self.position += length
        return self._window[at : at + length]

    def skip(self, num_bytes: int) -> None:
        """Step over so many bytes."""
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

    def array(self, *, is_wanted: bool = True) -> tuple[int, tuple[int | float | bool, ...]]:
        """Return a list's length and, if it is wanted and a short one of numbers, its items."""
        item_type, count = self.u32(), self.u64()
        if not is_wanted or item_type not in SCALARS or count > MAX_KEPT_ITEMS:
            self.skip_items(item_type, count, 1)
            return count, ()
        return count, tuple(self.scalar(SCALARS[item_type]) for _ in range(count))

    def skip_items(self, item_type: int, count: int, depth: int = 1) -> None:
        """Step over the items of a list."""
        if item_type == STRING:
            self.skip_strings(count)
        elif item_type == ARRAY:
            if depth >= MAX_ARRAY_DEPTH:
                raise GgufError(f"it is damaged: lists are nested more than {MAX_ARRAY_DEPTH} deep")
            self.walk(16 * count)  # an inner list costs more time than a string, and no model has any
            for _ in range(count):
                self.skip_items(self.u32(), self.u64(), depth + 1)
        elif item_type in SCALARS:
            self.skip(count * SCALARS[item_type].size)
        else:
            raise unknown_type(item_type)


def unknown_type(number: int) -> GgufError:
    """Return the error for a value whose type is not known."""
    return GgufError(f"it is damaged or newer than this program: it uses the value type {number}")
