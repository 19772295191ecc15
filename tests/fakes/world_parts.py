"""The things that the simulated machine of `world.py` is made of: how starts go, processes, requests."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from router.events import LeaseId, RefuseLease, WorkerId


class Outcome(StrEnum):
    """What becomes of a start."""

    READY = "ready"
    SLOW = "slow"
    """Ready only after several load timeouts, but always with progress."""
    HANGS = "hangs"
    CRASHES = "crashes"
    BAD_MODEL = "bad_model"
    NO_MEMORY = "no_memory"
    SPAWN_FAILS = "spawn_fails"


@dataclass(frozen=True, slots=True)
class Behaviour:
    """How the next starts of a model will go."""

    outcome: Outcome = Outcome.READY
    load_s: float = 1.0
    stop_s: float = 0.5
    max_leases: int = 3
    growth: float = 1.0
    """How much more memory it turns out to use, once it is loaded, than was known before."""


@dataclass(slots=True)
class Process:
    """One worker process as the machine sees it."""

    worker: WorkerId
    fingerprint: str
    behaviour: Behaviour
    last_sign_s: float
    last_used_s: float
    reserved: Mapping[str, int] = field(default_factory=dict)
    """Bytes by device that were set apart for it when it was placed."""
    is_started: bool = False
    is_ready: bool = False
    is_stopping: bool = False
    is_hung: bool = False
    keep_alive_s: float | None = None
    """How long it stays when it is idle, as its clients said last; negative = for good."""
    go_by_s: float | None = None
    """When it may be killed under its running requests, because somebody asked for that."""


class Fate(StrEnum):
    """Where a lease is."""

    QUEUED = "queued"
    GRANTED = "granted"
    REFUSED = "refused"
    RELEASED = "released"


@dataclass(slots=True)
class Request:
    """One lease as its client sees it."""

    lease_id: LeaseId
    model: str
    priority: int
    key_id: str | None
    since_s: float
    keep_alive_s: float | None = None
    weight: float = 1.0
    fate: Fate = Fate.QUEUED
    ended_s: float | None = None
    worker: WorkerId | None = None
    refusal: RefuseLease | None = None
