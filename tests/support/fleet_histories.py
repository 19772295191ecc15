"""What random histories of the fleet are made of: configurations, machines, and ways in which starts go."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from hypothesis import strategies as st

from router.device import Device, DeviceKind, Footprint, FootprintSource
from router.events import FleetLimits, ModelPolicy
from tests.fakes.world import Behaviour, Outcome

NAMES = ("a", "b", "c", "d")
models_strategy = st.sampled_from(NAMES)
Drawn = TypeVar("Drawn")


def drawn(make: Callable[..., Drawn], **fields: Sequence[object]) -> st.SearchStrategy[Drawn]:
    """Return a strategy for `make` with any one of each field's values: one number decides about them all.

    Drawing each field by itself takes most of the time of a history. The first values are the simplest.
    """

    def of(number: int) -> Drawn:
        chosen = {}
        for name, values in fields.items():
            number, index = divmod(number, len(values))
            chosen[name] = values[index]
        return make(**chosen)

    return st.integers(0, math.prod(map(len, fields.values())) - 1).map(of)


WHERE: Mapping[str, dict[str, Any]] = {
    "anywhere": {},
    "on one GPU": {"devices": ("GPU0",)},
    "on the CPU": {"gpu_layers": 0},
    "with some layers on a GPU": {"gpu_layers": 4},
    "with as many layers on GPUs as fit": {"is_partial_allowed": True},
}


def policy_of(where: str, **fields: Any) -> ModelPolicy:
    return ModelPolicy("", **WHERE[where], **fields)


policies = drawn(
    policy_of,
    where=["anywhere", *WHERE],
    idle_unload_s=[0.0, 3.0, 40.0],
    pin=[False, False, False, True],
    preload=[False, False, True],
    priority=[0, 0, 1],
    load_timeout_s=[4.0, 20.0],
    max_queue=[256, 5, 2],
    queue_timeout_s=[0.0, 7.0, 100.0],
    unavailable=[None] * 5 + ["no such file"],
    fingerprint=["1", "1", "2"],
    replicas=[1, 1, 1, 2, 3],
    home=[False, False, True],
    max_wait_s=[None, None, 2.0],
)
limits_strategy = drawn(
    FleetLimits,
    max_loaded=[None, 1, 1, 2, 3],
    max_wait_s=[0.0, 5.0, 30.0],
    drain_timeout_s=[0.0, 10.0],
)


@st.composite
def catalogs(draw: st.DrawFn) -> dict[str, ModelPolicy]:
    missing = draw(st.sampled_from([None, None, None, *NAMES]))
    return {name: replace(draw(policies), name=name) for name in NAMES if name != missing}


behaviours = drawn(
    Behaviour,
    outcome=[Outcome.READY] * 16 + list(Outcome),
    load_s=[0.4, 0.0, 3.0, 15.0],
    stop_s=[0.0, 0.5, 6.0],
    max_leases=[1, 3],
    growth=[1.0, 1.0, 0.8, 1.3],
)

CPU = Device("CPU", DeviceKind.CPU, total_bytes=100, headroom_bytes=10)
GPU = Device("GPU0", DeviceKind.GPU, total_bytes=60, headroom_bytes=5)
PLACES_ALONE: Sequence[tuple[Device, ...]] = [()]
MACHINES: Sequence[tuple[Device, ...]] = [
    (CPU,),
    (replace(CPU, budget_bytes=60),),
    (CPU, GPU),
    (CPU, GPU, replace(GPU, id="GPU1")),
]
sizes = st.sampled_from([10, 25, 40, 55, 85, 120])
footprints_strategy = st.builds(
    lambda num_bytes: Footprint(
        num_bytes,
        gpu_bytes=num_bytes * 4 // 5,
        gpu_compute_bytes=5,
        host_bytes=num_bytes // 10 + 1,
        num_layers=10,
        source=FootprintSource.PROBE,
    ),
    sizes,
)
