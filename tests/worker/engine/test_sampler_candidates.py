"""Short cuts of the candidates find what sorting the whole row would find."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from worker.engine.sampling_candidates import MAX_LISTED, Candidates

Row = npt.NDArray[np.float32]

SIZES = [1, 7, 128 * 128 - 1, 128 * 128, 128 * 128 + 1, 40_000]
"""Groups of tokens are used from 128 x 128 on, and the last tokens may be in none."""


def some_row(num_vocab: int, seed: int, levels: int) -> Row:
    """Return logits with many equal ones (`levels` per unit), and some that are banned."""
    numbers = np.random.RandomState(seed)
    row = np.round(numbers.normal(0.0, 3.0, num_vocab) * levels) / levels
    row[numbers.random_sample(num_vocab) < 0.1] = -np.inf
    row[numbers.randint(num_vocab)] = 20.0
    return row.astype(np.float32)


def best_first(row: Row) -> npt.NDArray[np.int64]:
    order = np.lexsort((np.arange(len(row)), -row))
    return order[row[order] > -np.inf]


def made_of(row: Row) -> Candidates:
    candidates = Candidates(row.copy())
    assert candidates.whole() is not None
    return candidates


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(SIZES), st.integers(0, 50), st.sampled_from([1, 4, 1000]), st.data())
def test_cuts_find_what_sorting_finds(num_vocab: int, seed: int, levels: int, data: st.DataObject) -> None:
    row = some_row(num_vocab, seed, levels)
    order = best_first(row)
    count = data.draw(st.integers(1, num_vocab) | st.integers(1, 300))
    assert made_of(row).ids_of_largest(count).tolist() == order[:count].tolist()
    threshold = data.draw(st.floats(-12.0, 21.0) | st.just(-math.inf) | st.sampled_from(row[order].tolist()))
    assert made_of(row).ids_above(threshold).tolist() == np.flatnonzero((row >= threshold) & (row > -np.inf)).tolist()


@settings(max_examples=40, deadline=None)
@given(st.sampled_from(SIZES), st.integers(0, 50), st.integers(1, 6000))
def test_what_is_kept_is_listed_best_first_or_left_in_the_row(num_vocab: int, seed: int, count: int) -> None:
    row = some_row(num_vocab, seed, 2)
    order = best_first(row)[:count]
    candidates = made_of(row)
    candidates.keep_largest(count)
    left = candidates.whole()
    if left is None:
        assert candidates.ids.tolist() == order.tolist() or count >= num_vocab
        assert candidates.logits.tolist() == row[candidates.ids].tolist()
        assert len(candidates.ids) <= MAX_LISTED
    else:
        assert set(np.flatnonzero(left > -np.inf).tolist()) == set(order.tolist())
    assert candidates.size == min(count, num_vocab)
    assert candidates.top == 20.0


@pytest.mark.parametrize("num_vocab", [5, 300, 5000, 20_011])
def test_a_number_picks_the_token_on_whose_part_of_the_line_it_lies(num_vocab: int) -> None:
    row = some_row(num_vocab, 3, 100)
    weights = np.exp(row.astype(np.float64) - 20.0)
    ends = np.cumsum(weights) / weights.sum()
    for number in np.random.RandomState(1).random_sample(300):
        token = made_of(row).pick(float(number))
        before = ends[token - 1] if token else 0.0
        assert weights[token] > 0.0
        assert before - 1e-6 <= number <= ends[token] + 1e-6


@pytest.mark.parametrize("num_vocab", [300, 20_011])
@pytest.mark.parametrize("number", [0.0, 1.0 - 2.0**-53])
def test_the_ends_of_the_line_belong_to_tokens_that_are_possible(num_vocab: int, number: float) -> None:
    row = np.full(num_vocab, -np.inf, dtype=np.float32)
    row[[100, 200]] = 1.0
    assert made_of(row).pick(number) == (100 if number == 0.0 else 200)


def test_numbers_without_sense_leave_one_token() -> None:
    for value, best in ((np.nan, 1), (np.inf, 0), (-np.inf, 1)):
        row = np.array([value, 3.0, 2.0], dtype=np.float32)
        candidates = Candidates(row)
        candidates.whole()
        assert (candidates.top, candidates.ids.tolist()) == ((3.0, []) if value == -np.inf else (0.0, [best]))
