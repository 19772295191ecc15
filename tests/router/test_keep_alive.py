"""`keep_alive` is read as Ollama's clients write it, and nothing else passes for it."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.keep_alive import MAX_S, read_keep_alive


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        (300, 300.0),
        (1.5, 1.5),
        (0, 0.0),
        ("0", 0.0),
        ("0s", 0.0),
        ("300", 300.0),
        ("5m", 300.0),
        ("1h30m", 5400.0),
        ("1.5h", 5400.0),
        (".5s", 0.5),
        ("+2s", 2.0),
        ("1h2m3s4ms", 3723.004),
        ("250us", 0.00025),
        ("250µs", 0.00025),
        (" 10m ", 600.0),
        (-1, -1.0),
        ("-1", -1.0),
        ("-1m", -1.0),
        (-0.5, -1.0),
        pytest.param(10**400, MAX_S, id="huge"),
        pytest.param(-(10**400), -1.0, id="hugely negative"),
        (1e300, MAX_S),
        ("999999h", MAX_S),
    ],
)
def test_numbers_and_durations_become_seconds(value: Any, seconds: float) -> None:
    assert read_keep_alive(value) == pytest.approx(seconds, abs=1e-12)


@pytest.mark.parametrize(
    "value",
    [
        *("", " ", "-", "m", "5 m", "5x", "5m 3s", "--5m", "+-5", "1h-5m", "five", "٣m", "1" * 50, "5mm"),
        *(True, [], {}, None, math.nan),
    ],
)
def test_anything_else_is_refused_with_what_it_must_be(value: Any) -> None:
    with pytest.raises(ValueError, match="a number of seconds, or a duration"):
        read_keep_alive(value)


@pytest.mark.parametrize(
    ("value", "shown"), [("5 min", '"5 min"'), ("x" * 99, f'"{"x" * 40}"'), (True, "true or false"), ([], "a list")]
)
def test_a_refusal_repeats_what_was_said(value: Any, shown: str) -> None:
    with pytest.raises(ValueError, match=f"^is {shown}, but it must be a number of seconds"):
        read_keep_alive(value)


@given(st.text(max_size=60) | st.floats() | st.integers())
def test_whatever_comes_it_is_a_time_or_refused(value: Any) -> None:
    try:
        seconds = read_keep_alive(value)
    except ValueError:
        return
    assert seconds == -1.0 or 0.0 <= seconds <= MAX_S
