"""What is wrong with a catalogue, and where.

Plain data and its words. Must not know what a catalogue is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from router.errors import RouterError


@dataclass(frozen=True, slots=True)
class Problem:
    """Something that is wrong with a catalogue, and where."""

    where: str
    """Path of keys such as `models.smollm2.slots`; "" = the file as a whole."""
    message: str
    line: int | None = None
    """From 1; None when it is about a file and no place in it."""
    column: int | None = None

    def describe(self, path: Path | None = None) -> str:
        """Return one line such as `models.yaml:3:5: models.smollm2.slots: …`, as compilers write it."""
        place = "" if path is None else str(path)
        if self.line is not None:
            place += f":{self.line}:{self.column or 1}" if place else f"line {self.line}, column {self.column or 1}"
        return ": ".join(part for part in (place, self.where, self.message) if part)

    def to_json(self) -> dict[str, Any]:
        """Return it as routes show it."""
        return {"where": self.where, "message": self.message, "line": self.line, "column": self.column}


class CatalogError(RouterError):
    """The catalogue cannot be used; carries every problem, at least one, not only the first."""

    code = "invalid_catalog"

    def __init__(self, problems: Sequence[Problem], path: Path | None = None) -> None:
        self.problems = tuple(problems)
        self.path = path
        super().__init__("\n".join(problem.describe(path) for problem in problems))

    @property
    def summary(self) -> str:
        """One line for a log: the first problem, and how many more there are."""
        first = self.problems[0].describe(self.path)
        return first if len(self.problems) == 1 else f"{first} (and {len(self.problems) - 1} more)"
