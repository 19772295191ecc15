"""Request bodies: bytes to a JSON object.

Must not know any field.
"""

from __future__ import annotations

from typing import Any

import orjson

from worker.errors import RequestError


def read_object(body: bytes) -> dict[str, Any]:
    """Return the JSON object in `body`. Raises: RequestError."""
    try:
        value = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise RequestError(f"The request body is not valid JSON: {error}.") from None
    if not isinstance(value, dict):
        raise RequestError("The request body must be a JSON object.")
    return value
