"""A thought has as many tokens as it may have, and then it is ended in a way that the rest of the answer allows."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.fakes.small_vocabulary import ByteVocabulary
from worker.engine.constraint import Allowed
from worker.engine.grammar import Grammars
from worker.engine.thought_budget import BudgetedThoughts, ThoughtBudget

PIECES = [b"a", b"b", b" ", b"\n", b"<t>", b"</t>", b"<", b"t>", b"</", b"<t>a", b"b</t>", b"</t>\n"]
OPEN, CLOSE, NEWLINE = 4, 5, 3
CLOSING = (NEWLINE, CLOSE, NEWLINE)


def budget_of(num_tokens: int, *, starts_inside: bool = False) -> ThoughtBudget:
    return ThoughtBudget(num_tokens, b"<t>", b"</t>", CLOSING, starts_inside)


def thoughts_of(num_tokens: int, *, starts_inside: bool = False) -> BudgetedThoughts:
    return BudgetedThoughts(budget_of(num_tokens, starts_inside=starts_inside), PIECES.__getitem__)


def written(thoughts: BudgetedThoughts, wanted: Sequence[int]) -> list[int]:
    """Return what is written when the model wants these tokens, as long as it may choose."""
    answer: list[int] = []
    rest = list(wanted)
    while rest:
        (allowed,) = thoughts.allowed(())
        token = allowed if isinstance(allowed, int) else rest.pop(0)
        thoughts.accept(token)
        answer.append(token)
    return answer


@pytest.mark.parametrize("num_tokens", [0, 1, 2, 5])
def test_a_thought_that_the_prompt_has_begun_has_exactly_so_many_tokens(num_tokens: int) -> None:
    answer = written(thoughts_of(num_tokens, starts_inside=True), [0] * 9)
    assert answer == [0] * num_tokens + list(CLOSING) + [0] * (9 - num_tokens)


@pytest.mark.parametrize("num_tokens", [0, 1, 2, 5])
@pytest.mark.parametrize("opening", [[OPEN], [NEWLINE, 2, OPEN], [6, 7]])
def test_a_thought_that_the_model_begins_has_exactly_so_many_tokens(num_tokens: int, opening: list[int]) -> None:
    answer = written(thoughts_of(num_tokens), [*opening, *[1] * 9])
    assert answer == [*opening, *[1] * num_tokens, *CLOSING, *[1] * (9 - num_tokens)]


@pytest.mark.parametrize("closing", [[CLOSE], [8, 7], [10], [11]])
def test_a_thought_that_ends_in_time_is_left_alone_and_so_is_what_follows(closing: list[int]) -> None:
    wanted = [OPEN, 0, 0, *closing, *[1] * 9, OPEN, *[1] * 9]
    assert written(thoughts_of(4), wanted) == wanted


def test_an_answer_without_a_thought_is_left_alone() -> None:
    wanted = [2, 0, OPEN, *[1] * 9]
    assert written(thoughts_of(1), wanted) == wanted


def test_the_tokens_that_end_a_thought_are_drafted() -> None:
    thoughts = thoughts_of(1, starts_inside=True)
    assert thoughts.forced(5) == ()
    thoughts.accept(0)
    assert (thoughts.forced(5), thoughts.forced(2)) == (CLOSING, CLOSING[:2])
    thoughts.accept(NEWLINE)
    assert thoughts.forced(5) == CLOSING[1:]


@given(
    num_tokens=st.integers(0, 4),
    starts_inside=st.booleans(),
    drafts=st.lists(st.sampled_from(range(len(PIECES))), max_size=9),
    num_taken=st.integers(0, 9),
)
def test_what_is_told_behind_drafts_is_what_is_told_when_they_have_come(
    num_tokens: int, starts_inside: bool, drafts: list[int], num_taken: int
) -> None:
    thoughts = thoughts_of(num_tokens, starts_inside=starts_inside)
    ahead = thoughts.allowed(drafts)
    assert thoughts.num_allowed(drafts) == len(ahead) - 1
    for place, allowed in enumerate(ahead):
        assert thoughts.allowed(()) == [allowed]
        if place < len(ahead) - 1:
            assert allowed in (None, drafts[place])
            thoughts.accept(drafts[place])
    if len(ahead) > 1:
        thoughts.rollback(len(ahead) - 1)
    assert thoughts.allowed(drafts) == ahead


# --- together with a grammar ------------------------------------------------------------------------------

GRAMMARS = Grammars(ByteVocabulary(), ByteVocabulary.control_tokens)
WITH_THOUGHT = GRAMMARS.compile('start: t "{" /[0-9]+/ "}"\nt[lazy]: TEXT "</t>"\nTEXT: /(.|\\n)*/')


def test_the_closing_text_waits_until_the_grammar_lets_it_come() -> None:
    budget = ThoughtBudget(2, b"<t>", b"</t>", tuple(b"</t>"), starts_inside=True)
    thoughts = BudgetedThoughts(budget, lambda token: bytes([token]), WITH_THOUGHT.start())
    wanted, answer = list("aé".encode()), bytearray()
    while not answer.endswith(b"</t>"):
        (allowed,) = thoughts.allowed(())
        token = allowed if isinstance(allowed, int) else wanted.pop(0)
        thoughts.accept(token)
        answer.append(token)
    assert answer.decode() == "aé</t>", "half a letter is finished first"
    assert behind(thoughts.allowed(())) == [ord("{")]


def test_a_grammar_without_thoughts_is_followed_whatever_the_budget() -> None:
    budget = ThoughtBudget(0, b"<t>", b"</t>", tuple(b"</t>"), starts_inside=True)
    thoughts = BudgetedThoughts(
        budget, lambda token: bytes([token]), GRAMMARS.compile('start: "{" /[0-9]/ "}"').start()
    )
    for byte in b"{7}":
        assert byte in behind(thoughts.allowed(()))
        thoughts.accept(byte)
    assert thoughts.is_over


def behind(allowed: list[Allowed]) -> list[int]:
    (mask,) = allowed
    assert isinstance(mask, np.ndarray)
    return np.flatnonzero(mask).tolist()
