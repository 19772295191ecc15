"""What a worker printed and how it ended become words for people: the log's tail, exit codes, severities."""

from __future__ import annotations

import pytest

from router.events import ExitReason
from router.exits import explain_exit
from router.log_tail import MAX_BYTES, MAX_LINES, LogTail, severity
from worker.contract import ExitCode


def test_log_tail_stays_within_its_bounds() -> None:
    tail = LogTail()
    for number in range(1000):
        tail.feed(f"line {number}\n".encode())
    assert len(tail.lines()) == MAX_LINES
    assert tail.lines()[-1] == "line 999"
    tail.feed(b"x" * 10_000_000)
    tail.feed(b"y\nshort\n")
    assert tail.lines()[-1] == "short"
    assert len(tail.text()) <= MAX_BYTES + MAX_LINES


def test_log_tail_puts_lines_together_and_removes_control_characters() -> None:
    tail = LogTail()
    assert tail.feed(b"one\ntw") == ["one"]
    assert tail.feed(b"o\r\n\x1b[31mred\x1b[0m\x07\nlast") == ["two", "red\N{REPLACEMENT CHARACTER}"]
    assert tail.end() == ["last"]
    assert tail.end() == []


def test_last_words_are_the_error_of_a_traceback_and_not_its_frames() -> None:
    tail = LogTail()
    tail.feed(
        b"loading\nTraceback (most recent call last):\n"
        b'  File "x.py", line 3, in fail\n    raise ValueError\nValueError: no such thing\n'
    )
    assert tail.last_words() == "ValueError: no such thing"


def test_last_words_are_the_last_line_when_none_looks_like_an_error() -> None:
    tail = LogTail()
    assert tail.last_words() == ""
    tail.feed(b"reading tensors\n\nmaking the pool\n\n")
    assert tail.last_words() == "making the pool"


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        (ExitCode.BAD_SPEC, ExitReason.BAD_MODEL),
        (ExitCode.BAD_MODEL, ExitReason.BAD_MODEL),
        (ExitCode.NO_MEMORY, ExitReason.NO_MEMORY),
        (ExitCode.ENGINE_FAILED, ExitReason.CRASHED),
        (ExitCode.OK, ExitReason.CRASHED),
        (1, ExitReason.CRASHED),
        (-11, ExitReason.CRASHED),
        (-255, ExitReason.CRASHED),
    ],
)
def test_every_exit_code_has_a_reason_and_a_text(code: int, reason: ExitReason) -> None:
    exit_ = explain_exit(int(code))
    assert exit_.reason is reason
    assert exit_.detail
    assert exit_.exit_code == code


def test_a_log_line_that_all_was_well_is_nobodys_last_word() -> None:
    tail = LogTail()
    tail.feed(b"2026-01-02 03:04:05,678 INFO small: ready\n")
    assert tail.last_words() == ""
    tail.feed(b"2026-01-02 03:04:05,678 ERROR small: failed: no such tensor\n")
    assert "no such tensor" in tail.last_words()


@pytest.mark.parametrize(
    ("line", "level", "text"),
    [
        ("2026-11-29 16:11:21,550 WARNING smol: the template is broken", "WARNING", "the template is broken"),
        ("2026-11-29 16:11:21,550 ERROR smol: engine failed: why", "ERROR", "engine failed: why"),
        ("2026-11-29 16:11:21,550 INFO smol: ready", "DEBUG", "2026-11-29 16:11:21,550 INFO smol: ready"),
        ("something a library printed", "DEBUG", "something a library printed"),
    ],
)
def test_warnings_of_a_worker_are_warnings_of_the_router(line: str, level: str, text: str) -> None:
    assert severity(line) == (level, text)
