"""The raw file: everything that was measured, as JSON, from which the table can be printed again."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from bench.figures import Entry, Figure
from bench.rows import ROWS
from bench.table import Line, lines
from bench.tunings import Results

OUT = Path(__file__).parent / "out"


@dataclass(frozen=True, slots=True)
class Screening:
    """One pass over llama-server's tunings: what each gave, and the best options by family of rows."""

    peer: str
    results: Mapping[str, Results]
    chosen: Mapping[str, str]


@dataclass(slots=True)
class Raw:
    """A whole run."""

    made: str
    machine: Mapping[str, str]
    peer: str
    settings: Mapping[str, object]
    screening: Screening | None = None
    entries: list[Entry] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    """Runs that failed, and what there was no time for."""

    def write(self, file: Path) -> None:
        """Replace the file."""
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(asdict(self), indent=1) + "\n", encoding="utf-8")

    def table(self, keys: Sequence[str] | None = None) -> list[Line]:
        """Return the lines of all rows that were tried, or of these."""
        tried = keys if keys is not None else {entry.row for entry in self.entries}
        chosen = self.screening.chosen if self.screening is not None else {}
        return [line for row in ROWS if row.key in tried for line in lines(row, self.entries, chosen)]


def read_raw(file: Path) -> Raw:
    """Return what `Raw.write` wrote. Raises: ValueError, KeyError and TypeError for other files, OSError."""
    fields = json.loads(file.read_text(encoding="utf-8"))
    fields["screening"] = None if fields["screening"] is None else Screening(**fields["screening"])
    fields["entries"] = [Entry(**(entry | {"figure": Figure(**entry["figure"])})) for entry in fields["entries"]]
    return Raw(**fields)


def write_screening(screening: Screening, file: Path) -> None:
    """Replace the file."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(asdict(screening), indent=1) + "\n", encoding="utf-8")


def read_screening(file: Path) -> Screening:
    """Return a screening out of its own file, or out of the raw file of a run."""
    fields = json.loads(file.read_text(encoding="utf-8"))
    return Screening(**fields.get("screening", fields))
