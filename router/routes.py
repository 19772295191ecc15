"""The form in which rooms declare their routes, and what a wrong address is answered with.

Owns no route itself. Must not know handlers.
"""

from __future__ import annotations

import difflib
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass

from aiohttp import web

from router.auth import Scope
from router.dialects import Dialect

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

DEFAULT_SCOPES = (Scope.INFERENCE,)


@dataclass(frozen=True, slots=True)
class Route:
    """One method of one path."""

    method: str
    path: str
    """As aiohttp writes it."""
    handler: Handler
    scopes: tuple[Scope, ...] = DEFAULT_SCOPES
    """A key needs one of them; empty = no key is asked for."""
    is_counted: bool = False
    """It gets a log line and counts in the metrics: requests to models, and what is refused to everybody."""
    is_shown: bool = True
    """Listed on the start page."""
    same_as: str | None = None
    """The path that this one is another form of."""
    dialect: Dialect = Dialect.OPENAI
    """Whose errors and streams it answers with."""
    streams_by_default: bool = False
    """A request that says nothing of `stream` gets one."""
    never_streams: bool = False
    """Its replies come in one piece, whatever a request says of `stream`."""
    makes_text: bool = True
    """Its replies are generated, so that LoRA adapters which are set for a model apply to them."""
    only_loaded: str | None = None
    """A request without a model's name may go to the only loaded one with this capability; None = it must name one."""

    @property
    def label(self) -> str:
        """Its name in the log and as a metric label, from a closed set: nothing that a client wrote."""
        return self.same_as or self.path.partition("{")[0].rstrip("/") or "/"


def describe_missing(method: str, path: str, known: Iterable[str]) -> str:
    """Return what to tell a client that asked for a route that does not exist."""
    shown = path if len(path) <= 120 else path[:120] + "…"
    near = difflib.get_close_matches(path.rstrip("/"), list(known), n=1, cutoff=0.7)
    hint = f"did you mean {near[0]}? " if near else ""
    return f"there is no route {method} {shown}; {hint}GET / lists all routes"
