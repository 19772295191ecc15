"""The variables of one running template, with what it may still cost and who wrote what.

Owns the conversion of any value to text. Must not know filters or operators.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from jinja2 import Undefined
from jinja2.runtime import Context

from worker.chat.client_text import ClientText, Guard, is_client
from worker.chat.limits import Budget, Extent

_PLAIN = (type(None), bool, int, float, Undefined)
"""Values that show themselves when they are printed; other objects would show a memory address."""


class RenderContext(Context):
    """Jinja's context; `budget` and `guard` are set before it is used."""

    budget: Budget
    guard: Guard

    def derived(self, locals: dict[str, Any] | None = None) -> RenderContext:
        """Return a context of the same rendering with other local variables."""
        context = super().derived(locals)
        assert isinstance(context, RenderContext)
        context.budget, context.guard = self.budget, self.guard
        return context

    def text(self, value: Any) -> str:
        """Return what printing `value` shows. Raises: TypeError for what has no text of its own, such as a macro."""
        if isinstance(value, str):
            return value
        if isinstance(value, _PLAIN):
            return str(value)
        self.check_printable(value)
        return self.derive((value,), self.guard.unescape(str(value)))

    def check_printable(self, *values: Any) -> Extent:
        """Return the extent of values that are about to become text. Raises: TypeError, LimitExceeded."""
        extent = self.budget.walk(*values, leaves=_PLAIN)
        self.budget.check_text(extent.chars)
        return extent

    def derive(self, inputs: Sequence[Any], made: str) -> str:
        """Return text that was made from `inputs`: client text if any of them is."""
        if not is_client(inputs):
            return made
        if not self.guard.num_unbroken(made):
            return self.guard.own(made)
        return self.guard.claim(made, sum(map(self.guard.num_unbroken, _texts_in(inputs))))

    def part(self, whole: str, made: Any) -> Any:
        """Return `made`, which was cut out of `whole`: client text if that is."""
        if not isinstance(whole, ClientText):
            return made
        match made:
            case str():
                return self.guard.own(made)
            case list():
                return [self.part(whole, piece) for piece in made]
            case tuple():
                return tuple(self.part(whole, piece) for piece in made)
            case _:
                return made


def _texts_in(value: Any) -> list[str]:
    match value:
        case str():
            return [value]
        case Mapping():
            return [text for item in value.items() for text in _texts_in(item)]
        case list() | tuple():
            return [text for inner in value for text in _texts_in(inner)]
        case _:
            return []
