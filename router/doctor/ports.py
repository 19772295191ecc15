"""Whether the address is free or who has it, and whether a server of this release answers there.

Owns that look. Opens no server, and changes nothing on one.
"""

from __future__ import annotations

import errno
import http.client
import json
import os
import socket
import ssl
from collections.abc import Mapping
from http import HTTPStatus
from types import MappingProxyType
from typing import Any, Final
from urllib.parse import urlsplit

from router.doctor.findings import Finding, Level, fail, ok, warn
from router.listen import UNIX, is_answered

_ASK_S: Final = 1.0
_DEFAULT_PORT: Final = 8080
_ANY: Final = ("0.0.0.0", "::", "")


def corral_at(host: str, port: int) -> str | None:
    """Return the release of the Corral that answers there; None = there is none."""
    reached = "127.0.0.1" if host in _ANY else host
    version = _get(
        f"http://[{reached}]:{port}/api/version" if ":" in reached else f"http://{reached}:{port}/api/version"
    )
    return None if version is None or "corral" not in version else str(version["corral"])


def check_addresses(environ: Mapping[str, str], own_version: str | None) -> list[Finding]:
    """Return what there is to say of where a server would listen, and of the server that CORRAL_URL names."""
    findings = check_address(environ, own_version)
    if url := environ.get("CORRAL_URL", "").strip():
        findings.append(_check_url(url.rstrip("/").removesuffix("/v1"), own_version, environ))
    return findings


def _check_url(url: str, own_version: str | None, environ: Mapping[str, str]) -> Finding:
    """Return whether the server that commands talk to is there."""
    if url.startswith(UNIX):
        if is_answered(url.removeprefix(UNIX)):
            return ok(f"a server listens on {url} (CORRAL_URL); `corral ps` shows it")
        return warn(f"no server answers at {url}", "CORRAL_URL names it for the commands that talk to a server")
    if "://" not in url:
        url = f"http://{url}"
    if not url.startswith(("http://", "https://")):
        return warn(f"CORRAL_URL={url} is no address of a server", "write it like http://127.0.0.1:8080")
    version, health = _get(f"{url}/api/version"), _get(f"{url}/health")
    if version is None and health is None:
        return warn(f"no server answers at {url}", "CORRAL_URL names it for the commands that talk to a server")
    if version is None or "corral" not in version:
        return warn(f"what answers at {url} is no Corral", "CORRAL_URL names it for the commands that talk to a server")
    found = _told(url, str(version["corral"]), health, own_version)
    return _with_key(found, url, environ)


def check_address(environ: Mapping[str, str], own_version: str | None) -> list[Finding]:
    """Return what there is to say of the address that `corral serve` would take under this environment."""
    host = environ.get("CORRAL_HOST", "").strip() or "127.0.0.1"
    text = environ.get("CORRAL_PORT", "").strip() or str(_DEFAULT_PORT)
    if not text.isdecimal() or int(text) > 65_535:
        return [fail(f"CORRAL_PORT={text} is no port", "write a number from 0 to 65535")]
    port = int(text)
    if port == 0:
        return [ok("any free port will be taken (CORRAL_PORT=0)")]
    shown = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    problem = _cannot_bind(host, port)
    if problem is None:
        return [ok(f"{shown} is free: no server runs there")]
    if problem == errno.EADDRINUSE:
        reached = "127.0.0.1" if host in _ANY else host
        return [_who_answers(reached, port, shown, own_version, environ)]
    if problem == errno.EACCES:
        return [
            fail(
                f"{shown} may be taken by root alone",
                "choose a port from 1024 on (CORRAL_PORT), or give the service CAP_NET_BIND_SERVICE",
            )
        ]
    return [fail(f"{shown} is no address of this machine", "set CORRAL_HOST to 127.0.0.1, 0.0.0.0 or one of its own")]


def _cannot_bind(host: str, port: int) -> int | None:
    """Return the number of the error; None = it is free."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError):  # UnicodeError: what cannot be the name of a host
        return errno.EADDRNOTAVAIL
    family, kind, protocol, _, address = found[0]
    with socket.socket(family, kind, protocol) as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            sock.bind(address)
            sock.listen(1)
        except OSError as error:
            return error.errno or errno.EADDRNOTAVAIL
    return None


def _who_answers(host: str, port: int, shown: str, own_version: str | None, environ: Mapping[str, str]) -> Finding:
    scheme = "https" if environ.get("CORRAL_TLS_CERT", "").strip() else "http"
    url = f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"
    version, health = _get(f"{url}/api/version"), _get(f"{url}/health")
    running = version.get("corral") if version is not None else None
    if running is None:
        owner = _owner(port)
        who = f"by {owner}" if owner else "by another program"
        advice = (f"$ ss -ltnp 'sport = :{port}'", "stop it, or take another port: CORRAL_PORT=8081")
        return fail(f"{shown} is taken {who}", *advice)
    return _with_key(_told(shown, str(running), health, own_version), url, environ)


def _with_key(found: Finding, url: str, environ: Mapping[str, str]) -> Finding:
    """Return what was found of a server, or that the commands that talk to it lack a key for it."""
    key = environ.get("CORRAL_API_KEY", "").strip()
    if found.level is not Level.OK or _status(f"{url}/v1/models", key) != HTTPStatus.UNAUTHORIZED:
        return found
    if key:
        return warn(f"{found.text}, and the key in CORRAL_API_KEY is not one of its keys", "put a valid one into it")
    return warn(f"{found.text}, and wants a key", "put one into CORRAL_API_KEY: commands that talk to it need it")


def _told(where: str, running: str, health: Mapping[str, Any] | None, own_version: str | None) -> Finding:
    status = str((health or {}).get("status", "unknown"))
    if own_version is not None and running != own_version:
        return warn(
            f"Corral {running} runs at {where} ({status}), and {own_version} is installed here",
            "restart the server to use what is installed",
        )
    return ok(f"Corral {running} runs at {where} ({status})")


def _get(url: str) -> dict[str, Any] | None:
    """Return the JSON object that a route answers with, whatever its status; None = there is none."""
    try:
        answer = json.loads(_ask(url)[1])
    except ValueError:
        return None
    return answer if isinstance(answer, dict) else None


def _status(url: str, key: str) -> int | None:
    """Return the status that a route answers with to whoever has `key`; None = it does not answer."""
    return _ask(url, {"Authorization": f"Bearer {key}"} if key else {})[0]


def _ask(url: str, headers: Mapping[str, str] = MappingProxyType({})) -> tuple[int | None, bytes]:
    """Return the status and the body of a route; None and nothing when it does not answer."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port
        if parts.scheme == "https":
            trusted = ssl.create_default_context(cafile=os.environ.get("CORRAL_TLS_CA") or None)
            connection: http.client.HTTPConnection = http.client.HTTPSConnection(
                host, port, timeout=_ASK_S, context=trusted
            )
        else:
            connection = http.client.HTTPConnection(host, port, timeout=_ASK_S)
    except (ValueError, OSError, http.client.HTTPException):
        return None, b""
    try:
        connection.request("GET", parts.path, headers=dict(headers))
        response = connection.getresponse()
        return response.status, response.read(2**20)
    except (OSError, http.client.HTTPException, ValueError):  # ValueError: a key with line breaks in it
        return None, b""
    finally:
        connection.close()


def _owner(port: int) -> str | None:
    """Return the program that listens on a port, where this user may know it."""
    try:
        import psutil
    except ImportError:
        return None
    try:
        for found in psutil.net_connections("tcp"):
            if found.status == psutil.CONN_LISTEN and found.laddr and found.laddr.port == port and found.pid:
                return f"{psutil.Process(found.pid).name()} (process {found.pid})"
    except (psutil.Error, OSError):
        return None
    return None
