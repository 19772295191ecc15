"""An error that a worker sends is believed as a whole, or not at all."""

from __future__ import annotations

import json
from typing import Any

import pytest

from worker.contract import ErrorPayload, Phase, WorkerStatus

GOOD: dict[str, Any] = {"status": 400, "code": "c", "message": "m", "param": "p", "retry_after_s": 1.5}


def test_what_was_sent_is_what_is_read() -> None:
    for error in (ErrorPayload(**GOOD), ErrorPayload(503, "c", "überlastet 🐎")):
        assert ErrorPayload.from_json(error.to_json()) == error


@pytest.mark.parametrize(
    "fault",
    [
        *({"status": status} for status in ("400", 400.0, True, None, 200, 0, 10**30)),
        *({name: value} for name in ("code", "message") for value in (None, 1, ["m"], "\ud800")),
        *({"param": value} for value in (1, ["p"], "\udfff")),
        *({"retry_after_s": value} for value in ("1", True, -1, float("nan"), float("inf"))),
        {"more": 1},
    ],
    ids=repr,
)
def test_what_is_not_of_its_type_is_no_error(fault: dict[str, Any]) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - any will do
        ErrorPayload.from_json(json.dumps(GOOD | fault).encode())


def test_what_is_nested_too_deeply_is_neither_an_error_nor_a_status() -> None:
    for read in (ErrorPayload.from_json, WorkerStatus.from_line):
        with pytest.raises(ValueError, match="nested too deeply"):
            read(b"[" * 100_000)
    assert WorkerStatus.from_line(WorkerStatus(Phase.READY).to_line()).phase is Phase.READY
