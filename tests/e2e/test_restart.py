"""Restarts on a socket that outlives the server: what clients notice of one, which is nothing."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import socket
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import aiohttp
import httpx
import pytest

from tests.support.managed import managed, start, write_models
from tests.support.served import Served, chat_body, until

EXIT_WITHIN_S = 15.0
IDLE_EXIT_WITHIN_S = 3.0
"""Where nothing runs, whoever looks on."""


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    """What a socket unit of systemd holds."""
    with socket.create_server(("127.0.0.1", 0), backlog=512) as sock:
        yield sock


def url_of(listener: socket.socket) -> str:
    return f"http://127.0.0.1:{listener.getsockname()[1]}"


class Clients:
    """Clients of several kinds that ask without a pause, each for one answer at a time."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.answers: list[str] = []
        self.failures: list[str] = []
        self._is_over = False
        self._tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Clients:
        kinds = (self._kept_aiohttp, self._kept_httpx, self._one_each, self._kept_streams)
        self._tasks = [asyncio.create_task(kind()) for kind in kinds for _ in range(2)]
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self._tasks:  # after a failure nobody may be there to answer them
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def stop(self) -> None:
        """The last answers have come. May be called twice."""
        self._is_over = True
        await asyncio.gather(*self._tasks)

    async def until_more(self, number: int = 40) -> None:
        """Return when so many more answers have come."""
        wanted = len(self.answers) + number
        await until(lambda: len(self.answers) >= wanted or bool(self.failures), within_s=20, what="more answers")

    async def _ask(self, name: str, send: Callable[[], Awaitable[tuple[int, str]]]) -> None:
        while not self._is_over:
            try:
                status, text = await send()
            except (aiohttp.ClientError, httpx.HTTPError, OSError) as error:
                self.failures.append(f"{name}: {error!r}")
            else:
                (self.answers if status == 200 and "w4" in text else self.failures).append(f"{name}: {status} {text}")

    async def _kept_aiohttp(self) -> None:
        async with aiohttp.ClientSession() as session:
            await self._ask("aiohttp", lambda: self._post(session))

    async def _one_each(self) -> None:
        async def send() -> tuple[int, str]:
            async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(force_close=True)) as session:
                return await self._post(session)

        await self._ask("a connection each", send)

    async def _kept_httpx(self) -> None:
        async with httpx.AsyncClient(timeout=30) as client:

            async def send() -> tuple[int, str]:
                reply = await client.post(f"{self.url}/v1/chat/completions", json=chat_body("small"))
                return reply.status_code, reply.text

            await self._ask("httpx", send)

    async def _kept_streams(self) -> None:
        async with aiohttp.ClientSession() as session:
            await self._ask("stream", lambda: self._post(session, stream=True, delay_s=0.01))

    async def _post(self, session: aiohttp.ClientSession, **body: Any) -> tuple[int, str]:
        async with session.post(f"{self.url}/v1/chat/completions", json=chat_body("small", **body)) as reply:
            text = await reply.text()
            is_whole = not body.get("stream") or text.rstrip().endswith("[DONE]")
            return (reply.status if is_whole else 0), text


async def stopped(server: Served) -> int:
    server.process.send_signal(signal.SIGTERM)
    return await asyncio.wait_for(server.process.wait(), EXIT_WITHIN_S)


@pytest.mark.slow
async def test_successor_on_the_same_socket_takes_over_without_a_failed_request(
    tmp_path: Path, listener: socket.socket
) -> None:
    write_models(tmp_path)
    async with managed(tmp_path, [listener]) as old, Clients(url_of(listener)) as clients:
        await clients.until_more()
        long = await old.chat("small", stream=True, tokens=300, delay_s=0.01)
        await long.content.readuntil(b'"w3 "')
        async with managed(tmp_path, [listener]) as new:
            assert await stopped(old) == 0
            assert (await long.text()).rstrip().endswith("[DONE]"), "what ran when the stop came was finished"
            await clients.until_more()
            assert clients.failures == []
            await clients.stop()
            assert any(line.get("outcome") == "ok" for line in new.lines)


@pytest.mark.slow
@pytest.mark.parametrize("loop", ["uvloop", "asyncio"])
async def test_restart_with_a_gap_makes_clients_wait_and_fails_none(
    tmp_path: Path, listener: socket.socket, loop: str
) -> None:
    (tmp_path / "uvloop.py").write_text("raise ImportError")
    env = {"PYTHONPATH": str(tmp_path)} if loop == "asyncio" else {}
    write_models(tmp_path)
    async with Clients(url_of(listener)) as clients:
        async with managed(tmp_path, [listener], env=env) as old:
            await clients.until_more()
            assert await stopped(old) == 0
        async with managed(tmp_path, [listener], env=env):
            await clients.until_more()
            await clients.stop()
        assert clients.failures == []


async def test_kept_connection_gets_one_more_answer_and_is_told_that_it_is_the_last(
    tmp_path: Path, listener: socket.socket
) -> None:
    write_models(tmp_path)
    async with managed(tmp_path, [listener]) as server:
        assert (await server.chat("small")).headers.get("Connection") != "close"
        server.process.send_signal(signal.SIGTERM)
        await until(lambda: any("stopping" in line["message"] for line in server.lines), what="the stop")
        last = await server.chat("small")
        assert (last.status, last.headers["Connection"]) == (200, "close")
        await last.read()
        assert await asyncio.wait_for(server.process.wait(), EXIT_WITHIN_S) == 0


class Page:
    """What an open dashboard does: it follows, asks on kept connections besides, and follows again when that ends."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.told: list[str] = []
        """The whole of each stream."""
        self._tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Page:
        self._session = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=60))
        paths = ("/status", "/v1/models", "/requests") * 2  # each leaves a connection behind, which is idle then
        for reply in await asyncio.gather(*(self._session.get(self.url + path) for path in paths)):
            await reply.read()
        paths = ("/events?topics=server,models,changes", "/events", "/models/sse", "/admin/logs?follow=true")
        self._tasks = [asyncio.create_task(self._follow(path)) for path in paths]
        await until(lambda: len(self.told) == len(paths), what="all streams")
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._session.close()

    async def _follow(self, path: str) -> None:
        while True:
            with contextlib.suppress(aiohttp.ClientError):
                async with self._session.get(self.url + path) as reply:
                    number = len(self.told)
                    self.told.append("")
                    async for piece in reply.content.iter_any():
                        self.told[number] += piece.decode()
                    self.told[number] += "<end>"
            await asyncio.sleep(0.02)


@pytest.mark.parametrize("is_passed", [True, False])
async def test_followers_are_told_of_the_stop_and_do_not_hold_it_up(
    tmp_path: Path, listener: socket.socket, is_passed: bool
) -> None:
    write_models(tmp_path)
    async with managed(tmp_path, [listener] if is_passed else []) as server, Page(server.url) as page:
        since_s = asyncio.get_running_loop().time()
        assert await stopped(server) == 0
        assert asyncio.get_running_loop().time() - since_s < IDLE_EXIT_WITHIN_S
        assert not any("have not ended in time" in line["message"] for line in server.lines)
        first = page.told[:4]
    assert all(told.endswith("<end>") for told in first), "none was broken off"
    (of_server,) = (told for told in first if "event: server" in told)
    *_, last = of_server.split("event: server\ndata: ")
    assert json.loads(last.partition("\n")[0])["status"] == "draining"


@pytest.mark.slow
async def test_who_follows_again_while_an_answer_runs_is_told_and_may_stay(tmp_path: Path) -> None:
    write_models(tmp_path)
    async with managed(tmp_path) as server, Page(server.url) as page:
        long = await server.chat("small", stream=True, tokens=200, delay_s=0.01)
        await long.content.readuntil(b'"w3 "')
        server.process.send_signal(signal.SIGTERM)
        await until(lambda: sum("event: server" in told for told in page.told) > 1, what="another try")
        *_, again = (told for told in page.told if "event: server" in told)
        assert '"status":"draining"' in again
        assert (await long.text()).rstrip().endswith("[DONE]")
        assert await asyncio.wait_for(server.process.wait(), EXIT_WITHIN_S) == 0
        assert len(page.told) < 20, "they stay, and do not come again and again"


@pytest.mark.slow
async def test_second_signal_ends_the_hand_over_at_once(tmp_path: Path, listener: socket.socket) -> None:
    write_models(tmp_path)
    async with managed(tmp_path, [listener]) as server:
        reply = await server.chat("small", stream=True, tokens=10_000, delay_s=0.01)
        await reply.content.readuntil(b'"w3 "')
        server.process.send_signal(signal.SIGTERM)
        await until(lambda: any("stopping" in line["message"] for line in server.lines), what="the stop")
        assert await stopped(server) == 1


@pytest.mark.slow
async def test_answers_that_take_longer_than_the_drain_end_in_an_error_event(
    tmp_path: Path, listener: socket.socket
) -> None:
    write_models(tmp_path)
    async with managed(tmp_path, [listener], env={"CORRAL_SHUTDOWN_DRAIN_S": "0.3"}) as server:
        reply = await server.chat("small", stream=True, tokens=10_000, delay_s=0.01)
        await reply.content.readuntil(b'"w3 "')
        assert await stopped(server) == 0
        *_, last = (await reply.text()).strip().splitlines()
        assert json.loads(last.removeprefix("data: "))["error"]["code"] == "shutting_down"


@pytest.mark.slow
async def test_several_passed_sockets_are_all_served(tmp_path: Path, listener: socket.socket) -> None:
    write_models(tmp_path)
    with socket.create_server(("127.0.0.1", 0)) as other:
        async with managed(tmp_path, [listener, other]) as server:
            for sock in (listener, other):
                async with server.session.get(f"{url_of(sock)}/health") as reply:
                    assert reply.status == 200
            (told,) = (line for line in server.lines if line["message"] == "listening")
            assert told["sockets"] == "passed by the service manager"


@pytest.mark.slow
async def test_passed_socket_that_others_may_reach_needs_keys_as_a_bound_one_does(tmp_path: Path) -> None:
    write_models(tmp_path)
    with socket.create_server(("0.0.0.0", 0)) as everywhere:
        refused = await start(tmp_path, [everywhere])
        _, said = await asyncio.wait_for(refused.communicate(), 20)
        assert refused.returncode == 1
        assert "refusing to listen on 0.0.0.0 without API keys" in said.decode()
        allowed = await start(tmp_path, [everywhere], env={"CORRAL_API_KEYS": "hush"})
        assert allowed.stdout is not None
        assert b"listening on all addresses" in await asyncio.wait_for(allowed.stdout.readline(), 20)
        allowed.terminate()
        await asyncio.wait_for(allowed.communicate(), EXIT_WITHIN_S)


async def test_passed_socket_of_a_wrong_kind_is_refused_by_name(tmp_path: Path) -> None:
    write_models(tmp_path)
    with socket.socket(socket.AF_UNIX) as unix:
        unix.bind(str(tmp_path / "socket"))
        unix.listen()
        refused = await start(tmp_path, [unix], env={"LISTEN_FDNAMES": "corral.socket"})
        _, said = await asyncio.wait_for(refused.communicate(), 20)
    assert refused.returncode == 1
    assert "the passed socket corral.socket is a Unix socket" in said.decode()
