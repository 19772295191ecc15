"""The random numbers of an answer: any worker can go on at any token without state."""

from __future__ import annotations

import numpy as np


def uniform(seed: int, choice: int, index: int, draw: int = 0) -> float:
    """Return the number in [0, 1) that belongs to this token of this choice, and to this of its draws.

    A counter-based generator (Philox), keyed by the seed and the choice.
    """
    key = np.array([seed & (2**64 - 1), choice], dtype=np.uint64)
    generator = np.random.Philox(key=key, counter=[index, draw, 0, 0])
    return float(generator.random_raw() >> 11) * 2.0**-53
