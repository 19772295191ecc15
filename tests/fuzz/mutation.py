"""Inputs out of other inputs, by changes that parsers are known to stumble over.

Pure but for the dice that it is given. Must not know any target.
"""

from __future__ import annotations

import random
import re
import struct
from collections.abc import Callable, Sequence

_NUMBERS = (0, 1, 2, 7, 31, 127, 128, 255, 256, 2**15, 2**16 - 1, 2**24, 2**31 - 1, 2**31, 2**32 - 1, 2**40, 2**63)
_NUMBERS_IN_TEXT = (b"0", b"-1", b"1e999", b"NaN", b"1" * 30, b"4294967296", b"0x7fffffff", b"true", b"null", b'""')
_FORMS = ("<I", ">I", "<Q", ">Q", "<H")
_DIGITS = re.compile(rb"[0-9]+")

Change = Callable[["Mutator", bytes, random.Random], bytes]


class Mutator:
    """Changes inputs; parts of `others` and `words` get into them."""

    def __init__(self, words: Sequence[bytes], others: Sequence[bytes]) -> None:
        self.words = list(words) or [b"\0"]
        self.others = [one for one in others if one] or [b"\0"]

    def change(self, data: bytes, dice: random.Random, max_size: int) -> bytes:
        """Return `data` with one change or a few."""
        for _ in range(dice.choice((1, 1, 1, 2, 3, 5))):
            data = dice.choice(_CHANGES)(self, data, dice)
        return data[:max_size]


def _place(data: bytes, dice: random.Random) -> int:
    return dice.randint(0, len(data))


def _span(data: bytes, dice: random.Random) -> tuple[int, int]:
    start = _place(data, dice)
    return start, min(len(data), start + dice.choice((1, 1, 2, 4, 8, 16, 64, 256)))


def _flip_a_bit(_: Mutator, data: bytes, dice: random.Random) -> bytes:
    if not data:
        return data
    at = dice.randrange(len(data))
    return data[:at] + bytes([data[at] ^ 1 << dice.randrange(8)]) + data[at + 1 :]


def _put_a_word(self: Mutator, data: bytes, dice: random.Random) -> bytes:
    at = _place(data, dice)
    return data[:at] + dice.choice(self.words) + data[at:]


def _put_a_word_over(self: Mutator, data: bytes, dice: random.Random) -> bytes:
    start, end = _span(data, dice)
    return data[:start] + dice.choice(self.words) + data[end:]


def _put_bytes(_: Mutator, data: bytes, dice: random.Random) -> bytes:
    at = _place(data, dice)
    return data[:at] + dice.randbytes(dice.randint(1, 4)) + data[at:]


def _delete(_: Mutator, data: bytes, dice: random.Random) -> bytes:
    start, end = _span(data, dice)
    return data[:start] + data[end:]


def _repeat(_: Mutator, data: bytes, dice: random.Random) -> bytes:
    start, end = _span(data, dice)
    return data[:start] + data[start:end] * dice.choice((2, 3, 10, 100)) + data[end:]


def _truncate(_: Mutator, data: bytes, dice: random.Random) -> bytes:
    return data[: _place(data, dice)]


def _splice(self: Mutator, data: bytes, dice: random.Random) -> bytes:
    other = dice.choice(self.others)
    return data[: _place(data, dice)] + other[_place(other, dice) :]


def _borrow(self: Mutator, data: bytes, dice: random.Random) -> bytes:
    other = dice.choice(self.others)
    start, end = _span(other, dice)
    at = _place(data, dice)
    return data[:at] + other[start:end] + data[at:]


def _put_a_number_over(_: Mutator, data: bytes, dice: random.Random) -> bytes:
    """Most often this hits a length or an offset, sooner or later."""
    form = dice.choice(_FORMS)
    size = struct.calcsize(form)
    number = dice.choice((*_NUMBERS, len(data), 2 ** (8 * size) - 1)) + dice.choice((0, 0, 0, 1, -1))
    at = _place(data, dice)
    return data[:at] + struct.pack(form, number % 2 ** (8 * size)) + data[at + size :]


def _change_a_number_in_text(_: Mutator, data: bytes, dice: random.Random) -> bytes:
    found = list(_DIGITS.finditer(data))
    if not found:
        return data
    one = dice.choice(found)
    return data[: one.start()] + dice.choice(_NUMBERS_IN_TEXT) + data[one.end() :]


_CHANGES: tuple[Change, ...] = (
    _flip_a_bit,
    _put_a_word,
    _put_a_word,
    _put_a_word_over,
    _put_bytes,
    _delete,
    _repeat,
    _truncate,
    _splice,
    _borrow,
    _put_a_number_over,
    _change_a_number_in_text,
)
