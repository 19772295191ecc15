"""Rows take turns, no row is left out, and time that runs short takes pairs."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from bench.figures import Entry, Figure
from bench.plan import Progress, dropped, forecast, in_turn, next_row, no_longer_needed

times = st.lists(st.floats(0.1, 100.0), min_size=1, max_size=10)


def keys_in_order(rows: list[Progress], left_s: float) -> list[str]:
    order = []
    while (row := next_row(rows, left_s)) is not None:
        row.num_done += 1
        left_s -= row.turn_s
        order.append(row.key)
    return order


def test_every_row_has_its_first_turn_before_any_has_a_second() -> None:
    rows = [Progress("a", 2, 1.0), Progress("b", 2, 1.0), Progress("c", 1, 1.0)]
    assert keys_in_order(rows, 100.0) == ["a", "b", "c", "a", "b"]
    assert dropped(rows) == {}


def test_first_turns_are_taken_even_when_there_is_no_time() -> None:
    rows = [Progress("a", 5, 10.0), Progress("b", 5, 10.0)]
    assert keys_in_order(rows, 0.0) == ["a", "b"]
    assert dropped(rows) == {"a": 4, "b": 4}


def test_a_short_row_uses_the_time_that_is_too_little_for_a_long_one() -> None:
    rows = [Progress("long", 3, 60.0), Progress("short", 3, 5.0)]
    assert keys_in_order(rows, 80.0) == ["long", "short", "short", "short"]


@given(times, st.floats(0.0, 500.0))
def test_only_first_turns_may_go_over_the_time(turn_times: list[float], left_s: float) -> None:
    rows = [Progress(str(i), 5, turn_s) for i, turn_s in enumerate(turn_times)]
    expected = forecast(rows, left_s)
    assert all(row.num_done == 0 for row in rows), "a forecast changes nothing"
    assert all(1 <= count <= 5 for count in expected.values())
    assert sum(row.turn_s * expected[row.key] for row in rows) <= max(left_s, sum(turn_times)) + 1e-6


def test_the_order_of_contestants_alternates() -> None:
    assert [in_turn("abc", turn) for turn in range(3)] == [["a", "b", "c"], ["c", "b", "a"], ["a", "b", "c"]]


def entries(name: str, *values: float, figure: str = "speed", more: bool = True) -> list[Entry]:
    return [Entry("row", name, turn, Figure(figure, value, "x", more)) for turn, value in enumerate(values)]


COMPARED = frozenset({"speed", "time"})


def test_a_peer_that_lost_is_not_measured_again() -> None:
    peers = entries("default", 80, 82) + entries("tuned", 100, 101)
    assert no_longer_needed("default", peers, COMPARED)
    assert not no_longer_needed("tuned", peers, COMPARED)


def test_after_one_turn_a_peer_must_have_lost_by_more() -> None:
    assert not no_longer_needed("default", entries("default", 80) + entries("tuned", 100), COMPARED)
    assert no_longer_needed("default", entries("default", 60) + entries("tuned", 100), COMPARED)


def test_a_peer_that_is_close_or_has_no_rival_goes_on() -> None:
    assert not no_longer_needed("default", entries("default", 95, 96) + entries("tuned", 100, 101), COMPARED)
    assert not no_longer_needed("default", entries("default", 50, 51), COMPARED)
    assert not no_longer_needed("default", [], COMPARED)


def test_a_peer_must_have_lost_in_every_figure_that_counts() -> None:
    peers = entries("default", 50, 52) + entries("tuned", 100, 101)
    better_time = entries("default", 1, 1, figure="time", more=False) + entries(
        "tuned", 2, 2, figure="time", more=False
    )
    assert not no_longer_needed("default", peers + better_time, COMPARED)
    assert no_longer_needed("default", peers + better_time, frozenset({"speed"}))


def test_in_a_joint_row_the_product_decides() -> None:
    figures = {"gap": (8.0, 0.4), "first": (11.0, 14.0)}
    peers = [
        entry
        for figure, values in figures.items()
        for name, value in zip(("default", "tuned"), values, strict=True)
        for entry in entries(name, value, value, figure=figure, more=False)
    ]
    compared = frozenset(figures)
    assert no_longer_needed("default", peers, compared, is_joint=True)
    assert not no_longer_needed("tuned", peers, compared, is_joint=True)
    assert not no_longer_needed("default", peers, compared)


def test_a_rival_that_failed_in_a_figure_beats_nobody() -> None:
    peers = entries("default", 50, 52) + entries("tuned", 3, figure="time", more=False)
    assert not no_longer_needed("default", peers, COMPARED)
