"""An operator can follow each model's life in the log."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from router.departures import departure_detail, departure_note
from router.events import (
    CatalogChanged,
    Departure,
    Event,
    ExitReason,
    FleetLimits,
    KeepAliveSet,
    LeaseId,
    LeaseReleased,
    LeaseRequested,
    ModelPolicy,
    ShutdownRequested,
    StopCause,
    Tick,
    UnloadRequested,
    WorkerExit,
    WorkerExited,
    WorkerHung,
    WorkerId,
    WorkerReady,
    WorkerStarted,
)
from router.fleet import Fleet
from router.fleet_log import FleetLog

A1 = WorkerId("a", 0, 1)
Story = Callable[..., list[str]]


@pytest.fixture
def story(caplog: pytest.LogCaptureFixture) -> Story:
    """Feed events at given times to a real fleet and return the lines."""
    caplog.set_level("INFO", "router.fleet")
    fleet = Fleet({"a": ModelPolicy("a", idle_unload_s=900.0)}, FleetLimits())
    log = FleetLog()

    def tell(*events: tuple[float, Event]) -> list[str]:
        for now_s, event in events:
            fleet.handle(event, now_s)
            log.note(event, fleet.snapshot(now_s), now_s)
        return caplog.messages

    return tell


def served_until(end_s: float) -> list[tuple[float, Event]]:
    return [
        (0.0, LeaseRequested(LeaseId(1), "a")),
        (0.1, WorkerStarted(A1)),
        (1.0, WorkerReady(A1, 6)),
        (end_s, LeaseReleased(LeaseId(1))),
    ]


def test_unload_names_how_long_the_model_was_idle(story: Story) -> None:
    stopped = WorkerExit(ExitReason.STOPPED, "", 0)
    assert story(*served_until(10.0), (910.0, Tick()), (910.1, WorkerExited(A1, stopped))) == [
        "a: unloaded (idle for 900 s)"
    ]


def test_unload_for_another_model_says_so_and_is_counted(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "router.fleet")
    fleet = Fleet({"a": ModelPolicy("a"), "b": ModelPolicy("b")}, FleetLimits(max_loaded=1))
    evicted: list[str] = []
    log = FleetLog(evicted.append)
    events = [*served_until(10.0), (30.0, LeaseRequested(LeaseId(2), "b"))]
    events.append((30.1, WorkerExited(A1, WorkerExit(ExitReason.STOPPED, "", 0))))
    for now_s, event in events:
        fleet.handle(event, now_s)
        log.note(event, fleet.snapshot(now_s), now_s)
    assert caplog.messages == ["a: unloaded (to make room for 'b', idle for 20 s)"]
    assert evicted == ["a"]


def test_unload_by_idleness_is_no_eviction(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "router.fleet")
    fleet = Fleet({"a": ModelPolicy("a", idle_unload_s=900.0)}, FleetLimits())
    evicted: list[str] = []
    log = FleetLog(evicted.append)
    gone = WorkerExited(A1, WorkerExit(ExitReason.STOPPED, "", 0))
    for now_s, event in [*served_until(10.0), (910.0, Tick()), (910.1, gone)]:
        fleet.handle(event, now_s)
        log.note(event, fleet.snapshot(now_s), now_s)
    assert caplog.messages == ["a: unloaded (idle for 900 s)"]
    assert evicted == []


def test_worker_that_hung_is_told_with_the_reason_that_was_seen(story: Story) -> None:
    killed = WorkerExit(ExitReason.HUNG, "it gave no sign of life and was killed", -9)
    why = "its engine has had work for 60 s and completed no pass"
    lines = story(*served_until(10.0)[:-1], (80.0, WorkerHung(A1, why)), (80.1, WorkerExited(A1, killed)))
    assert lines[-1].startswith(f"a: failed: {why}")


def test_drain_names_how_many_requests_still_run(story: Story) -> None:
    events = served_until(10.0)[:-1]
    assert story(*events, (5.0, UnloadRequested("a"))) == ["a: taking no more requests; 1 request still runs"]


def test_an_unload_that_cuts_off_a_request_was_not_idle(story: Story) -> None:
    stopped = WorkerExit(ExitReason.STOPPED, "", 0)
    events = [*served_until(10.0)[:-1], (5.0, UnloadRequested("a")), (70.0, Tick()), (71.0, WorkerExited(A1, stopped))]
    assert story(*events)[-1] == "a: unloaded (by request)"


A = ModelPolicy("a", idle_unload_s=900.0)
NEVER_IDLE = replace(A, idle_unload_s=0.0)


@pytest.mark.parametrize(
    ("events", "cause", "note", "detail"),
    [
        (
            [CatalogChanged({"a": A}, FleetLimits())],
            "idle",
            "idle for 990 s",
            "unloaded, because it was idle for 900 s (idle_unload_s)",
        ),
        (
            [KeepAliveSet("a", 0.0)],
            "keep_alive",
            "keep_alive 0 s, idle for 990 s",
            "unloaded, as a request asked for (keep_alive 0 s)",
        ),
        (
            [CatalogChanged({"a": replace(NEVER_IDLE, fingerprint="new")}, FleetLimits())],
            "configuration",
            "its configuration has changed",
            "unloaded, because its configuration has changed",
        ),
        (
            [CatalogChanged({}, FleetLimits())],
            "removed",
            "removed from the configuration",
            None,
        ),
        (
            [CatalogChanged({"a": NEVER_IDLE}, FleetLimits(max_loaded=0))],
            "limits",
            "more was loaded than the limits allow, idle for 990 s",
            "unloaded, because more was loaded than the limits in the configuration allow",
        ),
        ([UnloadRequested("a")], "request", "by request", "unloaded by request (POST /models/unload)"),
        (
            [UnloadRequested("a"), ShutdownRequested()],
            "request",
            "by request",
            "unloaded by request (POST /models/unload)",
        ),
        ([ShutdownRequested()], "shutdown", "the server stops", "unloaded, because the server stops"),
    ],
)
def test_an_unload_tells_its_true_cause(
    caplog: pytest.LogCaptureFixture, events: list[Event], cause: str, note: str, detail: str | None
) -> None:
    caplog.set_level("INFO", "router.fleet")
    fleet, log = Fleet({"a": NEVER_IDLE}, FleetLimits()), FleetLog()
    gone = WorkerExited(A1, WorkerExit(ExitReason.STOPPED, "stopped by the router", 0))
    for now_s, event in [*served_until(10.0), *((1000.0, event) for event in events), (1000.1, gone)]:
        fleet.handle(event, now_s)
        log.note(event, fleet.snapshot(now_s), now_s)
    shown = fleet.snapshot(1000.1).models
    assert caplog.messages[-1] == f"a: unloaded ({note})"
    if detail is None:
        assert shown == {}, "nobody is left to be told but the log"
        return
    last_exit = shown["a"].last_exit
    assert last_exit is not None
    assert last_exit.departure is not None
    assert (last_exit.departure.cause.value, last_exit.detail) == (cause, detail)


def test_a_worker_beyond_the_replicas_goes_for_that(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "router.fleet")
    two = replace(A, replicas=2, preload=True)
    fleet, log = Fleet({"a": two}, FleetLimits()), FleetLog()
    second = WorkerId("a", 1, 1)
    loads = [event for one in (A1, second) for event in (WorkerStarted(one), WorkerReady(one, 6))]
    changed = CatalogChanged({"a": replace(two, replicas=1)}, FleetLimits())
    gone = WorkerExited(second, WorkerExit(ExitReason.STOPPED, "", 0))
    for now_s, event in enumerate([Tick(), *loads, changed, gone]):
        fleet.handle(event, float(now_s))
        log.note(event, fleet.snapshot(now_s), now_s)
    assert caplog.messages == ["a: unloaded (fewer replicas are configured)"]


def test_a_load_that_the_operator_cancels_says_so(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "router.fleet")
    fleet, log = Fleet({"a": A}, FleetLimits()), FleetLog()
    stopped = WorkerExited(A1, WorkerExit(ExitReason.STOPPED, "stopped by the router", 0))
    for now_s, event in [*served_until(0.5)[:2], (0.5, UnloadRequested("a")), (0.6, stopped)]:
        fleet.handle(event, now_s)
        log.note(event, fleet.snapshot(now_s), now_s)
    assert caplog.messages == ["a: unloaded (by request)"]


def test_every_cause_has_words() -> None:
    for cause in StopCause:
        departure = Departure(cause, limit_s=5.0, for_model="b")
        assert departure_detail(departure).startswith("unloaded")
        assert departure_note(departure) or cause is StopCause.IDLE


def test_failure_names_its_reason_and_the_next_try(story: Story) -> None:
    full = WorkerExit(ExitReason.NO_MEMORY, "KV does not fit\nfree 3 GB", 66)
    assert story(*served_until(0.5)[:2], (0.5, WorkerExited(A1, full))) == [
        "a: failed: KV does not fit / free 3 GB; next try in 1 s at the earliest"
    ]


def test_a_bad_file_says_what_lifts_the_failure(story: Story) -> None:
    bad = WorkerExit(ExitReason.BAD_MODEL, "it is truncated", 65)
    (line,) = story(*served_until(0.5)[:2], (0.5, WorkerExited(A1, bad)))
    assert line.startswith("a: failed: it is truncated; tried again when the file or the configuration changes")


def test_lines_about_a_model_carry_its_state_as_fields(story: Story, caplog: pytest.LogCaptureFixture) -> None:
    full = WorkerExit(ExitReason.NO_MEMORY, "KV does not fit", 66)
    FleetLog().note_ready("a", 1.25)
    story(*served_until(0.5)[:2], (0.5, WorkerExited(A1, full)))
    told = [vars(record)["_fields"] for record in caplog.records]
    assert told == [
        {"model": "a", "state": "ready", "seconds": 1.25},
        {"model": "a", "state": "backoff", "seconds": 1.0},
    ]
