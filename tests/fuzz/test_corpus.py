"""Inputs that fuzzing has found once do no harm any more, and the fuzzers themselves notice what they are there for."""

from __future__ import annotations

import random
import time
from pathlib import Path

import pytest

from tests.fuzz.loop import SUBJECTS, Run, subject_of
from tests.fuzz.minimise import shortest
from tests.fuzz.mutation import Mutator
from tests.fuzz.trial import MAX_GROWN_BYTES, attempt

CORPUS = Path(__file__).parent / "corpus"
KEPT = sorted(CORPUS.glob("*/*.bin"))
MAX_FILE_BYTES = 5000


@pytest.mark.parametrize("path", KEPT, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_what_was_found_once_is_harmless_now(path: Path) -> None:
    found = attempt(subject_of(path.parent.name).check, path.read_bytes())
    assert found is None, found.told


def test_every_kept_input_is_small_and_belongs_to_a_target() -> None:
    assert KEPT
    assert {path.parent.name for path in KEPT} <= set(SUBJECTS)
    assert all(path.stat().st_size <= MAX_FILE_BYTES for path in KEPT)
    assert not [path for path in CORPUS.glob("*/*") if path.suffix != ".bin"]


@pytest.mark.parametrize("name", [name for name in SUBJECTS if name != "tool_calls"])
def test_right_inputs_and_some_changed_ones_are_taken(name: str) -> None:
    subject = subject_of(name)
    seeds = list(subject.seeds())
    dice = random.Random(name)
    mutator = Mutator(subject.words, seeds)
    for data in [seeds[0], *(mutator.change(dice.choice(seeds), dice, 500) for _ in range(10))]:
        found = attempt(subject.check, data)
        assert found is None, found.told


def _endless(_: bytes) -> None:
    while True:
        pass


def _picky(data: bytes) -> None:
    if b"AB" in data:
        raise KeyError("AB")


def test_what_takes_too_long_or_too_much_is_found() -> None:
    slow = attempt(_endless, b"", 0.05)
    assert slow is not None
    assert slow.kind == "TookTooLong"
    for grown, kind in ((MAX_GROWN_BYTES, None), (MAX_GROWN_BYTES + 1, "TookTooMuch")):
        peaks = iter((1000, 1000 + grown))
        greedy = attempt(lambda _: None, b"", peak_bytes=lambda peaks=peaks: next(peaks))
        assert (None if greedy is None else greedy.kind) == kind


def test_findings_are_kept_once_with_the_shortest_input(tmp_path: Path) -> None:
    run = Run(_picky, tmp_path)
    for data in (b"x", b"..AB..", b"ABABAB..", b".AB"):
        run.try_one(data)
    run.tell()
    (kept,) = tmp_path.glob("findings/*.bin")
    assert kept.read_bytes() == b".AB"
    assert "KeyError: 'AB'" in kept.with_suffix(".txt").read_text()
    assert '"inputs": 4' in (tmp_path / "figures.json").read_text()


def test_a_found_input_is_shortened_to_what_it_takes() -> None:
    found = shortest(b"x" * 100 + b"AB" + b"y" * 57, lambda data: b"AB" in data, time.monotonic() + 30)
    assert found == b"AB"


def test_changes_reach_what_has_to_be_put_in() -> None:
    dice = random.Random(1)
    mutator = Mutator([b"word"], [b"other input"])
    made = [mutator.change(b"length 123", dice, 40) for _ in range(2000)]
    assert all(len(one) <= 40 for one in made)
    for expected in (b"word", b"\xff\xff\xff\xff", b"input", b"4294967296"):
        assert any(expected in one for one in made), expected
