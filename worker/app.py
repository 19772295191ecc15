"""The worker's HTTP application: its dialects and `/health`, spoken only by the router over a private socket.

Owns routes and the frame around each reply, and that every reply ends with an end frame, whatever goes wrong. It names
the models of bodies for openapi.json and looks into none. Must not know prompts, nor how the process lives.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import assert_never

from aiohttp import web

from worker.api.anthropic_fields import MessageFields, PromptFields
from worker.api.anthropic_messages import read_messages, read_token_count
from worker.api.fields import Fields
from worker.api.gate import Gate
from worker.api.llama_completion import LlamaCompletionFields, read_llama_completion
from worker.api.llama_embedding import LlamaEmbeddingFields, read_llama_embedding
from worker.api.llama_infill import LlamaInfillFields, read_infill
from worker.api.ollama_chat import OllamaChatFields, read_ollama_chat
from worker.api.ollama_embed import (
    OllamaEmbeddingsFields,
    OllamaEmbedFields,
    read_ollama_embed,
    read_ollama_embeddings,
)
from worker.api.ollama_generate import OllamaGenerateFields, read_ollama_generate
from worker.api.openai_chat import ChatFields, read_chat, read_chat_count
from worker.api.openai_completions import CompletionFields, read_completion
from worker.api.openai_embeddings import EmbeddingFields, read_embeddings
from worker.api.openai_responses import read_input_count, read_response
from worker.api.pooled import PooledJob, PooledReply, check_can_generate
from worker.api.rerank import RerankFields, read_rerank
from worker.api.responses_fields import CountFields, ResponsesFields
from worker.api.served import Envelope, Job, ReadyJob, ServedModel
from worker.api.slot_actions import SlotFields, SlotJob, SlotReply, read_slot_action
from worker.api.stream import ReadyReply, Reply, failure
from worker.api.tokens import (
    ApplyTemplateFields,
    DetokenizeFields,
    TokenizeFields,
    read_apply_template,
    read_detokenize,
    read_tokenize,
)
from worker.api.usage import Totals
from worker.contract import FRAMES_CONTENT_TYPE, Header, default_max_leases
from worker.errors import CannotResume, RequestError, UnforeseenFault

AnyJob = Job | PooledJob | ReadyJob | SlotJob
AnyReply = Reply | PooledReply | ReadyReply | SlotReply
Read = Callable[[ServedModel, bytes, Envelope], AnyJob]
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

log = logging.getLogger("worker")

UNLIMITED_BYTES = 2**40
"""Bodies are bounded by the router, the only client."""
KEEP_CONNECTIONS_S = 24 * 3600.0
"""The router pools its connections: one that closes while a request is on its way would fail that request."""
MIN_READERS = 32
"""Requests that are read at a time, and never fewer than there may be: most of them take a moment, but some wait until
a grammar is compiled, and nobody else may wait for those."""
LAST_WORDS_S = 1.0
"""How long replies may take to end when the process does."""


@dataclass(frozen=True, slots=True)
class Route:
    """One address, and what understands the requests that come to it."""

    path: str
    read: Read
    fields: type[Fields]
    """The model of its request bodies, which openapi.json describes."""
    generates: bool = True
    """Only models that generate text can answer it."""


ROUTES = (
    Route("/v1/chat/completions", read_chat, ChatFields),
    Route("/v1/chat/completions/input_tokens", read_chat_count, ChatFields),
    Route("/v1/completions", read_completion, CompletionFields),
    Route("/v1/responses", read_response, ResponsesFields),
    Route("/v1/responses/input_tokens", read_input_count, CountFields),
    Route("/v1/messages", read_messages, MessageFields),
    Route("/v1/messages/count_tokens", read_token_count, PromptFields),
    Route("/v1/embeddings", read_embeddings, EmbeddingFields, generates=False),
    Route("/v1/rerank", read_rerank, RerankFields, generates=False),
    Route("/completion", read_llama_completion, LlamaCompletionFields),
    Route("/infill", read_infill, LlamaInfillFields),
    Route("/embedding", read_llama_embedding, LlamaEmbeddingFields, generates=False),
    Route("/api/generate", read_ollama_generate, OllamaGenerateFields),
    Route("/api/chat", read_ollama_chat, OllamaChatFields),
    Route("/api/embed", read_ollama_embed, OllamaEmbedFields, generates=False),
    Route("/api/embeddings", read_ollama_embeddings, OllamaEmbeddingsFields, generates=False),
    Route("/tokenize", read_tokenize, TokenizeFields, generates=False),
    Route("/detokenize", read_detokenize, DetokenizeFields, generates=False),
    Route("/apply-template", read_apply_template, ApplyTemplateFields, generates=False),
)
OF_ROUTER = (Route("/slots", read_slot_action, SlotFields, generates=False),)
"""Those whose bodies the router makes itself."""


def make_app(model: ServedModel, gate: Gate) -> web.Application:
    """Return the application; `make_runner` knows how to run it."""
    app = web.Application(client_max_size=UNLIMITED_BYTES)
    num_readers = max(MIN_READERS, default_max_leases(model.engine.facts.slots))
    readers = ThreadPoolExecutor(num_readers, thread_name_prefix="read")
    for route in (*ROUTES, *OF_ROUTER):
        app.router.add_post(route.path, _answering(model, gate, route, readers))

    async def health(_: web.Request) -> web.Response:
        return web.json_response({"status": "draining" if gate.is_closed else "ok", "model": model.name})

    async def forget_readers(_: web.Application) -> None:
        readers.shutdown(wait=False, cancel_futures=True)

    app.router.add_get("/health", health)
    app.on_cleanup.append(forget_readers)
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


def _answering(model: ServedModel, gate: Gate, route: Route, readers: ThreadPoolExecutor) -> Handler:
    """Return the handler that answers the requests of `route`."""

    async def handle(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": FRAMES_CONTENT_TYPE})
        response.headers[Header.CONTENT_TYPE] = "application/json"
        reply: AnyReply | None = None

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
                if route.generates:
                    check_can_generate(model)
                envelope, body = Envelope.from_headers(request.headers).unpacked(body)
                # Templates and tokenizers take milliseconds for each kilobyte: other replies go on meanwhile.
                job = await asyncio.get_running_loop().run_in_executor(readers, route.read, model, body, envelope)
                if isinstance(job, Job) and job.is_stream:
                    response.headers[Header.CONTENT_TYPE] = job.stream_type
                reply = _reply(model, job, write, envelope)
                if isinstance(reply, Reply) and model.identity:
                    response.headers[Header.RESUME] = model.identity
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


def _reply(model: ServedModel, job: AnyJob, write: Callable[[bytes], Awaitable[None]], envelope: Envelope) -> AnyReply:
    """Return what answers. Raises: CannotResume when it cannot go on with what another worker has begun."""
    match job:
        case Job():
            if envelope.earlier and envelope.earlier_identity != model.identity:
                raise CannotResume(
                    "The model or its options have changed since this answer began, so that it cannot go on. "
                    "Please ask again."
                )
            return Reply(model, job, write, earlier=envelope.earlier)
        case PooledJob():
            return PooledReply(model, job, write)
        case ReadyJob():
            return ReadyReply(job, write)
        case SlotJob():
            return SlotReply(model, job, write)
        case _:
            assert_never(job)


def _request_id(request: web.Request) -> str:
    return request.headers.get(Header.REQUEST_ID, "?")
