"""A request that no worker has accepted is sent to one other worker at most; tries without a connection are free."""

from __future__ import annotations

import pytest

from router.events import WorkerId
from router.retrying import FRESH_WORKER_WITHIN_S, Try, may_repeat

A, B, C = (WorkerId("smol", 0, number) for number in range(3))
LATE_S = FRESH_WORKER_WITHIN_S + 1


def sent(worker: WorkerId, at_s: float = 0.0) -> Try:
    return Try(worker, at_s, was_sent=True)


def unsent(worker: WorkerId, at_s: float = 0.0) -> Try:
    return Try(worker, at_s, was_sent=False)


@pytest.mark.parametrize(
    ("tries", "is_repeated"),
    [
        ([sent(A)], True),
        ([sent(A), sent(A)], True),
        ([sent(A), sent(A), sent(A)], False),
        ([sent(A), sent(B)], False),
        ([sent(A), unsent(A), unsent(A)], True),
        ([unsent(A), sent(B)], True),
        ([unsent(A), sent(B), unsent(B), sent(C)], False),
        ([sent(A), unsent(B)], True),
        ([unsent(A), unsent(A, LATE_S)], False),
        ([sent(A), unsent(A, 1.0), unsent(A, LATE_S)], False),
        ([unsent(A), sent(B, LATE_S)], True),
        ([unsent(A), unsent(B, LATE_S), unsent(B, LATE_S + 1)], True),
    ],
)
def test_a_request_is_sent_again_while_it_can_have_killed_one_worker_at_most(
    tries: list[Try], is_repeated: bool
) -> None:
    assert may_repeat(tries, is_resumed=False) is is_repeated


def test_an_answer_that_goes_on_has_a_deadline_of_its_own() -> None:
    assert may_repeat([unsent(A), unsent(A, LATE_S)], is_resumed=True)
    assert not may_repeat([sent(A), sent(B)], is_resumed=True)
