"""docs/structured-output.md says of JSON Schemas what the code does."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from worker.schemas.expansion import (
    MAX_COMBINATIONS,
    MAX_DEPTH,
    MAX_ROW,
    MAX_SUBSCHEMAS,
    PER_OPTIONAL,
)
from worker.schemas.keywords import keyword_table
from worker.schemas.prepare import MAX_BYTES, MAX_NESTING
from worker.schemas.problems import MAX_TRIES
from worker.schemas.repetitions import MAX_REPEATS
from worker.schemas.validation import MAX_KEYWORDS

DOCUMENT = Path(__file__).parents[3] / "docs" / "structured-output.md"


def json_schema_section() -> str:
    text = DOCUMENT.read_text(encoding="utf-8")
    found = re.search(r"^## JSON Schema\n(.*?)(?=^## |\Z)", text, re.DOTALL | re.MULTILINE)
    assert found is not None
    return found[1]


def test_the_table_of_keywords_is_the_one_that_the_code_follows() -> None:
    assert keyword_table() in json_schema_section(), "put keyword_table() between the two comments"


@pytest.mark.parametrize(
    ("limit", "value"),
    [
        ("size of a schema", f"{MAX_BYTES // 1024} KiB"),
        ("objects and lists inside one another", f"{MAX_NESTING}"),
        ("subschemas, after what holds together has been merged", f"{MAX_SUBSCHEMAS:,}"),
        ("schemas inside one another, with references followed", f"{MAX_DEPTH}"),
        ("patterns and counts that have to be tried out", f"{MAX_TRIES:,}"),
        ("combinations of alternatives that hold together", f"{MAX_COMBINATIONS:,}"),
        ("optional properties that follow one another", f"{MAX_ROW // PER_OPTIONAL}"),
        (
            "alternatives that begin alike",
            f"{MAX_ROW:,}, of which each of their first optional properties takes {PER_OPTIONAL}",
        ),
    ],
)
def test_the_limits_are_those_of_the_code(limit: str, value: str) -> None:
    assert f"| {limit} | {value} |" in json_schema_section()


def test_the_bound_of_repetitions_is_that_of_the_code() -> None:
    assert f"multiply to more than {MAX_REPEATS}." in json_schema_section()


def test_the_bound_of_the_check_is_that_of_the_code() -> None:
    assert f"more than {MAX_KEYWORDS:,} steps" in json_schema_section()
