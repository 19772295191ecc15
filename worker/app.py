"""The worker's HTTP application: its dialects and `/health`, spoken only by the router over a private socket.

Owns routes and the frame around each reply, and that every reply ends with an end frame, whatever goes wrong. Must not
know fields, prompts or how the process lives.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable

from aiohttp import web

from worker.api.gate import Gate
from worker.api.openai_chat import read_chat
from worker.api.openai_completions import read_completion
from worker.api.openai_embeddings import read_embeddings
from worker.api.pooled import PooledJob, PooledReply, check_can_generate
from worker.api.rerank import read_rerank
from worker.api.served import Envelope, Job, ServedModel
from worker.api.stream import Reply, failure
from worker.api.usage import Totals
from worker.contract import FRAMES_CONTENT_TYPE, Header
from worker.errors import RequestError, UnforeseenFault

Read = Callable[[ServedModel, bytes, Envelope], Job | PooledJob]
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

log = logging.getLogger("worker")

UNLIMITED_BYTES = 2**40
"""Bodies are bounded by the router, the only client."""
KEEP_CONNECTIONS_S = 24 * 3600.0
"""The router pools its connections: one that closes while a request is on its way would fail that request."""
LAST_WORDS_S = 1.0
"""How long replies may take to end when the process does."""


def make_app(model: ServedModel, gate: Gate) -> web.Application:
    """Return the application; `make_runner` knows how to run it."""
    app = web.Application(client_max_size=UNLIMITED_BYTES)
    app.router.add_post("/v1/chat/completions", _answering(model, gate, read_chat))
    app.router.add_post("/v1/completions", _answering(model, gate, read_completion))
    app.router.add_post("/v1/embeddings", _answering(model, gate, read_embeddings, generates=False))
    app.router.add_post("/v1/rerank", _answering(model, gate, read_rerank, generates=False))

    async def health(_: web.Request) -> web.Response:
        return web.json_response({"status": "draining" if gate.is_closed else "ok", "model": model.name})

    app.router.add_get("/health", health)
    return app


def make_runner(app: web.Application) -> web.AppRunner:
    """Return the runner that cancels a handler when its client leaves: aiohttp by itself would let it go on."""
    return web.AppRunner(
        app,
        access_log=None,
        handler_cancellation=True,
        keepalive_timeout=KEEP_CONNECTIONS_S,
        shutdown_timeout=LAST_WORDS_S,
    )


def _answering(model: ServedModel, gate: Gate, read: Read, *, generates: bool = True) -> Handler:
    """Return the handler that answers the requests which `read` understands; most ask for generated text."""

    async def handle(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": FRAMES_CONTENT_TYPE})
        response.headers[Header.CONTENT_TYPE] = "application/json"
        reply: Reply | PooledReply | None = None

        async def write(frames: bytes) -> None:
            if not response.prepared:
                await response.prepare(request)
            await response.write(frames)

        async def write_failure(error: RequestError) -> None:
            log.info("%s: request %s, %s", error.outcome, _request_id(request), error.code)
            with contextlib.suppress(ConnectionError):  # the router may have left meanwhile
                await write(failure(error, Totals() if reply is None else reply.totals))
                await response.write_eof()

        try:
            with gate.enter():
                body = await request.read()
                if generates:
                    check_can_generate(model)
                envelope = Envelope.from_headers(request.headers)
                # Templates and tokenizers take milliseconds for each kilobyte: other replies go on meanwhile.
                job = await asyncio.to_thread(read, model, body, envelope)
                if job.is_stream:
                    response.headers[Header.CONTENT_TYPE] = "text/event-stream"
                reply = PooledReply(model, job, write) if isinstance(job, PooledJob) else Reply(model, job, write)
                # The router learns that its request is being worked on: it forgets the body and sends it nowhere else.
                await response.prepare(request)
                await reply.run()
                await response.write_eof()
        except RequestError as error:
            await write_failure(error)
        except ConnectionError:
            pass  # the router has left, as it may: aiohttp ends the connection without a word
        except Exception as fault:
            log.exception(
                "request %s failed for a reason that nobody foresaw: %s", _request_id(request), type(fault).__name__
            )
            await write_failure(UnforeseenFault())
        return response

    return handle


def _request_id(request: web.Request) -> str:
    return request.headers.get(Header.REQUEST_ID, "?")
