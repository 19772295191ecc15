"""Which sequence owns which cells of the unified KV cache.

A mirror of llama.cpp's own bookkeeping in virtual cell numbers: the real cells lie elsewhere, but as many
of them are used, shared and free. Must not decide anything: the scheduler asks and orders.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

Cells = npt.NDArray[np.int32]

_NONE: Cells = np.empty(0, dtype=np.int32)


class _Cells:
    """The cells of one sequence in the order of its tokens; grows without copying each time."""

    def __init__(self, cells: Cells) -> None:
        self._array = cells
        self._length = len(cells)

    def __len__(self) -> int:
        return self._length

    def view(self) -> Cells:
        return self._array[: self._length]

    def extend(self, cells: Cells) -> None:
        end = self._length + len(cells)
        if end > len(self._array):
            grown = np.empty(max(2 * len(self._array), end, 64), dtype=np.int32)
            grown[: self._length] = self.view()
            self._array = grown
        self._array[self._length : end] = cells
        self._length = end

    def cut(self, length: int) -> Cells:
        dropped = self._array[length : self._length].copy()
        self._length = min(self._length, length)
        return dropped


class KvLedger:
    """Cells of one pool, with any number of owners each."""

    def __init__(self, num_cells: int) -> None:
        self.num_cells = num_cells
        self._owners = np.zeros(num_cells, dtype=np.int16)
        self._free = list(range(num_cells - 1, -1, -1))
        self._cells: dict[int, _Cells] = {}

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
        return len(self._cells.get(seq_id, ()))

    def owners(self) -> tuple[int, ...]:
        """Return the sequences that own cells."""
        return tuple(self._cells)

    def count(self, seq_ids: Iterable[int], *, also: tuple[int, int] | None = None) -> int:
        """Return how many distinct cells these sequences own together.

        `also` adds the first so many cells of one more sequence: (sequence id, number of tokens).
        """
        is_owned = np.zeros(self.num_cells, dtype=np.bool_)
        for seq_id in seq_ids:
            is_owned[self._view(seq_id)] = True
        if also is not None:
            is_owned[self._view(also[0])[: also[1]]] = True
        return int(np.count_nonzero(is_owned))

    def append(self, seq_id: int, num_tokens: int) -> None:
        """Give the sequence new cells of its own. The caller has made room."""
        assert num_tokens <= len(self._free), "append without room"
        cells = np.array(self._free[len(self._free) - num_tokens :], dtype=np.int32)
        del self._free[len(self._free) - num_tokens :]
        self._owners[cells] += 1
        self._cells.setdefault(seq_id, _Cells(_NONE)).extend(cells)

    def share(self, src: int, dst: int, num_tokens: int) -> None:
        """Make `dst`, empty before, an owner of the first `num_tokens` cells of `src`."""
        assert dst not in self._cells, "share into a sequence that owns cells"
        cells = self._view(src)[:num_tokens].copy()
        assert len(cells) == num_tokens, "share of more than there is"
        self._owners[cells] += 1
        self._cells[dst] = _Cells(cells)

    def trim(self, seq_id: int, num_tokens: int) -> None:
        """Keep the first `num_tokens` cells of the sequence; 0 clears it."""
        cells = self._cells.get(seq_id)
        if cells is None:
            return
        dropped = cells.cut(num_tokens)
        self._owners[dropped] -= 1
        self._free.extend(dropped[self._owners[dropped] == 0].tolist())
        if num_tokens == 0:
            del self._cells[seq_id]

    def check_integrity(self) -> None:
        """Assert that owners and free cells add up."""
        counts = np.zeros(self.num_cells, dtype=np.int64)
        for seq_id in self._cells:
            cells = self._view(seq_id)
            assert len(np.unique(cells)) == len(cells), "a sequence owns a cell twice"
            counts[cells] += 1
        assert np.array_equal(counts, self._owners), "owner counts are off"
        assert len(set(self._free)) == len(self._free), "a cell is free twice"
        assert int(np.count_nonzero(counts == 0)) == len(self._free), "free cells are off"

    def _view(self, seq_id: int) -> Cells:
        cells = self._cells.get(seq_id)
        return cells.view() if cells is not None else _NONE
