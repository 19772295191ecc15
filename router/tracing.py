"""Spans of requests for OpenTelemetry: one of each request to a model, with its stages below it.

Owns how spans are made, and imports OpenTelemetry only where tracing is on: without the extra `tracing` the router runs
as well. Spans tell names, numbers and outcomes, never what was asked or answered. Must not measure anything itself
(`timeline.py` does), nor hold up a request: a thread of OpenTelemetry's own sends what has ended.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from router.account import Account, Outcome
from router.timeline import Stage, Timeline

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.trace import Span

_log = logging.getLogger(__name__)

_ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
_PROTOCOLS = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
_PROTOCOL = "http/protobuf"
_FAILURES = frozenset({Outcome.ERROR, Outcome.WORKER_DIED, Outcome.TIMEOUT})
_REFUSED = (ValueError, TypeError, OSError)
"""What the SDK and its exporter raise about values of variables, and about files that these name."""
_OPERATIONS = {
    "/v1/chat/completions": "chat",
    "/v1/messages": "chat",
    "/v1/responses": "chat",
    "/api/chat": "chat",
    "/v1/completions": "text_completion",
    "/completion": "text_completion",
    "/infill": "text_completion",
    "/api/generate": "text_completion",
    "/v1/embeddings": "embeddings",
    "/embedding": "embeddings",
    "/api/embed": "embeddings",
    "/api/embeddings": "embeddings",
}
"""What OpenTelemetry calls the routes for which it has a word."""


class Trace:
    """One request's span, open until the request has ended."""

    def __init__(self, tracing: Tracing, span: Span, account: Account, offset_ns: int) -> None:
        """`offset_ns`: what is to be added to the event loop's clock to have Unix time."""
        self._tracing = tracing
        self._span = span
        self._account = account
        self._offset_ns = offset_ns

    def headers(self) -> dict[str, str]:
        """Return what tells another server that its spans belong below this one."""
        return self._tracing.inject(self._span)

    def end(self, now_s: float) -> None:
        """The request has ended; its account is complete."""
        timeline, span = self._account.timeline, self._span
        if timeline is None:  # nobody wants to see it
            span.end()
            return
        account = self._account
        span.set_attributes(_attributes(account))
        is_failed = account.outcome in _FAILURES or account.status >= 500
        if is_failed:
            self._tracing.mark_failed(span, account.code or account.outcome.value)
        first_byte_at_s = account.first_byte_at_s if account.is_stream else None
        stages = timeline.stages(now_s, usage=account.usage, timings=account.timings, first_byte_at_s=first_byte_at_s)
        self._record(stages, span, is_failed)
        span.end(self._unix_ns(now_s))

    def _record(self, stages: Iterable[Stage], parent: Span, is_failed: bool) -> None:
        for stage in stages:
            span = self._tracing.start_stage(stage, parent, self._unix_ns(stage.start_s))
            if is_failed and stage.is_last:
                self._tracing.mark_failed(span, self._account.code or self._account.outcome.value)
            self._record(stage.parts, span, False)
            span.end(self._unix_ns(stage.end_s))

    def _unix_ns(self, loop_s: float) -> int:
        return int(loop_s * 1e9) + self._offset_ns


class Tracing:
    """Makes spans and sends them, until it is closed."""

    def __init__(self, provider: TracerProvider) -> None:
        from opentelemetry import trace
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        self._provider = provider
        self._tracer = provider.get_tracer("corral")
        self._propagator = TraceContextTextMapPropagator()
        self._trace = trace

    def begin(self, method: str, account: Account, headers: Mapping[str, str]) -> Trace:
        """Return the trace of a request that has just come, below the span that `headers` tell of.

        Mutates: the account, which gets the trace's id, and a timeline if the trace is wanted.
        """
        offset_ns = time.time_ns() - int(account.accepted_at_s * 1e9)
        span = self._tracer.start_span(
            f"{method} {account.route}",
            self._extract(headers),
            self._trace.SpanKind.SERVER,
            {"http.request.method": method, "http.route": account.route, "corral.request_id": account.request_id},
            start_time=int(account.accepted_at_s * 1e9) + offset_ns,
        )
        account.trace_id = self._trace.format_trace_id(span.get_span_context().trace_id)
        if span.is_recording():
            account.timeline = Timeline()
        return Trace(self, span, account, offset_ns)

    def _extract(self, headers: Mapping[str, str]) -> Context | None:
        known = {name: headers[name] for name in ("traceparent", "tracestate") if name in headers}
        return self._propagator.extract(known) if known else None

    def inject(self, span: Span) -> dict[str, str]:
        """Return the headers that name `span`."""
        headers: dict[str, str] = {}
        self._propagator.inject(headers, self._trace.set_span_in_context(span))
        return headers

    def start_stage(self, stage: Stage, parent: Span, start_ns: int) -> Span:
        """Return the span of a stage, still open."""
        kind = self._trace.SpanKind.CLIENT if "server.address" in stage.attributes else self._trace.SpanKind.INTERNAL
        context = self._trace.set_span_in_context(parent)
        return self._tracer.start_span(stage.name, context, kind, dict(stage.attributes), start_time=start_ns)

    def mark_failed(self, span: Span, error: str) -> None:
        """The span shows as failed, for the reason that `error` names."""
        span.set_status(self._trace.StatusCode.ERROR, error)
        span.set_attribute("error.type", error)

    async def close(self, within_s: float) -> None:
        """What has ended is sent, as far as the receiver takes it in time."""
        loop, done = asyncio.get_running_loop(), asyncio.Event()

        def flush() -> None:
            self._provider.shutdown()
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
                loop.call_soon_threadsafe(done.set)

        # A daemon: a receiver that hangs must not keep the process.
        threading.Thread(target=flush, name="tracing-flush", daemon=True).start()
        try:
            async with asyncio.timeout(within_s):
                await done.wait()
        except TimeoutError:
            _log.warning("the last spans are lost: their receiver did not take them within %g s", within_s)


def start_tracing(environ: Mapping[str, str], version: str) -> Tracing | None:
    """Return what traces requests; None where the environment names no receiver of spans, or none can be sent to it.

    What else the SDK reads from its OTEL_* variables holds: sampling, headers, resource, batches.
    """
    endpoint = next((environ[name] for name in _ENDPOINTS if environ.get(name)), None)
    is_off = environ.get("OTEL_SDK_DISABLED", "").lower() == "true" or environ.get("OTEL_TRACES_EXPORTER") == "none"
    if endpoint is None or is_off:
        return None
    variable = next((name for name in _PROTOCOLS if environ.get(name)), None)
    if variable is not None and environ[variable] != _PROTOCOL:
        text = "no spans are sent: %s is %r, and Corral sends them by %s alone (most collectors take it on port 4318)"
        _log.warning(text, variable, environ[variable], _PROTOCOL)
        return None
    try:
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor

        from router.span_sender import SpanSender
    except ImportError as problem:
        _log.warning(
            "no spans are sent to %s: OpenTelemetry is not installed (%s); `pip install 'llama-corral[tracing]'` "
            "installs it, and without OTEL_EXPORTER_OTLP_ENDPOINT nothing is sent",
            endpoint,
            problem,
        )
        return None
    except _REFUSED as problem:  # the SDK reads some of its variables where it is imported
        _warn_of_variables(endpoint, problem)
        return None
    try:
        found = Resource.create()  # with what OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES say
        own = {"service.version": version}
        if str(found.attributes.get("service.name", "")).startswith("unknown_service"):
            own["service.name"] = "corral"
        resource = found.merge(Resource(own))
        provider = TracerProvider(resource=resource, shutdown_on_exit=False)
        provider.add_span_processor(BatchSpanProcessor(SpanSender(endpoint)))
    except _REFUSED as problem:
        _warn_of_variables(endpoint, problem)
        return None
    _log.info("requests are traced", extra={"endpoint": endpoint})
    return Tracing(provider)


def _warn_of_variables(endpoint: str, problem: Exception) -> None:
    text = (
        "no spans are sent to %s: OpenTelemetry does not take what its OTEL_* variables say (%s); requests are served "
        "as ever. Correct them and start again; OTEL_BSP_MAX_EXPORT_BATCH_SIZE, 512 unless it is set, may not be "
        "larger than OTEL_BSP_MAX_QUEUE_SIZE"
    )
    _log.warning(text, endpoint, problem)


def _attributes(account: Account) -> dict[str, Any]:
    """Return what a request's span tells, by OpenTelemetry's names where it has some."""
    usage = account.usage
    prompt_details = usage.get("prompt_tokens_details")
    details = prompt_details if isinstance(prompt_details, Mapping) else {}
    found: dict[str, Any] = {
        "http.response.status_code": account.status,
        "gen_ai.operation.name": _OPERATIONS.get(account.route),
        "gen_ai.provider.name": "corral",
        "gen_ai.request.model": account.model or None,
        "gen_ai.request.stream": account.is_stream,
        "gen_ai.response.finish_reasons": account.finish_reasons or None,
        "gen_ai.response.time_to_first_chunk": account.ttft_s,
        "gen_ai.usage.input_tokens": usage.get("prompt_tokens"),
        "gen_ai.usage.output_tokens": usage.get("completion_tokens"),
        "gen_ai.usage.cache_read.input_tokens": details.get("cached_tokens"),
        "corral.outcome": account.outcome.value,
        "corral.code": account.code,
        "corral.alias": account.alias,
        "corral.key": account.key_id,
        "corral.queue_s": account.queue_s,
        "corral.load_s": account.load_s,
    }
    return {name: value for name, value in found.items() if value is not None}
