"""Names with `*`: which of them a name fits, and how long it takes to find out."""

from __future__ import annotations

import re
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.name_patterns import NamePatterns


def fits(pattern: str, name: str) -> bool:
    return NamePatterns([(pattern, True)]).find(name) is True


@pytest.mark.parametrize(
    ("pattern", "good", "bad"),
    [
        ("*", ["", "a", "a/b:c"], []),
        ("a*", ["a", "ab", "a*"], ["", "b", "ba", "A"]),
        ("*a", ["a", "ba"], ["", "ab"]),
        ("a*a", ["aa", "aba"], ["a", "ab"]),
        ("a*b*c", ["abc", "axbxc", "abbc"], ["ac", "acb", "abcd"]),
        ("ab*ba", ["abba", "abxba"], ["aba", "ab"]),
        ("a.c*", ["a.c", "a.cd"], ["abc"]),
        ("[x]*", ["[x]y"], ["x"]),
    ],
)
def test_a_star_stands_for_any_text_and_nothing_else_is_special(pattern: str, good: list[str], bad: list[str]) -> None:
    assert [name for name in good if not fits(pattern, name)] == []
    assert [name for name in bad if fits(pattern, name)] == []


@given(st.text("ab*", min_size=1, max_size=8).filter(lambda text: "*" in text), st.text("ab", max_size=12))
def test_names_fit_as_a_regular_expression_would_say(pattern: str, name: str) -> None:
    expression = ".*".join(map(re.escape, pattern.split("*")))
    assert fits(pattern, name) is (re.fullmatch(expression, name) is not None)


def test_the_pattern_with_the_most_text_wins_wherever_it_stands() -> None:
    patterns = NamePatterns([("*", 1), ("a*", 2), ("a*bc", 3), ("ab*", 4)])
    assert [patterns.find(name) for name in ("x", "ax", "axbc", "abx", "abbc")] == [1, 2, 3, 4, 3]
    assert NamePatterns([("a*", 1)]).find("b") is None


def test_a_name_made_to_be_slow_is_answered_at_once() -> None:
    pattern = "*".join("a" * 60) + "*b"
    started = time.perf_counter()
    assert not fits(pattern, "a" * 200)
    assert time.perf_counter() - started < 0.5, "a backtracking search would take years"
