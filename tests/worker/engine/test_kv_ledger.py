"""The books of KV cells: who owns what, what is shared, what is free. Compared with plain sets."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from worker.engine.kv_ledger import KvLedger

NUM_CELLS = 24
SEQ_IDS = st.integers(0, 4)


def test_empty_ledger_has_all_cells_free() -> None:
    ledger = KvLedger(8)
    assert (ledger.num_free, ledger.num_used, ledger.num_shared, ledger.length(0), ledger.owners()) == (8, 0, 0, 0, ())


def test_shared_cells_count_once_until_their_owners_part() -> None:
    ledger = KvLedger(10)
    ledger.append(0, 4)
    ledger.share(0, 1, 3)
    ledger.append(1, 2)
    assert (ledger.length(0), ledger.length(1)) == (4, 5)
    assert (ledger.num_used, ledger.num_shared, ledger.num_free) == (6, 3, 4)
    assert ledger.count([0, 1]) == 6
    assert ledger.count([0], also=(1, 3)) == 4
    assert ledger.count([0], also=(1, 4)) == 5
    ledger.trim(0, 0)
    assert (ledger.num_used, ledger.num_shared, ledger.owners()) == (5, 0, (1,))
    ledger.check_integrity()


def test_a_cell_is_free_only_when_its_last_owner_has_left() -> None:
    ledger = KvLedger(4)
    ledger.append(0, 4)
    ledger.share(0, 1, 4)
    ledger.trim(0, 1)
    assert ledger.num_free == 0
    ledger.trim(1, 2)
    assert ledger.num_free == 2
    ledger.append(0, 2)
    assert (ledger.length(0), ledger.num_free) == (3, 0)
    ledger.check_integrity()


def test_sequences_that_own_nothing_may_be_asked_and_trimmed() -> None:
    ledger = KvLedger(4)
    ledger.trim(3, 0)
    ledger.trim(3, 5)
    assert (ledger.length(3), ledger.count([3]), ledger.count([], also=(3, 2))) == (0, 0, 0)


@pytest.mark.parametrize(
    ("act", "words"),
    [
        (lambda ledger: ledger.append(1, 3), "without room"),
        (lambda ledger: ledger.share(0, 0, 1), "owns cells"),
        (lambda ledger: ledger.share(0, 1, 3), "more than there is"),
    ],
)
def test_what_the_cache_could_not_do_is_refused(act: object, words: str) -> None:
    ledger = KvLedger(4)
    ledger.append(0, 2)
    with pytest.raises(AssertionError, match=words):
        act(ledger)  # type: ignore[operator]


class LedgerMachine(RuleBasedStateMachine):
    """The ledger beside a model of it: each sequence is a list of numbered cells."""

    def __init__(self) -> None:
        super().__init__()
        self.ledger = KvLedger(NUM_CELLS)
        self.cells: dict[int, list[int]] = {}
        self.numbers = itertools.count()

    def used(self) -> set[int]:
        return {cell for cells in self.cells.values() for cell in cells}

    @rule(seq_id=SEQ_IDS, count=st.integers(1, 8))
    def append(self, seq_id: int, count: int) -> None:
        if count <= NUM_CELLS - len(self.used()):
            self.ledger.append(seq_id, count)
            self.cells.setdefault(seq_id, []).extend(itertools.islice(self.numbers, count))

    @precondition(lambda self: self.cells)
    @rule(data=st.data(), dst=SEQ_IDS)
    def share(self, data: st.DataObject, dst: int) -> None:
        src = data.draw(st.sampled_from(sorted(self.cells)))
        if dst not in self.cells:
            count = data.draw(st.integers(1, len(self.cells[src])))
            self.ledger.share(src, dst, count)
            self.cells[dst] = self.cells[src][:count]

    @rule(seq_id=SEQ_IDS, count=st.integers(0, 10))
    def trim(self, seq_id: int, count: int) -> None:
        self.ledger.trim(seq_id, count)
        kept = self.cells.pop(seq_id, [])[:count]
        if kept:
            self.cells[seq_id] = kept

    @invariant()
    def books_agree(self) -> None:
        owners = [cell for cells in self.cells.values() for cell in cells]
        assert self.ledger.num_used == len(set(owners))
        assert self.ledger.num_free == NUM_CELLS - len(set(owners))
        assert self.ledger.num_shared == sum(owners.count(cell) > 1 for cell in set(owners))
        assert set(self.ledger.owners()) == set(self.cells)
        for seq_id, cells in self.cells.items():
            assert self.ledger.length(seq_id) == len(cells)
        some = sorted(self.cells)[:2]
        assert self.ledger.count(some) == len({cell for seq_id in some for cell in self.cells[seq_id]})
        self.ledger.check_integrity()


def test_ledger_agrees_with_plain_lists_of_cells() -> None:
    run_state_machine_as_test(LedgerMachine, settings=settings(max_examples=80, stateful_step_count=30, deadline=None))
