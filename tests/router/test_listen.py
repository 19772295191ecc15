"""Sockets are bound before anything is started, and what stands in the way is explained."""

from __future__ import annotations

import errno
import os
import socket
from contextlib import closing
from pathlib import Path

import pytest

from router.listen import CannotListen, bind_admin, bind_sockets, most_exposed, passed_sockets, reach_of, url_of


def test_port_zero_is_a_free_port_that_the_url_tells() -> None:
    (sock,) = bind_sockets("127.0.0.1", 0)
    with closing(sock):
        assert url_of(sock) == f"http://127.0.0.1:{sock.getsockname()[1]}"
        assert sock.getsockname()[1] > 0


def test_all_addresses_of_a_name_get_the_same_port() -> None:
    sockets = bind_sockets("localhost", 0)
    try:
        assert len({sock.getsockname()[1] for sock in sockets}) == 1
    finally:
        for sock in sockets:
            sock.close()


def test_port_in_use_is_explained() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(CannotListen, match=f"port {port} of 127.0.0.1 is in use.*--port"):
            bind_sockets("127.0.0.1", port)


def test_port_is_free_again_at_once_after_a_connection() -> None:
    (first,) = bind_sockets("127.0.0.1", 0)
    port = first.getsockname()[1]
    first.listen()
    client = socket.create_connection(("127.0.0.1", port))
    first.setblocking(True)
    accepted, _ = first.accept()
    accepted.close()  # the server's side closes first, and its port lingers
    first.close()
    client.close()
    (second,) = bind_sockets("127.0.0.1", port)
    second.close()


@pytest.mark.parametrize("host", ["203.0.113.7", "no-such-host.invalid"])
def test_address_that_this_machine_lacks_is_explained(host: str) -> None:
    with pytest.raises(CannotListen, match="--host"):
        bind_sockets(host, 0)


def test_url_of_a_wildcard_address_is_one_that_can_be_visited() -> None:
    (sock,) = bind_sockets("0.0.0.0", 0)
    with closing(sock):
        assert url_of(sock).startswith("http://127.0.0.1:")


@pytest.mark.parametrize(("host", "reach"), [("127.0.0.1", ""), ("0.0.0.0", "on all addresses")])
def test_server_that_every_machine_can_reach_is_announced_as_such(host: str, reach: str) -> None:
    sockets = bind_sockets(host, 0)
    try:
        assert reach_of(sockets) == reach
    finally:
        for sock in sockets:
            sock.close()


class Passed:
    """Sockets under descriptors in a row, as a service manager leaves them, and the variables that say so."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *sockets: socket.socket, names: str = "") -> None:
        first = 200
        monkeypatch.setattr("router.listen.FIRST_PASSED_FD", first)
        for number, sock in enumerate(sockets):
            os.dup2(sock.fileno(), first + number)
        self.environ = {"LISTEN_FDS": str(len(sockets)), "LISTEN_PID": str(os.getpid()), "LISTEN_FDNAMES": names}


def test_passed_sockets_are_taken_over_and_hidden_from_children(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as one, socket.create_server(("127.0.0.1", 0)) as two:
        passed = Passed(monkeypatch, one, two)
        found = passed_sockets(passed.environ)
        assert [sock.getsockname() for sock in found] == [one.getsockname(), two.getsockname()]
        assert not any(sock.get_inheritable() for sock in found)
        assert passed.environ == {}
        for sock in found:
            sock.close()


def test_sockets_that_were_passed_to_another_process_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as one:
        passed = Passed(monkeypatch, one)
        assert passed_sockets(passed.environ, pid=1) == []
        os.fstat(200)
        os.close(200)


@pytest.mark.parametrize(
    ("family", "kind", "what"),
    [
        (socket.AF_UNIX, socket.SOCK_STREAM, "a Unix socket"),
        (socket.AF_INET, socket.SOCK_DGRAM, "a datagram socket"),
        (socket.AF_INET, socket.SOCK_STREAM, "not listening"),
    ],
)
def test_passed_socket_of_a_wrong_kind_is_refused_by_its_name(
    monkeypatch: pytest.MonkeyPatch, family: int, kind: int, what: str
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as good, socket.socket(family, kind) as bad:
        passed = Passed(monkeypatch, good, bad, names="web:odd")
        with pytest.raises(CannotListen, match=rf"the passed socket odd is {what}; .*ListenStream="):
            passed_sockets(passed.environ)
        for fd in (200, 201):
            with pytest.raises(OSError, match="Bad file descriptor"):
                os.fstat(fd)


def test_exposed_one_of_several_sockets_decides_what_is_asked_of_keys() -> None:
    (near,) = bind_sockets("127.0.0.1", 0)
    (far,) = bind_sockets("0.0.0.0", 0)
    with closing(near), closing(far):
        assert most_exposed([near, far]) == ("0.0.0.0", far.getsockname()[1])
        assert most_exposed([near]) == ("127.0.0.1", near.getsockname()[1])


def test_a_count_of_sockets_that_none_can_be_is_refused_in_words() -> None:
    with pytest.raises(CannotListen, match=r"LISTEN_FDS=9{40}… is no number of sockets"):
        passed_sockets({"LISTEN_FDS": "9" * 5000, "LISTEN_PID": str(os.getpid())})


def test_what_a_killed_process_of_the_same_number_left_is_no_obstacle(tmp_path: Path) -> None:
    path = tmp_path / "admin.sock"
    with closing(socket.socket(socket.AF_UNIX)) as left:
        left.bind(str(tmp_path / f"admin.sock.{os.getpid()}"))
    (sock,) = bind_admin(str(path))
    sock.close()
    assert [one.name for one in tmp_path.iterdir()] == ["admin.sock"]


def test_a_path_that_cannot_be_taken_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(os, "replace", refuse)
    with pytest.raises(CannotListen, match=os.strerror(errno.EROFS)):
        bind_admin(str(tmp_path / "admin.sock"))
    assert list(tmp_path.iterdir()) == []
