"""One request to a worker's socket, and its frames back to the client.

Owns the exchange: lease, POST, frames, the retry of a request that no worker has accepted, and what counts as a crash.
Must not look into `D` payloads or the client's body, nor turn errors into HTTP (`app.py` does, through `Reply`).

A worker sends the headers of its reply when it has read and accepted the request, before it generates anything. From
then on the request is not sent again, whatever happens, and its body is not held.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, assert_never

import orjson
from aiohttp import web

from router.account import Account
from router.body import BodyShare
from router.catalog import ModelSpec
from router.dialects import EVENT_STREAM, NDJSON
from router.errors import RequestTimeout, RouterError, ShuttingDown, WorkerDied, WorkerRefused
from router.events import WorkerId
from router.reply import Reply
from router.settings import RouterSettings
from router.worker_session import ConnectionCut, NoConnection, NotHttp, WorkerReply
from worker.contract import FRAMES_CONTENT_TYPE, ErrorPayload, Frame, FrameDecoder, FrameType, FramingError, Header

if TYPE_CHECKING:
    from router.leases import Lease
    from router.supervisor import Supervisor

_log = logging.getLogger(__name__)

_FRESH_WORKER_WITHIN_S = 5.0
"""How long a request that no worker has accepted waits for the fleet to notice that its worker is gone."""
_RETRY_PAUSE_S = 0.05
_MAX_SENT = 2
"""Times that a request's bytes may have left without any answer: a request that kills its worker must not go on."""
_SHOWN_TYPE = Header.CONTENT_TYPE.lower()


@dataclass(slots=True)
class Call:
    """What is asked of a worker."""

    path: str
    body: bytes
    headers: Mapping[str, str]
    """The worker's copy: only what the router itself has set."""
    spec: ModelSpec
    is_stream: bool
    priority: int = 0
    key_id: str | None = None
    prefixes: tuple[int, ...] = ()
    """Hashes of the conversation's beginnings, where several workers may serve it."""
    keep_alive_s: float | None = None
    """How long the worker stays when it is idle; see `LeaseRequested`."""
    tells_load_time: bool = False
    """The worker is told how long its model has loaded, because its reply tells it."""
    keep: Callable[[bytes], None] | None = None
    """Is given what the worker wants to have kept of its finished reply. Raises: ValueError when it makes no sense."""


class NothingReceived(Exception):
    """The worker went away before the headers of its reply: the request was not accepted and may be sent again."""

    def __init__(self, worker: WorkerId, cause: Exception, at_s: float) -> None:
        super().__init__(str(cause) or type(cause).__name__)
        self.worker = worker
        self.at_s = at_s
        self.was_sent = not isinstance(cause, NoConnection)
        """False when there was no connection at all."""


class BrokenReply(RouterError):
    """The worker sent something that is no framed reply."""

    code = "broken_reply"


class Relay:
    """Carries one `Call` to a worker and its answer into a `Reply`."""

    def __init__(
        self,
        call: Call,
        reply: Reply,
        *,
        account: Account,
        supervisor: Supervisor,
        settings: RouterSettings,
        body_share: BodyShare,
    ) -> None:
        self._call = call
        self._reply = reply
        self._account = account
        self._supervisor = supervisor
        self._settings = settings
        self._body_share = body_share
        self._clock = asyncio.get_running_loop().time

    async def run(self) -> web.StreamResponse:
        """Return the client's response, complete.

        Raises: RouterError when there is no answer, or only half of one; ClientGone.
        """
        if not self._call.is_stream:
            return await self._try_until_accepted()
        settings = self._settings
        async with self._reply.kept_alive(settings.stream_open_after_s, settings.ping_interval_s):
            return await self._try_until_accepted()

    async def _try_until_accepted(self) -> web.StreamResponse:
        failures: list[NothingReceived] = []
        while True:
            try:
                return await self._attempt()
            except NothingReceived as failure:
                failures.append(failure)
            self._check_may_retry(failures)
            await asyncio.sleep(_RETRY_PAUSE_S)

    def _check_may_retry(self, failures: list[NothingReceived]) -> None:
        """Return if the request may be sent once more. Raises: WorkerDied.

        It may go to one other worker. Until the fleet has noticed that the first one is gone it may grant that one
        again: such tries are free as long as nothing can be connected to, because then nothing was sent either.
        """
        first, last = failures[0], failures[-1]
        num_sent = sum(failure.was_sent for failure in failures)
        is_too_late = last.at_s - first.at_s > _FRESH_WORKER_WITHIN_S
        if last.worker != first.worker or num_sent > _MAX_SENT or is_too_late:
            raise WorkerDied(
                f"the worker of `{self._call.spec.name}` went away before it accepted the request, and again when it "
                f"was repeated: {last}",
                retry_after_s=2.0,
            )
        _log.info(
            "the worker had gone before it accepted the request; sending it again",
            extra={
                "request_id": self._account.request_id,
                "worker": str(last.worker),
                "reason": str(last),
            },
        )

    async def _attempt(self) -> web.StreamResponse:
        call, timeline = self._call, self._account.timeline
        if timeline is not None:
            timeline.ask(self._clock())
        async with self._supervisor.lease(
            call.spec,
            priority=call.priority,
            key_id=call.key_id,
            prefixes=call.prefixes,
            keep_alive_s=call.keep_alive_s,
            request_id=self._account.request_id,
        ) as lease:
            self._account.queue_s += lease.queue_s
            self._account.load_s += lease.load_s
            if timeline is not None:
                by = {"corral.worker": str(lease.worker)}
                timeline.grant(self._clock(), by, load_s=lease.load_s, ready_ago_s=lease.ready_ago_s)
            limit_s = call.spec.request_timeout_s or None
            try:
                async with asyncio.timeout(limit_s) as limit:
                    return await self._exchange(lease, limit)
            except TimeoutError:
                if not limit.expired():
                    raise
                raise RequestTimeout(
                    f"the answer took longer than the {limit_s:g} s that `{call.spec.name}` allows "
                    f"(request_timeout_s in models.yaml)"
                ) from None

    async def _exchange(self, lease: Lease, limit: asyncio.Timeout) -> web.StreamResponse:
        try:
            worker_reply = await lease.session.post(self._call.path, self._call.body, self._headers(lease))
        except NotHttp as problem:
            raise BrokenReply(f"the worker's reply cannot be read: {problem}") from None
        except ConnectionError as problem:
            raise NothingReceived(lease.worker, problem, self._clock()) from None
        try:
            self._forget_body()
            shown_type = _client_content_type(worker_reply)
            answer = _Answer(self._reply, self._account, shown_type, self._clock, self._call.keep)
            await self._pump(worker_reply, lease, answer)
            limit.reschedule(None)  # it is complete: nothing may take it back
            worker_reply.release()
            return await answer.close()
        finally:
            worker_reply.close()  # tells the worker to stop at once, if it was not released

    def _headers(self, lease: Lease) -> Mapping[str, str]:
        """Return what the worker is told, with the time of its load where its reply tells it."""
        if not self._call.tells_load_time:
            return self._call.headers
        return {**self._call.headers, Header.LOAD_MS: str(round(1e3 * lease.load_s))}

    async def _pump(self, worker_reply: WorkerReply, lease: Lease, answer: _Answer) -> None:
        """Return when the answer's last frame has come. Raises: RouterError when none came or it tells an error."""
        decoder = FrameDecoder()
        try:
            while chunk := await worker_reply.read():
                await answer.take(decoder.feed(chunk))
                if answer.is_ended:
                    return
        except (FramingError, NotHttp) as problem:
            raise BrokenReply(f"the worker's reply cannot be read: {problem}") from None
        except ConnectionCut:
            pass  # the same as a body that ends too early
        if answer.error is not None:
            raise WorkerRefused(answer.error)
        raise await self._explain_death(lease)

    async def _explain_death(self, lease: Lease) -> RouterError:
        if self._supervisor.snapshot().is_shutting_down:
            return ShuttingDown("the server is stopping; the answer was cut off")
        name = self._call.spec.name
        cause = await self._last_words(lease.worker)
        has_started = self._account.first_byte_at_s is not None
        what = "in the middle of this answer" if has_started else "before it had an answer"
        return WorkerDied(f"the worker of `{name}` ended {what}{cause}", retry_after_s=2.0)

    async def _last_words(self, worker: WorkerId) -> str:
        """Return ": reason" as soon as the fleet has noticed the exit; "" when it does not within a second."""
        give_up_at_s = self._clock() + 1.0
        while self._clock() < give_up_at_s:
            view = self._supervisor.snapshot().models.get(worker.model)
            if view is None:
                return ""
            is_gone = all(resident.worker != worker for resident in view.residents)
            if is_gone:
                return f": {view.last_exit.detail}" if view.last_exit is not None else ""
            await asyncio.sleep(0.02)
        return ""

    def _forget_body(self) -> None:
        """From now on the request cannot be sent again, so its bytes need not be held while the answer runs."""
        self._call.body = b""
        self._body_share.give_back()


class _Answer:
    """Turns frames into what the client gets: an event stream as it comes, anything else at once at its end."""

    def __init__(
        self,
        reply: Reply,
        account: Account,
        content_type: str,
        clock: Callable[[], float],
        keep: Callable[[bytes], None] | None = None,
    ) -> None:
        self._reply = reply
        self._keep = keep
        self._account = account
        self._content_type = content_type
        self._is_stream = content_type.partition(";")[0].strip() in (EVENT_STREAM, NDJSON)
        self._clock = clock
        self._unsent: list[bytes] = []
        """All of an answer that goes out at once; the end of a stream, which goes out with its close."""
        self.error: ErrorPayload | None = None
        """What the worker said went wrong; nothing is sent after it."""
        self.is_ended = False

    async def take(self, frames: list[Frame]) -> None:
        """Pass on what `frames` carry. Raises: WorkerRefused at the end frame of a failed answer."""
        pending: list[bytes] = []  # one write for all that came together
        for frame in frames:
            match frame.type:
                case FrameType.DATA:
                    if self.error is None and not self.is_ended:
                        pending.append(frame.payload)
                case FrameType.ERROR:
                    self.error = _read_error(frame.payload)
                case FrameType.END:
                    self._note_end(frame.payload)
                case FrameType.STORE:  # at once: the client may go on from it when it has the data that follow
                    self._note_kept(frame.payload)
                case FrameType.RESUME | FrameType.PROGRESS:
                    pass  # about the request, not for the client
                case _:
                    assert_never(frame.type)
        if pending and self._account.first_byte_at_s is None:
            self._account.first_byte_at_s = self._clock()
        if not self._is_stream or (self.is_ended and self.error is None):
            self._unsent += pending
        elif pending:
            await self._reply.write(b"".join(pending))
        if self.is_ended and self.error is not None:
            raise WorkerRefused(self.error)

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
        self._account.finish_reasons = tuple(str(reason) for reason in end.get("finish_reasons") or ())
        if end.get("outcome") != "ok" and self.error is None:
            self.error = ErrorPayload(500, "internal_error", "the worker gave up on this request without a reason")


def _client_content_type(worker_reply: WorkerReply) -> str:
    kind = worker_reply.headers.get("content-type", "")
    shown = worker_reply.headers.get(_SHOWN_TYPE)
    if worker_reply.status != 200 or kind != FRAMES_CONTENT_TYPE or not shown:
        raise BrokenReply(f"the worker answered with HTTP {worker_reply.status} and {kind}, not with a framed reply")
    return shown


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
