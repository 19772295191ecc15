"""What the router holds for its clients, as families of `/metrics`: open streams, kept responses, bodies.

Owns those names. Must not know how any of it is kept: it shows what it is told at each scrape.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass
from typing import Protocol

from router.metrics.families import Family, Number, gauge, gauge_of


class MaybeOpen(Protocol):
    """A reply, of which the client may have got the first bytes as a stream."""

    @property
    def is_open(self) -> bool: ...


@dataclass(frozen=True, slots=True)
class HeldForClients:
    """How much there is now."""

    num_followers: Mapping[str, int]
    """Streams of events and of logs, by kind."""
    num_kept_responses: int
    kept_responses_bytes: int
    request_body_bytes: int
    num_kept_streams: Mapping[str, int]
    """Replies that are kept for clients whose connection was lost, by state."""
    kept_streams_bytes: int


def client_families(replies: Set[MaybeOpen], held: HeldForClients) -> Iterator[Family]:
    """Yield the families of the HTTP side; `replies` are those of all requests that run now."""
    num_open = {"answers": sum(reply.is_open for reply in replies), **held.num_followers}
    name = "corral_open_streams"
    yield gauge(
        name,
        "Streams that clients read now, by kind: answers of models, /events, and logs that are followed.",
        *(Number(name, {"kind": kind}, number) for kind, number in num_open.items()),
    )
    yield gauge_of("corral_kept_responses", "Responses that are kept for /v1/responses.", held.num_kept_responses)
    yield gauge_of(
        "corral_kept_responses_bytes", "Memory that kept responses take, in bytes.", held.kept_responses_bytes
    )
    yield gauge_of(
        "corral_request_body_bytes",
        "Memory that the bodies of running requests take, in bytes.",
        held.request_body_bytes,
    )
    yield gauge(
        "corral_kept_streams",
        "Replies that outlive their connection, by state: a client reads it, none does, or it is complete.",
        *(Number("corral_kept_streams", {"state": state}, number) for state, number in held.num_kept_streams.items()),
    )
    yield gauge_of("corral_kept_streams_bytes", "Memory that such replies take, in bytes.", held.kept_streams_bytes)
