"""Which web pages may read this server's answers, and the headers that tell their browser so (CORS).

Owns those headers: nothing else sets them, and no worker's or other server's pass. Off unless origins are named. Must
not know routes or keys; whether a request of a page is served at all is decided by `host_guard.py`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

ANY = "*"
ALLOW_ORIGIN = "Access-Control-Allow-Origin"
VARY = "Vary"

_METHODS = "GET, HEAD, POST, PUT, DELETE"
_RATE_HEADERS = [
    name
    for unit in ("requests", "tokens")
    for part in ("limit", "remaining", "reset")
    for name in (f"x-ratelimit-{part}-{unit}", f"anthropic-ratelimit-{unit}-{part}")
]
_EXPOSED = ", ".join(
    [
        "X-Request-Id, request-id, X-Corral-Model, X-Corral-Alias, X-Corral-Keep-Alive, Retry-After, x-should-retry",
        "X-Corral-Conversation, X-Corral-Offset",
        *_RATE_HEADERS,
    ]
)
"""What a page may read beside the body."""
_MAX_AGE_S = 600
"""For so long a browser need not ask again."""
_ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://[^/?#@\s]+")
_NAMES = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~, \t-]{1,8000}")
"""A list of header names."""


def read_origin(text: str) -> str:
    """Return an origin in the form in which origins are compared. Raises: ValueError when it is none."""
    origin = text.strip().lower().rstrip("/")
    if origin != ANY and not _ORIGIN.fullmatch(origin):
        raise ValueError(
            f"{text[:100]!r} is not the origin of a page: write scheme, host and port as the browser's address bar "
            f"shows them, such as https://app.example.com or http://localhost:3000 (no path, not `null`), or *"
        )
    return origin


class Cors:
    """The pages that may read answers."""

    def __init__(self, origins: Iterable[str] = ()) -> None:
        """Take the origins; `*` = any page, none = there is no CORS. Raises: ValueError."""
        self._origins = frozenset(map(read_origin, origins))

    @property
    def is_on(self) -> bool:
        """Whether any page may."""
        return bool(self._origins)

    def allows(self, origin: str | None) -> bool:
        """Return whether the page that a request comes from may; without an `Origin` it is no page's."""
        return origin is not None and (ANY in self._origins or origin.lower().rstrip("/") in self._origins)

    def headers(self, origin: str | None) -> dict[str, str]:
        """Return what every response carries, errors and streams too.

        `Vary` is in all of them, so that no cache gives one page's answer to another.
        """
        if not self.is_on:
            return {}
        told = {VARY: "Origin"}
        if origin is not None and self.allows(origin):
            told |= {ALLOW_ORIGIN: origin, "Access-Control-Expose-Headers": _EXPOSED}
        return told

    def is_preflight(self, method: str, headers: Mapping[str, str]) -> bool:
        """Return whether a browser asks if the page may send a request, and it may."""
        asked = method == "OPTIONS" and "Access-Control-Request-Method" in headers
        return asked and self.allows(headers.get("Origin"))

    def preflight_headers(self, headers: Mapping[str, str]) -> dict[str, str]:
        """Return what the answer to a preflight carries besides: any header may be sent, as SDKs add their own."""
        told = {"Access-Control-Allow-Methods": _METHODS, "Access-Control-Max-Age": str(_MAX_AGE_S)}
        asked = headers.get("Access-Control-Request-Headers", "")
        if _NAMES.fullmatch(asked):
            told["Access-Control-Allow-Headers"] = asked
        if headers.get("Access-Control-Request-Private-Network", "").lower() == "true":
            told["Access-Control-Allow-Private-Network"] = "true"  # a page of the internet that asks this machine
        return told
