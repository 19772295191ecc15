"""One pass over llama-server's tunings on short versions of the scenarios, so that it is compared at its best."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import aiohttp

from bench.figures import Contestant
from bench.raw import Screening
from bench.scenarios import Scenario, common_prefix, copying, long_prompt, steady
from bench.servers import Load, Programs, running
from bench.tunings import COPY, FIGURES, LONG, PREFIX, STEADY, Results, choose, front, speculations, tunings

SHORT: Mapping[str, Scenario] = {
    STEADY: steady(4, 48, start=50),
    LONG: long_prompt(num_words=800),
    PREFIX: common_prefix(requests=8, prefix=250, is_whole=False),
}
"""All on one server of eight slots, in this order."""

GUESS_S = 11 * 16.0 + 5 * 6.0

Say = Callable[[str], None]


async def screen(programs: Programs, model: Path, families: Iterable[str], peer: str, say: Say) -> Screening:
    """Return the best options for each of the families; those of which no tuning ran are left out."""
    wanted = [family for family in (STEADY, LONG, PREFIX, COPY) if family in set(families)]
    short = {family: SHORT[family] for family in wanted if family in SHORT}
    tries = [(tuning, short, Load(model, 8, 2048)) for tuning in tunings() if short]
    if COPY in wanted:
        tries += [(tuning, {COPY: copying(128)}, Load(model, 1, 2048)) for tuning in speculations()]
    results: dict[str, dict[str, dict[str, float]]] = {family: {} for family in wanted}
    for tuning, scenarios, load in tries:
        found = await _try(tuning, scenarios, load, programs, say)
        for family, figures in found.items():
            results[family][tuning.name] = figures
    chosen = {family: _choose(family, results[family], say) for family in wanted}
    return Screening(peer, results, {family: best for family, best in chosen.items() if best is not None})


async def _try(
    tuning: Contestant, scenarios: Mapping[str, Scenario], load: Load, programs: Programs, say: Say
) -> dict[str, dict[str, float]]:
    """Return the figures of each scenario that ran; a tuning that fails loses, and is told of."""
    found: dict[str, dict[str, float]] = {}
    started_s = time.monotonic()
    try:
        async with running(tuning, load, programs) as server:
            for family, scenario in scenarios.items():
                found[family] = {figure.name: figure.value for figure in await scenario(server)}
    except (RuntimeError, OSError, aiohttp.ClientError) as error:
        say(f"  {tuning.name}: {error}")
    shown = "; ".join(_shown(family, figures) for family, figures in found.items())
    say(f"  {tuning.name:32} {time.monotonic() - started_s:5.1f} s   {shown}")
    return found


def _choose(family: str, results: Results, say: Say) -> str | None:
    try:
        best = choose(family, results)
    except ValueError as error:
        say(str(error))
        return None
    say(f"best for {family}: {best}   ({_shown(family, results[best])})")
    if len(FIGURES[family]) > 1:
        say(f"  not beaten in both figures: {' | '.join(front(family, results))}")
    return best


def _shown(family: str, figures: Mapping[str, float]) -> str:
    return f"{family} " + " / ".join(f"{figures[name]:.2f}" for name in FIGURES[family])
