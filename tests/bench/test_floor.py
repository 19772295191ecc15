"""The floor counts each distinct token once, and what answers have computed not at all."""

from __future__ import annotations

from itertools import takewhile

from hypothesis import given
from hypothesis import strategies as st

from bench.floor import Floor, distinct_tokens

prompts = st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=8), min_size=1, max_size=8)


def test_a_common_beginning_is_counted_once() -> None:
    assert distinct_tokens([[1, 2, 3, 10], [1, 2, 3, 20], [1, 2, 4]]) == 4 + 1 + 1


def test_equal_tokens_after_different_ones_are_not_the_same() -> None:
    assert distinct_tokens([[1, 7, 8], [2, 7, 8]]) == 6


def test_a_prompt_that_is_wholly_known_costs_its_last_token() -> None:
    assert distinct_tokens([[1, 2, 3], [1, 2, 3], [1, 2]]) == 3 + 1 + 1


def test_what_was_generated_is_not_counted_in_the_next_turn_but_for_its_last_token() -> None:
    floor = Floor()
    assert floor.add_prompt([1, 2, 3]) == 3
    floor.add_answer([1, 2, 3], [4, 5, 6])
    assert floor.add_prompt([1, 2, 3, 4, 5, 6, 9]) == 2
    assert floor.num_tokens == 5


def test_a_branch_shares_what_stands_before_it() -> None:
    floor = Floor()
    floor.add_prompt([1, 2, 3, 4, 5, 6])
    assert floor.add_prompt([1, 2, 3, 8, 9]) == 2


@given(prompts)
def test_the_floor_is_what_longest_common_prefixes_leave(tokens: list[list[int]]) -> None:
    expected = 0
    for index, prompt in enumerate(tokens):
        known = max((common(prompt, other) for other in tokens[:index]), default=0)
        expected += max(1, len(prompt) - known)
    assert distinct_tokens(tokens) == expected


def common(a: list[int], b: list[int]) -> int:
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(a, b, strict=False)))
