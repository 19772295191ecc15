"""How numbers, times and texts of a server look at a terminal."""

from __future__ import annotations

import pytest

from router.cli.formats import clean, counted, duration, latency, percent, rate, size


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain ünïcode 漢字 🐑", "plain ünïcode 漢字 🐑"),
        ("\x1b[31mred\x1b[0m", "\\x1b[31mred\\x1b[0m"),
        ("a\r\nb\tc", "a b    c"),
        ("\x9b2J bell\x07", "\\x9b2J bell\\x07"),
        ("turned\u202eback", "turned\\u202eback"),
        ("no\u00a0break", "no\u00a0break"),
        ("👩\u200d🌾", "👩\u200d🌾"),
        ("[bold]not markup[/bold]", "[bold]not markup[/bold]"),
    ],
)
def test_no_text_of_a_server_gives_the_terminal_an_order(text: str, shown: str) -> None:
    assert clean(text) == shown


def test_lines_stay_lines_where_they_are_meant_to() -> None:
    assert clean("a\r\n\tb\x1bc", keep_lines=True) == "a\n\tb\\x1bc"


@pytest.mark.parametrize("words", [size, duration, latency, rate, percent])
def test_what_is_not_known_is_never_a_number(words: object) -> None:
    assert words(None) is None  # type: ignore[operator]


def test_numbers_have_the_units_that_people_read() -> None:
    assert [size(num) for num in (0, 1500, 98e6, 1.34e9)] == ["0 MB", "2 kB", "98 MB", "1.3 GB"]
    spans = [0.4, 59, 99, 100, 5940, 7500, 7200, 200_000, 172_800]
    assert [duration(num) for num in spans] == [
        *("0 s", "59 s", "99 s", "2 min", "99 min", "2 h 5 min", "2 h", "2 d 7 h", "2 d")
    ]
    assert [latency(num) for num in (0.0042, 0.31, 1.25)] == ["4.2 ms", "310 ms", "1.25 s"]
    assert [rate(num) for num in (0.0, 4.25, 99.96, 1234.5)] == ["0", "4.2", "100.0", "1234"]
    assert [counted(1, "model"), counted(2, "model"), counted(0, "copy", "copies")] == [
        "1 model",
        "2 models",
        "0 copies",
    ]


def test_a_share_is_whole_only_when_nothing_is_left() -> None:
    assert [percent(num) for num in (0.0, 0.999, 1.0, 1.2)] == ["0 %", "99 %", "100 %", "100 %"]
