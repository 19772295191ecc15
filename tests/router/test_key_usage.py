"""What a key may still send, second by second: buckets of requests and tokens, and requests at the same time."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.api_keys import KeyLimits
from router.key_usage import KeyUsage, Level, Limit, OverLimit

NO_LIMITS = KeyLimits()


def send(usage: KeyUsage, limits: KeyLimits, now_s: float, tokens: int = 0, key: str = "k") -> OverLimit | None:
    """Return why a request that takes no time is not admitted; None = it was."""
    over = usage.begin(key, limits, now_s)
    if over is None:
        usage.end(key, limits, tokens, now_s)
    return over


def test_a_key_without_limits_is_never_refused() -> None:
    usage = KeyUsage()
    assert all(usage.begin("k", NO_LIMITS, 0.0) is None for _ in range(1000))


def test_a_minutes_worth_of_requests_may_come_at_once_and_the_next_when_there_is_room_for_one() -> None:
    usage, limits = KeyUsage(), KeyLimits(requests_per_min=6)
    assert [send(usage, limits, 0.0) for _ in range(6)] == [None] * 6
    assert send(usage, limits, 0.0) == OverLimit(Limit.REQUESTS, 6, 10.0)
    assert send(usage, limits, 9.9) == OverLimit(Limit.REQUESTS, 6, pytest.approx(0.1))
    assert send(usage, limits, 10.0) is None
    assert send(usage, limits, 10.0) is not None


def test_refused_requests_cost_nothing() -> None:
    usage, limits = KeyUsage(), KeyLimits(requests_per_min=1)
    assert send(usage, limits, 0.0) is None
    for second in range(1, 60):
        assert send(usage, limits, float(second)) is not None
    assert send(usage, limits, 60.0) is None
    assert usage.view("k", limits, 60.0).num_refused == 59


def test_tokens_are_charged_at_the_end_so_that_the_bucket_may_go_below_empty() -> None:
    usage, limits = KeyUsage(), KeyLimits(tokens_per_min=600)
    assert usage.begin("k", limits, 0.0) is None
    assert usage.begin("k", limits, 0.0) is None, "nothing is known of the first one yet"
    usage.end("k", limits, 500, 5.0)
    usage.end("k", limits, 300, 5.0)
    over = usage.begin("k", limits, 5.0)
    assert over == OverLimit(Limit.TOKENS, 600, pytest.approx(20.1)), "200 tokens and one more, at 10 a second"
    assert usage.begin("k", limits, 25.1) is None


def test_a_bucket_never_holds_more_than_one_minutes_worth() -> None:
    usage, limits = KeyUsage(), KeyLimits(requests_per_min=2)
    send(usage, limits, 0.0)
    assert [send(usage, limits, 10_000.0) is None for _ in range(3)] == [True, True, False]


def test_requests_at_the_same_time_are_bounded_and_count_until_their_end() -> None:
    usage, limits = KeyUsage(), KeyLimits(max_concurrent=2)
    assert usage.begin("k", limits, 0.0) is None
    assert usage.begin("k", limits, 0.0) is None
    over = usage.begin("k", limits, 0.0)
    assert over is not None
    assert (over.limit, over.allowed) == (Limit.CONCURRENT, 2)
    assert usage.begin("other", limits, 0.0) is None
    usage.end("k", limits, 0, 1.0)
    assert usage.begin("k", limits, 1.0) is None


def test_of_several_limits_that_are_reached_the_one_that_lasts_longest_is_told() -> None:
    usage, limits = KeyUsage(), KeyLimits(max_concurrent=1, requests_per_min=1, tokens_per_min=10)
    usage.begin("k", limits, 0.0)
    usage.end("k", limits, 100, 0.0)
    over = usage.begin("k", limits, 0.0)
    assert over is not None
    assert (over.limit, over.retry_after_s) == (Limit.TOKENS, pytest.approx(546.0))


def test_a_higher_limit_applies_to_what_was_used_under_the_old_one() -> None:
    usage = KeyUsage()
    for _ in range(5):
        send(usage, KeyLimits(requests_per_min=5), 0.0)
    assert send(usage, KeyLimits(requests_per_min=5), 0.0) is not None
    assert send(usage, KeyLimits(requests_per_min=6), 0.0) is None


def test_a_view_tells_what_is_left_and_when_all_of_it_is_back() -> None:
    usage, limits = KeyUsage(), KeyLimits(requests_per_min=60, tokens_per_min=6000)
    send(usage, limits, 0.0, tokens=7000)
    view = usage.view("k", limits, 2.0)
    assert view.requests == Level(60, 60, 0.0)
    assert view.tokens == Level(6000, 0, pytest.approx(68.0))
    assert (view.num_running, view.num_requests, view.num_tokens) == (0, 1, 7000)
    assert usage.view("never seen", limits, 2.0).requests == Level(60, 60, 0.0)


def test_keys_that_are_no_longer_configured_are_forgotten_once_nothing_of_theirs_runs() -> None:
    usage = KeyUsage()
    send(usage, NO_LIMITS, 0.0, key="old")
    usage.begin("busy", NO_LIMITS, 0.0)
    usage.keep_only({"new"})
    assert ("old" in usage, "busy" in usage) == (False, True)
    usage.end("busy", NO_LIMITS, 1, 0.0)
    usage.keep_only({"new"})
    assert len(usage) == 0


def test_a_clock_that_stands_still_or_steps_back_gives_nothing_away() -> None:
    usage, limits = KeyUsage(), KeyLimits(requests_per_min=1)
    assert send(usage, limits, 100.0) is None
    assert send(usage, limits, 50.0) is not None
    assert send(usage, limits, 100.0) is not None


@given(
    limit=st.integers(1, 1000),
    requests=st.lists(st.tuples(st.floats(0, 30), st.integers(0, 3000)), max_size=60),
)
def test_who_comes_when_it_was_told_to_is_admitted_and_nobody_gets_more_than_the_limits_allow(
    limit: int, requests: list[tuple[float, int]]
) -> None:
    usage, limits, now_s = KeyUsage(), KeyLimits(requests_per_min=limit, tokens_per_min=limit * 10), 0.0
    admitted, tokens, last = 0, 0, 0
    for pause_s, size in requests:
        now_s += pause_s
        over = send(usage, limits, now_s, size)
        if over is not None:
            assert over.retry_after_s > 0
            now_s += over.retry_after_s
            assert send(usage, limits, now_s, size) is None
        admitted, tokens, last = admitted + 1, tokens + size, size
        assert admitted <= limit * (1 + now_s / 60) + 1e-3
        assert tokens - last <= 10 * limit * (1 + now_s / 60) + 1e-3, "only the last one may be beyond the limit"


def test_a_lower_limit_leaves_a_key_as_far_from_it_as_it_was() -> None:
    usage = KeyUsage()
    wide, narrow = KeyLimits(tokens_per_min=1_000_000), KeyLimits(tokens_per_min=1000)
    usage.begin("k", wide, 0.0)
    usage.end("k", wide, 900_000, 0.0)
    level = usage.view("k", narrow, 0.0).tokens
    assert level is not None
    assert level.full_in_s == pytest.approx(54.0)
