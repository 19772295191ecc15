"""What one rendering may cost, counted in work instead of seconds.

A count gives the same answer on every machine, where a clock would refuse a prompt here that it renders there.
Must not know Jinja.
"""

from __future__ import annotations

from collections.abc import ItemsView, Iterable, Iterator, KeysView, Mapping, Sized, ValuesView
from dataclasses import dataclass
from itertools import chain
from typing import Any

from worker.chat.errors import LimitExceeded

MAX_CHARS = 16 * 2**20
"""Of any text that a template makes, the prompt included: several times the largest context."""
MAX_ITEMS = 2**20
"""Of any list that a template makes."""
MAX_DEPTH = 100
"""Of nested lists and maps that are printed or compared."""
MAX_NUMBER_BITS = 4096
MAX_WIDTH = 10_000
"""Columns to which a text or number may be padded."""
MAX_WORK = 2**29
"""About one unit for a character that is copied or compared: some seconds on a slow core."""
STEP_WORK = 1000
"""Of one iteration, call or filter: it takes as long as copying so many characters."""
NODE_WORK = 200
"""Of one value in a list or map that is walked through."""


@dataclass(slots=True)
class Extent:
    """How large a nested value is."""

    chars: int = 0
    nodes: int = 0
    depth: int = 0


class Budget:
    """Counts what one rendering does. Every method raises LimitExceeded when it is too much."""

    def __init__(self, max_work: int = MAX_WORK) -> None:
        self._max_work = max_work
        self._work = 0
        self._printed = 0

    def spend(self, work: int = STEP_WORK) -> None:
        """Count `work`."""
        self._work += work
        if self._work > self._max_work:
            raise LimitExceeded(
                "The chat template does too much work on these messages; "
                "send fewer or shorter messages, or set another `chat_template` for this model."
            )

    def print(self, num_chars: int) -> None:
        """Count characters that the template prints, into the prompt or into a variable."""
        self._printed += num_chars
        if self._printed > 2 * MAX_CHARS:  # a prompt that is collected first and printed then counts twice
            raise LimitExceeded(f"The chat template prints more than {MAX_CHARS} characters.")
        self.spend(num_chars)

    def make_text(self, num_chars: int) -> None:
        """Count a text of this length that is about to be made."""
        self.check_text(num_chars)
        self.spend(num_chars)

    def check_text(self, num_chars: int) -> None:
        """Refuse a text of this length."""
        if num_chars > MAX_CHARS:
            raise LimitExceeded(f"The chat template makes a text of more than {MAX_CHARS} characters.")

    def make_items(self, num_items: int) -> None:
        """Count a list of this length that is about to be made."""
        if num_items > MAX_ITEMS:
            raise LimitExceeded(f"The chat template makes a list of more than {MAX_ITEMS} entries.")
        self.spend(num_items * NODE_WORK)

    def make_number(self, num_bits: int) -> None:
        """Count an integer of this length that is about to be made."""
        if num_bits > MAX_NUMBER_BITS:
            raise LimitExceeded(f"The chat template makes a number of more than {MAX_NUMBER_BITS} bits.")

    def pad(self, width: object) -> None:
        """Refuse a width beyond any use."""
        if isinstance(width, int) and width > MAX_WIDTH:
            raise LimitExceeded(f"The chat template pads to more than {MAX_WIDTH} characters.")

    def listed(self, values: Iterable[Any]) -> list[Any]:
        """Return `values` as a new list."""
        if isinstance(values, Sized):
            self.make_items(len(values))
            return list(values)
        made: list[Any] = []
        for value in values:
            made.append(value)
            self.spend(NODE_WORK)
        return made

    def walk(self, *values: Any, leaves: tuple[type, ...] = (object,)) -> Extent:
        """Return the extent of nested values, counted as one walk through them.

        The same list may be in others many times over; it counts each time, as printing or comparing it would.
        Raises: TypeError for a value that is neither text, list nor map, nor one of `leaves`.
        """
        extent = Extent()
        stack: list[Iterator[Any]] = [iter(values)]
        while stack:
            for value in stack[-1]:
                extent.nodes += 1
                self.spend(NODE_WORK)
                if isinstance(value, str):
                    extent.chars += len(value)
                    self.spend(len(value))
                elif isinstance(value, Mapping):
                    stack.append(chain.from_iterable(value.items()))
                    break
                elif isinstance(value, list | tuple | KeysView | ValuesView | ItemsView):
                    stack.append(iter(value))
                    break
                elif isinstance(value, range):
                    self.spend(NODE_WORK // 8 * len(value))
                elif not isinstance(value, leaves):
                    raise TypeError(f"a {type(value).__name__} cannot be printed")
            else:
                stack.pop()
            extent.depth = max(extent.depth, len(stack))
            if extent.depth > MAX_DEPTH:
                raise LimitExceeded(f"The chat template works on values that are nested more than {MAX_DEPTH} deep.")
        return extent
