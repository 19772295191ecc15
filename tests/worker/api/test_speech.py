"""How a model speaks, as its chat template and its vocabulary tell."""

from __future__ import annotations

import pytest

from tests.support.held_answers import HERMES, THINKS, SpeakingVocabulary
from worker.api.speech import Speech, find_markers, speech_of
from worker.chat.marks import Markers
from worker.chat.reasoning import KNOWN_TAGS, Tags
from worker.chat.tool_calls.families import FAMILIES

MARKERS = find_markers(SpeakingVocabulary().marker)


def test_markers_are_the_special_tokens_of_families_and_thoughts() -> None:
    vocabulary = SpeakingVocabulary()
    assert dict(MARKERS.tokens) == vocabulary.markers
    assert not find_markers(SpeakingVocabulary(()).marker).tokens


def test_without_a_template_nothing_is_known_but_the_markers() -> None:
    assert speech_of("", MARKERS) == Speech(markers=MARKERS)
    assert speech_of("", MARKERS).shown() == {}


def test_a_template_tells_of_calls_and_thoughts() -> None:
    speech = speech_of(HERMES + THINKS, MARKERS)
    assert speech.family is not None
    assert (speech.family.name, speech.tags) == ("hermes", Tags("<think>", "</think>"))
    assert speech.shown() == MARKERS.tokens
    assert speech_of(THINKS, MARKERS).thought_tags == speech.tags


def test_only_markers_that_are_tokens_are_shown() -> None:
    assert speech_of(HERMES + THINKS, Markers()).shown() == {}
    only = Markers({"</think>": 5})
    assert speech_of(HERMES + THINKS, only).shown() == {"</think>": 5}


@pytest.mark.parametrize("tags", KNOWN_TAGS, ids=str)
def test_tags_of_thoughts_are_known_from_the_template(tags: Tags) -> None:
    assert speech_of(f"{{# {tags.sign or tags.close} #}}", Markers()).thought_tags is not None


def test_thoughts_that_a_family_reads_have_its_tags() -> None:
    for family in FAMILIES:
        assert Speech(family).thought_tags == family.tags
        assert Speech(family, KNOWN_TAGS[0]).thought_tags == KNOWN_TAGS[0]
    assert Speech().thought_tags is None
