"""Which tags a template marks thoughts by, and whether a text has begun one."""

from __future__ import annotations

import pytest

from worker.chat.reasoning import Tags, find_tags


@pytest.mark.parametrize(
    ("source", "tags"),
    [
        ("{{ '<think>' + reasoning + '</think>' }}", ("<think>", "</think>")),
        ("[THINK]Your thoughts[/THINK]", ("[THINK]", "[/THINK]")),
        ("{%- set think_end_token = '</mm:think>' -%}", ("<mm:think>", "</mm:think>")),
        ("{%- set end = '</think{}>'.format(':opensource') %}", ("<think:opensource>", "</think:opensource>")),
        ("after the marker [BEGIN FINAL RESPONSE].", ("Here are my reasoning steps:", "[BEGIN FINAL RESPONSE]")),
        ("after 'Here is my response:' for each", ("Here is my thought process:", "Here is my response:")),
    ],
)
def test_a_template_tells_the_tags_of_thoughts(source: str, tags: tuple[str, str]) -> None:
    found = find_tags(source)
    assert found is not None
    assert (found.open, found.close) == tags


def test_a_template_without_tags_has_none() -> None:
    assert find_tags("Think before you answer, {{ message }}.") is None


def test_a_prompt_may_end_within_a_thought() -> None:
    tags = Tags("<think>", "</think>")
    assert tags.are_open("assistant\n<think>\n")
    assert not tags.are_open("assistant\n<think>\n\n</think>\n\n")


def test_a_text_that_is_gone_on_with_may_be_within_a_thought() -> None:
    tags = Tags("<think>", "</think>")
    assert tags.leaves_open("\n<think>First")
    assert not tags.leaves_open("<think>First</think>Then")
    assert not tags.leaves_open("Then")
