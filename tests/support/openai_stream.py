"""What a stream in OpenAI's dialect carries, for tests."""

from __future__ import annotations

import json
from typing import Any


def payloads_of(text: str) -> list[Any]:
    """Return what the events of a whole stream carry: parsed JSON, or the text `[DONE]`."""
    found = []
    for block in text.split("\n\n"):
        if block.startswith("data: "):
            payload = block.removeprefix("data: ")
            found.append(payload if payload == "[DONE]" else json.loads(payload))
    return found
