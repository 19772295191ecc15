"""What a service manager hears: the words of the protocol, over both kinds of names, and when a beat is left out."""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from router.events import ShutdownRequested
from router.service_notify import Heartbeat, ServiceManager, describe
from tests.support.fleet_scenes import ask, given_ready, make_fleet

PID = os.getpid()


class Hearer:
    """The service manager's end."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind(b"\0" + address[1:].encode() if address.startswith("@") else address)
        self.socket.setblocking(False)

    def heard(self) -> list[list[str]]:
        """Return the messages since the last call, each as its lines."""
        messages = []
        while True:
            try:
                messages.append(self.socket.recv(4096).decode().split("\n"))
            except BlockingIOError:
                return messages


@pytest.fixture(params=["path", "abstract"])
def hearer(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Hearer]:
    found = Hearer(str(tmp_path / "notify") if request.param == "path" else f"@corral-test-{PID}")
    yield found
    found.socket.close()


def manager_of(hearer: Hearer, **more: str) -> ServiceManager:
    return ServiceManager({"NOTIFY_SOCKET": hearer.address} | more)


def heartbeat_of(manager: ServiceManager, *, status: str = "fine") -> Heartbeat:
    return Heartbeat(manager, probe=lambda: None, describe=lambda: status)


def test_life_of_a_service_is_told_word_by_word(hearer: Hearer) -> None:
    manager = manager_of(hearer)
    manager.tell("3 models", "READY=1")
    manager.reloading()
    manager.ready()
    manager.stopping()
    manager.close()
    started, reloading, reloaded, stopping = hearer.heard()
    assert started == ["READY=1", "STATUS=3 models"]
    assert reloading[0] == "RELOADING=1"
    assert reloading[1].removeprefix("MONOTONIC_USEC=").isdecimal()
    assert reloaded == ["READY=1"]
    assert stopping == ["STOPPING=1", "EXTEND_TIMEOUT_USEC=30000000"]


def test_status_is_told_once_and_stays_on_one_line(hearer: Hearer) -> None:
    manager = manager_of(hearer)
    manager.tell("a\nREADY=0")
    manager.tell("a\nREADY=0")
    assert hearer.heard() == [["STATUS=a READY=0"]]
    manager.close()


def test_variables_are_taken_so_that_no_child_speaks_for_the_server(hearer: Hearer) -> None:
    environ = {"NOTIFY_SOCKET": hearer.address, "WATCHDOG_USEC": "9000000", "WATCHDOG_PID": str(PID), "HOME": "/"}
    manager = ServiceManager(environ)
    assert environ == {"HOME": "/"}
    assert manager.watchdog_s == 9.0
    manager.close()


@pytest.mark.parametrize(
    ("period", "pid", "is_watched"),
    [("9000000", "", True), ("9000000", "1", False), ("0", "", False), ("soon", "", False), ("", str(PID), False)],
)
def test_watchdog_that_is_for_others_or_makes_no_sense_is_none(
    hearer: Hearer, period: str, pid: str, is_watched: bool
) -> None:
    manager = manager_of(hearer, WATCHDOG_USEC=period, WATCHDOG_PID=pid)
    assert (manager.watchdog_s is not None) == is_watched
    manager.close()


@pytest.mark.parametrize("address", ["", "vsock:2:1234", "relative"])
def test_without_a_service_manager_nothing_is_sent(address: str) -> None:
    manager = ServiceManager({"NOTIFY_SOCKET": address, "WATCHDOG_USEC": "9000000"})
    assert not manager.is_there
    manager.ready()


def test_service_manager_that_is_gone_is_said_once_and_stops_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    manager = ServiceManager({"NOTIFY_SOCKET": str(tmp_path / "gone")})
    manager.ready()
    (told,) = caplog.records
    assert "gone cannot be used" in told.message


async def test_beat_comes_three_times_in_the_time_that_is_allowed(hearer: Hearer) -> None:
    manager = manager_of(hearer, WATCHDOG_USEC="9000000")
    heartbeat = heartbeat_of(manager)
    assert heartbeat.period_s == pytest.approx(3.0)
    await heartbeat.beat(late_s=0.5)
    await heartbeat.beat(late_s=0.5)
    assert hearer.heard() == [["WATCHDOG=1", "STATUS=fine"], ["WATCHDOG=1"]]
    manager.close()


async def test_beat_is_left_out_when_the_loop_was_held_up(hearer: Hearer, caplog: pytest.LogCaptureFixture) -> None:
    manager = manager_of(hearer, WATCHDOG_USEC="9000000")
    await heartbeat_of(manager).beat(late_s=3.5)
    assert hearer.heard() == [["STATUS=fine"]]
    assert "held up for 3.5 s" in caplog.text
    manager.close()


async def test_beat_is_left_out_while_events_cannot_be_handled(
    hearer: Hearer, caplog: pytest.LogCaptureFixture
) -> None:
    faults = [AssertionError("the books are wrong")]

    def probe() -> None:
        if faults:
            raise faults.pop()

    manager = manager_of(hearer, WATCHDOG_USEC="9000000")
    heartbeat = Heartbeat(manager, probe=probe, describe=lambda: "fine")
    with caplog.at_level(logging.ERROR):
        await heartbeat.beat()
    assert hearer.heard() == [["STATUS=fine"]]
    assert "the books are wrong" in caplog.text
    await heartbeat.beat()
    assert hearer.heard() == [["WATCHDOG=1"]]
    manager.close()


async def test_stop_asks_for_more_time_with_every_beat(hearer: Hearer) -> None:
    manager = manager_of(hearer)
    heartbeat = heartbeat_of(manager)
    heartbeat.is_stopping = True
    await heartbeat.beat()
    await heartbeat.beat()
    assert hearer.heard() == [["EXTEND_TIMEOUT_USEC=30000000", "STATUS=fine"], ["EXTEND_TIMEOUT_USEC=30000000"]]
    manager.close()


def test_status_counts_models_and_requests_and_says_what_is_wrong() -> None:
    fleet = make_fleet("a", "b")
    assert describe(fleet.snapshot(0.0), 2, None) == "2 models, 0 loaded, 0 requests running"
    given_ready(fleet, "a", num_leases=1)
    ask(fleet, 70, "b", now_s=20.0)
    told = describe(fleet.snapshot(21.0), 2, "line 3: unknown key")
    assert told == (
        "2 models, 1 loaded, 1 request running, 1 waiting; an edit of the configuration is refused: line 3: unknown key"
    )
    fleet.handle(ShutdownRequested(25.0), now_s=22.0)
    assert describe(fleet.snapshot(23.0), 2, None) == "stopping: 1 request running"


@pytest.mark.parametrize("period", ["9" * 5000, "-5", "x"])
def test_watchdog_period_that_cannot_be_meant_is_told_and_left_out(
    hearer: Hearer, caplog: pytest.LogCaptureFixture, period: str
) -> None:
    manager = manager_of(hearer, WATCHDOG_USEC=period)
    assert manager.watchdog_s is None
    (message,) = caplog.messages
    assert message == f"WATCHDOG_USEC={period[:40]} is no number of microseconds: no signs of life are given"
    manager.close()
