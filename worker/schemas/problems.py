"""What is said about a schema: a mistake in it, something that cannot be enforced, something that was let go.

Owns the words of refusals and how places in a schema are written. Knows neither keywords nor grammars.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Final

from worker.errors import RequestError, UnsupportedParameter

_PLAIN_KEY = re.compile(r"[A-Za-z_$][A-Za-z0-9_$-]*\Z")
_LONGEST_QUOTE: Final = 80
MAX_TRIES: Final = 3_000
"""Each takes a third of a millisecond."""


@dataclass(frozen=True, slots=True)
class Relaxed:
    """One demand of a schema that the grammar does not make, so that the answer is checked for it afterwards."""

    path: str
    """Where it stands, as a JSON path: `$.properties.a.maxItems`."""
    why: str


def at(path: str, *steps: str | int) -> str:
    """Return the JSON path that leads on from `path` by keys and list positions."""
    for step in steps:
        if isinstance(step, int):
            path += f"[{step}]"
        else:
            path += f".{step}" if _PLAIN_KEY.match(step) else f"[{quoted(step)}]"
    return path


def quoted(value: object) -> str:
    """Return `value` for a message, cut where it is long."""
    text = ascii(value)
    return text if len(text) <= _LONGEST_QUOTE else f"{text[: _LONGEST_QUOTE - 3]}..."


class WrongSchema(RequestError):
    """The schema itself is a mistake, whatever could be enforced."""

    def __init__(self, path: str, why: str, *, param: str) -> None:
        super().__init__(f"The JSON schema in '{param}' is wrong at {path}: {why}", param=param)


class CannotEnforce(UnsupportedParameter):
    """The schema demands something that cannot be made sure of while the answer is written."""

    def __init__(self, path: str, why: str, *, param: str) -> None:
        super().__init__(
            f"The JSON schema in '{param}' cannot be enforced at {path}: {why}. Write that part in another way or "
            "leave it out, and check the answer for it yourself.",
            param=param,
        )


class SchemaTooLarge(RequestError):
    """The schema, or the grammar that it becomes, goes beyond a limit."""

    def __init__(self, path: str, why: str, *, param: str) -> None:
        super().__init__(
            f"The JSON schema in '{param}' is too large at {path}: {why}. Simplify it, or split it into several "
            "requests.",
            param=param,
        )


@dataclass(slots=True)
class Ledger:
    """What is let go of one schema, and the refusals where nothing may be."""

    param: str
    relaxes: bool
    relaxed: list[Relaxed] = field(default_factory=list)
    _num_tries: int = 0

    def spend(self, path: str, num_tries: int) -> None:
        """Count small grammars that are made to try something out. Raises: SchemaTooLarge."""
        self._num_tries += num_tries
        if self._num_tries > MAX_TRIES:
            why = f"patterns and counts have to be tried out more than {MAX_TRIES:,} times"
            raise SchemaTooLarge(path, why, param=self.param)

    def wrong(self, path: str, why: str) -> WrongSchema:
        """Return the refusal of a mistake at `path`."""
        return WrongSchema(path, why, param=self.param)

    def give_up(self, path: str, why: str) -> None:
        """Note that what stands at `path` is not enforced. Raises: CannotEnforce where schemas are promises."""
        if not self.relaxes:
            raise CannotEnforce(path, why, param=self.param)
        self.loosen(path, why)

    def loosen(self, path: str, why: str) -> None:
        """Note the same, of something that may be let go even where schemas are promises."""
        self.relaxed.append(Relaxed(path, why))
