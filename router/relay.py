"""One request to a worker's socket, and its frames back to the client.

Owns the exchange: lease, POST, frames, the retry of a request that no worker has accepted, what counts as a crash, and
the way to another worker. Must not look into `D` payloads or the client's body (`answer.py` reads frames), nor turn
errors into HTTP (`app.py` does, through `Reply`).

A worker sends the headers of its reply when it has read and accepted the request, before it generates anything. When
it is lost after that, the answer goes on with another worker, behind what the client has seen: `resuming.py` says how
often, and what is kept for it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from aiohttp import web

from router.account import Account
from router.answer import Answer, BrokenReply, WorkerGivesUp, gives_up
from router.body import BodyShare
from router.catalog import ModelSpec
from router.errors import (
    ModelUnavailable,
    RequestTimeout,
    RouterError,
    ShuttingDown,
    TooManyRequests,
    WorkerDied,
    WorkerRefused,
)
from router.events import ExitReason, WorkerExit, WorkerId
from router.lifecycle import WorkerState
from router.quarantine import Quarantine
from router.reasons import clause
from router.reply import Reply
from router.resuming import Journal, Resend, ResumeMemory
from router.retrying import Try, may_repeat
from router.settings import RouterSettings
from router.worker_session import ConnectionCut, NoConnection, NotHttp, WorkerReply
from worker.contract import FRAMES_CONTENT_TYPE, FrameDecoder, FramingError, Header

if TYPE_CHECKING:
    from router.leases import Lease
    from router.supervisor import Supervisor

_log = logging.getLogger(__name__)

_RETRY_PAUSE_S = 0.05
_PLACE_PAUSE_S = 1.0
"""How long at most an answer that has lost its worker waits until it asks for another place."""
_ASK_AGAIN = "Please ask again."
"""What a client can do about a lost worker."""
_EXIT_WITHIN_S, _STOP_WITHIN_S = 1.0, 10.0
"""How soon the fleet notices the end of a worker: at once, unless it was sent off and its memory is waited for."""
_SHOWN_TYPE = Header.CONTENT_TYPE.lower()
_IDENTITY = Header.RESUME.lower()


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
    weight: float = 1.0
    """Of its key, where requests wait."""
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
        self.what = Try(worker, at_s, was_sent=not isinstance(cause, NoConnection))


class Lost(Exception):
    """The worker went away after it had accepted the request."""

    def __init__(self, error: RouterError, *, may_go_on: bool) -> None:
        super().__init__(str(error))
        self.error = error
        """What the client is told if the answer does not go on."""
        self.may_go_on = may_go_on


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
        memory: ResumeMemory | None = None,
        quarantine: Quarantine | None = None,
    ) -> None:
        self._limits = supervisor.catalog.limits
        self._journal = Journal(memory or ResumeMemory(), self._limits.max_resumes, self._limits.max_resume_bytes)
        self._turn = (quarantine or Quarantine()).turn(call.spec.name)
        self._resume_by_s: float | None = None
        """When an answer that has lost its worker is given up; None = it has one."""
        self._answer_by_s: float | None = None
        self._load_s = 0.0
        self._took_nothing = True
        """No worker has accepted the request, or it was refused: unless tokens are known there are none."""
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
        try:
            with self._journal:
                if not self._call.is_stream:
                    return await self._try_until_answered()
                settings = self._settings
                async with self._reply.kept_alive(settings.stream_open_after_s, settings.ping_interval_s):
                    return await self._try_until_answered()
        finally:
            self._turn.give_up()

    async def _try_until_answered(self) -> web.StreamResponse:
        tries: list[Try] = []
        while True:
            try:
                return await self._attempt()
            except NothingReceived as failure:
                tries.append(failure.what)
                self._check_may_retry(tries, str(failure))
                await asyncio.sleep(_RETRY_PAUSE_S)
            except Lost as lost:
                tries.clear()
                await self._go_on(lost)
            except (ModelUnavailable, TooManyRequests) as refusal:
                await self._wait_for_place(refusal)

    async def _go_on(self, lost: Lost) -> None:
        """Return when the answer may be asked of another worker. Raises: RouterError when it may not."""
        self._turn.give_up()
        if not (lost.may_go_on and self._journal.lose()):
            raise lost.error
        self._account.num_resumes = self._journal.num_resumes
        self._resume_by_s = self._clock() + self._limits.resume_timeout_s
        _log.warning(
            "%s; the answer goes on with another worker",
            clause(str(lost.error).removesuffix(_ASK_AGAIN)),
            extra={"request_id": self._account.request_id, "resumes": self._journal.num_resumes},
        )
        if self._journal.is_suspect:
            async with self._resumed_in_time():
                await self._turn.take()

    async def _wait_for_place(self, refusal: RouterError) -> None:
        """Return when it is worth asking again: full lines and pauses after crashes end. Raises: RouterError."""
        is_final = isinstance(refusal, ModelUnavailable) and refusal.retry_after_s is None
        if self._resume_by_s is None or is_final:
            raise refusal
        pause_s = min(refusal.retry_after_s or 0.0, _PLACE_PAUSE_S)
        if self._answer_by_s is not None and self._clock() + pause_s >= self._answer_by_s:
            raise self._took_too_long()
        if self._clock() + pause_s >= self._resume_by_s:
            raise WorkerDied(
                f"the worker of this answer ended, and no other could go on with it: "
                f"{clause(str(refusal))}. {_ASK_AGAIN}"
            )
        await asyncio.sleep(max(pause_s, _RETRY_PAUSE_S))

    @asynccontextmanager
    async def _resumed_in_time(self) -> AsyncIterator[asyncio.Timeout]:
        """What is inside is broken off when the answer has waited too long for another worker.

        Raises: WorkerDied; RequestTimeout when the whole answer has taken too long meanwhile.
        """
        by_s = self._resume_by_s
        if by_s is not None and self._answer_by_s is not None:
            by_s = min(by_s, self._answer_by_s)
        try:
            async with asyncio.timeout_at(by_s) as limit:
                yield limit
        except TimeoutError:
            if not limit.expired():
                raise
            if by_s == self._answer_by_s:
                raise self._took_too_long() from None
            raise WorkerDied(
                f"the worker of this answer ended, and no other could go on with it within "
                f"{self._limits.resume_timeout_s:g} s (limits.resume_timeout_s in models.yaml). {_ASK_AGAIN}"
            ) from None

    def _check_may_retry(self, tries: list[Try], reason: str) -> None:
        """Return if the request may be sent once more. Raises: WorkerDied."""
        if not may_repeat(tries, is_resumed=self._resume_by_s is not None):
            raise WorkerDied(
                f"the worker of `{self._call.spec.name}` went away before it accepted the request, and again when it "
                f"was repeated: {clause(reason)}. {_ASK_AGAIN}",
                retry_after_s=2.0,
            )
        _log.info(
            "the worker had gone before it accepted the request; sending it again",
            extra={"request_id": self._account.request_id, "worker": str(tries[-1].worker), "reason": reason},
        )

    async def _attempt(self) -> web.StreamResponse:
        call, timeline = self._call, self._account.timeline
        if timeline is not None:
            timeline.ask(self._clock())
        is_resumed = self._resume_by_s is not None
        num_before = self._account.num_tokens or 0
        self._took_nothing = True
        async with (
            self._resumed_in_time() as resuming,
            self._supervisor.lease(
                call.spec,
                priority=call.priority,
                key_id=call.key_id,
                prefixes=call.prefixes,
                keep_alive_s=call.keep_alive_s,
                request_id=self._account.request_id,
                weight=call.weight,
                goes_first=is_resumed,  # it had its place already
                num_tokens=lambda: self._num_tokens_since(num_before),
            ) as lease,
        ):
            self._account.queue_s += lease.queue_s
            self._account.load_s += lease.load_s
            if timeline is not None:
                by = {"corral.worker": str(lease.worker)}
                timeline.grant(self._clock(), by, load_s=lease.load_s, ready_ago_s=lease.ready_ago_s)
            limit_s = call.spec.request_timeout_s or None
            if limit_s is not None and self._answer_by_s is None:
                self._answer_by_s = self._clock() + limit_s
            try:
                async with asyncio.timeout_at(self._answer_by_s) as limit:
                    return await self._exchange(lease, limit, resuming)
            except TimeoutError:
                if not limit.expired():
                    raise
                raise self._took_too_long() from None

    def _took_too_long(self) -> RequestTimeout:
        spec = self._call.spec
        return RequestTimeout(
            f"the answer took longer than the {spec.request_timeout_s:g} s that `{spec.name}` allows "
            f"(request_timeout_s in models.yaml)"
        )

    def _num_tokens_since(self, num_before: int) -> int | None:
        """Return how many tokens have come to those that the account had then; None = nobody knows.

        Its count is of the whole answer, and earlier leases were charged for what they have brought.
        """
        total = self._account.num_tokens
        if total is None and self._took_nothing:
            return 0
        return None if total is None else max(0, total - num_before)

    async def _exchange(self, lease: Lease, limit: asyncio.Timeout, resuming: asyncio.Timeout) -> web.StreamResponse:
        resend = self._journal.resend() or Resend(self._call.body, {})
        try:
            worker_reply = await lease.session.post(self._call.path, resend.body, self._headers(lease, resend))
        except NotHttp as problem:
            self._keep_body()
            raise Lost(BrokenReply(f"the worker's reply cannot be read: {problem}"), may_go_on=True) from None
        except ConnectionError as problem:
            raise NothingReceived(lease.worker, problem, self._clock()) from None
        try:
            self._took_nothing = False
            self._keep_body()
            resuming.reschedule(None)
            self._resume_by_s = None
            shown_type = _client_content_type(worker_reply)
            identity = worker_reply.headers.get(_IDENTITY, "")
            self._journal.note_worker(identity)
            answer = Answer(
                self._reply,
                self._account,
                shown_type,
                self._clock,
                self._journal,
                tells_steps=bool(identity),
                keep=self._call.keep,
            )
            await self._pump(worker_reply, lease, answer)
            limit.reschedule(None)  # it is complete: nothing may take it back
            worker_reply.release()
            return await answer.close()
        except WorkerRefused:
            self._took_nothing = True
            raise
        finally:
            worker_reply.close()  # tells the worker to stop at once, if it was not released

    def _headers(self, lease: Lease, resend: Resend) -> Mapping[str, str]:
        """Return what the worker is told, with the time of its load where its reply tells it."""
        if not self._call.tells_load_time:
            return {**self._call.headers, **resend.headers}
        if not self._journal.num_resumes:  # that of a break is no part of the answer's time
            self._load_s = lease.load_s
        return {**self._call.headers, **resend.headers, Header.LOAD_MS: str(round(1e3 * self._load_s))}

    async def _pump(self, worker_reply: WorkerReply, lease: Lease, answer: Answer) -> None:
        """Return when the answer's last frame has come.

        Raises: RouterError when it tells an error; Lost when it has not come.
        """
        decoder = FrameDecoder()
        try:
            while chunk := await worker_reply.read():
                await answer.take(decoder.feed(chunk))
                if self._journal.has_moved:
                    self._turn.give_up()
                if answer.is_ended:
                    return
        except (FramingError, NotHttp) as problem:
            broken = BrokenReply(f"the worker's reply cannot be read: {problem}")
            raise Lost(broken, may_go_on=True) from None
        except WorkerGivesUp as given_up:
            await self._last_exit(lease.worker)  # it is about to end, and must not be asked again
            raise Lost(WorkerRefused(given_up.error), may_go_on=True) from None
        except ConnectionCut:
            pass  # the same as a body that ends too early
        if answer.error is not None and not gives_up(answer.error):
            raise WorkerRefused(answer.error)
        raise await self._explain_death(lease)

    async def _explain_death(self, lease: Lease) -> Lost:
        if self._supervisor.snapshot().is_shutting_down:
            return Lost(ShuttingDown("the server is stopping; the answer was cut off"), may_go_on=False)
        name = self._call.spec.name
        exit_ = await self._last_exit(lease.worker)
        cause = "" if exit_ is None else f": {clause(exit_.detail)}"
        has_started = self._account.first_byte_at_s is not None
        what = "in the middle of this answer" if has_started else "before it had an answer"
        died = WorkerDied(f"the worker of `{name}` ended {what}{cause}. {_ASK_AGAIN}", retry_after_s=2.0)
        # One that was stopped although it had work was stopped on purpose: nobody wants it to be loaded again for that.
        return Lost(died, may_go_on=exit_ is None or exit_.reason is not ExitReason.STOPPED)

    async def _last_exit(self, worker: WorkerId) -> WorkerExit | None:
        """Return how the worker ended as soon as the fleet has noticed it; None when it does not in time."""
        begun_at_s = self._clock()
        while (view := self._supervisor.snapshot().models.get(worker.model)) is not None:
            resident = next((one for one in view.residents if one.worker == worker), None)
            if resident is None:
                return view.last_exit if view.last_to_exit in (worker, None) else None
            within_s = _STOP_WITHIN_S if resident.state is WorkerState.STOPPING else _EXIT_WITHIN_S
            if self._clock() - begun_at_s >= within_s:
                return None
            await asyncio.sleep(0.02)
        return None

    def _keep_body(self) -> None:
        """From now on the body is held only as long as the answer may have to go on elsewhere."""
        self._journal.keep(self._call.body)
        self._call.body = b""
        self._body_share.give_back()


def _client_content_type(worker_reply: WorkerReply) -> str:
    kind = worker_reply.headers.get("content-type", "")
    shown = worker_reply.headers.get(_SHOWN_TYPE)
    if worker_reply.status != 200 or kind != FRAMES_CONTENT_TYPE or not shown:
        raise BrokenReply(f"the worker answered with HTTP {worker_reply.status} and {kind}, not with a framed reply")
    return shown
