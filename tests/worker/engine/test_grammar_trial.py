"""The process that tries out grammars may crash or be busy for ever: the one that asks is none the worse for it."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from worker.engine import grammar_trial
from worker.engine.grammar import LIMITS
from worker.engine.grammar_trial import PANIC, TOO_COSTLY, TOO_DEEP, Trials

CHAIN = "\n".join(["start: r0", *(f'r{i}: r{i + 1} | "a"' for i in range(5000)), 'r5000: "b"'])
DOUBLED = "\n".join(["start: R0", *(f"R{i}: R{i + 1} R{i + 1}" for i in range(25)), 'R25: "ab"'])


@pytest.fixture
def trials() -> Iterator[Trials]:
    trials = Trials()
    yield trials
    trials.close()


def problem(trials: Trials, grammar: str) -> str | None:
    return trials.problem_of(grammar, [0, 300], 400, LIMITS)


def test_good_and_bad_grammars_are_told_apart(trials: Trials) -> None:
    assert problem(trials, 'start: "a" <[300]>') is None
    assert problem(trials, "start: <[400]>") is not None
    assert problem(trials, 'start: "a" | "é𝄞\\n"') is None
    assert problem(trials, "start: missing") is not None


def test_a_crash_and_an_endless_grammar_are_told_and_the_next_one_is_tried(trials: Trials) -> None:
    assert problem(trials, CHAIN) == TOO_DEEP
    assert problem(trials, 'start: "a"') is None
    told = problem(trials, DOUBLED)  # whichever limit is reached first, of time or of the library
    assert told == TOO_COSTLY or (told is not None and "too big" in told)
    assert problem(trials, 'start: "a"') is None


def test_a_process_that_somebody_else_has_ended_is_replaced(trials: Trials) -> None:
    assert problem(trials, 'start: "a"') is None
    process = trials._process
    assert process is not None
    process.terminate()
    assert problem(trials, 'start: "b"') is None
    assert process.wait(30)
    assert problem(trials, 'start: "c"') is None
    assert trials._process is not process


def test_a_process_that_nobody_needs_is_ended_and_reaped(trials: Trials, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grammar_trial, "IDLE_S", 0.01)
    assert problem(trials, 'start: "a"') is None
    assert trials._idle is not None
    trials._idle.join(30)
    assert trials._process is None
    assert problem(trials, 'start: "a"') is None


def test_a_process_that_cannot_work_is_no_fault_of_the_grammar(
    trials: Trials, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    program = tmp_path / "python"
    program.write_text("#!/bin/sh\nexit 3\n", encoding="utf-8")
    program.chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(program))
    with pytest.raises(OSError, match="code 3"):
        problem(trials, 'start: "a"')


def test_a_fault_of_the_library_is_told(trials: Trials) -> None:
    assert trials.problem_of('start: "a"', [0, 300], 400, {"not a limit": 1}) == PANIC
    assert problem(trials, 'start: "a"') is None


def test_a_process_that_does_not_answer_is_ended(trials: Trials, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grammar_trial, "WAIT_S", 0.2)
    deaf = subprocess.Popen(
        [sys.executable, "-c", "import time; time.sleep(60)"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    trials._process = deaf
    assert problem(trials, 'start: "a"') == TOO_COSTLY
    assert deaf.poll() is not None


def test_the_process_ends_with_whoever_asks() -> None:
    command = [sys.executable, "-P", "-m", "worker.engine.grammar_trial"]
    question = json.dumps(['start: "a"', [0], 257, dict(LIMITS)]).encode() + b"\n"
    done = subprocess.run(command, input=question, capture_output=True, check=True, timeout=60)
    assert done.stdout == b"true\n"
