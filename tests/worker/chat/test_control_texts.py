"""Every occurrence is found, whatever the texts look like."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from worker.chat.control_texts import ControlTexts

SHORT = st.text(alphabet="<|>]^-\\ab", min_size=0, max_size=4)


@settings(deadline=None)
@given(texts=st.lists(SHORT, max_size=6), text=st.text(alphabet="<|>]^-\\ab", max_size=30))
def test_finds_are_those_of_a_naive_search(texts: list[str], text: str) -> None:
    naive = {
        (start, start + len(wanted))
        for wanted in texts
        if wanted
        for start in range(len(text))
        if text.startswith(wanted, start)
    }
    assert ControlTexts(texts).find(text) == sorted(naive)


def test_no_texts_find_nothing() -> None:
    assert ControlTexts([]).find("<|im_start|>") == []


def test_thousands_of_texts_are_no_slower_than_a_few() -> None:
    control = ControlTexts(f"<unused{index}>" for index in range(6000))
    assert control.find("<b><unused5999><unused6000>") == [(3, 15)]
