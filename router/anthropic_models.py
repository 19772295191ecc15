"""How models look in Anthropic's list of models, and one page of it.

Pure: it is given OpenAI's entries (`listing.py`) and what the request asks for. Must not know the fleet.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from router.errors import BadRequest

DEFAULT_LIMIT = 20
MAX_LIMIT = 1000


def model_info(entry: Mapping[str, Any]) -> dict[str, Any]:
    """Return OpenAI's `entry` as Anthropic has it."""
    context = entry["context_length"]
    return {
        "type": "model",
        "id": entry["id"],
        "display_name": entry["id"],
        "created_at": datetime.fromtimestamp(entry["created"], UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "lifecycle": "active",
        "max_input_tokens": context,
        "max_tokens": context,
    }


def model_page(entries: Sequence[Mapping[str, Any]], query: Mapping[str, str]) -> dict[str, Any]:
    """Return the page that `limit` and `after_id` or `before_id` ask for. Raises: BadRequest naming what is wrong."""
    limit = _limit(query.get("limit"))
    after, before = query.get("after_id"), query.get("before_id")
    if after and before:
        raise BadRequest("`after_id` and `before_id` cannot both be set", param="before_id")
    if before:
        end = _place(entries, before, "before_id")
        page, has_more = entries[max(0, end - limit) : end], end > limit
    else:
        start = _place(entries, after, "after_id") + 1 if after else 0
        page, has_more = entries[start : start + limit], start + limit < len(entries)
    return {
        "data": [model_info(entry) for entry in page],
        "first_id": page[0]["id"] if page else None,
        "last_id": page[-1]["id"] if page else None,
        "has_more": has_more,
    }


def _limit(text: str | None) -> int:
    if not text:
        return DEFAULT_LIMIT
    number = int(text) if text.isascii() and text.isdigit() and len(text) < 6 else 0
    if not 1 <= number <= MAX_LIMIT:
        raise BadRequest(f"`limit` must be a whole number from 1 to {MAX_LIMIT}, not {text[:40]!r}", param="limit")
    return number


def _place(entries: Sequence[Mapping[str, Any]], id_: str, param: str) -> int:
    for place, entry in enumerate(entries):
        if entry["id"] == id_:
            return place
    raise BadRequest(f"`{param}`: there is no model `{id_[:200]}` in the list; begin again without it", param=param)
