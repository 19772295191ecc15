"""The sockets that the server listens on, and why they cannot be had.

Owns binding, taking over sockets that a service manager has bound, and the messages of both. Must not accept
connections (`accepting.py` does).
"""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import MutableMapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path

from router.host_guard import is_loopback

UNIX = "unix:"
"""Begins the address of a Unix socket; its path follows."""
_MAX_DIGITS = 9
"""No count of sockets has more, and Python refuses to read some thousands."""
FIRST_PASSED_FD = 3
"""Source: sd_listen_fds(3), SD_LISTEN_FDS_START."""


class CannotListen(Exception):
    """The address cannot be used; the message tells what to change."""


def bind_sockets(host: str, port: int) -> list[socket.socket]:
    """Return bound sockets, one for each address of `host`; all have the same port, also when `port` is 0.

    They do not listen yet: until the server is ready, clients are refused rather than kept waiting.
    Raises: CannotListen.
    """
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (socket.gaierror, UnicodeError) as error:
        raise CannotListen(
            f"the address {host!r} cannot be resolved ({error}); set --host to one of this machine"
        ) from None
    bound: list[socket.socket] = []
    failure: OSError | None = None
    with ExitStack() as undo:
        for family, address in dict.fromkeys((entry[0], entry[4]) for entry in found):
            try:
                bound.append(_bind(family, address, port or (bound[0].getsockname()[1] if bound else 0)))
            except OSError as error:
                # `localhost` may name an address of a protocol that is switched off; a taken port is never passed over.
                if error.errno not in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT):
                    raise CannotListen(_explain(host, port, error)) from None
                failure = error
            else:
                undo.callback(bound[-1].close)
        if not bound:
            raise CannotListen(_explain(host, port, failure or OSError(errno.EADDRNOTAVAIL, "no address")))
        undo.pop_all()
    return bound


def passed_sockets(environ: MutableMapping[str, str], pid: int | None = None) -> list[socket.socket]:
    """Return the listening sockets that a service manager has passed to process `pid` (None = this one); [] = none.

    What says so is taken out of `environ`: no process that is started later is to take it for its own.

    Raises: CannotListen when something was passed that cannot be served on.
    Source: sd_listen_fds(3).
    """
    count, names = environ.pop("LISTEN_FDS", ""), environ.pop("LISTEN_FDNAMES", "").split(":")
    if environ.pop("LISTEN_PID", "") != str(os.getpid() if pid is None else pid) or not count.isdecimal():
        return []
    if len(count) > _MAX_DIGITS:
        raise CannotListen(
            f"LISTEN_FDS={count[:40]}… is no number of sockets: whoever starts the server sets it wrongly"
        )
    passed: list[socket.socket] = []
    with ExitStack() as undo:
        for number in range(int(count)):
            name = names[number] if number < len(names) and names[number] else str(number + 1)
            passed.append(_take_over(FIRST_PASSED_FD + number, name))
            undo.callback(passed[-1].close)
        undo.pop_all()
    return passed


def bind_admin(text: str, *, may_replace: bool = False) -> list[socket.socket]:
    """Return bound sockets for operators; `text` is HOST:PORT, or the path of a Unix socket for this user alone.

    `may_replace`: also take over the path of a socket on which another process still listens.
    Raises: CannotListen.
    """
    if (path := admin_path(text)) is not None:
        return [_bind_path(path, may_replace=may_replace)]
    host, port = split_admin(text)
    try:
        return bind_sockets(host, port)
    except CannotListen as error:
        raise CannotListen(f"CORRAL_ADMIN_SOCKET={text}: {error}") from None


def admin_path(text: str) -> Path | None:
    """Return the path that CORRAL_ADMIN_SOCKET names; None if it names HOST:PORT."""
    if text.startswith(UNIX):
        return Path(text.removeprefix(UNIX)).expanduser()
    return Path(text).expanduser() if "/" in text else None


def admin_host(text: str | None) -> str | None:
    """Return the host that CORRAL_ADMIN_SOCKET names; None if there is none. Raises: CannotListen."""
    return None if text is None or admin_path(text) is not None else split_admin(text)[0]


def split_admin(text: str) -> tuple[str, int]:
    """Return host and port of HOST:PORT; an IPv6 address is in brackets. Raises: CannotListen if it is none."""
    host, colon, port = text.rpartition(":")
    if not colon or not host or not (port.isascii() and port.isdecimal()) or int(port[:_MAX_DIGITS]) > 65535:
        raise CannotListen(
            f"CORRAL_ADMIN_SOCKET={text} is neither the path of a Unix socket, such as /run/corral/admin.sock, nor "
            f"HOST:PORT, such as 127.0.0.1:8081"
        )
    return host.removeprefix("[").removesuffix("]"), int(port)


def most_exposed(sockets: Sequence[socket.socket]) -> tuple[str, int]:
    """Return host and port of the first socket that other machines may reach; of the first one if none can be."""
    addresses = [sock.getsockname()[:2] for sock in sockets]
    host, port = next((address for address in addresses if not is_loopback(address[0])), addresses[0])
    return str(host), int(port)


def url_of(bound: socket.socket, *, is_tls: bool = False) -> str:
    """Return the URL at which a person on this machine reaches the server."""
    host, port = bound.getsockname()[:2]
    if host in ("0.0.0.0", "::"):
        host = "127.0.0.1" if host == "0.0.0.0" else "::1"
    scheme = "https" if is_tls else "http"
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


def reach_of(bound: Sequence[socket.socket]) -> str:
    """Return `on all addresses` where the server is to be reached from other machines by any address; else ""."""
    hosts = {sock.getsockname()[0] for sock in bound}
    if "0.0.0.0" in hosts:
        return "on all addresses"
    return "on all IPv6 addresses" if "::" in hosts else ""


def _bind_path(path: Path, *, may_replace: bool) -> socket.socket:
    """Return a socket at `path`; it is made beside it and renamed: at no time it has wrong rights, or is gone."""
    where = f"CORRAL_ADMIN_SOCKET={path}"
    temporary = path.with_name(f"{path.name}.{os.getpid()}")
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        if path.exists() and not path.is_socket():
            raise CannotListen(f"{where} is there already and no socket; name another path, or remove it")
        if not may_replace and is_answered(path):
            raise CannotListen(f"{where} is in use by another program; stop that one, or name another path")
        temporary.unlink(missing_ok=True)  # of a process of this number that was killed right here
        mask = os.umask(0o177)
        try:
            sock.bind(os.fspath(temporary))
        finally:
            os.umask(mask)
        os.replace(temporary, path)
    except BaseException as error:
        sock.close()
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
        if isinstance(error, OSError):
            raise CannotListen(f"{where} cannot be made: {error.strerror or error}") from None
        raise
    return sock


def is_answered(path: str | Path) -> bool:
    """Return whether a program listens on the Unix socket at `path`."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(os.fspath(path))
        except OSError:
            return False
    return True


def _take_over(fd: int, name: str) -> socket.socket:
    """Return what was passed as `fd` as a socket of ours. Raises: CannotListen unless it is a listening TCP socket."""
    meant = "Corral takes listening TCP sockets: in a systemd socket unit ListenStream=127.0.0.1:8080, and Accept=no"
    try:
        os.set_inheritable(fd, False)
        sock = socket.socket(fileno=fd)
    except OSError as error:
        raise CannotListen(f"the passed socket {name} cannot be used ({error.strerror or error}); {meant}") from None
    what = _wrong_kind(sock)
    if what is not None:
        sock.close()
        raise CannotListen(f"the passed socket {name} is {what}; {meant}")
    sock.setblocking(False)
    return sock


def _wrong_kind(sock: socket.socket) -> str | None:
    """Return what `sock` is, if it is not a TCP socket that listens."""
    if sock.family not in (socket.AF_INET, socket.AF_INET6):
        return "a Unix socket" if sock.family == socket.AF_UNIX else "no socket of IPv4 or IPv6"
    if sock.type != socket.SOCK_STREAM:
        return "a datagram socket"
    try:
        listens = bool(sock.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN))
    except OSError:
        return None  # macOS does not tell
    return None if listens else "not listening"


def _bind(family: socket.AddressFamily, address: tuple[object, ...], port: int) -> socket.socket:
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # a restart must not wait for old connections
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)  # IPv4 has a socket of its own
        sock.bind((address[0], port, *address[2:]))
        sock.setblocking(False)
    except OSError:
        sock.close()
        raise
    return sock


def _explain(host: str, port: int, error: OSError) -> str:
    match error.errno:
        case errno.EADDRINUSE:
            return (
                f"port {port} of {host} is in use by another program; stop that one, or choose another port "
                f"with --port or CORRAL_PORT (0 = any free one)"
            )
        case errno.EACCES | errno.EPERM:
            return f"port {port} of {host} needs privileges that this user lacks; choose one above 1023 with --port"
        case errno.EADDRNOTAVAIL | errno.EAFNOSUPPORT:
            return f"this machine has no address {host}; set --host to one of its own, or to 127.0.0.1"
        case _:
            return f"cannot listen on port {port} of {host}: {error.strerror or error}"
