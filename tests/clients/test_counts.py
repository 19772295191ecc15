"""Many answers to all clients together, at a temperature at which the model babbles: none has a wrong form."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.clients.running import Outcomes, programs

COUNTING = [program for program in programs() if program.path.stem.endswith("_counts")]
NUM_ASKED = 50
MOST_CUT = 5


@pytest.mark.clients
@pytest.mark.parametrize("kind", ["calls", "replies"])
def test_fifty_answers_are_valid_or_marked_as_cut(kind: str, outcomes: Outcomes) -> None:
    found: Counter[str] = Counter()
    for program in COUNTING:
        outcome = outcomes(program)[f"check_{kind}"]
        assert outcome["fault"] is None, outcome["fault"]
        found.update(outcome["told"])
    assert found["asked"] == NUM_ASKED
    assert found["valid"] + found["cut"] == NUM_ASKED
    assert found["cut"] <= MOST_CUT, "too little of it was shown"


def test_several_clients_count() -> None:
    assert {program.client for program in COUNTING} == {"anthropic", "instructor", "openai", "smolagents"}
