"""The routes that run models, in every dialect but Ollama's, and those that list them.

Owns which routes there are, and who answers: a worker, another server, or the router itself. Must not read bodies
(`calls.py` does).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from typing import Any, Protocol

from aiohttp import web

from router.anthropic_models import model_info, model_page
from router.body import BodyShare, check_media_type
from router.calls import read_call
from router.candidates import ANY
from router.dialects import Dialect
from router.json_reply import json_response
from router.kept_runs import KEPT_RUNS
from router.listing import find_model, list_models, list_statuses
from router.relay import Call, Relay
from router.remote import RemoteRelay
from router.routes import Handler, Route, Running, Streaming
from router.seen import usable_models
from router.services import SERVICES, Exchange, Services, current_exchange


class Shortcut(Protocol):
    """What answers some requests of a route instead of a worker."""

    def is_due(self, fields: Mapping[str, Any]) -> bool:
        """Return whether a request with this body is one of them."""
        ...

    async def answer(self, call: Call, services: Services, exchange: Exchange) -> web.StreamResponse:
        """Return the response, complete. Raises: RouterError, ClientGone."""
        ...


async def run_model(
    request: web.Request, shortcut: Shortcut | None = None, *, revise: Callable[[Call], None] | None = None
) -> web.StreamResponse:
    """Answer with what a worker says to the request. Raises: RouterError, ClientGone.

    `revise` makes of the call what the worker is to be asked; it raises: RouterError. Where the client wants it, the
    answer is made to its end even if the client does not stay.
    """
    services, exchange = request.app[SERVICES], current_exchange()
    check_media_type(request)
    conversation = request.app[KEPT_RUNS].conversation_of(request)
    with ExitStack() as resources:
        share = resources.enter_context(services.body_memory.share())
        if shortcut is None:
            call, _ = await read_call(request, services, exchange, share)
        else:
            call, is_short = await read_call(request, services, exchange, share, shortcut.is_due)
            if is_short:
                return await shortcut.answer(call, services, exchange)
        if revise is not None:
            revise(call)
        work = functools.partial(_ask, call, services, share)
        if conversation is None:
            return await work(exchange)
        return await request.app[KEPT_RUNS].run(request, exchange, conversation, work, resources.pop_all())


async def _ask(call: Call, services: Services, share: BodyShare, exchange: Exchange) -> web.StreamResponse:
    if call.spec.remote is not None:
        return await RemoteRelay(
            call,
            call.spec.remote,
            exchange.reply,
            account=exchange.account,
            remotes=services.remotes,
            metrics=services.metrics,
            settings=services.settings,
            body_share=share,
        ).run()
    relay = Relay(
        call,
        exchange.reply,
        account=exchange.account,
        supervisor=services.supervisor,
        settings=services.settings,
        body_share=share,
        memory=services.resume_memory,
        quarantine=services.quarantine,
    )
    return await relay.run()


async def get_models(request: web.Request) -> web.StreamResponse:
    """Answer with every model and every listed alias, whether loaded or not."""
    services = request.app[SERVICES]
    usable = usable_models(services)
    models = list_models(services.supervisor, services.started_at, services.kept_entries, usable=usable)
    if current_exchange().dialect is Dialect.ANTHROPIC:
        return json_response(model_page(models, request.query))
    return json_response({"object": "list", "data": models})


async def get_model(request: web.Request) -> web.StreamResponse:
    """Answer with one model or alias, hidden ones included. Raises: ModelNotFound."""
    services = request.app[SERVICES]
    usable = usable_models(services)
    model = find_model(services.supervisor, services.started_at, request.match_info["id"], usable=usable)
    return json_response(model_info(model) if current_exchange().dialect is Dialect.ANTHROPIC else model)


async def get_model_statuses(request: web.Request) -> web.StreamResponse:
    """Answer with the models in the form of llama-server's router."""
    services = request.app[SERVICES]
    statuses = list_statuses(services.supervisor, services.started_at, usable=usable_models(services))
    return json_response({"object": "list", "data": statuses})


def running(
    path: str,
    *forms: str,
    handler: Handler = run_model,
    dialect: Dialect = Dialect.OPENAI,
    streaming: Streaming = Streaming.ASKED,
    takes_loras: bool = True,
    capability: str | None = None,
) -> Iterator[Route]:
    """Yield the route that runs models at `path`, and those of the other forms of its address."""
    runs = Running(streaming, takes_loras, capability)
    for form in (path, *forms):
        yield Route(
            "POST",
            form,
            handler,
            is_counted=True,
            is_shown=form == path,
            same_as=None if form == path else path,
            dialect=dialect,
            runs=runs,
        )


_NEVER = Streaming.NEVER

ROUTES = (
    *running("/v1/chat/completions", "/chat/completions"),
    *running("/v1/chat/completions/input_tokens", "/chat/completions/input_tokens", streaming=_NEVER),
    *running("/v1/completions"),
    *running("/v1/messages", dialect=Dialect.ANTHROPIC),
    *running("/v1/messages/count_tokens", dialect=Dialect.ANTHROPIC, streaming=_NEVER),
    *running("/v1/responses", "/responses", dialect=Dialect.RESPONSES),
    *running("/v1/responses/input_tokens", "/responses/input_tokens", dialect=Dialect.RESPONSES, streaming=_NEVER),
    *running("/v1/embeddings", streaming=_NEVER, takes_loras=False),
    *running("/v1/rerank", "/rerank", "/v1/reranking", "/reranking", streaming=_NEVER, takes_loras=False),
    *running("/completion", "/completions", dialect=Dialect.LLAMA, capability="completion"),
    *running("/infill", dialect=Dialect.LLAMA, capability="completion"),
    *running("/tokenize", dialect=Dialect.LLAMA, streaming=_NEVER, takes_loras=False, capability=ANY),
    *running("/detokenize", dialect=Dialect.LLAMA, streaming=_NEVER, takes_loras=False, capability=ANY),
    *running("/apply-template", dialect=Dialect.LLAMA, streaming=_NEVER, takes_loras=False, capability="chat"),
    *running(
        *("/embedding", "/embeddings"),
        dialect=Dialect.LLAMA,
        streaming=_NEVER,
        takes_loras=False,
        capability="embedding",
    ),
    Route("GET", "/v1/models", get_models),
    Route("GET", "/v1/models/{id:.+}", get_model),
    Route("GET", "/models", get_model_statuses, dialect=Dialect.LLAMA),
)
