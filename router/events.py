"""What may happen to the fleet (events), what it may answer (actions), and the ids both speak of.

Plain frozen data. Must not hold behaviour, tasks or clocks: `fleet.py` decides on these, `supervisor.py` acts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import NewType

from router.device import NOWHERE, Device, Footprint, Placement

LeaseId = NewType("LeaseId", int)


@dataclass(frozen=True, slots=True, order=True)
class WorkerId:
    """One start of one replica of one model; a restart is a new incarnation."""

    model: str
    replica: int
    incarnation: int

    def __str__(self) -> str:
        return f"{self.model}#{self.replica}.{self.incarnation}"


@dataclass(frozen=True, slots=True)
class ModelPolicy:
    """What the fleet needs to know of a model. Times in seconds; 0 = no limit where a limit is meant."""

    name: str
    idle_unload_s: float = 900.0
    """From the end of the last request; 0 = never."""
    pin: bool = False
    """Never unloaded by idleness or for another model."""
    preload: bool = False
    priority: int = 0
    load_timeout_s: float = 300.0
    """Without any progress."""
    max_queue: int = 256
    queue_timeout_s: float = 300.0
    unavailable: str | None = None
    """Why it cannot be started at all (a missing file, say); None = it can."""
    fingerprint: str = ""
    """Changes when a running worker no longer matches the configuration."""
    replicas: int = 1
    """Workers that it may have at the same time."""
    home: bool = False
    """Loaded again when everything else has been unloaded, and never unloaded for idleness."""
    max_wait_s: float | None = None
    """How long its requests wait for a busy model before that one must drain; None = `FleetLimits.max_wait_s`."""
    devices: tuple[str, ...] = ()
    """Ids of the devices that it must run on, all of them; empty = any."""
    gpu_layers: int = -1
    """Layers to offload; -1 = all, 0 = none."""
    is_partial_allowed: bool = False
    """Whether fewer layers than `gpu_layers` may be offloaded when the GPUs are too small."""
    is_split_allowed: bool = True
    """Whether it may be spread over several GPUs; else any one of `devices` will do."""


@dataclass(frozen=True, slots=True)
class FleetLimits:
    """The part of the configuration that concerns all models together."""

    max_loaded: int | None = None
    max_wait_s: float = 30.0
    """How long a request waits for a busy model to become idle by itself before that model must drain."""
    drain_timeout_s: float = 60.0
    """How long an unload waits for running requests before it kills them."""
    stop_grace_s: float = 5.0
    """From TERM to KILL."""


class ExitReason(StrEnum):
    """Why a worker ended, from a closed set (it is a metric label)."""

    STOPPED = "stopped"
    """The router asked for it."""
    CRASHED = "crashed"
    """A signal or an unknown exit code."""
    BAD_MODEL = "bad_model"
    """The file or the configuration must change."""
    NO_MEMORY = "no_memory"
    SOURCE_FAILED = "source_failed"
    """The model's file could not be fetched."""
    SPAWN_FAILED = "spawn_failed"
    """The operating system refused to start the process."""
    LOAD_TIMEOUT = "load_timeout"
    HUNG = "hung"
    """It had work, or should have reported, and gave no sign of life."""
    NO_ROOM = "no_room"
    """It turned out to need more memory than is free: no failure, it is placed again."""
    HOOK_FAILED = "hook_failed"
    """Its `before_load` command did not succeed."""


class StopCause(StrEnum):
    """Why the router had a worker stopped, from a closed set."""

    IDLE = "idle"
    """`idle_unload_s` has passed."""
    KEEP_ALIVE = "keep_alive"
    """The time has passed that a request said it should stay."""
    ROOM = "room"
    """Another model needed its place."""
    LIMITS = "limits"
    """More was loaded than the configuration allows any more."""
    CONFIGURATION = "configuration"
    """It was started with another configuration than the present one."""
    REPLICAS = "replicas"
    """Its model has more workers than `replicas` any more."""
    REMOVED = "removed"
    """Its model is no longer in the configuration."""
    REQUEST = "request"
    """The operator wanted it gone."""
    SHUTDOWN = "shutdown"
    """The router stops."""


@dataclass(frozen=True, slots=True)
class Departure:
    """Why a worker was sent off."""

    cause: StopCause
    limit_s: float | None = None
    """How long it was allowed to be idle, where that was the cause."""
    for_model: str | None = None
    """Which model needed its place."""


@dataclass(frozen=True, slots=True)
class WorkerExit:
    """How a worker ended, kept so that the next client and the operator see the real reason."""

    reason: ExitReason
    detail: str
    """For people: llama.cpp's own last words where there are any."""
    exit_code: int | None = None
    """Negative: the signal's number."""
    departure: Departure | None = None
    """Why the router had it stopped; None = it did not."""


# --- events -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class LeaseRequested:
    """A request wants a place on `model`."""

    lease_id: LeaseId
    model: str
    priority: int = 0
    key_id: str | None = None
    prefixes: tuple[int, ...] = ()
    """Hashes of the conversation's beginnings, the shortest first: a replica that served one of them is preferred."""
    keep_alive_s: float | None = None
    """How long the worker that serves it stays when it is idle, from then on; see `KeepAliveSet`."""
    request_id: str | None = None
    """What the log calls it, for those who look at who waits."""
    weight: float = 1.0
    """How many times the tokens of a key of weight 1 its key is to get."""
    goes_first: bool = False
    """It had its place already, and comes before all others of its priority."""


@dataclass(frozen=True, slots=True)
class LeaseReleased:
    """The request is over, or its client left: queued, granted or already refused (idempotent)."""

    lease_id: LeaseId
    tokens: int | None = None
    """Of prompt and answer together, as far as it was granted; None = nobody knows."""


@dataclass(frozen=True, slots=True)
class WorkerStarted:
    """The process exists and loads: STARTING -> LOADING."""

    worker: WorkerId


@dataclass(frozen=True, slots=True)
class WorkerProgressed:
    """Its download or load moved on; pushes the load timeout back."""

    worker: WorkerId


@dataclass(frozen=True, slots=True)
class WorkerReady:
    """It takes requests, at most `max_leases` at a time."""

    worker: WorkerId
    max_leases: int
    slots: int = 0
    """Requests that it really serves at the same time; 0 = as many as `max_leases`."""


@dataclass(frozen=True, slots=True)
class WorkerSized:
    """Its model's needs are known, right before the process starts (again after the load, measured).

    If there is no room for them, it is stopped (before it is ready) and placed again.
    """

    worker: WorkerId
    footprint: Footprint


@dataclass(frozen=True, slots=True)
class WorkerHung:
    """It gives no sign of life although it should; it is killed, and what it served ends with the reason."""

    worker: WorkerId
    detail: str


@dataclass(frozen=True, slots=True)
class WorkerExited:
    """The process is reaped (or never came to be), whatever its state was."""

    worker: WorkerId
    exit: WorkerExit


@dataclass(frozen=True, slots=True)
class LoadRequested:
    """The operator wants the model loaded; also lifts a remembered failure."""

    model: str


@dataclass(frozen=True, slots=True)
class UnloadRequested:
    """The operator wants the model gone: no new leases, running ones end, then it stops."""

    model: str


@dataclass(frozen=True, slots=True)
class KeepAliveSet:
    """The present workers of `model` stay for so long when they are idle, instead of for the time that is configured.

    0 = they go as soon as they are idle, negative = idleness alone never unloads them. It holds for the life of a
    worker, or until a later request or a new configuration says otherwise.
    """

    model: str
    keep_alive_s: float


@dataclass(frozen=True, slots=True)
class PinSet:
    """`model` is pinned from now on or is not, whatever its configuration says; None = as the configuration says.

    It holds until the router stops, the model is removed, or somebody says otherwise. Nothing is loaded for it.
    """

    model: str
    pin: bool | None


@dataclass(frozen=True, slots=True)
class CatalogChanged:
    """From now on these are the models and limits."""

    models: Mapping[str, ModelPolicy]
    limits: FleetLimits


@dataclass(frozen=True, slots=True)
class ModelSized:
    """What a worker of `model` needs, as far as it is known."""

    model: str
    footprint: Footprint
    load_s: float | None = None
    """How long its loads take, if that is known."""


@dataclass(frozen=True, slots=True)
class DevicesChanged:
    """From now on these are the devices; none at all = memory is not looked at."""

    devices: tuple[Device, ...]


@dataclass(frozen=True, slots=True)
class DevicesMeasured:
    """How much of each device is used by others than the workers, in bytes by device id."""

    used_by_others: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class ShutdownRequested:
    """Refuse who waits and stop every worker; those with leases get `drain_s` to finish first."""

    drain_s: float = 5.0


@dataclass(frozen=True, slots=True)
class Tick:
    """`Fleet.next_deadline_s` has come."""


Event = (
    LeaseRequested
    | LeaseReleased
    | WorkerStarted
    | WorkerProgressed
    | WorkerReady
    | WorkerSized
    | WorkerHung
    | WorkerExited
    | LoadRequested
    | UnloadRequested
    | KeepAliveSet
    | PinSet
    | CatalogChanged
    | ModelSized
    | DevicesChanged
    | DevicesMeasured
    | ShutdownRequested
    | Tick
)

# --- actions ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SpawnWorker:
    """Fetch the model's file if need be and start the process."""

    worker: WorkerId
    placement: Placement = NOWHERE


@dataclass(frozen=True, slots=True)
class PlaceWorker:
    """The worker, whose process is about to start, runs there instead."""

    worker: WorkerId
    placement: Placement


@dataclass(frozen=True, slots=True)
class StopWorker:
    """TERM, then KILL of the whole process group after `grace_s`; ends in exactly one `WorkerExited`."""

    worker: WorkerId
    grace_s: float
    reason: ExitReason = ExitReason.STOPPED


@dataclass(frozen=True, slots=True)
class GrantLease:
    """The request may use the worker."""

    lease_id: LeaseId
    worker: WorkerId


class RefusalKind(StrEnum):
    """Why no lease was granted."""

    UNKNOWN_MODEL = "unknown_model"
    UNAVAILABLE = "unavailable"
    TOO_LARGE = "too_large"
    """It can never fit, whatever else is unloaded."""
    QUEUE_FULL = "queue_full"
    QUEUE_TIMEOUT = "queue_timeout"
    SHUTTING_DOWN = "shutting_down"


@dataclass(frozen=True, slots=True)
class RefuseLease:
    """The request gets no place, and why."""

    lease_id: LeaseId
    kind: RefusalKind
    detail: str
    retry_after_s: float | None = None


@dataclass(frozen=True, slots=True)
class RefuseLoad:
    """A load that no request waits for (an operator's, or at the start) is not done, and why."""

    model: str
    detail: str


Action = SpawnWorker | PlaceWorker | StopWorker | GrantLease | RefuseLease | RefuseLoad
