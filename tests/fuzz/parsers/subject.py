"""What a fuzzer must know of one target, and ways to cut an input.

Owns that cuts depend on the input alone: a kept input does the same for ever. Must not know any target.
"""

from __future__ import annotations

import random
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import AnyStr

NUM_CUTS = 2
_MAX_SINGLE = 160
"""Longer inputs are not cut into single characters."""


@dataclass(frozen=True)
class Subject:
    """One target."""

    name: str
    check: Callable[[bytes], None]
    """Hands an input to the code, and raises where that does what it never may."""
    seeds: Callable[[], Iterable[bytes]]
    """Right inputs, and nearly right ones."""
    words: Sequence[bytes] = ()
    """What is worth putting in."""
    max_size: int = 4096
    """Bytes of an input: shorter ones are tried faster."""


def dice_of(data: bytes) -> random.Random:
    """Return random numbers that are the same whenever the input is."""
    return random.Random(zlib.crc32(data))


def pieces_of(whole: AnyStr, dice: random.Random, num_places: int = 8) -> list[AnyStr]:
    """Return `whole` cut at a few places."""
    places = sorted({dice.randint(0, len(whole)) for _ in range(num_places)})
    return [whole[a:b] for a, b in zip([0, *places], [*places, len(whole)], strict=True)]


def cuts_of(whole: AnyStr, data: bytes) -> Iterator[list[AnyStr]]:
    """Yield some ways to cut `whole`; one into single characters where it is short."""
    dice = dice_of(data)
    if len(whole) <= _MAX_SINGLE:
        yield [whole[at : at + 1] for at in range(len(whole))]
    for _ in range(NUM_CUTS):
        yield pieces_of(whole, dice, dice.randint(1, 10))
