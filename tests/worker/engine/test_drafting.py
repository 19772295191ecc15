"""Drafts come from the text or a draft model, are verified only where that pays, and never change an answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.fakes.backend import FakeBackend, next_token
from tests.fakes.bench import Bench
from worker.engine.batch import Chunk, TokenArray
from worker.engine.cost import CostTable
from worker.engine.drafting import NO_RULES, Drafting, Rules
from worker.engine.ngram import SIZES, NgramIndex
from worker.engine.request import FinishReason, GenerationRequest, Pick, RequestId
from worker.engine.sequence import Sequence as TokenSequence
from worker.engine.speculation import MIN_GAIN, Acceptance, Candidate, draft_lengths

ONE = RequestId(1)


def array(tokens: Sequence[int]) -> TokenArray:
    return np.array(tokens, dtype=np.int32)


def costs(first_s: float, further_s: float) -> CostTable:
    """A pass of one row takes `first_s`, each further row `further_s` more."""
    table = CostTable()
    for rows in (1, 2, 4, 8, 16, 32, 64):
        table.observe(rows, first_s + (rows - 1) * further_s)
    return table


CHEAP_ROWS = costs(0.010, 0.001)
DEAR_ROWS = costs(0.010, 0.010)


# --- n-grams --------------------------------------------------------------------------------------------------


def drafted(tokens: Sequence[int], max_drafted: int = 4) -> list[int] | None:
    index = NgramIndex()
    index.extend(array(tokens))
    draft = index.draft(array(tokens), max_drafted)
    return None if draft is None else draft.tokens.tolist()


def test_draft_is_what_followed_the_same_words_before() -> None:
    assert drafted([1, 2, 3, 4, 5, 6, 7, 8, 1, 2, 3, 4]) == [5, 6, 7, 8]


def test_the_latest_occurrence_counts() -> None:
    assert drafted([1, 2, 3, 4, 5, 0, 1, 2, 3, 4, 6, 0, 1, 2, 3, 4], 1) == [6]


def test_longer_context_counts_more_than_a_later_place() -> None:
    assert drafted([1, 2, 3, 4, 5, 9, 3, 4, 7, 1, 2, 3, 4], 1) == [5]


def test_text_that_repeats_itself_is_drafted_round_and_round() -> None:
    assert drafted([7, 1, 2, 1, 2, 1, 2], 5) == [1, 2, 1, 2, 1]


def test_new_text_gives_no_draft() -> None:
    assert drafted([1, 2, 3, 4, 5]) is None
    assert drafted([1]) is None
    assert drafted([1, 2, 1, 2], 0) is None


@given(st.lists(st.integers(0, 3), min_size=1, max_size=60), st.lists(st.integers(1, 7), max_size=30))
def test_index_that_grew_piece_by_piece_is_the_one_made_at_once(tokens: list[int], pieces: list[int]) -> None:
    whole, grown = NgramIndex(), NgramIndex()
    whole.extend(array(tokens))
    end = 0
    for piece in pieces:
        end = min(end + piece, len(tokens))
        grown.extend(array(tokens[:end]))
    grown.extend(array(tokens))
    one, other = whole.draft(array(tokens), 5), grown.draft(array(tokens), 5)
    assert (one is None) == (other is None)
    if one is not None and other is not None:
        assert (one.tokens.tolist(), one.size) == (other.tokens.tolist(), other.size)
        # It is true: that context occurred before, with this token behind it.
        text, size = tokens, one.size
        following = [text[i + size] for i in range(len(text) - size) if text[i : i + size] == text[-size:]]
        assert one.tokens[0] == following[-1]


# --- how many ---------------------------------------------------------------------------------------------------


def lengths(candidates: Sequence[Candidate], table: CostTable, **limits: float) -> list[int]:
    values: dict[str, float] = {"num_rows": len(candidates), "max_drafted": 32, "max_seconds": 1.0} | limits
    return draft_lengths(candidates, table, **values)  # type: ignore[arg-type]


def test_sure_drafts_are_taken_and_unsure_ones_left() -> None:
    assert lengths([Candidate(0.95, 8)], CHEAP_ROWS) == [8]
    assert lengths([Candidate(0.02, 8)], CHEAP_ROWS) == [0]


def test_rows_that_cost_as_much_as_tokens_are_never_worth_a_draft() -> None:
    assert lengths([Candidate(0.99, 8)], DEAR_ROWS) == [0]


def test_nothing_is_drafted_before_a_pass_was_measured() -> None:
    assert lengths([Candidate(0.99, 8)], CostTable()) == [0]


def test_the_surer_sequence_gets_the_rows() -> None:
    first, second = lengths([Candidate(0.3, 8), Candidate(0.95, 8)], costs(0.010, 0.003))
    assert second > first


def test_limits_hold() -> None:
    assert sum(lengths([Candidate(0.99, 8)] * 4, CHEAP_ROWS, max_drafted=10)) == 10
    (short,) = lengths([Candidate(0.99, 30)], CHEAP_ROWS, max_seconds=0.015)
    assert 0 < short <= 5


@given(
    st.lists(st.tuples(st.floats(0, 1), st.integers(0, 8)), min_size=1, max_size=6),
    st.floats(0.001, 0.1),
    st.floats(0, 0.05),
)
def test_choice_is_expected_to_be_faster_than_none(
    pairs: list[tuple[float, int]], first_s: float, further_s: float
) -> None:
    candidates = [Candidate(*pair) for pair in pairs]
    table = costs(first_s, further_s)
    chosen = lengths(candidates, table)
    assert all(0 <= n <= c.max_drafted for n, c in zip(chosen, candidates, strict=True))
    if sum(chosen):
        gains = sum(c.rate ** (i + 1) for c, n in zip(candidates, chosen, strict=True) for i in range(n))
        plain, longer = table.estimate(len(pairs)), table.estimate(len(pairs) + sum(chosen))
        assert plain is not None
        assert longer is not None
        assert (len(pairs) + gains) / longer >= 0.999 * MIN_GAIN * len(pairs) / plain


def test_acceptance_follows_what_happens() -> None:
    acceptance = Acceptance()
    for _ in range(40):
        acceptance.observe(is_right=True)
    assert acceptance.rate > 0.9
    for _ in range(40):
        acceptance.observe(is_right=False)
    assert acceptance.rate < 0.1


# --- all sequences ------------------------------------------------------------------------------------------------


def sequence_of(tokens: Sequence[int], max_tokens: int = 50) -> TokenSequence:
    sequence = TokenSequence(ONE, GenerationRequest(tuple(tokens), max_tokens), 0.0)
    sequence.append(tokens[0], 1.0)
    return sequence


def chunk_with(drafts: TokenArray) -> Chunk:
    return Chunk(0, ONE, np.concatenate([array([0]), drafts]), 0, num_outputs=1 + len(drafts))


LOOP = [1, 2, 3, 4, 5, 6] * 4


def test_drafts_are_learnt_from_even_while_none_are_verified() -> None:
    drafting = Drafting(8, 32)
    sequence = sequence_of(LOOP)
    assert drafting.propose([(0, sequence)], DEAR_ROWS, max_seconds=1.0) == {}
    for token in (2, 3, 4, 5, 6, 1, 2, 3):
        drafting.propose([(0, sequence)], DEAR_ROWS, max_seconds=1.0)
        drafting.observe(chunk_with(array([])), [Pick(token)])
        sequence.append(token, 1.0)
    proposed = drafting.propose([(0, sequence)], CHEAP_ROWS, max_seconds=1.0)[ONE]
    assert proposed.tolist() == [4, 5, 6, 1, 2, 3, 4, 5]


def test_drafts_that_are_wrong_again_and_again_stop() -> None:
    drafting = Drafting(8, 32)
    sequence = sequence_of(LOOP)
    for _ in range(20):
        drafts = drafting.propose([(0, sequence)], CHEAP_ROWS, max_seconds=1.0).get(ONE, array([]))
        drafting.observe(chunk_with(drafts), [Pick(60)])
    assert drafting.propose([(0, sequence)], CHEAP_ROWS, max_seconds=1.0) == {}


def test_drafts_leave_room_for_the_token_after_them() -> None:
    drafting = Drafting(8, 32)
    sequence = sequence_of(LOOP, max_tokens=3)
    sequence.append(2, 1.0)
    drafting.propose([(0, sequence)], CHEAP_ROWS, max_seconds=1.0)
    assert drafting.propose([(0, sequence)], CHEAP_ROWS, max_seconds=1.0) == {}


def test_good_drafts_that_look_too_dear_are_tried_now_and_then() -> None:
    drafting = Drafting(8, 32)
    sequence = sequence_of(LOOP, max_tokens=500)
    tried = []
    for step in range(200):
        drafts = drafting.propose([(0, sequence)], DEAR_ROWS, max_seconds=1.0).get(ONE, array([]))
        tried.append(len(drafts))
        token = LOOP[(step + 1) % 6]
        drafting.observe(chunk_with(drafts), [Pick(token)])
        sequence.append(token, 1.0)
    assert 4 <= sum(map(bool, tried)) <= 6
    assert max(tried) <= 4


class OneTrick:
    """A draft model that always drafts the same."""

    seconds_per_draft = 0.0001

    def __init__(self) -> None:
        self.asked: list[int] = []

    def draft(self, wanted: Sequence[tuple[int, TokenSequence, int]]) -> Mapping[RequestId, TokenArray]:
        self.asked += [count for _, _, count in wanted]
        return {sequence.request_id: array([9] * count) for _, sequence, count in wanted}

    def set_threads(self, num_threads: int) -> None:
        raise AssertionError

    def close(self) -> None:
        raise AssertionError


def test_draft_model_is_asked_where_the_text_gives_no_draft() -> None:
    model = OneTrick()
    drafting = Drafting(4, 32, model)
    new, known = sequence_of([1, 2, 3, 4, 5, 7]), sequence_of(LOOP)
    known.request_id = RequestId(2)
    proposed = drafting.propose([(0, new), (1, known)], CHEAP_ROWS, max_seconds=1.0)
    assert set(proposed[ONE].tolist()) == {9}
    assert len(model.asked) == 1
    for _ in range(30):
        drafts = drafting.propose([(0, new)], CHEAP_ROWS, max_seconds=1.0).get(ONE, array([]))
        drafting.observe(chunk_with(drafts), [Pick(8)])
    num_asked = len(model.asked)
    drafting.propose([(0, new)], CHEAP_ROWS, max_seconds=1.0)
    assert len(model.asked) == num_asked, "a model that is always wrong is not asked any more"


# --- in the engine ------------------------------------------------------------------------------------------------


class Oracle(Drafting):
    """Knows what the fake model says, but not when it ends."""

    def propose(
        self,
        generating: Sequence[tuple[int, TokenSequence]],
        costs: CostTable,
        *,
        max_seconds: float,
        rules: Rules = NO_RULES,
    ) -> dict[RequestId, TokenArray]:
        drafts = {}
        for _, sequence in generating:
            tokens = sequence.tokens.tolist()
            for _ in range(5):
                tokens.append(next_token(tokens, 64))
            drafts[sequence.request_id] = array(tokens[sequence.num_tokens :])
        return drafts


def test_right_drafts_save_passes_and_change_nothing() -> None:
    prompt = [3, 5, 8, 13]
    plain, drafting = Bench(FakeBackend()), Bench(FakeBackend(), drafting=Oracle(5, 20))
    for bench in (plain, drafting):
        bench.submit(prompt, 24)
        bench.run()
    assert drafting.answers == plain.answers
    assert len(drafting.backend.passes) < len(plain.backend.passes) / 3
    counters = drafting.core.statistics.counters()
    assert counters.accepted_tokens >= 15
    assert counters.generated_tokens == 24


def test_answer_ends_where_it_must_although_drafts_go_on() -> None:
    bench = Bench(FakeBackend(num_vocab=5), drafting=Oracle(5, 20))
    request_id = bench.submit([3, 1, 4], 60)
    bench.run()
    assert bench.answers[request_id] == bench.expected([3, 1, 4], 60)
    assert bench.ends[request_id].finish is FinishReason.STOP


def test_drafts_never_push_anybody_out_of_the_cache() -> None:
    bench = Bench(FakeBackend(num_slots=2, context=32, num_cells=24), drafting=Oracle(5, 20))
    ids = [bench.submit([start, 2, 3], 8) for start in (1, 2)]
    bench.run()
    assert [bench.answers[i] for i in ids] == [bench.expected([start, 2, 3]) for start in (1, 2)]
    assert bench.core.scheduler.num_parked == 0


def test_memory_that_cannot_be_cut_gets_no_drafts() -> None:
    bench = Bench(FakeBackend(can_share=False), drafting=Oracle(5, 20))
    request_id = bench.submit([3, 5, 8], 12)
    bench.run()
    assert bench.answers[request_id] == bench.expected([3, 5, 8], 12)
    assert bench.core.statistics.counters().drafted_tokens == 0


def test_sizes_are_looked_up_longest_first() -> None:
    assert list(SIZES) == sorted(SIZES, reverse=True)


@pytest.mark.parametrize("max_each", [0])
def test_drafting_can_be_off(max_each: int) -> None:
    assert Drafting(max_each, 32).propose([(0, sequence_of(LOOP))], CHEAP_ROWS, max_seconds=1.0) == {}
