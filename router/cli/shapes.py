"""What an answer has if a Corral sent it: as much as commands cannot do without.

Owns the shapes, and what is said of an answer that has none of them. Whatever else an answer has, or lacks, may be a
newer or an older server's, and passes.
"""

from __future__ import annotations

from typing import Any, Final

from router.cli.output import CommandFailed, ExitCode

Shape = Any
"""A type, a tuple of types, a list of one shape for each entry, or shapes by key.

A key that ends in `?` may be missing, or be null.
"""

NUMBER: Final = (int, float)

PROGRESS: Final[Shape] = {"phase?": str, "detail?": str, "fraction?": NUMBER, "done_bytes?": NUMBER,
                          "total_bytes?": NUMBER}  # fmt: skip
LISTED: Final[Shape] = {
    "id": str,
    "parent?": str,
    "state?": str,
    "reason?": str,
    "progress?": PROGRESS,
    "workers?": [{"state?": str, "running_requests?": int}],
    "last_exit?": {"ago_s?": NUMBER},
}
LIST: Final[Shape] = {"data": [LISTED]}
"""`GET /v1/models`."""
MODEL: Final[Shape] = {**LISTED, "state": str}
"""`GET /v1/models/{model}`."""
ASKED: Final[Shape] = {"model?": str, "state?": str}
"""`POST /models/load` and `/models/unload`."""
PINNED: Final[Shape] = {"model": str, "is_pinned": bool}
"""`POST /admin/pin`."""
RELOADED: Final[Shape] = {
    "models": int,
    "added?": [str],
    "removed?": [str],
    "changed?": dict,
    "restarted_when_idle?": dict,
    "settings?": [str],
}
"""`POST /admin/reload`."""

_SERVER: Final[Shape] = {"version?": str, "started_at?": NUMBER}
_QUEUE: Final[Shape] = {"length?": int, "requests?": [{"waits_s?": NUMBER}]}
_DEVICES: Final[Shape] = [{"id?": str, "total_bytes?": NUMBER, "usable_bytes?": NUMBER}]
_SLOTS: Final[Shape] = [dict]
STATUS: Final[Shape] = {
    "server": _SERVER,
    "models": [LISTED],
    "devices?": _DEVICES,
    "slots?": _SLOTS,
    "queue?": _QUEUE,
}
"""`GET /status`."""
EVENTS: Final[dict[str, Shape]] = {
    "server": _SERVER,
    "model": LISTED,
    "model_removed": {"model": str},
    "devices": _DEVICES,
    "slots": _SLOTS,
    "queue": _QUEUE,
}
"""What is told on `GET /events`, by the name of the event."""

_USAGE: Final[Shape] = {"prompt_tokens?": int, "completion_tokens?": int, "prompt_tokens_details?": {}}
_CALL: Final[Shape] = {"index?": int, "id?": str, "function?": {"name?": str, "arguments?": str}}
_DELTA: Final[Shape] = {"content?": str, "reasoning_content?": str, "tool_calls?": [_CALL]}
CHUNK: Final[Shape] = {
    "model?": str,
    "usage?": _USAGE,
    "timings?": {},
    "choices?": [{"text?": str, "delta?": _DELTA, "finish_reason?": str}],
}
"""One event of an answer of a model."""


def fits(value: Any, shape: Shape) -> bool:
    """Return whether `value` has at least what `shape` has."""
    if isinstance(shape, dict):
        return isinstance(value, dict) and all(_has(value, key, wanted) for key, wanted in shape.items())
    if isinstance(shape, list):
        return isinstance(value, list) and all(fits(one, shape[0]) for one in value)
    return isinstance(value, shape) and (shape is bool or not isinstance(value, bool))


def expect(value: Any, shape: Shape, url: str, what: str) -> None:
    """Raises: CommandFailed where `value`, which `what` names, is none that a Corral sends."""
    if not fits(value, shape):
        raise no_corral(url, f"it sent something else than {what}")


def no_corral(url: str, why: str) -> CommandFailed:
    """Return what to say of an answer that a Corral does not give."""
    return CommandFailed(f"what answers at {url} is no Corral: {why}", ExitCode.NO_SERVER)


def _has(value: dict[str, Any], key: str, wanted: Shape) -> bool:
    name = key.removesuffix("?")
    found = value.get(name)
    return name != key if found is None else fits(found, wanted)
