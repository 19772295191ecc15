"""Replies against the types that a client's own package declares for them, strictly.

The SDKs build their objects without looking: a field of the wrong type stays as it came, a missing one is noticed when
somebody reads it. Here every reply goes once more through the types, and what the types do not know has to be named.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator
from typing import Any

from pydantic import BaseModel, TypeAdapter


def strictly(kind: Any, reply: Any, extras: Iterable[str] = ()) -> Any:
    """Return `reply` read as `kind`.

    Raises: ValidationError where a field is missing or has another type. AssertionError where one is not declared,
    other than `extras`: the paths of these, such as `choices.message.reasoning_content`.
    """
    read = _adapter(kind).validate_json(reply.to_json(indent=None), strict=True)
    undeclared = set(undeclared_fields(read))
    assert undeclared <= set(extras), f"fields that {kind} does not know: {sorted(undeclared - set(extras))}"
    return read


@functools.cache
def _adapter(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind)


def undeclared_fields(value: Any, path: str = "") -> Iterator[str]:
    """Yield the paths of all fields that the types of `value` do not declare."""
    if isinstance(value, BaseModel):
        for name in value.model_extra or ():
            yield f"{path}.{name}".lstrip(".")
        for name in type(value).model_fields:
            yield from undeclared_fields(getattr(value, name), f"{path}.{name}")
    elif isinstance(value, list):
        for one in value:
            yield from undeclared_fields(one, path)
