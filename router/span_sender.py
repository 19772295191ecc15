"""Spans on their way to their receiver, and one line in the log when that does not work, instead of one a second.

Owns what is said of the receiver. Is imported where tracing is on, and nowhere else: it needs the extra `tracing`. Must
not run on the event loop: `export` waits for the receiver.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

_log = logging.getLogger(__name__)
_THEIRS = logging.getLogger("opentelemetry.exporter.otlp.proto.http.trace_exporter")
_MAX_REASON = 400


class SpanSender(SpanExporter):
    """Sends spans as the environment's OTEL_* variables say."""

    def __init__(self, endpoint: str, inner: SpanExporter | None = None) -> None:
        """`endpoint` is for the log alone."""
        self._endpoint = endpoint
        self._inner = inner or OTLPSpanExporter()
        self._reasons = _Reasons()
        self._is_failing = False
        _THEIRS.addFilter(self._reasons)

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Return whether the receiver has taken the spans; a change of that is told in the log."""
        result = self._inner.export(spans)
        has_failed = result is not SpanExportResult.SUCCESS
        if has_failed and not self._is_failing:
            text = "no spans reach %s, and those of this time are lost; requests are served as ever: %s"
            _log.warning(text, self._endpoint, self._reasons.last)
        elif self._is_failing and not has_failed:
            _log.info("spans reach %s again", self._endpoint)
        self._is_failing = has_failed
        return result

    def shutdown(self) -> None:
        """Nothing more is sent."""
        self._inner.shutdown()
        _THEIRS.removeFilter(self._reasons)


class _Reasons(logging.Filter):
    """Keeps the exporter's complaints out of the log, except at its level `debug`, and remembers the last cause."""

    def __init__(self) -> None:
        super().__init__()
        self.last = "it gives no reason"

    def filter(self, record: logging.LogRecord) -> bool:
        text = record.getMessage()
        if "due to timeout, max retries or shutdown" not in text:  # which says what has been said before, without why
            self.last = text[:_MAX_REASON]
        return _log.isEnabledFor(logging.DEBUG)
