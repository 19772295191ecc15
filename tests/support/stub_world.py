"""A folder with model files, and supervisors that serve them with stub workers in real processes.

Owns what tests of the supervisor share. Must not hold expectations about the supervisor itself.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from router.catalog import Catalog, Limits, ModelSpec
from router.events import FleetLimits
from router.fetch.protocol import FetchProgress
from router.leases import Lease
from router.metrics import RouterMetrics
from router.references import Reference
from router.sources import ModelStore
from router.supervisor import Supervisor
from router.worker_session import WorkerReply
from tests.fakes.worker import fake_worker_command, read_journal
from tests.support.busy_metrics import look_up
from tests.support.gguf_bytes import gguf_bytes
from worker.contract import Frame, FrameDecoder, FrameType

CHAT = "/v1/chat/completions"


async def eventually(check: Callable[[], Any], within_s: float = 10.0) -> Any:
    """Return what `check` returns once that is true."""
    deadline_s = time.monotonic() + within_s
    while not (found := check()):
        assert time.monotonic() < deadline_s, f"never came true: {check}"
        await asyncio.sleep(0.005)
    return found


async def ask(lease: Lease, **body: Any) -> list[tuple[FrameType, bytes]]:
    """Return the frames of the worker's whole reply."""
    reply = await lease.session.post(CHAT, json.dumps(body).encode(), {})
    return [(frame.type, frame.payload) for frame in await read_frames(reply)]


async def read_frames(reply: WorkerReply) -> list[Frame]:
    """Return the frames of a reply, read to its end."""
    decoder, frames = FrameDecoder(), list[Frame]()
    while data := await reply.read():
        frames += decoder.feed(data)
    reply.release()
    return frames


class ScriptedStore:
    """A store whose file arrives when the test says so."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.is_here = False
        self.is_cancelled = False
        self.outcome: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.on_progress: Callable[[FetchProgress], None] | None = None

    def locate(self, reference: Reference, base_dir: Path) -> Path | None:
        return self.path if self.is_here else None

    def may_download(self, reference: Reference) -> bool:
        return True

    async def fetch(self, reference: Reference, base_dir: Path, on_progress: Callable[[FetchProgress], None]) -> Path:
        self.on_progress = on_progress
        try:
            await self.outcome
        except asyncio.CancelledError:
            self.is_cancelled = True
            raise
        return self.path


class World:
    """A folder with model files, and supervisors that serve them with stub workers."""

    def __init__(self, tmp_path: Path) -> None:
        self.path = tmp_path
        self.journal = tmp_path / "journal"
        self.metrics = RouterMetrics()
        self.release = tmp_path / "release"
        self._supervisors: list[Supervisor] = []

    def model(self, name: str = "a", *, env: dict[str, str] | None = None, **options: Any) -> ModelSpec:
        file = self.path / f"{name}.gguf"
        if not file.exists():
            file.write_bytes(gguf_bytes())
        controls = {f"FAKE_{key}": value for key, value in (env or {}).items()}
        defaults: dict[str, Any] = {"source": f"./{name}.gguf", "base_dir": self.path, "slots": 2}
        return ModelSpec(name=name, env={"FAKE_JOURNAL": str(self.journal)} | controls, **defaults | options)

    async def serve(
        self, *models: ModelSpec, store: Any = None, num_cores: int = 4, start: bool = True, **options: Any
    ) -> Supervisor:
        command = options.pop("worker_command", None) or fake_worker_command()
        limits = Limits(**options)
        supervisor = Supervisor(
            Catalog({model.name: model for model in models}, limits),
            store=store or ModelStore(self.path / "cache", offline=True),
            num_cores=num_cores,
            metrics=self.metrics,
            runtime_dir=Path("/tmp"),
            worker_command=command,
        )
        self._supervisors.append(supervisor)
        if start:
            await supervisor.start()
        return supervisor

    async def close(self) -> None:
        for supervisor in self._supervisors:
            await supervisor.close(drain_s=0.0)

    def events(self, event: str | None = None) -> list[dict[str, Any]]:
        return read_journal(self.journal, event)

    def pids(self) -> list[int]:
        return [entry["pid"] for entry in self.events("started")]

    def metric(self, name: str, **labels: str) -> float:
        return look_up(self.metrics, name, labels) or 0.0


@asynccontextmanager
async def open_world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[World]:
    """Hold a world whose workers get little grace, and close it; no process may be left then."""

    def quick_limits(catalog: Catalog) -> FleetLimits:
        return FleetLimits(
            max_loaded=catalog.limits.max_loaded,
            max_wait_s=catalog.limits.max_wait_s,
            drain_timeout_s=30.0,
            stop_grace_s=0.5,
        )

    monkeypatch.setattr(Catalog, "fleet_limits", quick_limits)
    world = World(tmp_path)
    yield world
    await world.close()
    assert not any(psutil.pid_exists(pid) for pid in world.pids())
