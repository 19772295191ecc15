"""The frames of a worker's reply, turned into what the client gets: a stream as it comes, anything else at its end.

Owns what each frame means for one request. Must not know leases or connections, nor look into what is shown.

Data of a stream whose steps are told are passed on when their step has come: then all that the client has seen is known
to the journal, and another worker can go on behind it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, assert_never

import orjson
from aiohttp import web

from router.account import Account
from router.dialects import EVENT_STREAM, NDJSON
from router.errors import RouterError, WorkerRefused
from router.reply import Reply
from router.resuming import Journal
from worker.contract import ErrorPayload, Frame, FrameType


class BrokenReply(RouterError):
    """The worker sent something that is no framed reply."""

    code = "broken_reply"


class WorkerGivesUp(Exception):
    """The worker tells that it cannot go on at all: the request may go on with another one."""

    def __init__(self, error: ErrorPayload) -> None:
        super().__init__(error.message)
        self.error = error


_NEWS = (b'"token_ids"', b'"finish"')
"""What a step has that brings more of the answer."""

_GIVING_UP = frozenset({"engine_stopped", "worker_draining"})
"""Codes of errors that are not about the request."""


def gives_up(error: ErrorPayload) -> bool:
    """Return whether the error is not about the request: another worker can go on with it."""
    return error.code in _GIVING_UP


class Answer:
    """One worker's reply to one request."""

    def __init__(
        self,
        reply: Reply,
        account: Account,
        content_type: str,
        clock: Callable[[], float],
        journal: Journal,
        *,
        tells_steps: bool,
        keep: Callable[[bytes], None] | None = None,
    ) -> None:
        self._reply = reply
        self._keep = keep
        self._account = account
        self._content_type = content_type
        self._is_stream = content_type.partition(";")[0].strip() in (EVENT_STREAM, NDJSON)
        self._clock = clock
        self._journal = journal
        self._tells_steps = tells_steps
        self._held: list[bytes] = []
        """Data whose step has not come yet."""
        self._unsent: list[bytes] = []
        """All of an answer that goes out at once; the end of a stream, which goes out with its close."""
        self.error: ErrorPayload | None = None
        """What the worker said went wrong; nothing is sent after it."""
        self.is_ended = False

    async def take(self, frames: list[Frame]) -> None:
        """Pass on what `frames` carry. Raises: WorkerRefused or WorkerGivesUp at the end frame of a failed answer."""
        pending = [data for frame in frames for data in self._read(frame)]  # one write for all that came together
        if pending and self._account.first_byte_at_s is None:
            self._account.first_byte_at_s = self._clock()
        if not self._is_stream or (self.is_ended and self.error is None):
            self._unsent += pending
        elif pending:
            if not self._tells_steps:
                self._journal.note_shown()
            await self._reply.write(b"".join(pending))
        if self.is_ended and self.error is not None:
            if gives_up(self.error):
                raise WorkerGivesUp(self.error)
            raise WorkerRefused(self.error)

    def _read(self, frame: Frame) -> list[bytes]:
        """Return what of the answer may be shown now that `frame` has come."""
        match frame.type:
            case FrameType.DATA:
                if self.error is None and not self.is_ended:
                    self._held.append(frame.payload)
                return [] if self._tells_steps else self._released()
            case FrameType.RESUME:
                if self._tells_steps:
                    self._journal.add(frame.payload, is_new=any(mark in frame.payload for mark in _NEWS))
                self._account.note_step(frame.payload)
                return self._released()
            case FrameType.END:
                self._note_end(frame.payload)
                return [] if self.error is not None else self._released()
            case FrameType.ERROR:
                self.error = _read_error(frame.payload)
            case FrameType.STORE:  # at once: the client may go on from it when it has the data that follow
                self._note_kept(frame.payload)
            case FrameType.PROGRESS:
                pass  # about the request, not for the client
            case _:
                assert_never(frame.type)
        return []

    def _released(self) -> list[bytes]:
        released, self._held = self._held, []
        return released

    async def close(self) -> web.StreamResponse:
        """Return the client's response, with all of the answer in it."""
        rest = b"".join(self._unsent)
        if not self._is_stream:
            if self._reply.is_open:
                raise BrokenReply("the worker sent no event stream where one was asked for")
            return await self._reply.send(self._content_type, rest)
        response = await self._reply.finish(rest)
        # Clients close as soon as they have read the last event, often before the reply's handler has returned.
        self._account.is_answered = True
        return response

    def _note_kept(self, payload: bytes) -> None:
        if self._keep is None or self.error is not None:
            return
        try:
            self._keep(payload)
        except ValueError as problem:
            raise BrokenReply(f"what the worker wants to have kept cannot be read: {problem}") from None

    def _note_end(self, payload: bytes) -> None:
        self.is_ended = True
        if self._account.timeline is not None:
            self._account.timeline.note_end(self._clock())
        end = _json_object(payload)
        usage = end.get("usage")
        self._account.usage = usage if isinstance(usage, dict) else {}
        timings = end.get("timings")
        self._account.timings = timings if isinstance(timings, dict) else {}
        reasons = end.get("finish_reasons")
        self._account.finish_reasons = tuple(map(str, reasons)) if isinstance(reasons, list) else ()
        if end.get("outcome") != "ok" and self.error is None:
            self.error = ErrorPayload(500, "internal_error", "the worker gave up on this request without a reason")


def _read_error(payload: bytes) -> ErrorPayload:
    try:
        return ErrorPayload.from_json(payload)
    except ValueError as problem:
        raise BrokenReply(f"the worker's error cannot be read: {problem}") from None


def _json_object(payload: bytes) -> dict[str, Any]:
    try:
        value = orjson.loads(payload)
    except ValueError as problem:
        raise BrokenReply(f"the end of the worker's reply cannot be read: {problem}") from None
    return value if isinstance(value, dict) else {}
