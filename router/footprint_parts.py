"""What is known of a model's needs from several sources, put together: arithmetic, llama.cpp's plan, what was measured.

Owns which source is believed for which part. Must not ask anybody: `footprints.py` does.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from router.device import CPU, Footprint, FootprintSource
from router.footprint import GPU_CONTEXT_BYTES, process_bytes
from worker.contract import WorkerStatus

_Bytes = Mapping[str, Mapping[str, int]]


@dataclass(frozen=True, slots=True)
class OnCpu:
    """What it needs when all of it is on the CPU, in bytes of main memory."""

    cpu_bytes: int
    num_layers: int = 0


@dataclass(frozen=True, slots=True)
class OnGpu:
    """What it needs when all layers are offloaded."""

    gpu_bytes: int
    gpu_compute_bytes: int
    host_bytes: int
    num_layers: int = 0


@dataclass(frozen=True, slots=True)
class Knowledge:
    """All that is known of one model with certain files and options."""

    estimate: Footprint | None = None
    planned_cpu: OnCpu | None = None
    planned_gpu: OnGpu | None = None
    measured_cpu: OnCpu | None = None
    measured_gpu: OnGpu | None = None
    load_s: float | None = None

    @property
    def footprint(self) -> Footprint | None:
        """The best of it; None = nothing is known."""
        best = self.estimate
        for source, cpu, gpu in (
            (FootprintSource.PROBE, self.planned_cpu, self.planned_gpu),
            (FootprintSource.MEASURED, self.measured_cpu, self.measured_gpu),
        ):
            if cpu is None and (gpu is None or best is None):
                continue
            if best is None:
                assert cpu is not None
                best = Footprint(cpu.cpu_bytes, source=source)
            best = replace(best, source=source)
            if cpu is not None:
                best = replace(best, cpu_bytes=cpu.cpu_bytes, num_layers=cpu.num_layers or best.num_layers)
            if gpu is not None:
                best = replace(
                    best,
                    gpu_bytes=gpu.gpu_bytes,
                    gpu_compute_bytes=gpu.gpu_compute_bytes,
                    host_bytes=gpu.host_bytes,
                    num_layers=gpu.num_layers or best.num_layers,
                )
        return best

    def to_plain(self) -> dict[str, Any]:
        """Return it as a JSON object, without the estimate, which is quicker to compute than to keep."""
        return {
            field.name: None if (value := getattr(self, field.name)) is None else _plain(value)
            for field in dataclasses.fields(self)
            if field.name != "estimate"
        }

    @classmethod
    def from_plain(cls, raw: object) -> Knowledge:
        """Return what `to_plain` has made. Raises: ValueError when it is something else."""
        if not isinstance(raw, dict):
            raise ValueError("a JSON object is expected")
        try:
            known = cls(
                planned_cpu=_part(OnCpu, raw["planned_cpu"]),
                planned_gpu=_part(OnGpu, raw["planned_gpu"]),
                measured_cpu=_part(OnCpu, raw["measured_cpu"]),
                measured_gpu=_part(OnGpu, raw["measured_gpu"]),
                load_s=None if raw["load_s"] is None else float(raw["load_s"]),
            )
        except (KeyError, TypeError) as error:
            raise ValueError(f"not a footprint: {error!r}") from None
        return known


def _plain(value: Any) -> Any:
    return dataclasses.asdict(value) if dataclasses.is_dataclass(value) and not isinstance(value, type) else value


def _part(cls: Any, raw: Any) -> Any:
    if raw is None:
        return None
    part = cls(**raw)
    for field in dataclasses.fields(part):
        number = getattr(part, field.name)
        if not isinstance(number, int) or isinstance(number, bool) or not 0 <= number < 2**60:
            raise ValueError(f"{field.name} is {number!r}")
    return part


# --- llama.cpp's plan --------------------------------------------------------------------------------------


def planned_on_cpu(answer: object, lora_bytes: int) -> OnCpu:
    """Return what a probe's answer says of a model on the CPU. Raises: ValueError when it is not an answer."""
    plans = _plans(answer)
    total = sum(sum(kinds.values()) for plan in plans for kinds in plan.device_bytes.values())
    return OnCpu(total + lora_bytes + sum(plan.host_extra for plan in plans) + process_bytes(0), plans[0].num_layers)


def planned_on_gpu(answer: object, lora_bytes: int) -> OnGpu | None:
    """Return what a probe's answer says of a model whose layers are all offloaded. Raises: ValueError.

    None where it says nothing of that: llama.cpp's log tells sizes, but not what lies where.
    """
    plans = _plans(answer)
    if not all(plan.is_exact for plan in plans):
        return None
    sums = [_sums(plan.device_bytes) for plan in plans]
    return OnGpu(
        gpu_bytes=sum(one.kept for one in sums) + lora_bytes,
        gpu_compute_bytes=sum(one.compute for one in sums) + GPU_CONTEXT_BYTES,
        host_bytes=sum(one.host for one in sums) + sum(plan.host_extra for plan in plans) + process_bytes(0),
        num_layers=plans[0].num_layers,
    )


@dataclass(frozen=True, slots=True)
class _Plan:
    device_bytes: _Bytes
    host_extra: int
    num_layers: int
    is_exact: bool


def _plans(answer: object) -> list[_Plan]:
    """Return the plans of the model and of its draft model, if it has one. Raises: ValueError."""
    if not isinstance(answer, dict):
        raise ValueError("no plan")
    plans = [answer] if answer.get("draft") is None else [answer, answer["draft"]]
    try:
        return [
            _Plan(
                {
                    name: {kind: int(size) for kind, size in kinds.items()}
                    for name, kinds in one["device_bytes"].items()
                },
                int(one["output_bytes"]) + process_bytes(int(one["num_vocab"])) - process_bytes(0),
                int(one["num_layers"]),
                one["is_exact"] is True,
            )
            for one in plans
        ]
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise ValueError(f"not a plan: {error!r}") from None


# --- what was measured -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Sums:
    kept: int
    """Weights and cells on all GPUs."""
    compute: int
    """The largest compute buffer of a GPU."""
    host: int


def _sums(device_bytes: _Bytes) -> _Sums:
    gpus = [kinds for name, kinds in device_bytes.items() if name != CPU]
    return _Sums(
        kept=sum(kinds.get("weights", 0) + kinds.get("kv", 0) for kinds in gpus),
        compute=max((kinds.get("compute", 0) for kinds in gpus), default=0),
        host=sum(device_bytes.get(CPU, {}).values()),
    )


def with_measured(known: Knowledge, status: WorkerStatus, output_bytes: int) -> Knowledge:
    """Return `known` and what a worker that has just become ready tells of its memory and its load.

    `output_bytes`: what it may still allocate for the results of a pass.
    """
    if status.load_seconds:
        known = replace(known, load_s=sum(status.load_seconds.values()))
    facts, memory = status.facts, status.memory_bytes
    if facts is None or not status.device_bytes:
        return known
    process = max(memory.get("process", 0), process_bytes(facts.num_vocab))
    sums = _sums(status.device_bytes)
    host = sums.host + output_bytes + process
    if facts.gpu_layers == 0:
        return replace(known, measured_cpu=OnCpu(host, facts.total_layers))
    if facts.gpu_layers < facts.total_layers:  # neither all nor nothing: it says little of either
        return known
    compute = sums.compute + GPU_CONTEXT_BYTES
    return replace(known, measured_gpu=OnGpu(sums.kept, compute, host, facts.total_layers))
