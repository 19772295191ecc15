"""One request to another OpenAI-compatible server, and its reply back, byte for byte.

Owns the exchange and what counts as a failure of the other server. Must not judge the request's fields, nor open
connections or make up headers (`remotes.py` does).
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import logging
import os
from collections.abc import AsyncIterator, Callable, Mapping
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import aiohttp
from aiohttp import web

from router.account import Account
from router.body import SCAN_INLINE_BYTES, BodyShare
from router.catalog import Remote
from router.dialects import EVENT_STREAM, Dialect
from router.errors import (
    ModelUnavailable,
    RemoteFailed,
    RemoteRefused,
    RemoteUnreachable,
    RequestTimeout,
    RouterError,
    WorkerRefused,
)
from router.messages_reader import MessagesReader, is_error
from router.relay import Call
from router.remotes import Remotes
from router.reply import Reply
from router.reply_reader import ReplyReader, read_error
from router.responses_reader import ResponsesReader
from router.settings import RouterSettings
from worker.contract import ErrorPayload

if TYPE_CHECKING:
    from router.metrics import RouterMetrics

_log = logging.getLogger(__name__)

_MAX_WHOLE_BYTES = 64 * 2**20
"""What all requests together may hold is bounded by the memory for their bodies besides."""
_MAX_ERROR_BYTES = 2**20
_MAX_RETRY_AFTER_S = 3600.0
_READERS: Mapping[Dialect, type[ReplyReader]] = {
    Dialect.ANTHROPIC: MessagesReader,
    Dialect.RESPONSES: ResponsesReader,
}
_TAIL_WITHIN_S = 0.5
"""How long the end of a stream may come after it has said that it is complete."""


class RemoteSaidNo(WorkerRefused):
    """The other server answered with an error of the usual form; it goes to the client as it came."""

    def __init__(self, payload: ErrorPayload, body: bytes) -> None:
        super().__init__(payload)
        self.body = body


class RemoteRelay:
    """Carries one `Call` to another server and its answer into a `Reply`."""

    def __init__(
        self,
        call: Call,
        remote: Remote,
        reply: Reply,
        *,
        account: Account,
        remotes: Remotes,
        metrics: RouterMetrics,
        settings: RouterSettings,
        body_share: BodyShare,
    ) -> None:
        self._call = call
        self._remote = remote
        self._metrics = metrics
        self._reply = reply
        self._account = account
        self._remotes = remotes
        self._settings = settings
        self._body_share = body_share
        self._clock = asyncio.get_running_loop().time
        self._reader = _READERS.get(reply.dialect, ReplyReader)()
        self._is_complete: Callable[[], None] = lambda: None

    async def run(self) -> web.StreamResponse:
        """Return the client's response, complete.

        Raises: RouterError when there is no answer, or only half of one; ClientGone.
        """
        spec = self._call.spec
        if spec.problem is not None:
            raise ModelUnavailable(f"`{spec.name}` is not available: {spec.problem}")
        try:
            with self._remotes.place(spec):
                self._note_asked()
                async with self._signs_of_life(), self._remotes.answer() as is_complete:
                    self._is_complete = is_complete
                    return await self._within_limit()
        except RemoteSaidNo as refusal:
            if self._reply.is_open or (self._reply.dialect is Dialect.ANTHROPIC and not is_error(refusal.body)):
                raise
            self._account.note_error(refusal)
            response = web.Response(status=refusal.http_status, body=refusal.body, headers=self._reply.headers)
            response.headers["Content-Type"] = "application/json"
            if refusal.retry_after_s is not None:
                response.headers["Retry-After"] = f"{refusal.retry_after_s:.0f}"
            return response
        finally:
            self._account.usage = self._reader.usage
            self._account.finish_reasons = self._reader.finish_reasons
            self._metrics.remote_answered(spec.name, **self._reader.tokens)

    @contextlib.asynccontextmanager
    async def _signs_of_life(self) -> AsyncIterator[None]:
        if not self._call.is_stream:
            yield
            return
        settings = self._settings
        async with self._reply.kept_alive(settings.stream_open_after_s, settings.ping_interval_s):
            yield

    async def _within_limit(self) -> web.StreamResponse:
        spec = self._call.spec
        limit_s = spec.request_timeout_s or None
        try:
            async with asyncio.timeout(limit_s) as limit:
                remote_reply = await self._ask()
                try:
                    return await self._take(remote_reply, limit)
                finally:
                    if remote_reply.content.at_eof():
                        remote_reply.release()
                    else:
                        remote_reply.close()  # tells the other server to stop at once
        except TimeoutError:
            if not limit.expired():
                raise
            raise RequestTimeout(
                f"the answer took longer than the {limit_s:g} s that `{spec.name}` allows "
                f"(request_timeout_s in models.yaml)"
            ) from None

    async def _ask(self) -> aiohttp.ClientResponse:
        """Return the other server's reply, of which only the head has come. Raises: RouterError."""
        call, session = self._call, self._remotes.session
        headers = {**call.headers, **self._remotes.authorization(call.spec, self._remote)}
        url = self._remote.url + call.path.removeprefix("/v1")
        for is_last in (False, True):
            try:
                return await session.post(
                    url,
                    data=io.BytesIO(call.body),
                    headers=headers,
                    skip_auto_headers=("User-Agent", "Accept-Encoding"),
                    allow_redirects=False,
                )
            except (aiohttp.ServerDisconnectedError, aiohttp.ClientOSError, ConnectionResetError) as problem:
                # A kept connection may have been closed at the other end just now: that is no failure of the server.
                if is_last or isinstance(problem, aiohttp.ClientConnectorError):
                    raise self._explain(problem) from None
            except (aiohttp.ClientError, TimeoutError, ValueError) as problem:
                if isinstance(problem, TimeoutError) and not isinstance(problem, aiohttp.ServerTimeoutError):
                    raise  # the model's own limit
                raise self._explain(problem) from None
        raise AssertionError("the last try returns or raises")

    def _explain(self, problem: Exception) -> RouterError:
        """Return what the client is told; addresses are for the log alone."""
        name = self._call.spec.name
        _log.warning(
            "%s: no answer from %s: %s", name, self._remote.url, problem, extra={"request_id": self._account.request_id}
        )
        match problem:
            case aiohttp.ClientConnectorCertificateError() | aiohttp.ClientConnectorSSLError():
                return RemoteFailed(
                    f"the server of `{name}` cannot be trusted: its certificate or its TLS is not valid"
                )
            case aiohttp.ClientConnectorDNSError():
                return RemoteUnreachable(f"the server of `{name}` cannot be reached: its name is not known")
            case aiohttp.ClientConnectorError():
                number = problem.os_error.errno  # the text of the error would show the address
                reason = os.strerror(number).lower() if number else "there is no connection"
                return RemoteUnreachable(f"the server of `{name}` cannot be reached: {reason}")
            case aiohttp.ServerTimeoutError():
                return RemoteUnreachable(f"the server of `{name}` cannot be reached: it did not answer within 10 s")
            case aiohttp.ServerDisconnectedError() | OSError():
                return RemoteUnreachable(f"the server of `{name}` closed the connection before it answered")
            case _:
                return RemoteFailed(f"the server of `{name}` does not speak HTTP as it should")

    # --- the reply ---

    async def _take(self, remote_reply: aiohttp.ClientResponse, limit: asyncio.Timeout) -> web.StreamResponse:
        self._call.body = b""  # it cannot be sent again, so its bytes need not be held while the answer runs
        self._body_share.give_back()
        if remote_reply.status != 200:
            raise await self._refusal(remote_reply)
        encoding = remote_reply.headers.get("Content-Encoding", "identity").strip().lower()
        if encoding != "identity":
            raise RemoteFailed(
                f"the server of `{self._call.spec.name}` answered in the encoding {encoding[:80]!r} although none was "
                f"asked for"
            )
        kind = remote_reply.content_type
        if kind == EVENT_STREAM:
            return await self._take_stream(remote_reply, limit)
        if kind != "application/json" and not kind.endswith("+json"):
            raise RemoteFailed(
                f"the server of `{self._call.spec.name}` answered with {kind[:80]}, which no such API does; the "
                f"operator should check its `url`"
            )
        body = await self._read(remote_reply, _MAX_WHOLE_BYTES)
        limit.reschedule(None)  # it is complete: nothing may take it back
        self._is_complete()
        self._note_first_byte()
        if len(body) > SCAN_INLINE_BYTES:
            is_json = await asyncio.to_thread(self._reader.read_whole, body)
        else:
            is_json = self._reader.read_whole(body)
        error = self._reader.error
        if not is_json:
            raise RemoteFailed(f"the server of `{self._call.spec.name}` calls its answer JSON, which it is not")
        if error is not None:  # some tell errors with status 200
            self._account.note_error(WorkerRefused(error))
            body = self._remotes.without_key(self._remote, body)
            if self._reply.is_open:
                raise WorkerRefused(read_error(error.status, body) or error)
        elif self._call.is_stream:
            raise RemoteFailed(
                f"the server of `{self._call.spec.name}` sent no event stream although one was asked for"
            )
        return await self._reply.send(remote_reply.headers["Content-Type"], body)

    async def _take_stream(self, remote_reply: aiohttp.ClientResponse, limit: asyncio.Timeout) -> web.StreamResponse:
        reader = self._reader
        try:
            async for chunk in remote_reply.content.iter_any():
                self._note_first_byte()
                reader.feed(chunk)
                await self._reply.write(chunk)
                if reader.is_done:
                    break
        except aiohttp.ClientError as problem:
            raise self._cut_off(problem) from None
        # Clients close as soon as they have read the last event, often before our response has ended.
        self._account.is_answered = reader.is_done
        limit.reschedule(None)
        self._is_complete()
        if reader.error is not None:
            self._account.note_error(WorkerRefused(reader.error))  # the client has it already
        elif not reader.is_done and not reader.finish_reasons:
            raise self._cut_off(None)
        response = await self._reply.finish()
        with contextlib.suppress(TimeoutError, aiohttp.ClientError):
            async with asyncio.timeout(_TAIL_WITHIN_S):  # to its end, so that the connection serves another request
                async for _ in remote_reply.content.iter_any():
                    pass
        return response

    async def _read(self, remote_reply: aiohttp.ClientResponse, max_bytes: int) -> bytes:
        chunks, num_bytes = [], 0
        try:
            async for chunk in remote_reply.content.iter_any():
                num_bytes += len(chunk)
                if num_bytes > max_bytes:
                    raise RemoteFailed(
                        f"the server of `{self._call.spec.name}` answers with more than {max_bytes} bytes"
                    )
                self._body_share.take(len(chunk))
                chunks.append(chunk)
        except aiohttp.ClientError as problem:
            raise self._cut_off(problem) from None
        return b"".join(chunks)

    def _cut_off(self, problem: Exception | None) -> RemoteFailed:
        name = self._call.spec.name
        _log.warning("%s: the answer from %s was cut off: %s", name, self._remote.url, problem or "the stream ended")
        return RemoteFailed(f"the server of `{name}` ended the answer before it was complete")

    async def _refusal(self, remote_reply: aiohttp.ClientResponse) -> RouterError:
        """Return what the client is told about a reply that is no answer."""
        name, status = self._call.spec.name, remote_reply.status
        if status in (401, 403):
            key = self._remote.key_env
            cause = f"does not accept the API key in {key}" if key is not None else "wants an API key (`url_key_env`)"
            _log.error("%s: %s refuses us with HTTP %d: it %s", name, self._remote.url, status, cause)
            return RemoteRefused(
                f"the server of `{name}` refuses this server, not you (HTTP {status}); the operator must see to the "
                f"API key that it uses there"
            )
        if 300 <= status < 400:
            _log.error("%s: %s redirects to %s", name, self._remote.url, remote_reply.headers.get("Location"))
            return RemoteFailed(f"the server of `{name}` redirects to another address, which is not followed")
        body = self._remotes.without_key(self._remote, await self._read(remote_reply, _MAX_ERROR_BYTES))
        payload = read_error(status, body) if 400 <= status < 600 else None
        retry_after_s = _seconds(remote_reply.headers.get("Retry-After"))
        if payload is not None:
            return RemoteSaidNo(ErrorPayload(status, payload.code, payload.message, payload.param, retry_after_s), body)
        message = f"the server of `{name}` failed with HTTP {status} and no reason that can be read"
        if 400 <= status < 500 or status == 503:  # what the client did, or may do later, is said by the status alone
            return WorkerRefused(ErrorPayload(status, RemoteFailed.code, message, None, retry_after_s))
        return RemoteFailed(message)

    def _note_asked(self) -> None:
        if (timeline := self._account.timeline) is not None:
            now_s, parts = self._clock(), urlsplit(self._remote.url)
            timeline.ask(now_s)
            port = {} if parts.port is None else {"server.port": parts.port}
            timeline.grant(now_s, {"server.address": parts.hostname or ""} | port)

    def _note_first_byte(self) -> None:
        if self._account.first_byte_at_s is None:
            self._account.first_byte_at_s = self._clock()


def _seconds(text: str | None) -> float | None:
    if text is None or not (text.isascii() and text.isdigit()):
        return None
    return min(float(text), _MAX_RETRY_AFTER_S)
