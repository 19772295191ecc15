"""The books that a simulated machine keeps of its own, and what it expects of every action of the fleet.

The fleet is never judged by its own memory. `world.py` moves the clock and plays the processes and clients.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from router.device import Device, Footprint, Placement
from router.events import (
    Event,
    ExitReason,
    FleetLimits,
    KeepAliveSet,
    LeaseId,
    LeaseReleased,
    ModelPolicy,
    ModelSized,
    PinSet,
    RefusalKind,
    RefuseLease,
    WorkerExited,
    WorkerId,
    WorkerProgressed,
    WorkerReady,
    WorkerSized,
    WorkerStarted,
)
from tests.fakes.world_parts import Behaviour, Fate, Process, Request
from tests.fakes.world_shares import WorldShares


@dataclass
class Books:
    """What the machine knows of its configuration, its processes and its clients."""

    models: Mapping[str, ModelPolicy]
    limits: FleetLimits
    hold_s: float | None = None
    """How long each granted lease is held; None = until it is released by hand."""
    devices: tuple[Device, ...] = ()
    footprints: dict[str, Footprint] = field(default_factory=dict)
    """What a worker of each model really needs; the fleet knows it when a start has found out, or before if told."""
    used_by_others: dict[str, int] = field(default_factory=dict)
    now_s: float = 100.0
    behaviours: dict[str, Behaviour] = field(default_factory=dict)
    processes: dict[WorkerId, Process] = field(default_factory=dict)
    requests: dict[LeaseId, Request] = field(default_factory=dict)
    spawns: list[tuple[float, WorkerId]] = field(default_factory=list)
    history: list[Event] = field(default_factory=list)
    num_ticks: int = 0
    is_shutting_down: bool = False
    open: dict[LeaseId, Request] = field(default_factory=dict)
    """Those that wait or run."""
    wished: set[str] = field(default_factory=set)
    """Models whose load somebody has asked for."""
    failed: set[str] = field(default_factory=set)
    """Models that failed to load with their present configuration."""
    pin_orders: dict[str, bool | None] = field(default_factory=dict)
    """What the operator has said last of each model that is there."""
    shares: WorldShares = field(default_factory=WorldShares)
    known: dict[str, Footprint] = field(default_factory=dict)
    """What the fleet has been told last."""

    def of(self, model: str) -> list[Process]:
        """Return the live processes of `model`."""
        return [process for process in self.processes.values() if process.worker.model == model]

    def with_fate(self, fate: Fate) -> list[Request]:
        """Return the requests that wait, or those that run, oldest first."""
        assert fate in (Fate.QUEUED, Fate.GRANTED), "the others are in `requests`"
        return [request for request in self.open.values() if request.fate is fate]

    # --- what an action must be like ----------------------------------------------------------------------

    def expect_spawn_is_right(self, worker: WorkerId) -> None:
        """A start is allowed, and its id is new."""
        assert not self.is_shutting_down, "a worker starts while the router stops"
        policy = self.models[worker.model]
        assert policy.unavailable is None, "a worker starts for a model that cannot start"
        own = self.of(worker.model)
        assert all(other.worker.replica != worker.replica for other in own), "two incarnations of one replica are alive"
        new = [other for other in own if other.fingerprint == policy.fingerprint and not other.is_stopping]
        assert len(new) < policy.replicas, "more workers than replicas"
        assert all(
            worker > earlier
            for _, earlier in self.spawns
            if earlier.model == worker.model
            if earlier.replica == worker.replica
        )
        if self.limits.max_loaded is not None:
            assert len(self.processes) < self.limits.max_loaded, "more workers than max_loaded"

    def place(self, process: Process, placement: Placement) -> None:
        """The worker's room is its own: it is there, and nobody else has it; but a load may have needed more."""
        if process.is_ready:
            process.reserved = placement.reserved
            return
        process.reserved = {}
        policy = self.models[process.worker.model]
        for device in self.devices:
            taken = sum(other.reserved.get(device.id, 0) for other in self.processes.values())
            room = device.total_bytes - device.headroom_bytes - self.used_by_others.get(device.id, 0)
            room = min(room, device.usable_bytes) - taken
            assert placement.reserved.get(device.id, 0) <= max(0, room), f"{device.id} is promised twice"
        if placement.reserved and policy.gpu_layers == 0:
            assert not placement.gpus, "layers are offloaded although none may be"
        elif placement.reserved and policy.devices:
            assert set(placement.gpus) == set(policy.devices) - {"CPU"}, "an explicit device is not obeyed"
        elif placement.reserved and not policy.is_partial_allowed:
            has_gpus = any(device.is_gpu for device in self.devices)
            assert bool(placement.gpus) == has_gpus, "a model silently falls back to the CPU"
        process.reserved = placement.reserved

    def note_stop(self, worker: WorkerId, reason: ExitReason) -> None:
        """The worker is told to exit, for a reason that holds."""
        process = self.processes[worker]
        policy = self.models.get(worker.model)
        assert not process.is_stopping, "a worker is stopped twice"
        process.is_stopping = True
        is_asked = process.go_by_s is not None
        is_outdated = policy is not None and policy.fingerprint != process.fingerprint
        if reason is ExitReason.HUNG:
            assert process.is_hung, "a worker that lives is killed"
        elif reason is ExitReason.NO_ROOM:
            assert not process.is_ready, "a ready worker has its room"
            assert self.devices, "memory is not looked at"
        elif reason is ExitReason.LOAD_TIMEOUT:
            assert policy is not None
            assert not process.is_ready, "a ready worker cannot run out of load time"
            assert self.now_s >= process.last_sign_s + policy.load_timeout_s, "its load made progress"
        elif self.leases_on(worker):
            assert process.go_by_s is not None, "a worker is stopped under its running requests"
            assert self.now_s >= process.go_by_s, "a worker is stopped before its requests had their time"
        elif not process.is_ready:
            assert is_asked or is_outdated, "a load that somebody pays for is stopped"
        elif not is_asked and not is_outdated and len(self._current(worker.model)) < self.models[worker.model].replicas:
            assert policy is not None
            assert not self.is_pinned(policy), "a pinned worker is stopped"
            idle_s = self.now_s - process.last_used_s
            is_idle_for_long = self.idle_limit_s(process, policy) <= idle_s + 1e-6
            is_wanted = self._is_place_wanted(worker.model)
            assert is_idle_for_long or is_wanted, f"nobody asked for the place of {process}"
        if is_outdated and policy is not None and (self.is_pinned(policy) or policy.preload):
            self.wished.add(worker.model)

    def _current(self, model: str) -> list[WorkerId]:
        """Return the ready workers of `model` that have the present configuration and may stay."""
        fingerprint = self.models[model].fingerprint
        ready = [process for process in self.of(model) if process.is_ready and not process.is_stopping]
        return [process.worker for process in ready if process.fingerprint == fingerprint and process.go_by_s is None]

    def _is_place_wanted(self, by_others_than: str) -> bool:
        if self.limits.max_loaded is None and not self.devices:
            return False
        for device in self.devices:
            if sum(process.reserved.get(device.id, 0) for process in self.processes.values()) > device.usable_bytes:
                return True
        waiting = {request.model for request in self.with_fate(Fate.QUEUED)} | self.wished
        return bool(waiting - {by_others_than}) or len(self.processes) > (self.limits.max_loaded or 10_000)

    def note_grant(self, request: Request, process: Process) -> None:
        """The request runs on the worker, and nobody was passed over."""
        worker = process.worker
        assert request.fate is Fate.QUEUED, "a lease ends twice"
        assert request.model == worker.model, "a request is answered by another model"
        assert process.is_ready, "a lease on a worker that is not ready"
        assert not process.is_stopping, "a lease on a worker that stops"
        assert process.go_by_s is None, "a lease on a worker that has to go"
        leases = self.leases_on(worker)
        assert len(leases) < process.behaviour.max_leases, "a worker is leased too often"
        granted = [other for other in self.with_fate(Fate.GRANTED) if other.model == request.model]
        num_running = Counter(lease.key_id for lease in granted if lease.worker in self.processes)
        waiting = [other for other in self.with_fate(Fate.QUEUED) if other.model == request.model]
        first = min(waiting, key=lambda one: (-one.priority, self.shares.had(one), num_running[one.key_id]))
        assert request is first, "somebody else comes first"
        self.shares.grant(request)
        request.fate, request.worker, request.ended_s = Fate.GRANTED, worker, self.now_s
        process.last_used_s = self.now_s
        if request.keep_alive_s is not None:
            process.keep_alive_s = request.keep_alive_s

    def note_refusal(self, request: Request, refusal: RefuseLease) -> None:
        """The request is refused, for a reason that holds."""
        assert request.fate is Fate.QUEUED, "a lease ends twice"
        policy = self.models.get(request.model)
        match refusal.kind:
            case RefusalKind.UNKNOWN_MODEL:
                assert policy is None, "a known model is called unknown"
            case RefusalKind.QUEUE_FULL:
                assert policy is not None
                num_waiting = sum(other.model == request.model for other in self.with_fate(Fate.QUEUED))
                assert num_waiting > policy.max_queue > 0, "the queue is not full"
            case RefusalKind.QUEUE_TIMEOUT:
                assert policy is not None
                assert 0 < policy.queue_timeout_s <= self.now_s - request.since_s + 1e-6, "refused too early"
            case RefusalKind.SHUTTING_DOWN:
                assert self.is_shutting_down, "the router does not stop"
            case RefusalKind.UNAVAILABLE:
                assert policy is not None
            case RefusalKind.TOO_LARGE:
                assert policy is not None
                assert self.devices, "memory is not looked at"
                known = {device.id: device for device in self.devices}
                if all(id_ in known for id_ in policy.devices) and not any(one.is_gpu for one in self.devices):
                    needed = self.known[request.model].cpu_bytes
                    assert needed > known["CPU"].usable_bytes, "it would fit"
        assert refusal.detail.endswith("."), "a refusal is a sentence"
        self.shares.end(request.lease_id, None)
        del self.open[request.lease_id]
        request.fate, request.refusal, request.ended_s = Fate.REFUSED, refusal, self.now_s

    def expect_nothing_overdue(self) -> None:
        """Nobody has been left waiting past a deadline, by the world's own reckoning."""
        for request in self.with_fate(Fate.QUEUED):
            policy = self.models[request.model]
            is_late = 0 < policy.queue_timeout_s < self.now_s - request.since_s - 1e-6
            assert not is_late, "a request waits longer than queue_timeout_s"
        for process in self.processes.values():
            process_policy = self.models.get(process.worker.model)
            if process_policy is None or process.is_stopping:
                continue
            has_leases = bool(self.leases_on(process.worker))
            if not process.is_ready:
                silent_s = self.now_s - process.last_sign_s
                assert silent_s < process_policy.load_timeout_s, "a load hangs and nobody stops it"
            if process.go_by_s is not None:
                assert has_leases, "nothing runs on a worker that has to go"
                assert self.now_s < process.go_by_s, "a worker that has to go is still there"
            is_doomed = process.worker.model in self.failed or process_policy.unavailable is not None
            if not has_leases and process.fingerprint != process_policy.fingerprint and not is_doomed:
                raise AssertionError("an idle worker keeps an old configuration")
            if not has_leases and process.is_ready and process.fingerprint == process_policy.fingerprint:
                num_earlier = sum(worker < process.worker for worker in self._current(process.worker.model))
                assert num_earlier < process_policy.replicas, "an idle worker beyond `replicas` stays"
            stays = self.is_pinned(process_policy) or process_policy.home
            if not has_leases and not stays and process.is_ready:
                idle_s = self.now_s - process.last_used_s
                assert idle_s < self.idle_limit_s(process, process_policy), "an idle worker stays"

    # --- what has happened --------------------------------------------------------------------------------

    def note(self, event: Event) -> None:
        """The world's own books hold what `event` changes."""
        match event:
            case WorkerStarted(worker) | WorkerProgressed(worker) if worker in self.processes:
                self.processes[worker].last_sign_s = self.now_s
                self.processes[worker].is_started = True
            case WorkerReady(worker) if worker in self.processes:
                process = self.processes[worker]
                if not process.is_stopping and not process.is_ready:
                    process.is_started = process.is_ready = True
                    process.last_used_s = self.now_s
                    self.wished.discard(worker.model)
                    self.failed.discard(worker.model)
            case LeaseReleased(lease_id, tokens):
                self.shares.end(lease_id, tokens)
            case ModelSized(model, footprint):
                self.known[model] = footprint
            case KeepAliveSet(model, keep_alive_s):
                for process in self.of(model):
                    process.keep_alive_s = keep_alive_s
            case PinSet(model, pin) if model in self.models:
                self.pin_orders[model] = pin
            case WorkerSized(worker, footprint) if worker in self.processes:
                self.known[worker.model] = footprint
                process = self.processes[worker]
                if process.is_ready and process.reserved.keys() == {"CPU"}:
                    process.reserved = {"CPU": footprint.cpu_bytes}
            case WorkerExited(worker, exit_) if worker in self.processes:
                del self.processes[worker]
                if exit_.reason not in (ExitReason.STOPPED, ExitReason.NO_ROOM):
                    self.failed.add(worker.model)
            case _:
                pass

    def excuse(self, model: str, drain_s: float) -> None:
        """Its workers may be cut off `drain_s` from now, and must be gone then."""
        for process in self.of(model):
            go_by_s = self.now_s + drain_s
            process.go_by_s = go_by_s if process.go_by_s is None else min(process.go_by_s, go_by_s)

    def idle_limit_s(self, process: Process, policy: ModelPolicy) -> float:
        """Return how long the worker may be idle, whether or not it is pinned."""
        if process.keep_alive_s is not None:
            return process.keep_alive_s if process.keep_alive_s >= 0 else math.inf
        return policy.idle_unload_s or math.inf

    def is_pinned(self, policy: ModelPolicy) -> bool:
        """Return whether neither idleness nor another model may send its workers away."""
        pin = self.pin_orders.get(policy.name)
        return policy.pin if pin is None else pin

    def leases_on(self, worker: WorkerId) -> list[Request]:
        return [request for request in self.with_fate(Fate.GRANTED) if request.worker == worker]
