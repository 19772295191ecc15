"""Hundreds of conversations with secret markers over few slots: no answer holds anybody else's marker.

The storms share prefixes, cancel, stop, fail, constrain, park, save and restore, go on behind a worker that has died,
and ask what other tenants have asked. `tests/worker/engine/test_marker_faults.py` tests the storm itself.
"""

from __future__ import annotations

import logging
from dataclasses import fields
from pathlib import Path

import pytest

from tests.fakes.crowd import Crowd, Tally


@pytest.fixture(autouse=True)
def quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.ERROR)


def weathered(seed: int, num_talks: int, folder: Path, *, window: int = 0) -> Tally:
    """Return what has happened when every conversation is over, in several lives with their prompts on the disk."""
    crowd = Crowd(seed, num_talks, window)
    num_lives = 0
    while not crowd.is_over:
        crowd.storm(folder, share=0.5 if num_lives < 3 else 1.0)
        num_lives += 1
    return crowd.tally


def test_no_answer_holds_the_marker_of_another_conversation(tmp_path: Path) -> None:
    tally = weathered(1, 200, tmp_path)
    assert tally.judged > 200
    missing = [one.name for one in fields(tally) if one.name != "failed" and not getattr(tally, one.name)]
    assert not missing, "the storm must have had all of these"


def test_where_layers_have_a_window_prompts_come_back_whole_or_not_at_all(tmp_path: Path) -> None:
    tally = weathered(3, 60, tmp_path, window=16)
    assert tally.restored
    assert tally.parked


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2, 26))
def test_no_answer_of_many_storms_holds_the_marker_of_another_conversation(seed: int, tmp_path: Path) -> None:
    assert weathered(seed, 400, tmp_path).judged > 400
