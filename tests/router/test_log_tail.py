"""Which of a worker's lines an operator sees, and how often."""

from __future__ import annotations

from router.log_tail import MAX_SEEN, WarningsOnce

LINE = "2026-01-02 03:04:05,678 {level} {model}: {text}"


def line(model: str, text: str, level: str = "WARNING") -> str:
    return LINE.format(level=level, model=model, text=text)


def test_a_warning_that_another_model_repeats_is_for_debugging() -> None:
    once = WarningsOnce()
    first, second = once.severity(line("a", "broken kernels")), once.severity(line("b", "broken kernels"))
    assert (first[0], second[0]) == ("WARNING", "DEBUG")
    assert first[1] == second[1]
    assert once.severity(line("a", "something else"))[0] == "WARNING"


def test_an_error_is_shown_each_time() -> None:
    once = WarningsOnce()
    assert [once.severity(line("a", "no", "ERROR"))[0] for _ in range(2)] == ["ERROR", "ERROR"]


def test_what_is_remembered_of_warnings_has_a_bound() -> None:
    once = WarningsOnce()
    for number in range(3 * MAX_SEEN):
        once.severity(line("a", f"slow: {number}"))
    assert len(once._seen) <= MAX_SEEN
