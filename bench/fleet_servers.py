"""Starts servers that hold several models: `corral serve`, and llama-server in its router mode."""

from __future__ import annotations

import contextlib
import sys
import tempfile
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import yaml

from bench.client import Client
from bench.figures import Contestant, Kind
from bench.servers import Programs, Running, answers, environment, free_port, started

FIRST = "m"
"""The model that is loaded when the measuring begins."""
SECOND = "n"
CATALOGUE = "models.yaml"


@dataclass(frozen=True, slots=True)
class Fleet:
    """What both servers are told."""

    models: Mapping[str, str]
    """Models of the bench by the names that requests use."""
    room: int | None = None
    """Models in memory at the same time; None = no limit."""
    slots: int = 4
    context: int = 512
    num_threads: int | None = None
    """Of the workers; None = as many as there are cores."""
    num_more: int = 0
    """Further names of the first model, which nobody asks for."""
    is_loaded: bool = True
    limits: Mapping[str, object] = field(default_factory=dict)
    """Of models.yaml, for ours."""
    top: Mapping[str, object] = field(default_factory=dict)
    """Further top-level keys of models.yaml, for ours."""

    def files(self, paths: Mapping[str, Path]) -> dict[str, Path]:
        """Return the file of each model."""
        found = {name: paths[model] for name, model in self.models.items()}
        return found | {f"more-{i}": next(iter(found.values())) for i in range(self.num_more)}


@contextlib.asynccontextmanager
async def fleet_running(
    contestant: Contestant, fleet: Fleet, paths: Mapping[str, Path], programs: Programs
) -> AsyncIterator[Running]:
    """The contestant serves the models, the first one loaded and warm. Raises: RuntimeError when it does not start."""
    with tempfile.TemporaryDirectory() as name:
        folder, port = Path(name), free_port()
        files = fleet.files(paths)
        if contestant.kind is Kind.OURS:
            command = _corral(folder, port, fleet, files)
        else:
            assert programs.llama_server is not None
            command = _llama_server(
                programs.llama_server, folder, port, fleet, files, fleet.num_threads or programs.num_threads
            )
        async with started(command, environment(programs), folder) as process:
            await answers(process, f"http://127.0.0.1:{port}/health", folder)
            client = Client(f"http://127.0.0.1:{port}", FIRST)
            try:
                if fleet.is_loaded:
                    warm = await client.complete("Hello", 8)
                    if warm.error:
                        raise RuntimeError(f"{contestant.kind} does not answer: {warm.error}")
                yield Running(client, process.pid, contestant.kind, files[FIRST], port, files, folder / CATALOGUE)
            finally:
                await client.close()


def _corral(folder: Path, port: int, fleet: Fleet, files: Mapping[str, Path]) -> list[str]:
    options = {"slots": fleet.slots, "context": fleet.context}
    options |= {"threads": fleet.num_threads} if fleet.num_threads is not None else {}
    limits = dict(fleet.limits) | ({"max_loaded": fleet.room} if fleet.room is not None else {})
    catalogue: dict[str, object] = {
        "defaults": options,
        "models": {name: {"model": str(path)} for name, path in files.items()},
        **({"limits": limits} if limits else {}),
        **fleet.top,
    }
    file = folder / CATALOGUE
    file.write_text(yaml.safe_dump(catalogue))
    return [sys.executable, "-m", "router", "serve", str(file), "--port", str(port)]


def _llama_server(
    peer: Path, folder: Path, port: int, fleet: Fleet, files: Mapping[str, Path], num_threads: int
) -> list[str]:
    presets = folder / "models.ini"
    presets.write_text("version = 1\n" + "".join(f"\n[{name}]\nmodel = {path}\n" for name, path in files.items()))
    command = [str(peer), "--models-preset", str(presets), "--models-max", str(fleet.room or 0), "--port", str(port)]
    command += ["-np", str(fleet.slots), "-c", str(fleet.slots * fleet.context), "--no-webui"]
    return [*command, "-t", str(num_threads), "-tb", str(num_threads)]
