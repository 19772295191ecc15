"""Spans of requests: their tree, what they tell and what they must not, and what happens without a receiver.

Owns the spans as the SDK gets them; how they are sent is tested on a real server (`tests/e2e/test_traces.py`).
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from router.catalog import Limits
from router.errors import QueueTimeout, ShuttingDown
from router.events import WorkerId
from router.tracing import Tracing, start_tracing
from tests.fakes.other_server import other_server
from tests.fakes.supervisor import EVENTS, Received, Sender
from tests.support.far_side import ASK, far
from tests.support.http_side import CHAT, HttpSide, http_side, make_catalog
from tests.support.served import until
from tests.test_architecture import ROOT
from worker.contract import ErrorPayload, Header

HELLO = {"model": "smol", "messages": [{"role": "user", "content": "a secret question"}]}
TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
SAMPLED = {"traceparent": f"00-{TRACE}-{PARENT}-01"}
USAGE = {"prompt_tokens": 30, "completion_tokens": 4, "prompt_tokens_details": {"cached_tokens": 10}}
TIMINGS = {"prompt_ms": 20.0, "predicted_ms": 10.0}


class Spans:
    """What the SDK has been given."""

    def __init__(self) -> None:
        self._exporter = InMemorySpanExporter()
        self.provider = TracerProvider(shutdown_on_exit=False)
        self.provider.add_span_processor(SimpleSpanProcessor(self._exporter))

    async def of_one_request(self) -> dict[str, ReadableSpan]:
        """Return the spans by name, once the request's own is there, which ends last."""
        await until(lambda: any(span.kind is SpanKind.SERVER for span in self._exporter.get_finished_spans()))
        found = self._exporter.get_finished_spans()
        assert len({span.context.trace_id for span in found}) == 1
        assert len({span.name for span in found}) == len(found)
        self._exporter.clear()
        return {"request" if span.kind is SpanKind.SERVER else span.name: span for span in found}

    @property
    def all(self) -> tuple[ReadableSpan, ...]:
        return self._exporter.get_finished_spans()


@asynccontextmanager
async def traced_side(**options: Any) -> AsyncIterator[tuple[HttpSide, Spans]]:
    spans = Spans()
    async with http_side(tracing=Tracing(spans.provider), **options) as side:
        yield side, spans


def attributes(span: ReadableSpan) -> dict[str, Any]:
    return dict(span.attributes or {})


def parent_of(spans: dict[str, ReadableSpan], name: str) -> str:
    parent = spans[name].parent
    assert parent is not None
    (found,) = [other for other, span in spans.items() if span.context.span_id == parent.span_id]
    return found


def check_times(spans: dict[str, ReadableSpan]) -> None:
    """Every span lies within its parent."""
    for name, span in spans.items():
        assert span.start_time is not None
        assert span.end_time is not None
        assert span.start_time <= span.end_time, name
        if name != "request":
            above = spans[parent_of(spans, name)]
            assert above.start_time is not None
            assert above.end_time is not None
            assert above.start_time <= span.start_time, name
            assert span.end_time <= above.end_time, name


async def stream_some(received: Received, sender: Sender) -> None:
    sender.headers[Header.CONTENT_TYPE] = EVENTS
    await sender.data(b"data: 1\n\n")
    await sender.data(b"data: [DONE]\n\n")
    await sender.end(usage=USAGE, timings=TIMINGS, finish_reasons=["stop"])


async def test_a_request_has_a_span_with_its_wait_load_prefill_and_generation_below() -> None:
    async with traced_side() as (side, spans):
        side.worker.script = stream_some
        before_ns = time.time_ns()
        reply = await side.client.post(CHAT, json=HELLO | {"model": "gpt", "stream": True})
        await reply.read()
        found = await spans.of_one_request()
        assert set(found) == {"request", "wait", "load", "answer", "prefill", "generation"}
        assert [parent_of(found, name) for name in ("wait", "load", "answer", "prefill", "generation")] == [
            "request",
            "wait",
            "request",
            "answer",
            "answer",
        ]
        check_times(found)
        request = found["request"]
        assert request.name == f"POST {CHAT}"
        assert request.parent is None
        assert request.status.status_code is StatusCode.UNSET
        assert before_ns - 50_000_000 <= (request.start_time or 0) <= (request.end_time or 0) <= time.time_ns()
        told = attributes(request)
        assert told.pop("gen_ai.response.time_to_first_chunk") > 0
        assert told == {
            "http.request.method": "POST",
            "http.route": CHAT,
            "http.response.status_code": 200,
            "gen_ai.operation.name": "chat",
            "gen_ai.provider.name": "corral",
            "gen_ai.request.model": "smol",
            "gen_ai.request.stream": True,
            "gen_ai.response.finish_reasons": ("stop",),
            "gen_ai.usage.input_tokens": 30,
            "gen_ai.usage.output_tokens": 4,
            "gen_ai.usage.cache_read.input_tokens": 10,
            "corral.request_id": reply.headers["X-Request-Id"],
            "corral.outcome": "ok",
            "corral.alias": "gpt",
            "corral.queue_s": 0.25,
            "corral.load_s": 0.5,
        }
        assert attributes(found["answer"]) == {"corral.worker": str(WorkerId("smol", 0, 1))}
        assert attributes(found["generation"])["corral.generated_tokens"] == 4


async def test_every_attribute_is_documented() -> None:
    text = (ROOT / "docs" / "tracing.md").read_text(encoding="utf-8")
    async with traced_side() as (side, spans):
        side.worker.script = stream_some
        await (await side.client.post(CHAT, json=HELLO | {"model": "gpt", "stream": True})).read()
        for span in (await spans.of_one_request()).values():
            assert span.name == f"POST {CHAT}" or f"| `{span.name}` |" in text
            for name in attributes(span):
                assert f"`{name}`" in text, name


async def test_no_span_tells_what_was_asked_or_answered() -> None:
    async with traced_side() as (side, spans):
        await side.client.post(CHAT, json=HELLO)
        found = await spans.of_one_request()
        assert found
        for span in found.values():
            assert "secret" not in span.to_json()
            assert "hello" not in span.to_json()


async def test_the_clients_trace_goes_on_and_its_wish_not_to_be_recorded_is_honoured(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with traced_side() as (side, spans):
        await side.client.post(CHAT, json=HELLO, headers=SAMPLED | {"tracestate": "a=b"})
        request = (await spans.of_one_request())["request"]
        assert f"{request.context.trace_id:032x}" == TRACE
        assert request.parent is not None
        assert f"{request.parent.span_id:016x}" == PARENT
        assert request.context.trace_state.to_header() == "a=b"
        reply = await side.client.post(CHAT, json=HELLO, headers={"traceparent": f"00-{TRACE}-{PARENT}-00"})
        assert reply.status == 200
        await side.client.get("/health")
        assert spans.all == ()
        assert "Exception in callback" not in caplog.text


async def test_a_traceparent_that_makes_no_sense_is_passed_over() -> None:
    async with traced_side() as (side, spans):
        reply = await side.client.post(CHAT, json=HELLO, headers={"traceparent": "00-nonsense-01"})
        assert reply.status == 200
        assert (await spans.of_one_request())["request"].parent is None


async def test_a_client_that_leaves_is_no_failure_and_what_it_got_is_told() -> None:
    async def begin(received: Received, sender: Sender) -> None:
        sender.headers[Header.CONTENT_TYPE] = EVENTS
        await sender.data(b"data: 1\n\n")
        await asyncio.Event().wait()

    async with traced_side() as (side, spans):
        side.worker.script = begin
        reply = await side.client.post(CHAT, json=HELLO | {"stream": True})
        await reply.content.readuntil(b"\n\n")
        reply.close()
        found = await spans.of_one_request()
        check_times(found)
        assert {"prefill", "generation"} <= set(found)
        assert attributes(found["generation"])["corral.measured_by"] == "router"
        request = found["request"]
        assert attributes(request)["corral.outcome"] == "client_gone"
        assert request.status.status_code is StatusCode.UNSET


async def test_a_worker_that_dies_marks_the_request_and_its_answer_as_failed() -> None:
    async def die(received: Received, sender: Sender) -> None:
        await sender.start()
        sender.cut()

    async with traced_side(catalog=make_catalog(limits=Limits(max_resumes=0))) as (side, spans):
        side.worker.script = die
        assert (await side.client.post(CHAT, json=HELLO)).status == 503
        found = await spans.of_one_request()
        assert {name for name, span in found.items() if span.status.status_code is StatusCode.ERROR} == {
            "request",
            "answer",
        }
        assert attributes(found["request"])["error.type"] == "worker_died"
        assert attributes(found["request"])["corral.outcome"] == "worker_died"


async def test_a_request_that_waited_in_vain_failed_in_its_wait() -> None:
    async with traced_side() as (side, spans):
        side.supervisor.refusal = QueueTimeout("too long")
        reply = await side.client.post(CHAT, json=HELLO)
        found = await spans.of_one_request()
        assert set(found) == {"request", "wait"}
        assert all(span.status.status_code is StatusCode.ERROR for span in found.values())
        assert attributes(found["request"])["http.response.status_code"] == reply.status
        assert attributes(found["request"])["corral.outcome"] == "timeout"


async def test_a_request_that_is_refused_because_the_server_stops_failed() -> None:
    async with traced_side() as (side, spans):
        side.supervisor.refusal = ShuttingDown("the server is stopping")
        assert (await side.client.post(CHAT, json=HELLO)).status == 503
        found = await spans.of_one_request()
        assert found["request"].status.status_code is StatusCode.ERROR
        assert attributes(found["request"])["corral.outcome"] == "rejected"


async def test_what_a_client_did_wrong_is_told_and_is_no_failure_of_ours() -> None:
    async def refuse(received: Received, sender: Sender) -> None:
        await sender.error(ErrorPayload(400, "context_length_exceeded", "too long"))
        await sender.end("rejected")

    async with traced_side() as (side, spans):
        side.worker.script = refuse
        await side.client.post(CHAT, json=HELLO)
        found = await spans.of_one_request()
        assert all(span.status.status_code is StatusCode.UNSET for span in found.values())
        told = attributes(found["request"])
        assert (told["corral.outcome"], told["corral.code"]) == ("rejected", "context_length_exceeded")
        await side.client.post(CHAT, json=HELLO | {"model": "nobody's"})
        found = await spans.of_one_request()
        assert set(found) == {"request"}
        assert "gen_ai.request.model" not in attributes(found["request"])


async def test_a_request_without_a_key_is_traced_as_far_as_it_got() -> None:
    async with traced_side(keys={"api_keys": ("sk-right",)}) as (side, spans):
        assert (await side.client.post(CHAT, json=HELLO)).status == 401
        found = await spans.of_one_request()
        assert set(found) == {"request"}
        assert attributes(found["request"])["corral.code"] == "invalid_api_key"


async def test_the_log_line_names_the_trace(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "router.requests")
    async with traced_side() as (side, spans):
        await side.client.post(CHAT, json=HELLO, headers=SAMPLED)
        await spans.of_one_request()
        (line,) = [record for record in caplog.records if record.name == "router.requests"]
        assert getattr(line, "trace_id", None) == TRACE
    caplog.clear()
    async with http_side() as side:
        await side.client.post(CHAT, json=HELLO, headers=SAMPLED)
        await until(lambda: any(record.name == "router.requests" for record in caplog.records))
        assert not any(hasattr(record, "trace_id") for record in caplog.records)


async def test_another_server_is_told_to_go_on_with_the_trace() -> None:
    async with other_server() as other, traced_side(catalog=make_catalog(far(other.url))) as (side, spans):
        await (await side.client.post(CHAT, json=ASK | {"stream": True}, headers=SAMPLED)).read()
        found = await spans.of_one_request()
        check_times(found)
        assert set(found) == {"request", "answer", "prefill", "generation"}
        told = {name.lower(): value for name, value in other.asked[0].headers.items()}["traceparent"]
        assert told == f"00-{TRACE}-{found['request'].context.span_id:016x}-01"
        assert found["answer"].kind is SpanKind.CLIENT
        assert attributes(found["answer"])["server.address"] == "127.0.0.1"
        assert attributes(found["request"])["gen_ai.usage.output_tokens"] == 3


async def test_without_tracing_the_clients_trace_passes_by() -> None:
    async with other_server() as other, http_side(make_catalog(far(other.url))) as side:
        await side.client.post(CHAT, json=ASK, headers=SAMPLED | {"tracestate": "a=b"})
        told = {name.lower(): value for name, value in other.asked[0].headers.items()}
        assert (told["traceparent"], told["tracestate"]) == (SAMPLED["traceparent"], "a=b")


def test_nothing_is_traced_unless_a_receiver_is_named(caplog: pytest.LogCaptureFixture) -> None:
    endpoint = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:4318"}
    for environ in (
        {},
        {"OTEL_EXPORTER_OTLP_ENDPOINT": ""},
        endpoint | {"OTEL_SDK_DISABLED": "true"},
        endpoint | {"OTEL_TRACES_EXPORTER": "none"},
    ):
        assert start_tracing(environ, "1.0") is None
    assert caplog.records == []
    assert start_tracing(endpoint | {"OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}, "1.0") is None
    assert "http/protobuf" in caplog.text


def test_a_receiver_without_the_packages_is_one_warning_that_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http.trace_exporter", None)
    monkeypatch.delitem(sys.modules, "router.span_sender", raising=False)
    assert start_tracing({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://127.0.0.1:4318/v1/traces"}, "1.0") is None
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert "pip install 'llama-corral[tracing]'" in record.getMessage()


def test_a_router_that_traces_nothing_imports_nothing_of_opentelemetry() -> None:
    code = """if True:
        import sys, json
        import router.serve, router.cli
        from router.tracing import start_tracing
        start_tracing({}, "1.0")
        print(json.dumps([name for name in sys.modules if name.startswith("opentelemetry")]))
    """
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert json.loads(found.stdout) == []


def test_a_receiver_that_hangs_does_not_hold_up_the_stop(caplog: pytest.LogCaptureFixture) -> None:
    release, has_ended = threading.Event(), threading.Event()

    class Hanging(TracerProvider):
        def shutdown(self) -> None:
            release.wait(10)
            has_ended.set()

    start_s = time.monotonic()
    asyncio.run(Tracing(Hanging(shutdown_on_exit=False)).close(0.05))
    assert time.monotonic() - start_s < 5
    assert "the last spans are lost" in caplog.text
    release.set()  # the loop is closed by now, which must not matter
    assert has_ended.wait(5)


@pytest.mark.parametrize(
    "variable",
    [
        ("OTEL_BSP_MAX_QUEUE_SIZE", "256"),
        ("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "99999999"),
        ("OTEL_ATTRIBUTE_COUNT_LIMIT", "-1"),
        ("OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT", "x"),
    ],
)
def test_variables_that_the_sdk_refuses_are_one_warning_and_no_traces(variable: tuple[str, str]) -> None:
    """In a process of its own: the SDK reads some of them once, where it is imported."""
    code = """if True:
        import logging, os
        from router.tracing import start_tracing
        logging.basicConfig(format="%(levelname)s %(message)s")
        print(start_tracing(os.environ, "1.0"))
    """
    environ = os.environ | {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1", variable[0]: variable[1]}
    found = subprocess.run(
        [sys.executable, "-c", code], env=environ, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
    )
    assert (found.returncode, found.stdout) == (0, "None\n"), found.stderr
    (line,) = found.stderr.splitlines()
    assert line.startswith("WARNING no spans are sent to http://127.0.0.1:1: OpenTelemetry does not take")
