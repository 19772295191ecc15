"""What may happen to the fleet (events), what it may answer (actions), and the ids both speak of.

Plain frozen data. Must not hold behaviour, tasks or clocks: `fleet.py` decides on these, `supervisor.py` acts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import NewType

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


@dataclass(frozen=True, slots=True)
class WorkerExit:
    """How a worker ended, kept so that the next client and the operator see the real reason."""

    reason: ExitReason
    detail: str
    """For people: llama.cpp's own last words where there are any."""
    exit_code: int | None = None
    """Negative: the signal's number."""


# --- events -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class LeaseRequested:
    """A request wants a place on `model`."""

    lease_id: LeaseId
    model: str
    priority: int = 0
    key_id: str | None = None


@dataclass(frozen=True, slots=True)
class LeaseReleased:
    """The request is over, or its client left: queued, granted or already refused (idempotent)."""

    lease_id: LeaseId


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
class CatalogChanged:
    """From now on these are the models and limits."""

    models: Mapping[str, ModelPolicy]
    limits: FleetLimits


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
    | WorkerExited
    | LoadRequested
    | UnloadRequested
    | CatalogChanged
    | ShutdownRequested
    | Tick
)

# --- actions ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SpawnWorker:
    """Fetch the model's file if need be and start the process."""

    worker: WorkerId


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


Action = SpawnWorker | StopWorker | GrantLease | RefuseLease
