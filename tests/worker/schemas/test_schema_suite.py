"""The JSON Schema test suite: every schema is enforced, relaxed or refused, and enforced ones keep their word."""

from __future__ import annotations

from collections import Counter

import pytest

from bench.schema_suite import TOO_NARROW, TOO_WIDE, differences, outcome_of, suite

pytestmark = pytest.mark.models


@pytest.mark.parametrize("relaxes", [False, True])
def test_every_schema_of_the_suite_is_enforced_relaxed_or_refused_with_a_reason(relaxes: bool) -> None:
    outcomes = Counter(outcome_of(case.schema, relaxes=relaxes) for case in suite())
    assert outcomes.keys() <= {"enforced", "relaxed", "CannotEnforce", "WrongSchema"}
    assert outcomes["enforced"] > 1000
    assert outcomes["WrongSchema"] < 50
    assert bool(outcomes["CannotEnforce"]) is not relaxes


def test_a_schema_of_the_suite_that_something_fits_is_no_mistake() -> None:
    blamed = [
        f"{case.draft}, {case.keyword}: {case.description}"
        for case in suite()
        if outcome_of(case.schema, relaxes=True) == "WrongSchema" and any(is_valid for _, is_valid in case.instances)
    ]
    assert blamed == []


def test_instances_pass_the_grammar_as_the_suite_says_but_for_known_reasons() -> None:
    narrower, wider = differences()
    assert [line for line in wider if line.partition(":")[0] not in TOO_WIDE] == []
    assert narrower.keys() - TOO_NARROW.keys() == set()
    assert sum(narrower.values()) < 150
