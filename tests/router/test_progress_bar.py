"""The progress line of a terminal."""

from __future__ import annotations

import io
import logging

from router.fetch.protocol import FetchProgress
from router.progress_bar import ProgressBar, describe


def test_known_size_shows_a_bar_and_both_figures() -> None:
    text = describe("smollm2", FetchProgress("downloading", 49_000_000, 98_000_000))
    assert text == "smollm2: downloading [###############               ] 49 of 98 MB"


def test_unknown_size_shows_what_is_here() -> None:
    assert describe("m", FetchProgress("joining", 5_000_000, None)) == "m: joining 5 MB"


def test_more_than_expected_does_not_break_the_bar() -> None:
    assert "[##############################]" in describe("m", FetchProgress("downloading", 3, 2))


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
