"""The last lines of the router's own log, for whoever asks over HTTP.

Owns the handler that keeps them. Must not format (`logs.py` says how lines look) nor keep more than its bounds.
"""

from __future__ import annotations

import logging

from router.log_tail import LineBuffer

MAX_LINES = 1000
MAX_BYTES = 256 * 1024


class RecentLog(logging.Handler):
    """Keeps formatted lines instead of writing them."""

    def __init__(self) -> None:
        super().__init__()
        self.lines = LineBuffer(MAX_LINES, MAX_BYTES)

    def emit(self, record: logging.LogRecord) -> None:
        """Keep the record's lines; called by whichever thread has logged, one at a time."""
        try:
            self.lines.add(self.format(record).splitlines())
        except Exception:  # noqa: BLE001 - as every handler: a line that cannot be shown must not end what logs it
            self.handleError(record)


def recent_lines() -> LineBuffer | None:
    """Return what the running program's log has kept; None where logging was set up otherwise."""
    found = (handler for handler in logging.getLogger().handlers if isinstance(handler, RecentLog))
    return next((handler.lines for handler in found), None)
