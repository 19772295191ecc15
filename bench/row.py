"""What one row of the table is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from bench.figures import DEFAULT, OURS, Contestant, Target
from bench.fleet_servers import Fleet
from bench.models import SMOLLM2
from bench.scenarios import Scenario
from bench.tunings import STEADY, tuned

UNLIMITED = 1000


@dataclass(frozen=True, slots=True)
class Row:
    """One scenario on one model."""

    key: str
    name: str
    scenario: Scenario
    slots: int
    guess_s: float
    """Seconds of one run, before any was measured."""
    model: str = SMOLLM2
    context: int = 2048
    kv_tokens: int | None = None
    family: str | None = STEADY
    """Of tunings; None: llama-server does not take part."""
    extras: tuple[Contestant, ...] = ()
    targets: tuple[Target, ...] = ()
    is_joint: bool = False
    """Whether all figures are compared with one llama-server, whose product of figures is the smallest."""
    max_turns: int = UNLIMITED
    fleet: Fleet | None = None
    """What is served instead of the one model, by servers that hold several."""

    @property
    def models(self) -> tuple[str, ...]:
        """All models that the row needs."""
        return (self.model,) if self.fleet is None else tuple(self.fleet.models.values())

    def contestants(self, chosen: Mapping[str, str]) -> list[Contestant]:
        """Return who takes part; `chosen` has the best options by family."""
        found = [OURS]
        if self.family is not None:
            found.append(DEFAULT)
            if self.family in chosen:
                found.append(tuned(chosen[self.family]))
        return [*found, *self.extras]
