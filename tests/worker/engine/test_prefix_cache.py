"""The longest common beginning is found, only within one salt, and what it makes superfluous is told."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from worker.engine.batch import TokenArray
from worker.engine.prefix_cache import Holder, PrefixCache, common_prefix

TOKENS = st.lists(st.integers(0, 2), max_size=12)


def array(*tokens: int) -> TokenArray:
    return np.array(tokens, dtype=np.int32)


def cache_of(*holders: Holder) -> PrefixCache:
    cache = PrefixCache()
    for holder in holders:
        cache.add(holder)
    return cache


def held(
    *tokens: int, salt: str = "", used_s: float = 0.0, seq_id: int | None = 9, blob_id: int | None = None
) -> Holder:
    return Holder(array(*tokens), salt, used_s, seq_id, blob_id)


@given(a=TOKENS, b=TOKENS)
def test_common_prefix_is_the_number_of_equal_leading_tokens(a: list[int], b: list[int]) -> None:
    expected = next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
    assert common_prefix(array(*a), array(*b)) == expected
    assert common_prefix(array(*b), array(*a)) == expected


def test_holder_that_shares_most_is_found() -> None:
    short, long, other = held(1, 2), held(1, 2, 3, 4), held(2, 2, 3, 4, 5)
    assert cache_of(short, long, other).match(array(1, 2, 3, 9), "", resident=True) == (long, 3)


def test_of_equal_holders_the_latest_used_is_found() -> None:
    old, new = held(1, 2, 3, used_s=1.0), held(1, 2, 4, used_s=2.0)
    for cache in (cache_of(old, new), cache_of(new, old)):
        assert cache.match(array(1, 2, 9), "", resident=True) == (new, 2)


def test_nothing_in_common_is_no_match() -> None:
    cache = cache_of(held(1, 2, 3))
    assert cache.match(array(2, 1), "", resident=True) is None
    assert cache.match(array(), "", resident=True) is None
    assert PrefixCache().match(array(1), "", resident=True) is None


def test_another_salt_sees_nothing() -> None:
    cache = cache_of(held(1, 2, 3, salt="a"))
    for salt in ("", "b"):
        assert cache.match(array(1, 2, 3), salt, resident=True) is None
        assert cache.covering(array(1, 2), salt, resident=True) is None
        assert cache.covered_by(array(1, 2, 3, 4), salt) == []
    assert cache.match(array(1, 2, 3), "a", resident=True) is not None


def test_cells_and_host_memory_are_searched_apart() -> None:
    resident, host = held(1, 2), held(1, 2, 3, seq_id=None, blob_id=5)
    cache = cache_of(resident, host)
    assert cache.match(array(1, 2, 3), "", resident=True) == (resident, 2)
    assert cache.match(array(1, 2, 3), "", resident=False) == (host, 3)
    assert cache.oldest(resident=False) is host
    assert cache.resident(9) is resident
    assert cache.resident(5) is None


def test_holder_that_begins_with_all_tokens_covers_them() -> None:
    holder = held(1, 2, 3)
    cache = cache_of(holder)
    assert cache.covering(array(1, 2), "", resident=True) is holder
    assert cache.covering(array(1, 2, 3), "", resident=True) is holder
    assert cache.covering(array(1, 2, 3, 4), "", resident=True) is None
    assert cache.covering(array(1, 3), "", resident=True) is None


def test_holders_within_longer_tokens_are_superfluous() -> None:
    within, same, beyond, beside = held(1, 2), held(1, 2, 3), held(1, 2, 3, 4), held(1, 9)
    assert cache_of(within, same, beyond, beside).covered_by(array(1, 2, 3), "") == [within, same]


def test_holder_used_longest_ago_is_the_oldest() -> None:
    old, new = held(1, used_s=1.0), held(2, used_s=2.0)
    cache = cache_of(new, old)
    assert cache.oldest(resident=True) is old
    cache.remove(old)
    assert cache.oldest(resident=True) is new
    cache.remove(new)
    assert cache.oldest(resident=True) is None
    assert list(cache) == []


def test_of_two_equal_holders_the_one_that_is_meant_is_removed() -> None:
    first, second = held(1, 2, seq_id=5), held(1, 2, seq_id=6)
    cache = cache_of(first, second)
    cache.remove(second)
    assert list(cache) == [first]
    with pytest.raises(ValueError, match="not in list"):
        cache.remove(second)


@given(
    held_tokens=st.lists(st.tuples(TOKENS, st.sampled_from(["", "x"])), max_size=6),
    prompt=TOKENS,
    salt=st.sampled_from(["", "x"]),
)
def test_match_is_the_best_there_is(held_tokens: list[tuple[list[int], str]], prompt: list[int], salt: str) -> None:
    holders = [held(*tokens, salt=one, used_s=float(i)) for i, (tokens, one) in enumerate(held_tokens)]
    found = cache_of(*holders).match(array(*prompt), salt, resident=True)
    lengths = [common_prefix(one.tokens, array(*prompt)) for one in holders if one.salt == salt]
    if max(lengths, default=0) == 0:
        assert found is None
    else:
        assert found is not None
        assert found[1] == max(lengths)
        assert found[0].tokens[: found[1]].tolist() == prompt[: found[1]]


def test_a_blob_on_the_disk_takes_no_room_and_makes_no_copy_in_memory_superfluous() -> None:
    stored = Holder(array(1, 2, 3), "", 0.0, blob_id=1, is_stored=True)
    cache = cache_of(stored)
    assert cache.oldest(resident=False) is None
    assert cache.covering(array(1, 2), "", resident=False) is None
    assert cache.match(array(1, 2, 3, 4), "", resident=False) == (stored, 3)
    in_memory = held(1, 2, 3, used_s=-1.0, seq_id=None, blob_id=2)
    cache.add(in_memory)
    assert cache.match(array(1, 2, 3, 4), "", resident=False) == (in_memory, 3), "it need not be read"


def test_worth_keeping_is_what_no_longer_prefix_begins_with_the_latest_used_first() -> None:
    old, new = held(1, 2, 3, used_s=1.0, seq_id=1), held(4, 5, used_s=2.0, seq_id=2)
    beginning, tenant = held(1, 2, used_s=3.0, seq_id=3), held(1, 2, salt="a", used_s=0.0, seq_id=4)
    assert list(cache_of(old, new, beginning, tenant).worth_keeping()) == [new, old, tenant]


def test_of_equal_prefixes_the_one_in_host_memory_is_kept_because_it_needs_no_copy() -> None:
    cells, blob = held(1, 2, used_s=2.0), held(1, 2, used_s=1.0, seq_id=None, blob_id=1)
    assert list(cache_of(cells, blob).worth_keeping()) == [blob]
