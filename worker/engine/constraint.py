"""What may come next in one answer, as the engine asks it: a grammar, a budget of thoughts, or both.

Plain protocol; who keeps it is in `grammar.py` and `thought_budget.py`. Must not know text or requests.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

Allowed = npt.NDArray[np.bool_] | int | None
"""Which tokens may come: True for each that may, shape (num_vocab,); or exactly this one; None = any."""


class ConstraintFailed(ValueError):
    """The answer cannot go on under its constraint. The message says why, for the client."""


class Constraint(Protocol):
    """The constraint of one answer under way. Used by one thread at a time."""

    def allowed(self, drafts: Sequence[int]) -> list[Allowed]:
        """Return what may come next, and then behind each of `drafts` as long as those may come themselves.

        At least one; the state stays as it is. Raises: ConstraintFailed when it has become too costly to tell.
        """
        ...

    def accept(self, token: int) -> None:
        """The answer goes on with `token`, which is no end token. Raises: ConstraintFailed if it may not."""
        ...

    def rollback(self, num_tokens: int) -> None:
        """The last so many tokens are no part of the answer."""
        ...

    def forced(self, most: int) -> Sequence[int]:
        """Return the tokens that are likely next because little else may come, at most so many."""
        ...

    def num_allowed(self, tokens: Sequence[int]) -> int:
        """Return how many of `tokens` may come one after another."""
        ...

    @property
    def is_over(self) -> bool:
        """Whether nothing but the end may come."""
        ...


MakeConstraint = Callable[[], Constraint]
"""Makes the constraint of one answer: each has its own."""
