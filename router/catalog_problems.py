"""What is wrong with a catalogue, and where.

Plain data and its words. Must not know what a catalogue is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from router.errors import RouterError

ELSEWHERE: Final = "what is wrong stands in the server's log, and `corral check` tells it"
"""In the place of words that may name files and quote the configuration, for those who are not its administrators."""

MAX_TOLD: Final = 200
"""So many problems are told at once over HTTP and in the log; how many more there are is told with them."""


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

    @property
    def whereabouts(self) -> str:
        """Where it is, on one line, without a word of what: that may tell of files and values. "" = no place in it."""
        return Problem(self.where, "", self.line, self.column).describe()

    def to_json(self) -> dict[str, Any]:
        """Return it as routes show it."""
        return {"where": self.where, "message": self.message, "line": self.line, "column": self.column}


def first_problems(problems: Sequence[Problem]) -> tuple[Problem, ...]:
    """Return as many of them as are told at once, and one that says how many more there are."""
    num_more = len(problems) - MAX_TOLD
    if num_more <= 0:
        return tuple(problems)
    more = f"and {num_more} more: correct these first; `corral check` tells all of them"
    return (*problems[:MAX_TOLD], Problem("", more))


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
        return and_more(self.problems[0].describe(self.path), len(self.problems))


def and_more(first: str, num_problems: int) -> str:
    """Return what is said of the first of so many problems, and how many more there are."""
    return first if num_problems == 1 else f"{first} (and {num_problems - 1} more)"
