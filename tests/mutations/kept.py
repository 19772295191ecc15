"""The kept list of deliberate faults: reads `mutations.toml` and applies one of them to a text."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path

KEPT = Path(__file__).with_name("mutations.toml")
ROOT = Path(__file__).resolve().parents[2]


class DoesNotApply(ValueError):
    """The source has changed, so that the fault has no place in it any more."""


@dataclass(frozen=True, slots=True)
class Mutation:
    """One deliberate fault."""

    name: str
    file: str
    """From the repository's root."""
    old: str
    new: str
    why: str
    """What would go wrong."""
    by_histories: bool = False
    """The random histories have to notice it without any help of examples."""

    @property
    def is_of_cells(self) -> bool:
        """Whether it is a fault of the worker's, which the marker test has to notice."""
        return self.file.startswith("worker/")

    def applied_to(self, text: str) -> str:
        """Return `text` with the fault. Raises: DoesNotApply."""
        found = text.count(self.old)
        if found != 1:
            raise DoesNotApply(f"{self.name}: its `old` is in {self.file} {found} times, and should be there once")
        return text.replace(self.old, self.new)


def kept_mutations() -> list[Mutation]:
    """Return all of them in the order of the file. Raises: TypeError for a key that is missing or unknown."""
    return [Mutation(**entry) for entry in tomllib.loads(KEPT.read_text(encoding="utf-8"))["mutation"]]
