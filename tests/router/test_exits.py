"""Every way in which a worker ends has words for people, and those that were asked for are no failures."""

from __future__ import annotations

import pytest

from router.events import ExitReason
from router.exits import NO_FAILURES, explain_exit, signal_name


@pytest.mark.parametrize(
    ("reason", "words"),
    [
        (ExitReason.STOPPED, "stopped by the router"),
        (ExitReason.HUNG, "no sign of life"),
        (ExitReason.LOAD_TIMEOUT, "no progress while loading"),
        (ExitReason.NO_ROOM, "more memory than is free"),
        (ExitReason.HOOK_FAILED, "before_load"),
    ],
)
def test_stop_that_the_router_wanted_says_what_for(reason: ExitReason, words: str) -> None:
    exit_ = explain_exit(-9, asked=reason)
    assert (exit_.reason, exit_.exit_code) == (reason, -9)
    assert words in exit_.detail


def test_words_of_the_moment_go_first() -> None:
    exit_ = explain_exit(-9, asked=ExitReason.HUNG, asked_detail="it has not reported for 61 s")
    assert exit_.detail == "it has not reported for 61 s"


def test_no_failures_are_the_ends_that_the_router_asked_for() -> None:
    assert {ExitReason.STOPPED, ExitReason.NO_ROOM} == NO_FAILURES


@pytest.mark.parametrize(
    ("code", "name"), [(None, None), (0, None), (66, None), (-11, "SIGSEGV"), (-255, "signal 255")]
)
def test_negative_code_is_a_signal_with_a_name(code: int | None, name: str | None) -> None:
    assert signal_name(code) == name
