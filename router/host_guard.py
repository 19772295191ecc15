"""Which `Host` and `Origin` headers a server accepts that trusts everybody who can reach it.

A page in the operator's browser can send requests to 127.0.0.1, and a name that the page's owner controls can be made
to point there. Owns the check against both. Must not know keys or routes.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable

from router.cors import Cors
from router.errors import Forbidden

_LOOPBACK_NAMES = frozenset({"localhost", "127.0.0.1", "[::1]"})
ANY = "*"


def is_loopback(host: str) -> bool:
    """Return True when only this machine can reach a server that listens on `host`."""
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


class HostGuard:
    """Refuses requests that come from a page of somebody else, or through a name that is not this server's."""

    def __init__(self, *, host: str, allowed: Iterable[str] = (), has_keys: bool, cors: Cors | None = None) -> None:
        """Take the address that the server listens on and what the operator allows besides its own names.

        Pages that may read answers may send requests too. `has_keys` may be set anew when the configuration changes.
        """
        self.has_keys = has_keys
        self._cors = cors or Cors()
        self._allowed = frozenset(entry.lower().rstrip("/") for entry in allowed)
        self._checks_host = is_loopback(host)
        self._names = _LOOPBACK_NAMES | {_bracketed(host.lower())} | self._allowed

    def check(self, host: str | None, origin: str | None) -> None:
        """Return if the request may pass. Raises: Forbidden, saying what to set if it should have passed."""
        if ANY in self._allowed:
            return
        if self._checks_host and host is not None and not self._is_known(host):
            raise Forbidden(
                f"the Host header {_shown(host)} is not a name of this server, which listens on this machine only; "
                f"if it is meant to be reached by that name, set CORRAL_ALLOWED_HOSTS={_hostname(host)}"
            )
        # With keys on a public address the key is the protection: a foreign page does not have one.
        checks_origin = self._checks_host or not self.has_keys
        is_welcome = origin is None or self._cors.allows(origin) or self._is_own_page(host, origin)
        if checks_origin and origin is not None and not is_welcome:
            raise Forbidden(
                f"requests from pages of {_shown(origin)} are refused, so that no website can use this server through "
                f"your browser; if that host is this server under another name, set "
                f"CORRAL_ALLOWED_HOSTS={origin.lower()[:200]}; if it is a page of yours that is meant to use this "
                f"server, set CORRAL_CORS_ORIGINS to that origin"
            )

    def _is_known(self, host: str) -> bool:
        return _hostname(host) in self._names or host.lower() in self._allowed

    def _is_own_page(self, host: str | None, origin: str) -> bool:
        origin = origin.lower().rstrip("/")
        scheme, separator, authority = origin.partition("://")
        if not separator:  # "null": a sandboxed frame or a local file
            return False
        if origin in self._allowed or authority in self._allowed or _hostname(authority) in self._allowed:
            return True
        return scheme in ("http", "https") and host is not None and authority == host.lower()


def _hostname(host: str) -> str:
    """Return the name in a Host header, without the port; an IPv6 address keeps its brackets."""
    host = host.strip().lower()[:260]
    if host.startswith("["):
        return host.partition("]")[0] + "]"
    return host.rpartition(":")[0] if ":" in host else host


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host and not host.startswith("[") else host


def _shown(value: str) -> str:
    return repr(value[:200])
