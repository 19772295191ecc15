"""The marker test and the check of cells are tested: each deliberate fault of a cache is noticed by both."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from unittest import mock

import numpy as np
import pytest

from tests.fakes.crowd import Crowd, Leak
from worker.engine import prefix_cache
from worker.engine.cell_check import WrongCells
from worker.engine.kv_store import KvStore
from worker.engine.prompt_files import PromptFolder
from worker.engine.prompt_format import Bytes, PromptFile
from worker.engine.sequence import Sequence

Patch = Callable[[], AbstractContextManager[object]]


@pytest.fixture(autouse=True)
def quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL)


@contextmanager
def a_match_one_too_long() -> Iterator[None]:
    right = prefix_cache.common_prefix

    def longer(a: prefix_cache.TokenArray, b: prefix_cache.TokenArray) -> int:
        found = right(a, b)
        return found + 1 if 8 <= found < min(len(a), len(b)) else found

    with ExitStack() as patches:
        for module in ("prefix_cache", "kv_store"):
            patches.enter_context(mock.patch(f"worker.engine.{module}.common_prefix", longer))
        yield


def salts_that_mean_nothing() -> AbstractContextManager[object]:
    return mock.patch.object(Sequence, "cache_key", property(lambda one: f"{one.request.adapters or ''}"))


def adapters_that_mean_nothing() -> AbstractContextManager[object]:
    return mock.patch.object(Sequence, "cache_key", property(lambda one: one.request.cache_salt))


@contextmanager
def a_file_with_the_bytes_of_another() -> Iterator[None]:
    right = PromptFolder.read

    def another(self: PromptFolder, file: PromptFile) -> Bytes | None:
        count = len(file.tokens)
        longer = [one for one in self.files if len(one.tokens) >= count]
        others = [one for one in longer if not np.array_equal(one.tokens[:count], file.tokens)]
        return right(self, others[0] if others else file)

    with mock.patch.object(PromptFolder, "read", another):
        yield


@contextmanager
def a_sequence_that_is_saved_under_the_tokens_of_another() -> Iterator[None]:
    right = KvStore._save

    def wrong(self: KvStore, seq_id: int, holder: prefix_cache.Holder) -> None:
        others = [one for one in self.ledger.owners() if one != seq_id and self.ledger.length(one) >= 8]
        right(self, others[0] if others else seq_id, holder)

    with mock.patch.object(KvStore, "_save", wrong):
        yield


PATCHES: tuple[Patch, ...] = (
    a_match_one_too_long,
    adapters_that_mean_nothing,
    a_file_with_the_bytes_of_another,
    a_sequence_that_is_saved_under_the_tokens_of_another,
)
BACKEND_FAULTS = ("share-wrong", "share-more", "trim-less", "restore-wrong")


def storm(folder: Path, *, fault: str = "", checks: bool) -> Crowd:
    crowd = Crowd(2, 100)
    for share in (0.5, 0.5, 1.0):
        crowd.storm(folder, share=share, fault=fault, checks=checks)
    return crowd


@pytest.mark.parametrize("fault", BACKEND_FAULTS)
def test_a_fault_of_the_cache_shows_in_the_answers(fault: str, tmp_path: Path) -> None:
    with pytest.raises(Leak):
        storm(tmp_path, fault=fault, checks=False)


@pytest.mark.parametrize("fault", BACKEND_FAULTS)
def test_a_fault_of_the_cache_is_noticed_before_anything_is_computed_from_it(fault: str, tmp_path: Path) -> None:
    with pytest.raises(WrongCells, match=r"sequence \d+ \((request \d+|a kept prefix)\)"):
        storm(tmp_path, fault=fault, checks=True)


@pytest.mark.parametrize("patch", [*PATCHES, salts_that_mean_nothing], ids=lambda patch: patch.__name__)
def test_a_fault_of_the_books_shows_in_the_answers(patch: Patch, tmp_path: Path) -> None:
    with patch(), pytest.raises(Leak):
        storm(tmp_path, checks=False)


@pytest.mark.parametrize(
    "patch",
    [a_match_one_too_long, a_sequence_that_is_saved_under_the_tokens_of_another, salts_that_mean_nothing],
    ids=lambda patch: patch.__name__,
)
def test_a_fault_of_the_books_is_noticed_before_anything_is_computed_from_it(patch: Patch, tmp_path: Path) -> None:
    expected = Leak if patch is salts_that_mean_nothing else WrongCells  # equal tokens are equal tokens to the cache
    with patch(), pytest.raises(expected):
        storm(tmp_path, checks=True)
