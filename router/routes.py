"""The form in which rooms declare their routes, how they are listed, and what a wrong address is answered with.

Owns no route itself. Must not know handlers.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import Enum

from aiohttp import web

from router.auth import Scope
from router.dialects import Dialect

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

DEFAULT_SCOPES = (Scope.INFERENCE,)


class Streaming(Enum):
    """When a route answers piece by piece."""

    ASKED = "asked"
    """If the request says `stream: true`."""
    BY_DEFAULT = "by_default"
    """Unless the request says `stream: false`."""
    NEVER = "never"
    """Whatever a request says of `stream`."""


@dataclass(frozen=True, slots=True)
class Running:
    """How a route runs a model."""

    streaming: Streaming = Streaming.ASKED
    takes_loras: bool = True
    """LoRA adapters which are set for a model apply to its requests: their replies are generated."""
    capability: str | None = None
    """A request without a model's name may go to the only loaded one with this capability; None = it must name one."""
    may_be_empty: bool = False
    """A request without a body is one without fields."""


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
    runs: Running | None = None
    """None = it runs no model."""

    @property
    def running(self) -> Running:
        """How it runs a model; only for routes that do."""
        assert self.runs is not None, f"{self.path} runs no model"
        return self.runs

    @property
    def label(self) -> str:
        """Its name in the log and as a metric label, from a closed set: nothing that a client wrote."""
        return self.same_as or self.path.partition("{")[0].rstrip("/") or "/"


def list_routes(routes: Sequence[Route]) -> str:
    """Return all routes as the start page has them: one in a line, and their other forms below."""
    paths = {route.path for route in routes if route.is_shown}
    lines = [f"{route.method:<5} {_plain(route)}" for route in routes if route.is_shown or route.path == "/"]
    same = [route for route in routes if route.same_as]
    short = [route for route in same if (route.same_as or "").startswith("/v1/") and f"/v1{route.path}" in paths]
    lines += ["", f"Also without /v1: {_listed(short)}"]
    lines += [f"Another name of {route.same_as}: {route.path}" for route in same if route not in short]
    missing = [route for route in routes if not route.is_shown and route.path != "/" and not route.same_as]
    lines += [f"Not in this release, and the answer says what to use instead: {_listed(missing)}"]
    return "\n".join(lines) + "\n"


def _listed(routes: Iterable[Route]) -> str:
    return ", ".join(dict.fromkeys(_plain(route) for route in routes))


def _plain(route: Route) -> str:
    """Return the path without the patterns of its parts; … stands for any rest."""
    return re.sub(r":[^}]*\}", "}", re.sub(r"\{\w+:\.\*\}", "…", route.path))


def route_above(path: str, known: Iterable[Route]) -> Route | None:
    """Return the route at `path`, for whatever method, else the nearest one above it; None = there is neither."""
    found = [route for route in known if _is_at_or_below(path, _stem(route))]
    return max(found, key=lambda route: len(_stem(route)), default=None)


def _stem(route: Route) -> str:
    """Return what all of its addresses begin with; "" = nothing in particular."""
    return route.path.partition("{")[0].rstrip("/")


def _is_at_or_below(path: str, stem: str) -> bool:
    return stem != "" and (path == stem or path.startswith(f"{stem}/"))


def describe_missing(method: str, path: str, known: Iterable[str]) -> str:
    """Return what to tell a client that asked for a route that does not exist; `known` are those to propose."""
    shown = path if len(path) <= _SHOWN_CHARS else path[:_SHOWN_CHARS] + "…"
    near = _nearest(path, known) if len(path) <= _SHOWN_CHARS else None
    hint = f"did you mean {near}? " if near else ""
    return f"there is no route {method} {shown}; {hint}GET / lists all routes"


_SHOWN_CHARS = 120
_LEAST_LIKENESS = 0.8
"""Of each part of a path: "conversations" is no slip of "completions"."""


def _nearest(path: str, known: Iterable[str]) -> str | None:
    """Return the path that was probably meant: with the same parts but for slips, or with one too many or too few."""
    likeness = {one: _likeness(path, one) for one in known if "{" not in one}
    best = max(likeness.values(), default=0.0)
    found = [one for one in likeness if likeness[one] == best]
    return found[0] if best > 0.0 and len(found) == 1 else None


def _likeness(path: str, known: str) -> float:
    """Return 0 for another path, else up to 2: more for one with `/v1` where `path` has it."""
    asked, parts = (_parts(one) for one in (path, known))
    size = min(len(asked), len(parts))
    if size == 0 or abs(len(asked) - len(parts)) > 1:
        return 0.0
    if len(asked) == len(parts):
        ratios = [difflib.SequenceMatcher(None, *pair).ratio() for pair in zip(asked, parts, strict=True)]
        value = sum(ratios) / size if min(ratios) >= _LEAST_LIKENESS else 0.0
    else:
        value = 0.5 if asked[-size:] == parts[-size:] or asked[:size] == parts[:size] else 0.0
    return value and value + ("/v1/" in path) * known.startswith("/v1/")


def _parts(path: str) -> list[str]:
    return [part for part in path.split("/") if part not in ("", "v1")]
