"""JSON objects to frozen records, strictly: what does not fit is an error, not a guess."""

from __future__ import annotations

from typing import TypeVar

T = TypeVar("T")


def record(cls: type[T], raw: object) -> T:
    """Return `cls(**raw)`. Raises: ValueError when the fields do not fit."""
    if not isinstance(raw, dict):
        raise ValueError(f"{cls.__name__}: a JSON object is expected")
    try:
        return cls(**raw)
    except TypeError as error:
        raise ValueError(f"{cls.__name__}: {error}") from None
