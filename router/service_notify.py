"""What a service manager such as systemd is told: that the server is up, reads its configuration, works, or stops.

Owns the words of the protocol, the socket that they go to, and when a sign of life is due. Must not judge the server:
what it looks at is handed to it. Without a service manager nothing is sent.

Source: sd_notify(3), sd_watchdog_enabled(3).
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import time
from collections.abc import Callable, MutableMapping

from router.fleet_views import FleetSnapshot
from router.lifecycle import WorkerState

_log = logging.getLogger(__name__)

_LOOK_EVERY_S = 5.0
"""The status text is at most this old, and is sent only when it has changed."""
_MAX_DIGITS = 20
"""So long is a number of 64 bits; Python refuses to read some thousands."""
_EXTEND_BY_S = 30.0
"""While it stops, each sign of life asks for so much more time: several could be lost."""


class ServiceManager:
    """Takes the server's messages, if there is a service manager that wants them. Never raises."""

    def __init__(self, environ: MutableMapping[str, str], pid: int | None = None) -> None:
        """Take what the service manager has set for process `pid` (None = this one) out of `environ`.

        No process that is started later is to speak in our name.
        """
        address = environ.pop("NOTIFY_SOCKET", "")
        period, wanted = environ.pop("WATCHDOG_USEC", ""), environ.pop("WATCHDOG_PID", "")
        is_for_us = wanted in ("", str(os.getpid() if pid is None else pid))
        self.watchdog_s: float | None = None
        """It restarts a server that gives no sign of life for so long; None = it does not look."""
        if address and is_for_us and period:
            self.watchdog_s = _seconds(period)
        self._socket = _connect(address)
        self._status = ""

    @property
    def is_there(self) -> bool:
        """False = nobody listens, and nothing need be looked at for it."""
        return self._socket is not None

    def ready(self) -> None:
        """It knows that the server listens, or that its configuration has been read again."""
        self.send("READY=1")

    def reloading(self) -> None:
        """It knows that the configuration is being read, until `ready`."""
        self.send("RELOADING=1", f"MONOTONIC_USEC={time.monotonic_ns() // 1000}")

    def stopping(self) -> None:
        """It knows that the server stops by itself."""
        self.send("STOPPING=1", _more_time())

    def tell(self, status: str, *more: str) -> None:
        """It shows `status`, one line for people; `more` goes with it. Nothing is sent that it knows."""
        fields = [*more, *([f"STATUS={status}"] if status != self._status else [])]
        self._status = status
        if fields:
            self.send(*fields)

    def send(self, *fields: str) -> None:
        """The fields are sent, each of them `NAME=value`, unless nobody listens or its queue is full."""
        if self._socket is None:
            return
        try:
            self._socket.send("\n".join(field.replace("\n", " ") for field in fields).encode())
        except OSError as error:
            _log.debug("the service manager was not told %s: %s", fields, error)

    def close(self) -> None:
        """Nothing more is sent."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None


class Heartbeat:
    """Signs of life, sent by the event loop itself: only while it turns in time and events are handled.

    A thread of its own would go on when nobody is served any more.
    """

    def __init__(self, manager: ServiceManager, *, probe: Callable[[], None], describe: Callable[[], str]) -> None:
        """`probe` makes the server do a piece of its work, and raises when it cannot; `describe` is the status text."""
        self._manager = manager
        self._probe = probe
        self._describe = describe
        self.is_stopping = False
        """While it is set, the service manager is asked for patience."""
        watchdog_s = manager.watchdog_s
        self.period_s = _LOOK_EVERY_S if watchdog_s is None else min(_LOOK_EVERY_S, watchdog_s / 3)
        self.max_late_s = None if watchdog_s is None else watchdog_s / 3

    async def run(self) -> None:
        """Beat until cancelled."""
        clock = asyncio.get_running_loop().time
        while True:
            due_s = clock() + self.period_s
            await asyncio.sleep(self.period_s)
            await self.beat(clock() - due_s)

    async def beat(self, late_s: float = 0.0) -> None:
        """One look, and what follows from it, `late_s` after it was due."""
        fields = [_more_time()] if self.is_stopping else []
        if self.max_late_s is not None:
            if late_s > self.max_late_s:
                _log.warning("the event loop was held up for %.1f s: no sign of life is given this time", late_s)
            elif await self._is_sane():
                fields.append("WATCHDOG=1")
        self._manager.tell(self._describe(), *fields)

    async def _is_sane(self) -> bool:
        """Return whether the probe went through. The log has its fault, as that of any callback of the loop."""
        done: list[bool] = []

        def try_it() -> None:
            self._probe()
            done.append(True)

        asyncio.get_running_loop().call_soon(try_it)
        await asyncio.sleep(0)  # callbacks run in the order in which they came
        return bool(done)


def describe(fleet: FleetSnapshot, num_models: int, refused: str | None) -> str:
    """Return how the server is, on one line; `refused` is why the present configuration file cannot be used."""
    views = fleet.models.values()
    num_loaded = sum(view.state is WorkerState.READY for view in views)
    num_running = sum(resident.num_leases for view in views for resident in view.residents)
    num_waiting = sum(view.queue_length for view in views)
    if fleet.is_shutting_down:
        return f"stopping: {_count(num_running, 'request')} running"
    text = f"{_count(num_models, 'model')}, {num_loaded} loaded, {_count(num_running, 'request')} running"
    if num_waiting:
        text += f", {num_waiting} waiting"
    return text if refused is None else f"{text}; an edit of the configuration is refused: {refused}"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _seconds(microseconds: str) -> float | None:
    """Return the watchdog's period; None = none, or one that cannot be meant, which the log tells."""
    if len(microseconds) <= _MAX_DIGITS and microseconds.isdecimal():
        return int(microseconds) / 1e6 or None
    _log.warning("WATCHDOG_USEC=%.40s is no number of microseconds: no signs of life are given", microseconds)
    return None


def _more_time() -> str:
    return f"EXTEND_TIMEOUT_USEC={int(_EXTEND_BY_S * 1e6)}"


def _connect(address: str) -> socket.socket | None:
    if not address.startswith(("/", "@")):
        return None  # none, or a kind that systemd uses towards machines
    path = b"\0" + os.fsencode(address[1:]) if address.startswith("@") else os.fsencode(address)
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    try:
        sock.setblocking(False)
        sock.connect(path)
    except OSError as error:
        sock.close()
        _log.warning("the service manager's socket %s cannot be used: %s", address, error)
        return None
    return sock
