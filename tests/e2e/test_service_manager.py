"""What a real `corral serve` tells the service manager that started it, from its start to its end."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.support.managed import managed, write_models
from tests.support.served import Served, until


class Messages:
    """All that was told so far."""

    def __init__(self, folder: Path) -> None:
        self.address = str(folder / "notify")
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(self.address)
        self._socket.setblocking(False)
        self._lines: list[str] = []

    def lines(self) -> list[str]:
        """Return the fields, oldest first."""
        while True:
            try:
                self._lines += self._socket.recv(4096).decode().split("\n")
            except BlockingIOError:
                return self._lines

    def count(self, field: str) -> int:
        return self.lines().count(field)

    def close(self) -> None:
        self._socket.close()


@pytest.fixture
def messages(tmp_path: Path) -> Iterator[Messages]:
    found = Messages(tmp_path)
    yield found
    found.close()


def env_of(messages: Messages, watchdog_s: float) -> dict[str, str]:
    return {"NOTIFY_SOCKET": messages.address, "WATCHDOG_USEC": str(int(watchdog_s * 1e6))}


@pytest.mark.slow
async def test_whole_life_is_told_in_order(tmp_path: Path, messages: Messages) -> None:
    path = write_models(tmp_path)
    async with managed(tmp_path, env=env_of(messages, 0.9)) as server:
        await until(lambda: messages.count("WATCHDOG=1") >= 2, what="two signs of life")
        assert messages.lines()[:2] == ["READY=1", "STATUS=1 model, 0 loaded, 0 requests running"]
        reply = await server.chat("small", stream=True, tokens=200, delay_s=0.01)
        await reply.content.readuntil(b'"w3 "')
        await until(lambda: "STATUS=1 model, 1 loaded, 1 request running" in messages.lines(), what="the new status")

        server.process.send_signal(signal.SIGHUP)
        await until(lambda: messages.count("READY=1") == 2, what="the end of the reload")
        assert messages.count("RELOADING=1") == 1
        path.write_text("models: [")
        server.process.send_signal(signal.SIGHUP)
        await until(lambda: messages.count("READY=1") == 3, what="the end of a reload that was refused")
        refused = "an edit of the configuration is refused"
        await until(lambda: any(refused in line for line in messages.lines()), what="the reason in the status")

        server.process.send_signal(signal.SIGTERM)
        await until(lambda: messages.count("STOPPING=1") == 1, what="the stop")
        await until(lambda: messages.count("EXTEND_TIMEOUT_USEC=30000000") >= 2, what="asking for patience")
        assert (await reply.text()).rstrip().endswith("[DONE]")
        assert await asyncio.wait_for(server.process.wait(), 15) == 0
        assert any(line.startswith("STATUS=stopping: ") for line in messages.lines())


@pytest.mark.slow
async def test_server_that_is_held_up_gives_no_sign_of_life(tmp_path: Path, messages: Messages) -> None:
    write_models(tmp_path)
    async with managed(tmp_path, env=env_of(messages, 0.6)) as server:
        await until(lambda: messages.count("WATCHDOG=1") >= 1, what="a sign of life")
        os.kill(server.process.pid, signal.SIGSTOP)
        await asyncio.sleep(0.3)
        before = messages.count("WATCHDOG=1")
        await asyncio.sleep(1.0)
        assert messages.count("WATCHDOG=1") == before
        os.kill(server.process.pid, signal.SIGCONT)
        await until(lambda: messages.count("WATCHDOG=1") > before, what="the next sign of life")
        await until(lambda: _has_told(server, "the event loop was held up"), what="the warning")


async def test_workers_are_not_told_of_the_service_manager(tmp_path: Path, messages: Messages) -> None:
    write_models(tmp_path)
    async with managed(tmp_path, env=env_of(messages, 60)) as server:
        assert (await server.chat("small")).status == 200
        (pid,) = server.worker_pids()
        names = psutil.Process(pid).environ().keys()
        assert not names & {"NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID", "LISTEN_FDS", "LISTEN_PID"}


def _has_told(server: Served, text: str) -> bool:
    return any(text in line["message"] for line in server.lines)
