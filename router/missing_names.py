"""What to say of a name that stands for no model, or of none at all.

Owns these words. Must not know who may see which names: it is given those that may be told.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence

from router.errors import BadRequest, ModelNotFound

HOW_TO_ALIAS = "To answer under this name, add it to a model's `aliases`"
"""What the operator may do about a name that nobody has."""

_MAX_COMPARED = 200
"""Characters."""


def nearest_names(name: str, listed: Iterable[str], count: int = 3) -> list[str]:
    """Return up to `count` of the `listed` names that look like `name`, best first."""
    if len(name) > _MAX_COMPARED:  # no name is that long, and comparing takes time
        return []
    by_folded = {one.casefold(): one for one in listed}
    close = difflib.get_close_matches(name.casefold(), by_folded, n=count, cutoff=0.5)
    return [by_folded[folded] for folded in close]


def no_model_named(name: str, listed: Sequence[str], *, may_add: bool = True) -> ModelNotFound:
    """Return the refusal of a name that stands for nothing among what is `listed` for whoever asks.

    Who `may_add` names is told how.
    """
    nearest = nearest_names(name, listed)
    advice = f"did you mean {_listing(nearest)}?" if nearest else f"there is {_listing(listed)}."
    shown = name if len(name) <= 80 else name[:80] + "…"
    how = f" {HOW_TO_ALIAS}." if may_add else ""
    return ModelNotFound(
        f"there is no model named {shown!r}; {advice} GET /v1/models lists them all.{how}", param="model"
    )


def no_model_said(names: Sequence[str]) -> BadRequest:
    """Return the refusal of a request that must name one of `names`."""
    return BadRequest(
        f"`model` is missing: name one of {_listing(names)}; GET /v1/models lists them all", param="model"
    )


def _listing(names: Sequence[str], most: int = 8) -> str:
    """Return "`a`, `b` or `c`", cut off after `most`."""
    quoted = [f"`{name}`" for name in names[:most]]
    if len(names) > most:
        return ", ".join(quoted) + f" and {len(names) - most} more"
    return " or ".join([", ".join(quoted[:-1]), quoted[-1]] if len(quoted) > 1 else quoted or ["none"])
