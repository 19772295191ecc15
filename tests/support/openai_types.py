"""Replies and events checked with the official client's typed models, strictly, as a client without leniency would."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from openai.types.responses import Response, ResponseItemList, ResponseStreamEvent
from pydantic import TypeAdapter

_EVENT: TypeAdapter[ResponseStreamEvent] = TypeAdapter(ResponseStreamEvent)


def strict_response(body: Mapping[str, Any]) -> Response:
    """Return the response. Raises: ValidationError when a field is missing or of another type."""
    return Response.model_validate_json(json.dumps(body), strict=True)


def strict_event(body: Mapping[str, Any]) -> ResponseStreamEvent:
    """Return the event. Raises: ValidationError."""
    return _EVENT.validate_json(json.dumps(body), strict=True)


def strict_items(body: Mapping[str, Any]) -> ResponseItemList:
    """Return the list of items. Raises: ValidationError."""
    return ResponseItemList.model_validate_json(json.dumps(body), strict=True)


def response_events(stream: bytes) -> list[dict[str, Any]]:
    """Return the JSON of the events of a stream of a response, after a look at their order and numbers.

    Comment lines are left out. There is no `[DONE]`: the last event says how the response has ended.
    """
    *blocks, rest = stream.decode().split("\n\n")
    assert rest == ""
    events = []
    for block in blocks:
        if block.startswith(":"):
            continue
        name, data = block.split("\n")
        event = json.loads(data.removeprefix("data: "))
        assert name == f"event: {event['type']}"
        assert event["sequence_number"] == len(events)
        events.append(event)
    return events
