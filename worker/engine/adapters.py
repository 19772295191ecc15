"""Whose adapters the next passes use. A context has one set of LoRA adapters, so that a pass serves one set alone.

Sequences with equal adapters form a group, and groups take turns. After a change llama.cpp plans its graph and buffers
anew, which takes about as long as a pass over one row; so a turn lasts some passes. Meanwhile the answers of the other
groups stand still; so it lasts no longer than readers bear.

Pure. Must not know slots, chunks or llama.cpp.
"""

from __future__ import annotations

from worker.engine.request import AdapterSet
from worker.engine.sequence import Sequence

MIN_STEPS = 4
MIN_TURN_S = 0.2
"""A turn has so many passes and so much time while others wait: changes then take less than a tenth of it."""

MAX_TURN_S = 0.5
"""But it ends with the pass that reaches this, where passes are slow. Changes cost less than these do."""


class AdapterTurns:
    """The line of groups; the one whose turn it is stands first."""

    def __init__(self) -> None:
        self.current: AdapterSet = ()
        """Adapters of the pass that was chosen last."""
        self._line: list[AdapterSet] = []
        self._num_steps = 0
        self._started_s = 0.0

    def choose(self, running: list[Sequence], now_s: float) -> list[Sequence]:
        """Return those of the running sequences whose turn it is: all, if their adapters are equal.

        Mutates: the line. A group that has just come waits for one turn of each other group at most.
        """
        groups = dict.fromkeys(sequence.request.adapters for sequence in running)
        self._line = [one for one in self._line if one in groups]
        self._line += [one for one in groups if one not in self._line]
        if not self._line:
            return running
        if self._line[0] != self.current:  # the group whose turn it was has ended
            self._begin(now_s)
        elif len(self._line) > 1 and self._is_over(now_s):
            self._line.append(self._line.pop(0))
            self._begin(now_s)
        self._num_steps += 1
        if len(self._line) == 1:
            return running
        return [sequence for sequence in running if sequence.request.adapters == self.current]

    def _is_over(self, now_s: float) -> bool:
        lasted_s = now_s - self._started_s
        return lasted_s >= MAX_TURN_S or (lasted_s >= MIN_TURN_S and self._num_steps >= MIN_STEPS)

    def _begin(self, now_s: float) -> None:
        self.current = self._line[0]
        self._num_steps = 0
        self._started_s = now_s
