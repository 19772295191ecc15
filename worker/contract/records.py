"""JSON objects to frozen records, strictly: what does not fit is an error, not a guess."""

from __future__ import annotations

import json
from typing import Any, TypeVar

T = TypeVar("T")


def parsed(text: bytes | str) -> Any:
    """Return a JSON value. Raises: ValueError, also for one that is nested deeper than can be read."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def record(cls: type[T], raw: object) -> T:
    """Return `cls(**raw)`. Raises: ValueError when the fields do not fit."""
    if not isinstance(raw, dict):
        raise ValueError(f"{cls.__name__}: a JSON object is expected")
    try:
        return cls(**raw)
    except TypeError as error:
        raise ValueError(f"{cls.__name__}: {error}") from None
