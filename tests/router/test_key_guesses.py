"""Wrong keys by address: how many get the ordinary answer, and what is remembered."""

from __future__ import annotations

import pytest

from router.key_guesses import MAX_ADDRESSES, MAX_GUESSES, SECONDS_PER_GUESS, KeyGuesses, site_of


def num_ordinary(guesses: KeyGuesses, remote: str | None, count: int, now_s: float) -> int:
    """Return how many of `count` wrong keys at one moment get the ordinary answer."""
    return sum(guesses.note(remote, now_s).retry_after_s == 0 for _ in range(count))


def test_some_wrong_keys_get_the_ordinary_answer_and_further_ones_do_not() -> None:
    guesses = KeyGuesses()
    assert num_ordinary(guesses, "10.0.0.1", 50, 0.0) == MAX_GUESSES
    assert num_ordinary(guesses, "10.0.0.2", 50, 0.0) == MAX_GUESSES


def test_time_makes_good_for_wrong_keys() -> None:
    guesses = KeyGuesses()
    num_ordinary(guesses, "10.0.0.1", 50, 0.0)
    assert num_ordinary(guesses, "10.0.0.1", 50, SECONDS_PER_GUESS) == 1
    assert num_ordinary(guesses, "10.0.0.1", 50, 60 * SECONDS_PER_GUESS) == MAX_GUESSES


def test_the_wait_that_is_told_is_long_enough() -> None:
    guesses = KeyGuesses()
    num_ordinary(guesses, "10.0.0.1", 50, 0.0)
    wait_s = guesses.note("10.0.0.1", 1.0).retry_after_s
    assert 0 < wait_s <= SECONDS_PER_GUESS
    assert guesses.note("10.0.0.1", 1.0 + wait_s).retry_after_s == 0


def test_it_is_news_once_that_an_address_is_over_the_bound() -> None:
    guesses = KeyGuesses()
    news = [guesses.note("10.0.0.1", 0.0).is_news for _ in range(50)]
    assert [number for number, is_news in enumerate(news) if is_news] == [MAX_GUESSES]


def test_a_clock_that_goes_back_forgives_nothing() -> None:
    guesses = KeyGuesses()
    num_ordinary(guesses, "10.0.0.1", 50, 1000.0)
    assert guesses.note("10.0.0.1", 0.0).retry_after_s > 0


def test_memory_is_bounded_and_the_longest_silent_address_goes_first() -> None:
    guesses = KeyGuesses(max_addresses=3)
    for last in (1, 2, 3, 1, 4):
        num_ordinary(guesses, f"10.0.0.{last}", MAX_GUESSES, 0.0)
    assert len(guesses) == 3
    assert guesses.note("10.0.0.1", 0.0).retry_after_s > 0
    assert guesses.note("10.0.0.2", 0.0).retry_after_s == 0
    many = KeyGuesses()
    for number in range(MAX_ADDRESSES + 100):
        many.note(f"2001:db8:0:{number:x}::1", 0.0)
    assert len(many) == MAX_ADDRESSES


@pytest.mark.parametrize(
    ("one", "other", "are_same"),
    [
        ("10.0.0.1", "10.0.0.2", False),
        ("2001:db8:1:2::1", "2001:db8:1:2:ffff::9", True),
        ("2001:db8:1:2::1", "2001:db8:1:3::1", False),
        ("::ffff:10.0.0.1", "10.0.0.1", True),
        ("fe80::1%eth0", "fe80::2%eth1", True),
        ("", None, True),
        ("/run/corral.sock", None, True),
    ],
)
def test_an_ipv6_network_counts_as_one_address(one: str, other: str | None, are_same: bool) -> None:
    assert (site_of(one) == site_of(other)) is are_same
