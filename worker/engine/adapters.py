"""Whose adapters the next passes use. A context has one set of LoRA adapters, so that a pass serves one set alone.

Sequences with equal adapters form a group, and groups take turns. A change makes llama.cpp plan its graphs and
buffers anew, so a turn lasts some passes; answers of the other groups stand still meanwhile, so it lasts no longer
than a reader would notice. Equal turns give every answer the same pace, however many share its group.

Pure. Must not know slots, chunks or llama.cpp.
"""

from __future__ import annotations

from worker.engine.request import AdapterSet
from worker.engine.sequence import Sequence

MAX_STEPS = 8
"""Passes of one turn while another group waits: a change then costs little of what they take together."""

MAX_TURN_S = 0.25
"""A turn ends with the pass that reaches this, for models whose passes are slow."""


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
        if self._line[0] != self.current:  # the group whose turn it was has ended, or this is the first one
            self._begin(now_s)
        elif len(self._line) > 1 and (self._num_steps >= MAX_STEPS or now_s - self._started_s >= MAX_TURN_S):
            self._line.append(self._line.pop(0))
            self._begin(now_s)
        self._num_steps += 1
        if len(self._line) == 1:
            return running
        return [sequence for sequence in running if sequence.request.adapters == self.current]

    def _begin(self, now_s: float) -> None:
        self.current = self._line[0]
        self._num_steps = 0
        self._started_s = now_s
