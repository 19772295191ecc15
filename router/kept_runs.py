"""Requests whose answers go on without their client: the tasks that make them, and the clients that read them.

Owns the life of such a request: its task, which no client's leaving ends; when it is stopped, and what is said then;
that a client which reads slowly holds it up for a bounded time only. Must not judge requests, nor know routes; what is
kept, and for how long, is decided by `kept_streams.py`.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace

from aiohttp import hdrs, web

from router.auth import Grant
from router.errors import Gone, RouterError, ShuttingDown, Unauthorized
from router.kept_reply import KeptReply
from router.kept_streams import CONVERSATION, NEW, Head, KeptStream, KeptStreams, Reader, StreamLimits, check_id
from router.reply import ClientGone
from router.routes import Handler
from router.services import Exchange, Services, open_exchange
from router.settings import RouterSettings
from router.tasks import Tasks

OFFSET = "X-Corral-Offset"
"""Where in the reply the first byte of this body is."""

_PIECE_BYTES = 32 * 1024
_LOOK_AT_KEYS_EVERY_S = 1.0
_STOP_WITHIN_S = 5.0
"""How long whoever stops a request waits for its worker to be free again."""

Work = Callable[[Exchange], Awaitable[web.StreamResponse]]
Answer = Callable[[web.Request, Handler], Awaitable[web.StreamResponse]]


class Bell:
    """Wakes everybody who waits for it."""

    def __init__(self) -> None:
        self._event = asyncio.Event()

    def ring(self) -> None:
        """Whoever waits now waits no more."""
        self._event.set()
        self._event = asyncio.Event()

    async def wait(self) -> None:
        """Return at the next ring."""
        await self._event.wait()


@dataclass(slots=True, eq=False)
class Run:
    """One such request."""

    stream: KeptStream
    grant: Grant
    """Of the key that the request came with."""
    news: Bell = field(default_factory=Bell)
    """Rung when there is more to read, or no more to come."""
    progress: Bell = field(default_factory=Bell)
    """Rung when a client has read something, or left."""
    task: asyncio.Task[None] | None = None
    """None = it is over."""
    has_begun: bool = False
    """The task has run; one that is cancelled before would end without a word."""
    stop_cause: RouterError | None = None
    """Why it is being stopped."""
    is_awaited: bool = True
    """The client that has sent the request is still there."""
    whole: web.Response | None = None
    """The reply, where it came at once, for that client: as much as it is, not only as much as is kept."""
    seen_at_s: float = 0.0
    """When its key was looked at last."""


class KeptRuns:
    """All of one application."""

    def __init__(self, services: Services, answer: Answer) -> None:
        """`answer` calls a handler and turns its errors into replies."""
        self._services = services
        self._answer = answer
        self.store = KeptStreams()
        self._runs: dict[KeptStream, Run] = {}
        self._tasks = Tasks()
        self._timer: asyncio.TimerHandle | None = None
        self._is_ending = False

    async def start(self, _: web.Application) -> None:
        """The bounds are those of the settings."""
        self.store = KeptStreams(_limits(self._services.settings))

    def conversation_of(self, request: web.Request) -> str | None:
        """Return the id under which the reply is to be kept, made here if wanted; None = it is not to be kept.

        Raises: BadRequest.
        """
        asked = request.headers.get(CONVERSATION)
        if asked is None:
            return None
        if asked == NEW:
            return secrets.token_urlsafe(24)
        return check_id(asked, has_keys=not self._services.keys.is_empty)

    def find(self, grant: Grant, conversation: str) -> Run | None:
        """Return the run of this key's conversation; None = there is none."""
        stream = self.store.find(grant.owner, conversation)
        return None if stream is None else self._runs[stream]

    async def run(
        self, request: web.Request, exchange: Exchange, conversation: str, work: Work, resources: ExitStack
    ) -> web.StreamResponse:
        """Return the reply that `work` makes, complete. It is made to its end, whether the client stays or not.

        `resources` are given back when it is made. Mutates: the exchange, whose account is the work's from now on.
        Raises: TooManyRequests; ClientGone.
        """
        with resources:
            older = self.find(exchange.grant, conversation)
            stream = self.store.open(exchange.grant.owner, conversation, self._now_s())
            if older is not None:
                self._stop(older, _stopped("another request with the same id has taken its place"))
            own = _taken_over(exchange)
            run = self._runs[stream] = Run(stream, own.grant)
            own.reply = KeptReply(request, own.dialect, own.account.request_id, _Keeper(self, run))
            own.reply.headers = exchange.reply.headers | {CONVERSATION: conversation}
            run.task = self._tasks.spawn(self._make(run, own, request, work, resources.pop_all()), "a kept reply")
        try:
            with self._reading(run, 0) as reader:
                head = await _head_of(run)
                return run.whole if run.whole is not None else await self._copy(request, run, reader, head)
        finally:
            run.is_awaited, run.whole = False, None

    async def read(self, request: web.Request, run: Run, offset: int) -> web.StreamResponse:
        """Return the reply from `offset` on, complete. Raises: Gone, BadRequest, TooManyRequests, ClientGone."""
        with self._reading(run, offset) as reader:
            return await self._copy(request, run, reader, await _head_of(run))

    async def stop(self, run: Run) -> None:
        """Its generation has ended, and nobody finds it any more. Those who read it now are told."""
        self.store.forget(run.stream)
        task = run.task
        self._stop(run, _stopped("a client has stopped it"))
        if task is not None:
            await asyncio.wait({task}, timeout=_STOP_WITHIN_S)

    def dismiss(self) -> None:
        """What nobody reads is stopped, now and from now on: the server stops, and what it keeps goes with it."""
        self._is_ending = True
        self._look()

    async def close(self, _: web.Application) -> None:
        """Nothing is made any more."""
        tasks = [run.task for run in self._runs.values() if run.task is not None]
        for run in self._runs.values():
            self._stop(run, _server_stops())
        if tasks:
            await asyncio.wait(tasks, timeout=_STOP_WITHIN_S)
        await self._tasks.close()
        if self._timer is not None:
            self._timer.cancel()

    # --- making it ---

    async def _make(self, run: Run, own: Exchange, request: web.Request, work: Work, resources: ExitStack) -> None:
        open_exchange(own)

        async def handler(_: web.Request) -> web.StreamResponse:
            return await work(own)

        try:
            try:
                run.has_begun = True
                if run.stop_cause is not None:
                    raise asyncio.CancelledError
                response = await self._answer(request, handler)
                own.account.status = response.status
            except asyncio.CancelledError:
                if run.stream.is_over:
                    return  # all of it had been made
                response = await _tell_stop(run.stop_cause or _server_stops(), own)
            if not own.reply.is_open and isinstance(response, web.Response):
                self._keep_whole(run, response)
        finally:
            resources.close()
            run.task = None
            self.finish(run)
            if own.close is not None:
                own.close()

    def _keep_whole(self, run: Run, response: web.Response) -> None:
        body = response.body or b""
        assert isinstance(body, bytes), "replies that come at once are bytes"
        if run.is_awaited:
            run.whole = response
        run.stream.head = Head(response.status, dict(response.headers))
        self.store.add(run.stream, body)

    async def take(self, run: Run, data: bytes) -> None:
        """Keep what is next of the reply, at the pace of those who read it."""
        if self._is_withdrawn(run):
            self.store.forget(run.stream)
            self._stop(run, Unauthorized("the API key of this request is no longer valid"))
            await asyncio.sleep(0)  # here the cancellation comes
        for start in range(0, len(data), _PIECE_BYTES):
            piece = data[start : start + _PIECE_BYTES]
            if run.stop_cause is None:
                await self._wait_for_room(run, len(piece))
            self.store.add(run.stream, piece)
            run.news.ring()

    async def _wait_for_room(self, run: Run, num_bytes: int) -> None:
        """Return when nobody loses anything by so many bytes more, or those who do are cut off."""
        if self.store.has_room(run.stream, num_bytes):
            return
        try:
            async with asyncio.timeout(self._services.settings.max_client_stall_s or None):
                while not self.store.has_room(run.stream, num_bytes):
                    await run.progress.wait()
        except TimeoutError:
            self.store.leave_behind(run.stream, num_bytes, self._now_s())

    def finish(self, run: Run) -> None:
        """Nothing more comes."""
        self.store.finish(run.stream, self._now_s())
        run.news.ring()
        self._look()

    def _stop(self, run: Run, cause: RouterError) -> None:
        if run.task is not None and run.stop_cause is None:
            run.stop_cause = cause
            if run.has_begun:
                run.task.cancel()

    # --- reading it ---

    @contextmanager
    def _reading(self, run: Run, offset: int) -> Iterator[Reader]:
        reader = self.store.attach(run.stream, offset)
        self._services.metrics.replies.add(reader)
        try:
            yield reader
        finally:
            self._services.metrics.replies.discard(reader)
            self.store.detach(reader, self._now_s())
            run.progress.ring()
            self._look()

    async def _copy(self, request: web.Request, run: Run, reader: Reader, head: Head) -> web.StreamResponse:
        """Return the client's response, with all of the reply from where the reader is. Raises: ClientGone."""
        stream, max_stall_s = run.stream, self._services.settings.max_client_stall_s or None
        response = web.StreamResponse(status=head.status, headers=head.headers)
        response.headers[OFFSET] = str(reader.offset)
        response.headers.popall(hdrs.CONTENT_LENGTH, None)
        if stream.is_over:
            response.content_length = stream.end - reader.offset
        try:
            await response.prepare(request)
            if request.method == hdrs.METH_HEAD:
                return response
            reader.is_open = True
            while not (reader.is_lost or self._is_withdrawn(run)):
                if piece := stream.read(reader.offset, _PIECE_BYTES):
                    async with asyncio.timeout(max_stall_s):
                        await response.write(piece)
                    reader.offset += len(piece)
                    run.progress.ring()
                elif stream.is_over:
                    async with asyncio.timeout(max_stall_s):
                        await response.write_eof()
                    return response
                else:
                    await run.news.wait()
        except (TimeoutError, ConnectionError):
            pass
        if request.transport is not None:
            request.transport.abort()  # what the client has must not look like all of it
        raise ClientGone

    def _is_withdrawn(self, run: Run) -> bool:
        """Return whether the key that the request came with no longer holds, as it was a moment ago."""
        now_s = self._now_s()
        if now_s - run.seen_at_s < _LOOK_AT_KEYS_EVERY_S:
            return False
        if not self._services.keys.still_grants(run.grant):
            return True
        run.seen_at_s = now_s
        return False

    # --- time ---

    def _look(self) -> None:
        """What is due is done, and this is looked at again when something else is."""
        now_s = self._now_s()
        for stream in self.store.abandoned(now_s):
            self._stop(self._runs[stream], _abandoned(self.store.limits.detached_s))
        if self._is_ending:
            for run in self._runs.values():
                if not run.stream.readers:
                    self._stop(run, ShuttingDown("the server is stopping, and nobody read the answer"))
        for stream in [one for one, run in self._runs.items() if not one.is_kept and run.task is None]:
            del self._runs[stream]
        if self._timer is not None:
            self._timer.cancel()
        due_s = self.store.next_due_s()
        self._timer = None if due_s is None else asyncio.get_running_loop().call_at(max(due_s, now_s + 0.1), self._look)

    def _now_s(self) -> float:
        return asyncio.get_running_loop().time()


class _Keeper:
    """Where the reply of one run goes."""

    def __init__(self, runs: KeptRuns, run: Run) -> None:
        self._runs = runs
        self._run = run

    def begin(self, head: Head) -> None:
        self._run.stream.head = head
        self._run.news.ring()

    async def take(self, data: bytes) -> None:
        await self._runs.take(self._run, data)

    def end(self) -> None:
        self._runs.finish(self._run)


async def _head_of(run: Run) -> Head:
    """Return what comes before the reply's body, once it is known."""
    while run.stream.head is None and not run.stream.is_over:
        await run.news.wait()
    assert run.stream.head is not None, "a reply has a status"
    return run.stream.head


async def _tell_stop(cause: RouterError, exchange: Exchange) -> web.StreamResponse:
    """Return the response that tells why the work was stopped; the account says so too."""
    account = exchange.account
    if isinstance(cause, ShuttingDown):
        account.note_error(cause)
        account.status = cause.http_status
    else:
        account.note_client_gone()
        account.code = cause.code
    return await exchange.reply.fail(cause.to_payload())


def _taken_over(exchange: Exchange) -> Exchange:
    """Return the exchange of the work; what is left has an account that nobody writes down."""
    own = replace(exchange)
    exchange.account, exchange.close = replace(exchange.account), None
    return own


def _limits(settings: RouterSettings) -> StreamLimits:
    return StreamLimits(
        max_count=settings.kept_streams_max_count,
        max_bytes=settings.kept_streams_max_bytes,
        max_stream_bytes=settings.kept_stream_max_bytes,
        detached_s=settings.detached_stream_s,
        kept_s=settings.kept_stream_s,
    )


def _stopped(why: str) -> Gone:
    return Gone(f"the answer was stopped: {why}", code="stream_stopped")


def _abandoned(after_s: float) -> Gone:
    return Gone(f"the answer was stopped: nobody has read it for {after_s:g} s", code="stream_abandoned")


def _server_stops() -> ShuttingDown:
    return ShuttingDown("the server is stopping; the answer was cut off")


KEPT_RUNS = web.AppKey("kept_runs", KeptRuns)
