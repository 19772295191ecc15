"""The account of one request: who asked for what, how long each part took, how it ended.

Owns the closed set of outcomes and the one canonical log line. Must not hold anything that a client wrote in a prompt.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import orjson

from router.errors import NotAvailableYet, QueueTimeout, RequestTimeout, RouterError, ShuttingDown, WorkerDied
from router.timeline import Timeline

_MAX_ASKED = 80
MAX_TOKENS = 2**28
"""No request has more, whatever another server says."""
_PLACE = re.compile(r"[A-Za-z_][A-Za-z_-]{0,39}(?:\[\d{1,6}\])?(?:\.[A-Za-z_]{1,40}(?:\[\d{1,6}\])?)?")


class Outcome(StrEnum):
    """How a request ended; a metric label."""

    OK = "ok"
    CLIENT_GONE = "client_gone"
    """The client closed the connection first: not a success and not a fault."""
    TIMEOUT = "timeout"
    REJECTED = "rejected"
    """Refused before any work was done, by the router or the worker."""
    WORKER_DIED = "worker_died"
    ERROR = "error"


def outcome_of(error: RouterError) -> Outcome:
    """Return how a request ends that `error` ends."""
    match error:
        case WorkerDied():
            return Outcome.WORKER_DIED
        case QueueTimeout() | RequestTimeout():
            return Outcome.TIMEOUT
        case ShuttingDown() | NotAvailableYet():
            return Outcome.REJECTED
        case _:
            return Outcome.REJECTED if error.http_status < 500 else Outcome.ERROR


@dataclass(slots=True)
class Account:
    """Filled in while the request runs. Times in seconds of the event loop's clock."""

    request_id: str
    route: str
    accepted_at_s: float
    model: str = ""
    """Canonical name; empty until it is known, so that no client can invent metric labels."""
    asked: str | None = None
    """As the client wrote it; for the log alone, and only when there is no such model."""
    alias: str | None = None
    key_id: str | None = None
    is_stream: bool = False
    queue_s: float = 0.0
    load_s: float = 0.0
    first_byte_at_s: float | None = None
    usage: Mapping[str, Any] = field(default_factory=dict)
    timings: Mapping[str, Any] = field(default_factory=dict)
    """As the worker has measured them, under llama-server's names; empty = nobody has."""
    prompt_tokens_seen: int = 0
    answer_tokens_seen: int = 0
    """As far as they are told before the answer's end, where it is of interest: the request has a key."""
    finish_reasons: tuple[str, ...] = ()
    num_resumes: int = 0
    """How often the answer went on with another worker, because its own was lost."""
    status: int = 200
    """As the client saw it; an error inside an open stream leaves 200."""
    outcome: Outcome = Outcome.OK
    code: str | None = None
    param: str | None = None
    """The field of the request that was refused, as the refusal names it."""
    trace_id: str | None = None
    """Of OpenTelemetry; None = requests are not traced."""
    timeline: Timeline | None = None
    """Kept for requests whose traces are wanted."""
    is_answered: bool = False
    """The client has got all of the answer: that it closes the connection now is no failure."""

    @property
    def ttft_s(self) -> float | None:
        """Time from acceptance to a stream's first byte; an answer that comes at once has none."""
        if self.first_byte_at_s is None or not self.is_stream:
            return None
        return self.first_byte_at_s - self.accepted_at_s

    @property
    def num_tokens(self) -> int | None:
        """Tokens of prompt and answer together; None = nobody knows.

        Of an answer that was cut off, what was told before: a lower bound.
        """
        told = [count for name in ("prompt_tokens", "completion_tokens") if (count := self._count(name)) is not None]
        return sum(told) if told else (self.prompt_tokens_seen + self.answer_tokens_seen) or None

    def note_step(self, payload: bytes) -> None:
        """Count what a step of the answer tells: its client may leave before the end."""
        if self.key_id is None:
            return
        try:
            for told in orjson.loads(payload):
                self.answer_tokens_seen += len(told.get("token_ids", ()))
                if timings := told.get("timings"):
                    self.prompt_tokens_seen = max(self.prompt_tokens_seen, timings["prompt_tokens"])
        except (ValueError, TypeError, KeyError, AttributeError):
            return  # whoever goes on from the step has to refuse it, not who counts

    def _count(self, name: str) -> int | None:
        count = self.usage.get(name)
        return min(max(0, count), MAX_TOKENS) if isinstance(count, int) else None

    def note_error(self, error: RouterError) -> None:
        """Record that `error` has ended the request."""
        self.outcome = outcome_of(error)
        if self.outcome is Outcome.REJECTED and self.first_byte_at_s is not None:
            self.outcome = Outcome.ERROR  # work was done and half an answer is out
        self.code, self.param = error.code, error.param

    def note_client_gone(self) -> None:
        """Record that the client has closed the connection."""
        if not self.is_answered:
            self.outcome, self.status = Outcome.CLIENT_GONE, 499

    def log_fields(self, now_s: float) -> dict[str, Any]:
        """Return the fields of the canonical log line; those without a value are left out."""
        fields: dict[str, Any] = {
            "request_id": self.request_id,
            "trace_id": self.trace_id,
            "route": self.route,
            "model": self.model or None,
            "asked": _shown(self.asked) if self.asked and not self.model else None,
            "alias": self.alias,
            "key": self.key_id,
            "stream": self.is_stream,
            "status": self.status,
            "outcome": self.outcome.value,
            "code": self.code,
            "param": _place(self.param) if self.param else None,
            "queue_s": round(self.queue_s, 3),
            "load_s": round(self.load_s, 3),
            "ttft_s": None if self.ttft_s is None else round(self.ttft_s, 3),
            "total_s": round(now_s - self.accepted_at_s, 3),
            "prompt_tokens": self.usage.get("prompt_tokens"),
            "completion_tokens": self.usage.get("completion_tokens"),
            "resumes": self.num_resumes or None,
            "finish": ",".join(self.finish_reasons) or None,
        }
        return {name: value for name, value in fields.items() if value is not None}


def _place(param: str) -> str | None:
    """Return the first two steps of a field's path: what lies deeper has names of a client's own."""
    found = _PLACE.match(param)
    return None if found is None else found[0]


def _shown(text: str) -> str:
    """Return what a client wrote as a short text that can neither drive a terminal nor forge lines of the log."""
    return "".join(letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in text[:_MAX_ASKED])
