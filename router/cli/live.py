"""Asking a server for what it tells of itself, once or as it happens; one that cannot is an older one.

Owns which of its events are followed. What they mean is `picture.py`'s.
"""

from __future__ import annotations

from collections.abc import Iterator

from router.cli.output import CommandFailed
from router.cli.picture import TOPICS
from router.cli.server import Event, Refused, Server
from router.cli.shapes import EVENTS, STATUS, expect

MAX_SILENCE_S = 60.0
"""After which a stream of events counts as broken: the server sends a sign of life four times as often."""


def read_status(server: Server) -> object:
    """Return the answer of `GET /status`. Raises: CommandFailed."""
    try:
        found = server.get("/status")
    except Refused as refusal:
        raise too_old(server, refusal) from None
    expect(found, STATUS, server.url, "its status")
    return found


def too_old(server: Server, refusal: Refused) -> CommandFailed:
    """Return what to tell of a refusal: of a server that does not know the route, that it is an older one."""
    if not refusal.is_unknown_route and refusal.status != 501:
        return refusal
    text = f"{server.url} is older than this command, or no Corral: it does not tell its status; upgrade the server"
    return CommandFailed(text)


def follow(server: Server) -> Iterator[Event]:
    """Yield what the server tells of itself until it ends the stream. Raises: CommandFailed."""
    try:
        with server.events("GET", "/events", query={"topics": TOPICS}, max_silence_s=MAX_SILENCE_S) as events:
            for event in events:
                if event.name in EVENTS:
                    expect(event.data, EVENTS[event.name], server.url, f"the event {event.name!r} of a Corral")
                yield event
    except Refused as refusal:
        if refusal.status == 400 and "topics" in refusal.message:
            text = f"{server.url} is older than this command: its events do not tell enough; upgrade the server"
            raise CommandFailed(text) from None
        raise too_old(server, refusal) from None
