"""A receiver of spans that is gone is one line in the log, and another one when it is back."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import pytest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

from router.span_sender import SpanSender

URL = "http://127.0.0.1:4318"
THEIRS = logging.getLogger("opentelemetry.exporter.otlp.proto.http.trace_exporter")


class Receiver(SpanExporter):
    """Takes spans, or complains as OpenTelemetry's own exporter does."""

    def __init__(self) -> None:
        self.is_there = True
        self.is_shut = False

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        if self.is_there:
            return SpanExportResult.SUCCESS
        THEIRS.warning("Transient error %s", "connection refused")
        THEIRS.error("Failed to export spans batch due to timeout, max retries or shutdown.")
        return SpanExportResult.FAILURE

    def shutdown(self) -> None:
        self.is_shut = True


def test_each_change_is_one_line_with_the_reason(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    receiver = Receiver()
    sender = SpanSender(URL, receiver)
    assert sender.export([]) is SpanExportResult.SUCCESS
    assert caplog.records == []
    receiver.is_there = False
    for _ in range(3):
        assert sender.export([]) is SpanExportResult.FAILURE
    (line,) = caplog.records
    assert line.levelno == logging.WARNING
    assert URL in line.getMessage()
    assert "connection refused" in line.getMessage()
    receiver.is_there = True
    for _ in range(3):
        sender.export([])
    assert [record.getMessage() for record in caplog.records[1:]] == [f"spans reach {URL} again"]
    sender.shutdown()
    assert receiver.is_shut


def test_the_log_level_debug_shows_every_complaint(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    receiver = Receiver()
    receiver.is_there = False
    sender = SpanSender(URL, receiver)
    for _ in range(3):
        sender.export([])
    assert sum(record.name == THEIRS.name for record in caplog.records) == 2 * 3
    sender.shutdown()
