"""What is remembered of grammars that were refused, and that a machine's trouble is not blamed on a grammar."""

from __future__ import annotations

import pytest

from tests.fakes.small_vocabulary import SPECIAL, SmallVocabulary
from worker.engine.grammar import MAX_KEPT, GrammarRefused, Grammars, GrammarsUnavailable
from worker.engine.grammar_trial import Trials


class Judge(Trials):
    """Trials that refuse everything, or cannot be held; it counts them."""

    def __init__(self, trouble: OSError | None = None) -> None:
        super().__init__()
        self.num_asked = 0
        self._trouble = trouble

    def problem_of(self, *_: object, **__: object) -> str | None:
        self.num_asked += 1
        if self._trouble is not None:
            raise self._trouble
        return "it is not liked"


def test_a_grammar_is_refused_again_without_another_trial() -> None:
    judge = Judge()
    grammars = Grammars(SmallVocabulary(), SPECIAL, judge)
    for _ in range(3):
        with pytest.raises(GrammarRefused, match="it is not liked"):
            grammars.compile('start: "a"')
    assert judge.num_asked == 1


def test_only_so_many_refusals_are_remembered() -> None:
    judge = Judge()
    grammars = Grammars(SmallVocabulary(), SPECIAL, judge)
    for number in (*range(MAX_KEPT + 1), 0):
        with pytest.raises(GrammarRefused):
            grammars.compile(f'start: "a"{{{number}}}')
    assert judge.num_asked == MAX_KEPT + 2


def test_trouble_of_the_machine_is_no_refusal_and_not_remembered() -> None:
    judge = Judge(OSError(11, "too many processes"))
    grammars = Grammars(SmallVocabulary(), SPECIAL, judge)
    for _ in range(2):
        with pytest.raises(GrammarsUnavailable, match="too many processes"):
            grammars.compile('start: "a"')
    assert judge.num_asked == 2
