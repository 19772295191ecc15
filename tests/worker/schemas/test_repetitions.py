"""Counts inside counts, in regular expressions of any kind."""

from __future__ import annotations

import pytest

from worker.schemas.repetitions import MAX_REPEATS, TooManyRepeats, repeats_of


@pytest.mark.parametrize(
    ("pattern", "most"),
    [
        ("", 1),
        ("abc*", 1),
        ("a{5}", 5),
        ("a{2,7}?b{3}", 7),
        ("a{1000000}", 1_000_000),
        ("(a{5}b{7}){3}", 21),
        ("((a{2}){3}){4}", 24),
        (r"\(a{5}\){3}", 5),
        ("[(a{5}]{3}", 3),
        (r"\x{1000}{3}", 3),
        ("(?:a{5}|b){2}", 10),
        ("(a{5})+", 5),
        ("a{b}", 1),
    ],
)
def test_counts_inside_counts_are_multiplied(pattern: str, most: int) -> None:
    assert repeats_of(pattern) == most


@pytest.mark.parametrize("pattern", ["(a{20}){20}", "(a{1000}){1000}", f"(a{{2}}){{{MAX_REPEATS}}}", "a{30}{30}"])
def test_too_many_are_refused(pattern: str) -> None:
    with pytest.raises(TooManyRepeats, match="repetitions inside repetitions"):
        repeats_of(pattern)
