"""Composition of the HTTP side: routes, and what happens around every handler.

Owns the order in which a request is checked, and is the only place that turns errors into HTTP. Must not start or stop
anything: `serve.py` does.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import secrets
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace

from aiohttp import hdrs, web

from router import (
    admin,
    admin_config,
    admin_logs,
    api,
    api_document,
    events_stream,
    key_limits,
    later,
    llama_routes,
    ollama,
    ollama_pull,
    ops,
    responses,
    slot_actions,
    status_routes,
    stream_routes,
    ui,
)
from router.account import Account, Outcome
from router.auth import ALL_SCOPES, Grant, Scope
from router.catalog_view import CatalogView
from router.dialects import Dialect, guess_dialect
from router.errors import (
    MethodNotAllowed,
    ModelUnavailable,
    NotAvailableYet,
    NotFound,
    RouterError,
    TooManyRequests,
    Unauthorized,
    WrongAddress,
)
from router.events_stream import EVENT_HUB, EventHub
from router.kept_runs import KEPT_RUNS, KeptRuns
from router.key_check import HELD_ANSWERS, HeldAnswers, check_key
from router.lifecycle import WorkerState
from router.live_streams import LIVE_STREAMS, Kind, LiveStreams
from router.metrics.clients import HeldForClients
from router.open_connections import CONNECTIONS
from router.recent_requests import record_of
from router.reply import ClientGone, Reply
from router.routes import DEFAULT_SCOPES, Handler, Route, describe_missing, list_routes, route_above
from router.services import SERVICES, Exchange, Services, current_exchange, find_exchange, open_exchange
from router.topics import TOPIC_HUB, TopicHub
from router.ui import BY_ACCEPT, WEB_FILES, read_web_files, redirect_to_page, wants_page
from router.version import version
from worker.contract import ErrorPayload

_log = logging.getLogger(__name__)
_requests_log = logging.getLogger("router.requests")

_UNKNOWN = "other"
"""The label of all addresses and methods that do not exist."""

_ROUTES = web.AppKey("routes", Mapping[web.AbstractRoute, Route])


def make_app(services: Services) -> web.Application:
    """Return the application; it answers as soon as it is run."""
    app = web.Application(middlewares=[_account, _answer_errors, _guard, _authorise, key_limits.limit_keys])
    app[SERVICES] = services
    routes: dict[web.AbstractRoute, Route] = {}
    for route in all_routes():
        methods = (route.method, hdrs.METH_HEAD) if route.method == hdrs.METH_GET else (route.method,)
        for method in methods:
            added = app.router.add_route(method, route.path, route.handler, expect_handler=_continue)
            routes[added] = route
    app[_ROUTES] = routes
    app[LIVE_STREAMS] = LiveStreams()
    app[HELD_ANSWERS] = HeldAnswers()
    app[KEPT_RUNS] = KeptRuns(services, _answer_errors)
    app[EVENT_HUB] = EventHub()
    app[TOPIC_HUB] = TopicHub()
    app[WEB_FILES] = read_web_files()
    app.on_startup.append(app[KEPT_RUNS].start)
    app.on_startup.append(_watch_clients)
    app.on_startup.append(admin_config.open_editor)
    app.on_response_prepare.append(_stamp)
    app.on_shutdown.append(app[LIVE_STREAMS].end_all)
    app.on_shutdown.append(app[KEPT_RUNS].close)
    app.on_cleanup.append(_close_remotes)
    return app


def make_runner(app: web.Application, shutdown_timeout_s: float = 60.0) -> web.AppRunner:
    """Return what runs the application.

    A handler is cancelled when its client leaves, which would otherwise keep its place on the worker until the answer's
    end. Bodies arrive as they were sent: aiohttp would unpack them itself, refusing unknown encodings in plain text.
    """
    return web.AppRunner(
        app,
        handler_cancellation=True,
        access_log=None,
        shutdown_timeout=shutdown_timeout_s,
        auto_decompress=False,
    )


def all_routes() -> tuple[Route, ...]:
    """Return every route, in the order in which they are listed."""
    start = Route("GET", "/", _get_start, scopes=(), is_shown=False)
    own = (*api.ROUTES, *responses.ROUTES, *stream_routes.ROUTES, *ops.ROUTES, *llama_routes.ROUTES)
    own += (*slot_actions.ROUTES, *status_routes.ROUTES, *events_stream.ROUTES)
    own += (
        *ollama.ROUTES,
        *ollama_pull.ROUTES,
        *admin.ROUTES,
        *admin_config.ROUTES,
        *admin_logs.ROUTES,
        *key_limits.ROUTES,
        *api_document.ROUTES,
    )
    own += ui.ROUTES
    return (*own, *later.ROUTES, start)


async def _get_start(request: web.Request) -> web.StreamResponse:
    """Answer with what this server is and what can be asked of it; lead a browser to the dashboard."""
    if wants_page(request):
        return redirect_to_page()
    text = (
        f"Corral {version()}: several GGUF models behind one URL. GET /docs tells more.\n\n{list_routes(all_routes())}"
    )
    return web.Response(text=text, headers=BY_ACCEPT)


async def _continue(request: web.Request) -> None:
    """Tell a client that waits with a long body to send it; an unknown expectation is the client's own affair."""
    if request.headers.get(hdrs.EXPECT, "").lower() == "100-continue":
        await request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")


async def _close_remotes(app: web.Application) -> None:
    await app[SERVICES].remotes.close()


async def _watch_clients(app: web.Application) -> None:
    app[SERVICES].metrics.watch_clients(functools.partial(_held_for_clients, app))


def _held_for_clients(app: web.Application) -> HeldForClients:
    services, kept = app[SERVICES], app[KEPT_RUNS].store
    return HeldForClients(
        num_followers={kind.name.lower(): app[LIVE_STREAMS].num_open(kind) for kind in Kind},
        num_kept_responses=services.conversations.num_kept,
        kept_responses_bytes=services.conversations.num_bytes,
        request_body_bytes=services.body_memory.num_bytes,
        num_kept_streams=kept.counts(),
        kept_streams_bytes=kept.num_bytes,
    )


async def _stamp(request: web.Request, response: web.StreamResponse) -> None:
    response.headers[hdrs.SERVER] = "corral"
    response.headers.update(request.app[SERVICES].cors.headers(request.headers.get(hdrs.ORIGIN)))
    exchange = find_exchange()
    if exchange is not None:
        response.headers["X-Request-Id"] = exchange.account.request_id
        if exchange.dialect is Dialect.ANTHROPIC:
            response.headers["request-id"] = exchange.account.request_id


# --- around every handler, from the outside in ------------------------------------------------------------


@web.middleware
async def _account(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Open the request's account, and close it however the request ends."""
    services = request.app[SERVICES]
    clock = asyncio.get_running_loop().time
    route = request.app[_ROUTES].get(request.match_info.route)
    account = Account(
        request_id=secrets.token_hex(12),
        route=_UNKNOWN if route is None else route.label,
        accepted_at_s=clock(),
    )
    dialect = _dialect_of(request, route)
    reply = Reply(request, dialect, account.request_id, max_stall_s=services.settings.max_client_stall_s or None)
    trace = None
    if services.tracing is not None and route is not None and route.runs is not None:
        trace = services.tracing.begin(request.method, account, request.headers)

    def close() -> None:
        loop, now_s = asyncio.get_running_loop(), clock()
        is_preflight = services.cors.is_preflight(request.method, request.headers)
        is_counted = not is_preflight and (route is None or route.is_counted)
        # Once aiohttp has sent the response, which it does before the loop's next turn: the client need not wait.
        if trace is not None:
            loop.call_soon(trace.end, now_s)
        loop.call_soon(functools.partial(_close_account, services, account, is_counted, now_s))

    exchange = Exchange(account, dialect, reply, Grant(None, frozenset()), route, trace, close)
    open_exchange(exchange)
    services.metrics.replies.add(reply)
    try:
        response = await handler(request)
    except asyncio.CancelledError:
        if request.transport is None or request.transport.is_closing():
            exchange.account.note_client_gone()
        else:
            exchange.account.outcome, exchange.account.status = Outcome.ERROR, 503
        raise
    except ClientGone:
        exchange.account.note_client_gone()
        return _unheard(request)
    else:
        exchange.account.status = response.status
        return response
    finally:
        services.metrics.replies.discard(reply)
        if exchange.close is not None:
            exchange.close()


def _dialect_of(request: web.Request, route: Route | None) -> Dialect:
    """Return what the client speaks: at a wrong address, or with a wrong method there, that of the route nearby.

    Lists of models are for clients of several dialects, who tell it by a header.
    """
    route = route or route_above(request.path, request.app[_ROUTES].values())
    if route is None or (route.dialect is Dialect.OPENAI and not route.is_counted):
        return guess_dialect(request.path, request.headers)
    return route.dialect


def _unheard(request: web.Request) -> web.Response:
    """Return a response that nobody gets. An error instead would go to the log as one of ours, with a traceback."""
    if request.protocol is not None:
        request.protocol.force_close()
    return web.Response(status=499)


@web.middleware
async def _answer_errors(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Answer every failure in the client's dialect, by status or, in an open stream, by an event."""
    exchange = current_exchange()
    headers: dict[str, str] = {}
    try:
        return await handler(request)
    except ClientGone:
        raise
    except web.HTTPException as error:
        payload = _http_error(request, error)
        if hdrs.ALLOW in error.headers:
            headers[hdrs.ALLOW] = error.headers[hdrs.ALLOW]
        exchange.account.note_error(payload)
        response = await exchange.reply.fail(payload.to_payload())
    except RouterError as error:
        if isinstance(error, Unauthorized):
            headers[hdrs.WWW_AUTHENTICATE] = "Bearer"
        if _is_in_vain(request.app[SERVICES], exchange.account, error):
            headers["x-should-retry"] = "false"  # OpenAI's clients repeat every 5xx by themselves unless told so
        exchange.account.note_error(error)
        response = await exchange.reply.fail(_told(request.app[SERVICES], exchange.grant, error))
    except Exception:  # noqa: BLE001 - a fault of ours must not look like a hang or an empty reply
        request_id = exchange.account.request_id
        _log.exception("a request failed for a reason that nobody foresaw", extra={"request_id": request_id})
        exchange.account.outcome, exchange.account.code = Outcome.ERROR, RouterError.code
        text = f"the server failed on this request; its log has the reason under {request_id}"
        response = await exchange.reply.fail(ErrorPayload(500, RouterError.code, text))
    if not exchange.reply.is_open:
        response.headers.update(headers)
    return response


@web.middleware
async def _guard(request: web.Request, handler: Handler) -> web.StreamResponse:
    services = request.app[SERVICES]
    services.guard.check(request.headers.get(hdrs.HOST), request.headers.get(hdrs.ORIGIN))
    if services.cors.is_preflight(request.method, request.headers):
        # Without a key, as browsers ask without one; the request that follows needs it.
        return web.Response(status=204, headers=services.cors.preflight_headers(request.headers))
    return await handler(request)


@web.middleware
async def _authorise(request: web.Request, handler: Handler) -> web.StreamResponse:
    route = request.app[_ROUTES].get(request.match_info.route)
    scopes = DEFAULT_SCOPES if route is None else route.scopes
    exchange = current_exchange()
    if scopes:
        exchange.grant = await check_key(request, request.app[SERVICES])
        exchange.account.key_id = exchange.grant.key_id
        if route is not None:  # an address that does not exist is told to every key
            exchange.grant.require(*scopes)
            _check_address(request, scopes)
    else:
        exchange.grant = Grant(None, ALL_SCOPES)
    return await handler(request)


# ----------------------------------------------------------------------------------------------------------


def _check_address(request: web.Request, scopes: Sequence[Scope]) -> None:
    """Return unless operators have an address of their own and this request should have come there.

    Raises: WrongAddress.
    """
    if scopes != (Scope.ADMIN,) or request.app[SERVICES].settings.admin_socket is None:
        return
    connection = request.app.get(CONNECTIONS, {}).get(request.protocol)
    if connection is None or not connection.is_admin:
        raise WrongAddress(
            f"{request.method} {request.path} is answered only at the operators' address (CORRAL_ADMIN_SOCKET of the "
            f"server); commands reach it with --url or CORRAL_URL"
        )


def _told(services: Services, grant: Grant, error: RouterError) -> ErrorPayload:
    """Return what the client is told: what keeps a model busy may be one of which its key may not know.

    Where files lie is for administrators.

    What a client sent itself is never changed, which would tell that there is such a model.
    """
    told = error.to_payload()
    if told.status < TooManyRequests.http_status or (grant.tells_folders and not grant.usable):
        return told
    usable = CatalogView(services.supervisor.catalog, grant.usable, tells_folders=grant.tells_folders)
    return replace(told, message=usable.without_strangers(told.message))


def _is_in_vain(services: Services, account: Account, error: RouterError) -> bool:
    """Return whether the same request will fail again, however often a client repeats it in the next minutes."""
    if isinstance(error, NotAvailableYet):
        return True
    if not isinstance(error, ModelUnavailable):
        return False
    spec = services.supervisor.catalog.models.get(account.model)
    view = services.supervisor.snapshot().models.get(account.model)
    has_failed = view is not None and view.state is WorkerState.FAILED
    return has_failed or (spec is not None and spec.problem is not None)


def _http_error(request: web.Request, error: web.HTTPException) -> RouterError:
    """Return what aiohttp itself refuses as an error of ours."""
    if isinstance(error, web.HTTPNotFound):
        known = [route.path for route in all_routes() if route not in later.ROUTES]
        return NotFound(describe_missing(request.method, request.path, known))
    if isinstance(error, web.HTTPMethodNotAllowed):
        allowed = ", ".join(sorted(error.allowed_methods))
        return MethodNotAllowed(f"{request.method} is not possible for {request.path}; use {allowed}")
    refusal = RouterError(error.reason, code=error.reason.lower().replace(" ", "_"))
    refusal.http_status = error.status
    return refusal


def _close_account(services: Services, account: Account, is_counted: bool, now_s: float) -> None:
    fields = account.log_fields(now_s)
    if not is_counted:
        _requests_log.debug("request", extra=fields)
        return
    services.metrics.request_finished(
        account.model,
        account.route,
        account.outcome.value,
        now_s - account.accepted_at_s,
        request_id=account.request_id,
        first_byte_s=account.ttft_s,
        is_resumed=account.num_resumes > 0,
    )
    if account.route != _UNKNOWN:
        services.recent.note(record_of(account, now_s=now_s, at=time.time()))
    _requests_log.info("request", extra=fields)
