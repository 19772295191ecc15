"""Spans of a real server, as a receiver of OpenTelemetry's protocol gets them over HTTP."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from tests.support.served import served, until

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
SAMPLED = {"traceparent": f"00-{TRACE}-{PARENT}-01"}


class Receiver:
    """Takes spans, and keeps them as they came."""

    def __init__(self) -> None:
        self.url = ""
        self.spans: list[Span] = []
        self.resource: dict[str, str] = {}
        self.num_posts = 0
        self.hang: asyncio.Event | None = None

    async def take(self, request: web.Request) -> web.Response:
        self.num_posts += 1
        if self.hang is not None:
            await self.hang.wait()
        told = ExportTraceServiceRequest.FromString(await request.read())
        for group in told.resource_spans:
            self.resource = {each.key: each.value.string_value for each in group.resource.attributes}
            self.spans += [span for scope in group.scope_spans for span in scope.spans]
        return web.Response(content_type="application/x-protobuf")

    def trees(self) -> list[dict[str, str]]:
        """Return, for each request, the name of the span that each of its spans is below."""
        names = {span.span_id: span.name for span in self.spans}
        by_trace: dict[bytes, dict[str, str]] = {}
        for span in self.spans:
            by_trace.setdefault(span.trace_id, {})[span.name] = names.get(span.parent_span_id, "")
        return list(by_trace.values())


@asynccontextmanager
async def receiver() -> AsyncIterator[Receiver]:
    found = Receiver()
    app = web.Application()
    app.router.add_post("/v1/traces", found.take)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    host, port = runner.addresses[0][:2]
    found.url = f"http://{host}:{port}"
    try:
        yield found
    finally:
        await runner.cleanup()


def told(span: Span) -> dict[str, Any]:
    return {each.key: getattr(each.value, each.value.WhichOneof("value")) for each in span.attributes}


def environment(at: Receiver, delay_ms: int) -> dict[str, str]:
    return {"OTEL_EXPORTER_OTLP_ENDPOINT": at.url, "OTEL_BSP_SCHEDULE_DELAY": str(delay_ms)}


@pytest.mark.slow
async def test_spans_of_a_load_and_an_answer_reach_the_receiver_with_their_real_times(tmp_path: Path) -> None:
    async with (
        receiver() as spans,
        served(tmp_path, {"a": {"fake": {"LOAD_S": 0.5}}}, env=environment(spans, 50)) as server,
    ):
        body = {"model": "a", "messages": [], "stream": True, "fake": {"tokens": 4, "prefill_s": 0.2, "delay_s": 0.1}}
        async with server.session.post(f"{server.url}/v1/chat/completions", json=body, headers=SAMPLED) as reply:
            await reply.read()
        await until(lambda: len(spans.spans) >= 6, what="the arrival of the spans")
        assert spans.resource["service.name"] == "corral"
        assert spans.resource["service.version"]
        request = next(span for span in spans.spans if span.kind == Span.SPAN_KIND_SERVER)
        assert request.trace_id.hex() == TRACE
        assert request.parent_span_id.hex() == PARENT
        assert told(request)["corral.outcome"] == "ok"
        assert told(request)["gen_ai.request.model"] == "a"
        assert told(request)["gen_ai.usage.output_tokens"] == 4
        assert spans.trees() == [
            {
                request.name: "",
                "wait": request.name,
                "load": "wait",
                "answer": request.name,
                "prefill": "answer",
                "generation": "answer",
            }
        ]
        took_s = {span.name: (span.end_time_unix_nano - span.start_time_unix_nano) / 1e9 for span in spans.spans}
        assert took_s["load"] >= 0.5
        assert took_s["prefill"] >= 0.15
        assert took_s["generation"] >= 0.2
        assert took_s[request.name] >= took_s["wait"] + took_s["answer"] - 0.01
        line = next(line for line in server.lines if line.get("message") == "request")
        assert line["trace_id"] == TRACE
        assert line["request_id"] == told(request)["corral.request_id"]


async def test_what_has_ended_is_sent_before_the_server_stops(tmp_path: Path) -> None:
    async with receiver() as spans, served(tmp_path, {"a": {}}, env=environment(spans, 600_000)) as server:
        async with await server.chat("a") as reply:
            await reply.read()
        assert spans.spans == []
        server.process.terminate()
        assert await asyncio.wait_for(server.process.wait(), 20) == 0
        assert any(span.kind == Span.SPAN_KIND_SERVER for span in spans.spans)


@pytest.mark.slow
async def test_a_receiver_that_does_not_answer_costs_a_stop_two_seconds_and_requests_nothing(tmp_path: Path) -> None:
    async with receiver() as spans, served(tmp_path, {"a": {}}, env=environment(spans, 10)) as server:
        spans.hang = asyncio.Event()
        for _ in range(3):
            async with await server.chat("a") as reply:
                assert reply.status == 200
                await reply.read()
            await until(lambda: spans.num_posts > 0, what="a post")
        start_s = asyncio.get_running_loop().time()
        server.process.terminate()
        assert await asyncio.wait_for(server.process.wait(), 20) == 0
        assert asyncio.get_running_loop().time() - start_s < 10
        assert any("the last spans are lost" in line["message"] for line in server.lines)
        spans.hang.set()


@pytest.mark.slow
async def test_a_receiver_that_is_not_there_harms_nobody(tmp_path: Path) -> None:
    async with receiver() as gone:
        pass
    async with served(tmp_path, {"a": {}}, env=environment(gone, 10)) as server:
        async with await server.chat("a") as reply:
            assert reply.status == 200
        server.process.terminate()
        assert await asyncio.wait_for(server.process.wait(), 20) == 0
