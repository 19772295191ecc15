"""Which sequence owns which cells of the unified KV cache.

A mirror of llama.cpp's own bookkeeping in virtual cell numbers: the real cells lie elsewhere, but as many
of them are used, shared and free. Must not decide anything: the scheduler asks and orders.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

_NONE = np.empty(0, dtype=np.int32)


class KvLedger:
    """Cells of one pool, with any number of owners each."""

    def __init__(self, num_cells: int) -> None:
        self.num_cells = num_cells
        self._owners = np.zeros(num_cells, dtype=np.int16)
        self._free = list(range(num_cells - 1, -1, -1))
        self._cells: dict[int, npt.NDArray[np.int32]] = {}

    @property
    def num_free(self) -> int:
        """Cells that nobody owns."""
        return len(self._free)

    @property
    def num_used(self) -> int:
        """Cells with at least one owner."""
        return self.num_cells - len(self._free)

    @property
    def num_shared(self) -> int:
        """Cells with two owners or more."""
        return int(np.count_nonzero(self._owners > 1))

    def length(self, seq_id: int) -> int:
        """Return how many tokens of the sequence are in the cache."""
        return len(self._cells.get(seq_id, _NONE))

    def owners(self) -> tuple[int, ...]:
        """Return the sequences that own cells."""
        return tuple(self._cells)

    def count(self, seq_ids: Iterable[int], *, also: tuple[int, int] | None = None) -> int:
        """Return how many distinct cells these sequences own together.

        `also` adds the first so many cells of one more sequence: (sequence id, number of tokens).
        """
        arrays = [self._cells[s] for s in seq_ids if s in self._cells]
        if also is not None:
            arrays.append(self._cells.get(also[0], _NONE)[: also[1]])
        is_owned = np.zeros(self.num_cells, dtype=np.bool_)
        for cells in arrays:
            is_owned[cells] = True
        return int(np.count_nonzero(is_owned))

    def append(self, seq_id: int, num_tokens: int) -> None:
        """Give the sequence new cells of its own. The caller has made room."""
        assert num_tokens <= len(self._free), "append without room"
        taken = self._free[len(self._free) - num_tokens :]
        del self._free[len(self._free) - num_tokens :]
        cells = np.array(taken, dtype=np.int32)
        self._owners[cells] += 1
        self._cells[seq_id] = np.concatenate((self._cells.get(seq_id, _NONE), cells))

    def share(self, src: int, dst: int, num_tokens: int) -> None:
        """Make `dst`, empty before, an owner of the first `num_tokens` cells of `src`."""
        assert dst not in self._cells, "share into a sequence that owns cells"
        cells = self._cells[src][:num_tokens]
        assert len(cells) == num_tokens, "share of more than there is"
        self._owners[cells] += 1
        self._cells[dst] = cells.copy()

    def trim(self, seq_id: int, num_tokens: int) -> None:
        """Keep the first `num_tokens` cells of the sequence; 0 clears it."""
        cells = self._cells.get(seq_id)
        if cells is None:
            return
        dropped = cells[num_tokens:]
        self._owners[dropped] -= 1
        self._free.extend(dropped[self._owners[dropped] == 0].tolist())
        if num_tokens:
            self._cells[seq_id] = cells[:num_tokens].copy()
        else:
            del self._cells[seq_id]

    def check_integrity(self) -> None:
        """Assert that owners and free cells add up."""
        counts = np.zeros(self.num_cells, dtype=np.int64)
        for cells in self._cells.values():
            assert len(np.unique(cells)) == len(cells), "a sequence owns a cell twice"
            counts[cells] += 1
        assert np.array_equal(counts, self._owners), "owner counts are off"
        assert len(set(self._free)) == len(self._free), "a cell is free twice"
        assert int(np.count_nonzero(counts == 0)) == len(self._free), "free cells are off"
