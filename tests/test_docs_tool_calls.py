"""docs/tool-calls.md names every family of tool calls, and shows calls that these families read as such."""

from __future__ import annotations

import json
import re

import pytest

from tests.support.answer_vectors import TOOLS, parts_of, read
from tests.test_docs import name_in, quoted, rows, section, text_of
from worker.chat.answer_reader import AnswerForm
from worker.chat.reasoning import KNOWN_TAGS
from worker.chat.tool_calls.families import FAMILIES
from worker.chat.tool_calls.family import Family

DOCUMENT = text_of("docs/tool-calls.md")
FAMILY_ROWS = [row for row in rows(section(DOCUMENT, "## Families")) if len(row) == 4]
TAG_ROWS = [row for row in rows(section(DOCUMENT, "## Families")) if len(row) == 2]
IN_TAGS = "in tags"
WRITTEN_OUTPUTS = "written outputs"


def plain(cell: str) -> str:
    """Return what a cell of a table means."""
    return cell.replace("\\|", "|")


def test_the_families_are_told_in_their_order_with_their_models() -> None:
    told = [(name_in(row[0]), plain(row[1])) for row in FAMILY_ROWS]
    assert told == [(family.name, family.title) for family in FAMILIES]


def test_it_is_told_which_families_were_tested_on_a_real_model() -> None:
    assert [row[3] for row in FAMILY_ROWS] == [family.tested_on or WRITTEN_OUTPUTS for family in FAMILIES]


def test_it_is_told_which_families_have_a_form_of_thoughts_of_their_own() -> None:
    told = {name_in(row[0]) for row in FAMILY_ROWS if row[2] != IN_TAGS}
    reading = {family.name for family in FAMILIES if family.tags is not None}
    assert reading <= told
    assert told - reading <= {family.name for family in FAMILIES if family.wraps_answers}


def test_every_row_leads_to_an_example() -> None:
    headings = re.findall(r"^### (.*)$", DOCUMENT, re.MULTILINE)
    assert headings == [family.name for family in FAMILIES]
    for row, heading in zip(FAMILY_ROWS, headings, strict=True):
        assert f"(#{heading.replace('.', '')})" in row[0]


def test_the_tags_of_thoughts_are_told() -> None:
    assert [tuple(quoted(plain(" ".join(row)))) for row in TAG_ROWS] == [tags.markers for tags in KNOWN_TAGS]


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_the_example_is_read_as_the_call(family: Family) -> None:
    part = section(DOCUMENT, f"### {family.name}")
    example = re.search(r"^(`{3,})text\n(.*?)\n\1$", part, re.DOTALL | re.MULTILINE)
    assert example is not None
    parts = parts_of(read(AnswerForm(family=family, tools=TOOLS), [example[2]]))
    assert parts == [("call", "get_weather", json.dumps({"city": "Paris"}))]
