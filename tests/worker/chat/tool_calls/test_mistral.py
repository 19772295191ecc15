"""Mistral's calls: read however the text is cut, and written in the form of the template."""

from __future__ import annotations

import pytest

from tests.support.answer_vectors import Vector, check_vector
from tests.support.grammar_checks import ONE, check_accepted, check_refused, check_walks
from worker.chat.reasoning import Tags
from worker.chat.tool_calls.mistral import Mistral, MistralList

THINK = Tags("[THINK]", "[/THINK]")
CALL = '«[TOOL_CALLS]»get_weather«[ARGS]»{"city": "Paris", "days": 2}'
NUMBERED = '«[TOOL_CALLS]»get_weather«[CALL_ID]»a1B2c3D4e«[ARGS]»{"city": "Paris", "days": 2}'
SECOND = "«[TOOL_CALLS]»now«[ARGS]»{}"
LISTED = '{"name": "get_weather", "arguments": {"city": "Paris", "days": 2}}'
MEANS = ("call", "get_weather", '{"city": "Paris", "days": 2}')
MEANS_NOW = ("call", "now", "{}")

VECTORS = (
    Vector("text alone", "Use a[0] or [INST], [TOOL", [("text", "Use a[0] or [INST], [TOOL")]),
    Vector("one call", CALL, [MEANS]),
    Vector("one call with an id", NUMBERED, [MEANS], ids=["a1B2c3D4e"]),
    Vector("two calls", f"{CALL}{SECOND}", [MEANS, MEANS_NOW]),
    Vector("text in front", f"I look it up.{CALL}", [("text", "I look it up."), MEANS]),
    Vector(
        "text around all",
        f"First.{CALL}\nThen. {SECOND} Done.",
        [("text", "First."), MEANS, ("text", "Then."), MEANS_NOW, ("text", "Done.")],
    ),
    Vector(
        "thoughts in front",
        f"«[THINK]»They want [TOOL_CALLS]now, I think.«[/THINK]»Now.{SECOND}",
        [("reasoning", "They want [TOOL_CALLS]now, I think."), ("text", "Now."), MEANS_NOW],
        tags=THINK,
    ),
    Vector("arguments without their marker", '«[TOOL_CALLS]»now{"a": [1]}', [("call", "now", '{"a": [1]}')]),
    Vector("a list", f"«[TOOL_CALLS]»[{LISTED}]", [MEANS]),
    Vector(
        "a list with ids behind a space",
        '«[TOOL_CALLS]» [{"name": "now", "arguments": {}, "id": "abcdefgh1"}, {"name": "now", "arguments": {}}]',
        [MEANS_NOW, MEANS_NOW],
    ),
    Vector(
        "ids in a list that come first are kept",
        '«[TOOL_CALLS]»[{"id": "abcdefgh1", "name": "now", "arguments": {}}]',
        [MEANS_NOW],
        ids=["abcdefgh1"],
    ),
    Vector("an unknown tool", "«[TOOL_CALLS]»rm«[ARGS]»{}", [("text", "[TOOL_CALLS]rm[ARGS]{}")]),
    Vector(
        "an unknown tool in a list",
        '«[TOOL_CALLS]»[{"name": "rm", "arguments": {}}]',
        [("text", '[TOOL_CALLS][{"name": "rm", "arguments": {}}]')],
    ),
    Vector("no arguments", "«[TOOL_CALLS]»now«[ARGS]»none", [("text", "[TOOL_CALLS]now[ARGS]none")]),
    Vector("no call", "The marker is «[TOOL_CALLS]».", [("text", "The marker is [TOOL_CALLS].")]),
    Vector(
        "broken arguments are closed",
        '«[TOOL_CALLS]»now«[ARGS]»{"a": "b", c}',
        [("call", "now", '{"a": "b", "": null}'), ("text", "c}")],
    ),
    Vector(
        "a cut call stays cut",
        '«[TOOL_CALLS]»get_weather«[ARGS]»{"city": "Par',
        [("call", "get_weather", '{"city": "Par')],
        is_cut=True,
    ),
)


@pytest.mark.parametrize("vector", VECTORS, ids=lambda vector: vector.name)
@pytest.mark.parametrize("family", [Mistral(), MistralList()], ids=lambda family: family.name)
def test_outputs_mean_the_same_however_they_are_cut(family: Mistral, vector: Vector) -> None:
    check_vector(family, vector)


def test_name_and_arguments_are_written_behind_the_marker() -> None:
    check_accepted(Mistral(), [CALL, NUMBERED, f"{CALL}{SECOND}"])
    check_refused(
        Mistral(),
        [
            "",
            "Hello",
            f"Hello {CALL}",
            f"«[TOOL_CALLS]»[{LISTED}]",
            "«[TOOL_CALLS]»rm«[ARGS]»{}",
            '«[TOOL_CALLS]»get_weather«[ARGS]»{"days": 2}',
            '«[TOOL_CALLS]»get_weather«[ARGS]»{"city": 2}',
            "«[TOOL_CALLS]»now«[CALL_ID]»short«[ARGS]»{}",
        ],
    )
    check_refused(Mistral(), [f"{CALL}{SECOND}"], tools=ONE)


def test_a_list_is_written_where_the_template_has_one() -> None:
    numbered = LISTED[:-1] + ', "id": "a1B2c3D4e"}'
    check_accepted(
        MistralList(),
        [f"«[TOOL_CALLS]»[{LISTED}]", f"«[TOOL_CALLS]» [{numbered}]", f"«[TOOL_CALLS]»[{LISTED}, {numbered}]"],
    )
    check_refused(MistralList(), ["", CALL, "«[TOOL_CALLS]»[]", '«[TOOL_CALLS]»[{"name": "rm", "arguments": {}}]'])
    check_refused(MistralList(), [f"«[TOOL_CALLS]»[{LISTED}, {LISTED}]"], tools=ONE)


@pytest.mark.parametrize("family", [Mistral(), MistralList()], ids=lambda family: family.name)
def test_what_the_grammar_allows_is_read_as_calls(family: Mistral, num_walks: int) -> None:
    check_walks(family, num_walks=num_walks)


def test_ids_have_nine_letters_and_digits() -> None:
    ids = {Mistral().call_id("0123456789abcdef" * 2, index, "now") for index in (0, 1, 12, 345)}
    assert len(ids) == 4
    assert all(len(one) == 9 and one.isalnum() for one in ids)


def test_templates_tell_the_two_forms_apart() -> None:
    old, new = '{{- "[TOOL_CALLS][" }}', "{{- '[TOOL_CALLS]' + name + '[ARGS]' + arguments }}"
    assert [family.fits(old) for family in (Mistral(), MistralList())] == [False, True]
    assert Mistral().fits(new)
    assert not MistralList().fits("[INST]{{ message }}[/INST]")
