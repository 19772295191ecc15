"""Whatever a model writes, readers of all families make the same of it however it is cut, and lose nothing."""

from __future__ import annotations

import importlib
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from time import process_time

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support.answer_vectors import TOOLS, Vector, parts_of, plain_text, read
from worker.chat.answer_reader import AnswerForm
from worker.chat.deltas import CallArguments, CallStart, Delta
from worker.chat.marks import Markers, marked
from worker.chat.reasoning import Tags
from worker.chat.tool_calls.families import FAMILIES
from worker.chat.tool_calls.family import Family
from worker.chat.tool_calls.hermes import Hermes

_PIECES = (
    *("now", "get_weather", "search", "rm", "city", "Paris", "name", "arguments", "parameters", "days", "2", "true"),
    *(
        "{",
        "}",
        "[",
        "]",
        "(",
        ")",
        '"',
        "'",
        "=",
        ":",
        ",",
        "\\",
        "<",
        ">",
        "</",
        "|",
        "`",
        "```",
        "```json\n",
        "\n",
        " ",
    ),
    *('{"name": "now", "arguments": {}}', '{"city": "Paris"}', '"name": "now"', "now()", 'search(query="x")', "null"),
    *(
        "to=functions.now",
        "to=",
        "assistant",
        "json",
        "function",
        "Action:",
        "call:",
        "functions.now:0",
        ":0",
        ' name="',
    ),
)


def _vectors(value: object) -> Iterator[Vector]:
    match value:
        case Vector():
            yield value
        case tuple() | list():
            for one in value:
                yield from _vectors(one)


def _all_vectors() -> list[Vector]:
    found = []
    for path in sorted(Path(__file__).parent.glob("test_*.py")):
        if path != Path(__file__):
            module = importlib.import_module(f"tests.worker.chat.tool_calls.{path.stem}")
            found += [vector for value in vars(module).values() for vector in _vectors(value)]
    return found


VECTORS = _all_vectors()
FAMILY = st.sampled_from(FAMILIES)
CUTS = st.lists(st.integers(0, 2000), max_size=8)
LIMITS = settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def pieces_of(text: str, cuts: Sequence[int]) -> list[str]:
    places = sorted({cut % (len(text) + 1) for cut in cuts})
    return [text[a:b] for a, b in zip([0, *places], [*places, len(text)], strict=True)]


def deltas_of(family: Family, markers: Markers, pieces: Sequence[str], *, is_cut: bool = False) -> list[Delta]:
    form = AnswerForm(markers, family=family, tools=TOOLS)
    return read(form, pieces, is_cut=is_cut)


def check_calls(deltas: Sequence[Delta], *, is_cut: bool) -> None:
    """Calls are numbered, of tools that there are, and their arguments are JSON objects unless they were cut."""
    starts = [delta for delta in deltas if isinstance(delta, CallStart)]
    assert [start.index for start in starts] == list(range(len(starts)))
    assert all(start.name in TOOLS.by_name for start in starts)
    if not is_cut:
        arguments = [delta.text for delta in deltas if isinstance(delta, CallArguments)]
        assert len(arguments) == len(starts)
        assert all(isinstance(json.loads(text), dict) for text in arguments)


def test_vectors_of_all_families_are_found() -> None:
    assert len(VECTORS) > 5 * len(FAMILIES)


@given(family=FAMILY, vector=st.sampled_from(VECTORS), cuts=CUTS, is_cut=st.booleans())
@LIMITS
def test_outputs_of_any_family_are_read_by_any_other_however_they_are_cut(
    family: Family, vector: Vector, cuts: list[int], is_cut: bool
) -> None:
    text = plain_text(vector)
    whole = deltas_of(family, Markers(), [text], is_cut=is_cut)
    assert deltas_of(family, Markers(), pieces_of(text, cuts), is_cut=is_cut) == whole
    check_calls(whole, is_cut=is_cut)


@given(family=FAMILY, are_tokens=st.booleans(), is_cut=st.booleans(), cuts=CUTS, data=st.data())
@LIMITS
def test_mixtures_of_markers_and_texts_are_read_however_they_are_cut(
    family: Family, are_tokens: bool, is_cut: bool, cuts: list[int], data: st.DataObject
) -> None:
    markers = Markers({text: number for number, text in enumerate(family.markers)} if are_tokens else {})
    signs = [markers.form(text) for text in family.markers] + [text for text in family.triggers if text]
    piece = st.sampled_from([*_PIECES, *signs, *signs]) | st.text(max_size=4)
    text = "".join(data.draw(st.lists(piece, max_size=20)))
    whole = deltas_of(family, markers, [text], is_cut=is_cut)
    assert deltas_of(family, markers, pieces_of(text, cuts), is_cut=is_cut) == whole
    check_calls(whole, is_cut=is_cut)


@given(family=FAMILY, text=st.lists(st.sampled_from(_PIECES) | st.text(max_size=8), max_size=20).map("".join))
@LIMITS
def test_text_that_is_no_call_stays_as_it_is(family: Family, text: str) -> None:
    parts = parts_of(deltas_of(family, Markers(), [text]))
    if all(part[0] == "text" for part in parts) and not any(marker in text for marker in family.markers):
        assert "".join(part[1] for part in parts).split() == text.split()


def test_markers_in_the_vectors_are_read_as_tokens_too() -> None:
    for family in FAMILIES:
        markers = Markers({text: number for number, text in enumerate(family.markers)})
        text = "".join(map(marked, family.markers)) * 2
        check_calls(deltas_of(family, markers, list(text)), is_cut=False)


@pytest.mark.parametrize("beginning", ["", "Well", "<think>", "<think>So"])
def test_a_model_that_writes_nothing_but_spaces_is_read_without_ever_more_work(beginning: str) -> None:
    form = AnswerForm(tags=Tags("<think>", "</think>"), family=Hermes(), tools=TOOLS)
    started = process_time()
    read(form, [beginning, *[" "] * 50_000])
    assert process_time() - started < 3.0
