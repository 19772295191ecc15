"""Who may stay connected, for how long without a request, and who gives way; on a clock of the test's own."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from aiohttp import web

from router.open_connections import Connection, OpenConnections, _forget_garbage


class Transport:
    """Remembers what becomes of it."""

    def __init__(self) -> None:
        self.written = b""
        self.is_closed = False
        self.num_unsent = 0

    def write(self, data: bytes) -> None:
        self.written += data

    def close(self) -> None:
        self.is_closed = True

    abort = close

    def get_write_buffer_size(self) -> int:
        return self.num_unsent


class Protocol:
    """Stands for aiohttp's own."""

    def connection_made(self, transport: Any) -> None: ...

    def data_received(self, data: bytes) -> None: ...

    def connection_lost(self, exc: BaseException | None) -> None: ...


class Body:
    """What comes of a request's body."""

    def __init__(self) -> None:
        self.has_ended = False

    def is_eof(self) -> bool:
        return self.has_ended


class Clients:
    """A group of connections and the time."""

    def __init__(self, limit: int = 2, head_timeout_s: float = 10.0, max_stall_s: float = 0.0) -> None:
        self.now_s = 100.0
        self.known: dict[object, Connection] = {}
        self.group = OpenConnections(
            self.known,
            limit=limit,
            head_timeout_s=head_timeout_s,
            max_stall_s=max_stall_s,
            clock=lambda: self.now_s,
        )

    def connect(self) -> tuple[Connection, Transport]:
        connection, transport = self.group.accept(Protocol()), Transport()  # type: ignore[arg-type]
        connection.connection_made(transport)  # type: ignore[arg-type]
        return connection, transport

    def ask(self, connection: Connection) -> None:
        connection.data_received(b"GET / HTTP/1.1\r\n\r\n")
        connection.request_begins()


def test_silent_new_connection_is_closed_without_a_word() -> None:
    clients = Clients()
    _, transport = clients.connect()
    clients.now_s += 9.9
    clients.group.close_late()
    assert not transport.is_closed
    clients.now_s += 0.2
    clients.group.close_late()
    assert transport.is_closed
    assert transport.written == b""
    assert clients.group.num_open == 0
    assert clients.known == {}


def test_half_a_head_is_answered_with_408_in_the_end_however_often_a_byte_comes() -> None:
    clients = Clients()
    connection, transport = clients.connect()
    for _ in range(11):
        clients.now_s += 1.0
        connection.data_received(b"G")
        clients.group.close_late()
    assert transport.is_closed
    assert transport.written.startswith(b"HTTP/1.1 408 ")
    assert b"CORRAL_REQUEST_HEAD_TIMEOUT_S" in transport.written


def test_running_request_and_silence_after_it_take_as_long_as_they_like() -> None:
    clients = Clients()
    connection, transport = clients.connect()
    clients.ask(connection)
    clients.now_s += 1000.0
    clients.group.close_late()
    connection.request_ends()
    clients.now_s += 1000.0
    clients.group.close_late()
    assert not transport.is_closed
    connection.data_received(b"GE")
    clients.now_s += 10.0
    clients.group.close_late()
    assert transport.is_closed, "the second request has begun and did not go on"


def test_next_request_may_begin_before_the_end_of_the_last_one_is_noticed() -> None:
    clients = Clients()
    connection, transport = clients.connect()
    clients.ask(connection)
    connection.request_begins()
    connection.request_ends()
    clients.now_s += 1000.0
    assert not clients.group.give_way()
    assert not transport.is_closed


@pytest.mark.parametrize("is_silent", [True, False])
def test_at_the_limit_the_one_that_is_quiet_for_longest_gives_way(is_silent: bool) -> None:
    clients = Clients()
    first, of_first = clients.connect()
    second, of_second = clients.connect()
    clients.ask(second)
    if not is_silent:
        clients.ask(first)
        first.request_ends()
    clients.now_s += 1.0
    second.request_ends()
    clients.now_s += 0.5
    assert clients.group.has_room()
    assert of_first.is_closed
    assert not of_second.is_closed


def test_connections_with_requests_or_unsent_replies_never_give_way(caplog: pytest.LogCaptureFixture) -> None:
    clients = Clients()
    busy, of_busy = clients.connect()
    sending, of_sending = clients.connect()
    for connection in (busy, sending):
        clients.ask(connection)
    sending.request_ends()
    of_sending.num_unsent = 1
    clients.now_s += 1000.0
    told: list[str] = []
    for _ in range(3):
        assert not clients.group.has_room()
        clients.group.when_room(lambda: told.append("room"))
    assert caplog.text.count("limit of 2 open connections") == 1
    busy.connection_lost(None)
    assert told == ["room"] * 3
    assert clients.group.has_room()
    assert not of_busy.is_closed
    assert not of_sending.is_closed


def test_deadline_can_be_switched_off() -> None:
    clients = Clients(head_timeout_s=0.0)
    _, transport = clients.connect()
    clients.now_s += 10_000.0
    clients.group.close_late()
    assert not transport.is_closed


def test_rest_of_a_body_that_was_answered_already_is_no_late_head_but_what_follows_it_is() -> None:
    clients = Clients()
    connection, transport = clients.connect()
    body = Body()
    clients.ask(connection)
    connection.request_ends(body)  # type: ignore[arg-type]
    connection.data_received(b"the rest")
    clients.now_s += 11.0
    clients.group.close_late()
    assert not transport.is_closed
    assert transport.written == b""
    body.has_ended = True
    connection.data_received(b"GE")
    clients.now_s += 11.0
    clients.group.close_late()
    assert transport.written.startswith(b"HTTP/1.1 408 ")


def test_garbage_is_let_go_of_and_nothing_behind_it_is_read() -> None:
    error: BaseException
    try:
        raise ValueError("no HTTP")
    except ValueError as raised:
        error = raised
    clients = Clients()
    connection, _ = clients.connect()
    received: list[bytes] = []

    def take(data: bytes) -> None:
        received.append(data)
        connection.handler._messages = [(SimpleNamespace(exc=error), None)]  # type: ignore[assignment]

    connection.handler.data_received = take  # type: ignore[method-assign]
    connection.data_received(b"noise")
    connection.data_received(b"more of it")
    assert received == [b"noise"]
    assert error.__traceback__ is None


def test_client_that_takes_nothing_of_a_complete_reply_is_cut_off() -> None:
    clients = Clients(max_stall_s=5.0)
    (deaf, lost), (slow, kept) = clients.connect(), clients.connect()
    for connection in (deaf, slow):
        clients.ask(connection)
        connection.request_ends()
    lost.num_unsent = kept.num_unsent = 1000
    for _ in range(6):
        clients.group.close_stalled()
        assert not lost.is_closed
        clients.now_s += 0.9
        kept.num_unsent -= 1
    clients.now_s += 0.5
    clients.group.close_stalled()
    assert lost.is_closed
    assert not kept.is_closed


def test_silent_client_that_has_taken_all_of_its_reply_stays() -> None:
    clients = Clients(max_stall_s=5.0)
    connection, transport = clients.connect()
    clients.ask(connection)
    connection.request_ends()
    for _ in range(3):
        clients.group.close_stalled()
        clients.now_s += 100.0
    assert not transport.is_closed


class Real(asyncio.Transport):
    """As much of one as aiohttp needs."""

    def close(self) -> None: ...


async def test_the_installed_aiohttp_keeps_garbage_where_it_is_looked_for() -> None:
    async def answer(_: web.BaseRequest) -> web.Response:
        return web.Response()

    handler = web.Server(answer)()
    handler.connection_made(Real())
    handler.data_received(b"\x00 this is no HTTP\r\n\r\n")
    assert _forget_garbage(handler), "what it is called has changed"
    handler.connection_lost(None)
