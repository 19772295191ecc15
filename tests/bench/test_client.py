"""Speeds count tokens, not pieces of text, and only while everybody generates."""

from __future__ import annotations

import pytest

from bench.client import Answer, tokens_per_second


def answer(*arrivals_s: float, tokens: int) -> Answer:
    return Answer(0.0, list(arrivals_s), num_generated=tokens, finish_reason="length")


def test_the_first_piece_is_one_token_and_later_ones_hold_equally_many() -> None:
    stream = answer(1.0, 2.0, 3.0, 4.0, tokens=13)
    assert stream.tokens_within(1.0, 3.0) == 8.0
    assert stream.tokens_within(0.0, 4.0) == 13.0
    assert Answer().tokens_within(0.0, 1.0) == 0.0
    assert answer(1.0, tokens=1).tokens_within(0.0, 1.0) == 1.0


def test_speed_is_that_of_the_time_in_which_all_generate() -> None:
    early = answer(0.0, 1.0, 2.0, 3.0, tokens=4)
    late = answer(1.0, 2.0, 3.0, 4.0, 5.0, tokens=5)
    assert tokens_per_second([early, late]) == pytest.approx((2 + 2) / 2.0)


def test_speed_of_streams_that_failed_or_did_not_meet_is_refused() -> None:
    with pytest.raises(RuntimeError, match="HTTP 500"):
        tokens_per_second([Answer(error="HTTP 500: full")])
    with pytest.raises(RuntimeError, match="at the same time"):
        tokens_per_second([answer(0.0, 1.0, tokens=2), answer(1.0, 2.0, tokens=2)])


def test_the_largest_gap_is_looked_for_within_the_window() -> None:
    stream = answer(0.0, 5.0, 6.0, 8.0, 20.0, tokens=5)
    assert stream.largest_gap_s(4.0, 10.0) == 2.0
    assert stream.largest_gap_s() == 12.0
