"""With which context a model fits where: what it needs at several contexts, set against the room of each device.

Owns the contexts that are looked at, the verdicts and the advice. Must not ask the system: devices and headers are
passed in; what a model needs `footprint.py` and llama.cpp's plans say.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path

from router.catalog import ModelSpec
from router.device import CPU, Device, Footprint
from router.events import WorkerId
from router.footprint import Header, Parts, footprint_of, parts_of
from router.launch import build_launch_spec
from router.tensor_sums import TensorSums
from worker.contract import EngineOptions

SMALLEST_CONTEXT = 2048
UNTRAINED_CONTEXT = 131_072
"""Looked at most where a file does not say what it was trained for."""
_STEP = 256
"""Contexts that are tried in the search for the largest; llama.cpp rounds to it anyway."""

NeedsOf = Callable[[int], Footprint]
"""What a worker needs whose requests may use so many tokens."""


@dataclass(frozen=True, slots=True)
class Subject:
    """A model whose files are here."""

    spec: ModelSpec
    path: Path
    header: Header
    tensors: TensorSums
    """Of all its parts."""
    draft: Header | None = None
    lora_bytes: int = 0

    @property
    def largest_context(self) -> int:
        """The longest that there is a reason to look at."""
        return self.header.trained_context or UNTRAINED_CONTEXT

    def options(self, context: int | None) -> EngineOptions:
        """Return the engine's options with this context; None = the one that the model has."""
        spec = replace(self.spec, loras=(), context=self.spec.context if context is None else context)
        launch = build_launch_spec(
            spec,
            WorkerId(spec.name, 0, 0),
            model_path=self.path,
            socket_path=Path(),
            trained_context=self.header.trained_context,
            num_threads=1,
        )
        return launch.engine

    def needs(self, context: int) -> Footprint:
        """Return the arithmetic on the header."""
        options = self.options(context)
        return footprint_of(self.header, options, tensors=self.tensors, draft=self.draft, lora_bytes=self.lora_bytes)

    def parts(self, context: int) -> Parts:
        """Return the same in parts, on the CPU."""
        options = self.options(context)
        return parts_of(self.header, options, tensors=self.tensors, draft=self.draft, lora_bytes=self.lora_bytes)

    def kv_bytes_per_token(self) -> int | None:
        """Return what one token more takes in the cache, where it takes the same everywhere; None = nothing at all."""
        spec = replace(self.spec, slots=1, kv_tokens=None)
        low, high = (replace(self, spec=spec).parts(context).kv for context in (8192, 16384))
        return (high - low) // 8192 if high > low else None


class Fit(StrEnum):
    """Whether a model fits on a device."""

    NOW = "now"
    WHEN_FREE = "when_free"
    """When other programs, or other models, give memory back."""
    PARTLY = "partly"
    """With some of its layers on the CPU."""
    NOT = "not"


@dataclass(frozen=True, slots=True)
class Verdict:
    """What is true of a model with one context on one device."""

    fit: Fit
    needed_bytes: int
    """Of the device."""
    missing_bytes: int = 0
    layers: int | None = None
    """That the device holds, where it does not hold all."""
    num_layers: int = 0


@dataclass(frozen=True, slots=True)
class Room:
    """A device, and what models could take of it now."""

    device: Device
    now_bytes: int


def contexts_to_show(largest: int, wanted: int | None = None, limit: int | None = None) -> list[int]:
    """Return the doublings from 2048 up to `largest`, and `wanted` among them; none above `limit`."""
    top = largest if limit is None else min(largest, limit)
    found = {top}
    context = SMALLEST_CONTEXT
    while context < top:
        found.add(context)
        context *= 2
    if wanted is not None:
        found.add(wanted)
    return sorted(found)


def judge(needs: Footprint, room: Room, cpu: Room) -> Verdict:
    """Return whether a model fits on a device, all of it or in part. `cpu`: main memory, which a GPU needs beside."""
    device = room.device
    if not device.is_gpu:
        return _judged(needs.cpu_bytes, [(needs.cpu_bytes, room)], needs)
    on_gpu = needs.gpu_bytes + needs.gpu_compute_bytes
    found = _judged(on_gpu, [(on_gpu, room), (needs.host_bytes, cpu)], needs)
    if found.fit is not Fit.NOT or not needs.num_layers:
        return found
    layers = needs.num_layers * max(0, device.usable_bytes - needs.gpu_compute_bytes) // max(1, needs.gpu_bytes)
    rest = needs.gpu_bytes * (needs.num_layers - layers) // needs.num_layers
    if 0 < layers < needs.num_layers and needs.host_bytes + rest <= cpu.device.usable_bytes:
        return replace(found, fit=Fit.PARTLY, layers=layers)
    return found


def _judged(needed: int, demands: Iterable[tuple[int, Room]], needs: Footprint) -> Verdict:
    fit, missing = Fit.NOW, 0
    for num_bytes, room in demands:
        missing = max(missing, num_bytes - room.device.usable_bytes)
        if num_bytes > room.now_bytes:
            fit = Fit.WHEN_FREE
    if missing > 0:
        return Verdict(Fit.NOT, needed, missing, num_layers=needs.num_layers)
    return Verdict(fit, needed, num_layers=needs.num_layers)


def largest_context(needs_of: NeedsOf, room: Room, cpu: Room, top: int) -> int | None:
    """Return the longest context with which all of the model fits on the device when nobody else is there.

    None = not even a short one.
    """

    def fits(steps: int) -> bool:
        return judge(needs_of(min(top, steps * _STEP)), room, cpu).fit in (Fit.NOW, Fit.WHEN_FREE)

    low, high = 0, -(-top // _STEP)
    if fits(high):
        return top
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low * _STEP or None


def corrected(needs_of: NeedsOf, planned: Mapping[int, Footprint]) -> NeedsOf:
    """Return needs that are those of `planned` at its contexts, and between and beyond them follow the estimate."""
    known = sorted(planned)

    def needs(context: int) -> Footprint:
        estimate = needs_of(context)
        below = max((one for one in known if one <= context), default=known[0])
        above = min((one for one in known if one >= context), default=known[-1])
        share = 0.0 if above == below else (context - below) / (above - below)

        def fixed(name: str) -> int:
            errors = [float(getattr(planned[one], name) - getattr(needs_of(one), name)) for one in (below, above)]
            present = float(getattr(estimate, name))
            return max(0, round(present + errors[0] + share * (errors[1] - errors[0])))

        return replace(
            estimate,
            cpu_bytes=fixed("cpu_bytes"),
            gpu_bytes=fixed("gpu_bytes"),
            gpu_compute_bytes=fixed("gpu_compute_bytes"),
            host_bytes=fixed("host_bytes"),
            num_layers=planned[below].num_layers or estimate.num_layers,
            source=planned[below].source,
        )

    return needs if known else needs_of


@dataclass(frozen=True, slots=True)
class Hint:
    """Something that would let a longer context fit."""

    text: str
    context: int


def hints(subject: Subject, room: Room, cpu: Room, present: int | None) -> list[Hint]:
    """Return what would allow for more than `present` tokens on the device, the mildest first."""
    engine = dict(subject.spec.engine)
    tries: list[tuple[str, ModelSpec]] = []
    if engine.get("flash_attn") != "off" and engine.get("cache_type_k", "f16") in ("f16", "bf16", "f32"):
        small = engine | {"cache_type_k": "q8_0", "cache_type_v": "q8_0"}
        tries.append(("cache_type_k: q8_0, cache_type_v: q8_0", replace(subject.spec, engine=small)))
    if subject.spec.slots > 1:
        tries.append(("slots: 1", replace(subject.spec, slots=1)))
        if subject.spec.kv_tokens is None and present is not None:
            shared = replace(subject.spec, kv_tokens=max(subject.spec.slots * present, SMALLEST_CONTEXT))
            tries.append((f"kv_tokens: {shared.kv_tokens} (the slots share them)", shared))
    found = []
    for text, spec in tries:
        other = replace(subject, spec=spec)
        top = subject.largest_context if spec.kv_tokens is None else min(subject.largest_context, spec.kv_tokens)
        context = largest_context(other.needs, room, cpu, top)
        if context is not None and context > (present or 0):
            found.append(Hint(text, context))
    return found


def cpu_room(rooms: Sequence[Room]) -> Room:
    """Return main memory among the rooms; without any (it was not asked for) one that is never in the way."""
    for room in rooms:
        if room.device.id == CPU:
            return room
    raise ValueError("the CPU is always among the devices")
