"""The progress line of a terminal."""

from __future__ import annotations

import io
import logging

from router.fetch.protocol import FetchProgress
from router.progress_bar import ProgressBar, describe

WIDE = 200


def test_known_size_shows_a_bar_and_both_figures() -> None:
    text = describe({"smollm2": FetchProgress("downloading", 49_000_000, 98_000_000)}, WIDE)
    assert text == "smollm2: downloading [###############               ] 49 of 98 MB"


def test_part_of_several_is_named() -> None:
    progress = FetchProgress("downloading", 44_500_000, 89_000_000, "part 2 of 6")
    assert describe({"coder": progress}, WIDE) == (
        "coder: downloading part 2 of 6 [########                      ] 44 of 89 MB"
    )
    assert describe({"coder": progress}, 60) == "coder: downloading part 2 of 6, 44 of 89 MB", "no room for the bar"
    assert describe({"coder": progress}, 10) == "coder: dow"


def test_the_bar_of_a_model_in_parts_never_goes_back() -> None:
    steps = [("downloading", 0, None, 1), ("downloading", 9, 10, 1), ("joining", 1, 10, 1), ("joining", 10, 10, 1)]
    steps += [("downloading", 0, None, 2), ("downloading", 0, 10, 2), ("downloading", 10, 10, 2), ("joining", 5, 10, 2)]
    shares = [FetchProgress(phase, done, of, f"part {number} of 2").share for phase, done, of, number in steps]
    assert shares == [0.0, 0.45, 0.5, 0.5, 0.5, 0.5, 1.0, 1.0]
    assert FetchProgress("downloading", 5, None).share is None
    assert FetchProgress("downloading", 5, 10, "part 3 of 2").share == 0.5, "no part that there is"


def test_several_downloads_share_the_line_without_bars() -> None:
    fetches = {
        "qwen2.5-coder": FetchProgress("downloading", 13_000_000, 89_000_000, "part 2 of 6"),
        "smollm2": FetchProgress("downloading", 41_000_000, 93_000_000),
        "new": FetchProgress("downloading", 2_000_000, None),
    }
    assert describe(fetches, WIDE) == "qwen2.5-coder 13/89 MB · smollm2 41/93 MB · new 2 MB"
    assert describe(fetches, 20) == "qwen2.5-coder 13/89 "


def test_unknown_size_shows_what_is_here() -> None:
    assert describe({"m": FetchProgress("joining", 5_000_000, None)}, WIDE) == "m: joining, 5 MB"


def test_what_is_waited_for_is_shown_while_nothing_comes() -> None:
    assert describe({"m": FetchProgress("downloading", 0, None, "asking the Hub")}, WIDE) == "m: asking the Hub"


def test_more_than_expected_does_not_break_the_bar() -> None:
    assert "[##############################]" in describe({"m": FetchProgress("downloading", 3, 2)}, WIDE)


def test_the_line_goes_when_nothing_is_fetched_any_more() -> None:
    stream, fetches = io.StringIO(), {"m": FetchProgress("downloading", 1, 2)}
    bar = ProgressBar(stream, lambda: fetches)
    bar.draw()
    assert "m: downloading" in stream.getvalue()
    fetches.clear()
    bar.draw()
    bar.draw()
    assert stream.getvalue().count("\r\033[K") == 2


def test_a_log_line_takes_the_place_of_the_bar() -> None:
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    bar = ProgressBar(stream, lambda: {"m": FetchProgress("downloading", 1, 2)})
    bar.attach(handler)
    bar.draw()
    handler.handle(logging.LogRecord("x", logging.INFO, "f", 1, "ready", None, None))
    assert stream.getvalue().endswith("\r\033[Kready\n")
