"""Pooled rows to what clients get: vectors of length 1, cut to size, as numbers or as bytes.

Pure arithmetic. Must not know requests.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from worker.errors import GenerationFailed

Vector = npt.NDArray[np.float32]


def check_finite(rows: Sequence[Vector], param: str) -> None:
    """Return if all numbers are finite: JSON has no others. Raises: GenerationFailed that names the text."""
    for index, row in enumerate(rows):
        if not np.isfinite(row).all():
            raise GenerationFailed(
                f"The model has computed numbers for {param}[{index}] that are not finite. Its file may be damaged, or "
                "its type of weights too coarse for this text."
            )


def unit_vector(row: Vector, dimensions: int | None) -> Vector:
    """Return the first `dimensions` numbers of `row` at length 1; a row of zeros stays one."""
    cut = row[:dimensions].astype(np.float64)
    length = float(np.linalg.norm(cut))
    return (cut / length if length > 0 else cut).astype(np.float32)


def normalized(row: Vector, norm: int) -> Vector:
    """Return `row` as llama-server's `embd_normalize` wants it; a row of zeros stays one.

    -1 leaves it as it is, 0 makes the largest number 32760 (for 16-bit integers), any other is the p of the p-norm
    that becomes 1.
    """
    largest = float(np.abs(row).max(initial=0.0))
    if norm < 0 or largest == 0.0:
        return row
    scaled = row.astype(np.float64) / largest  # so that no power overflows
    length = 1 / 32760 if norm == 0 else float((np.abs(scaled) ** norm).sum() ** (1 / norm))
    return (scaled / length).astype(np.float32)


def as_base64(vector: Vector) -> str:
    """Return the numbers as little-endian 32-bit floats in base64, which is what OpenAI's clients decode."""
    return base64.b64encode(vector.astype("<f4").tobytes()).decode("ascii")
