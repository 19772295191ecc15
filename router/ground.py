"""What all worker runs of one router share."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from router.device import Device
from router.events import Event
from router.hooks import HookRunner
from router.machine_watch import MachineWatch
from router.metrics import RouterMetrics
from router.model_headers import ModelHeaders
from router.runtime_dir import RuntimeDir
from router.spares import SparePool
from router.worker_files import ModelFiles


@dataclass(frozen=True, slots=True)
class Ground:
    """What all runs of one router share."""

    store: ModelFiles
    headers: ModelHeaders
    metrics: RouterMetrics
    runtime: RuntimeDir
    command: Sequence[str]
    environ: Mapping[str, str]
    cache_dir: Path | None
    """Where it is kept what passes and prompts have cost; None = nothing is measured or kept."""
    emit: Callable[[Event], None]
    machine: MachineWatch | None = None
    """None = memory is not looked at, and devices are llama.cpp's own choice."""
    spares: SparePool | None = None
    checks_cells: bool = False
    """Whether workers compare their books with the KV cache after every step."""
    hooks: HookRunner = field(default_factory=HookRunner)

    def cache_folder(self, name: str) -> Path | None:
        """Return the folder of this name in the cache; None = nothing is kept."""
        return None if self.cache_dir is None else self.cache_dir / name

    @property
    def devices(self) -> Mapping[str, Device]:
        """All devices of the machine, by id."""
        return self.machine.devices if self.machine is not None else {}
