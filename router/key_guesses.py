"""Wrong API keys by the address that they come from, and when there are too many of them.

Owns the bounds. Right keys are none of its business: whoever has one is let in, whatever else comes from the same
address. Must not read a clock.
"""

from __future__ import annotations

import ipaddress
from collections import OrderedDict
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

MAX_GUESSES: Final = 10
"""Wrong keys in a row that get the ordinary answer."""
SECONDS_PER_GUESS: Final = 6.0
"""After so long one more does: ten a minute."""
MAX_ADDRESSES: Final = 4096
"""Those that have sent no wrong key for longest are forgotten first."""

_IPV6_NET: Final = 64
"""Bits of an address that belong to one site, which may change the others as it likes."""


class Failure(StrEnum):
    """Why a request had no right key, as the metrics count it."""

    MISSING = "missing"
    WRONG = "wrong"
    THROTTLED = "throttled"


@dataclass(frozen=True, slots=True)
class Verdict:
    """What to make of a wrong key."""

    retry_after_s: float = 0.0
    """0 = it gets the ordinary answer; else the address has sent too many, and may send the next one then."""
    is_news: bool = False
    """The address is over the bound now, and was not before."""


@dataclass(slots=True)
class _Source:
    num_guesses: float
    """Less one for every `SECONDS_PER_GUESS` that have passed."""
    at_s: float
    is_over: bool = False


class KeyGuesses:
    """The wrong keys of the last minute or so, for as many addresses as are remembered."""

    def __init__(self, max_addresses: int = MAX_ADDRESSES) -> None:
        self._max_addresses = max_addresses
        self._sources: OrderedDict[str, _Source] = OrderedDict()

    def __len__(self) -> int:
        return len(self._sources)

    def note(self, remote: str | None, now_s: float) -> Verdict:
        """Return what to make of a wrong key from this address; None = it is not known, as on a Unix socket."""
        site = site_of(remote)
        source = self._sources.pop(site, None) or _Source(0.0, now_s)
        self._sources[site] = source
        if len(self._sources) > self._max_addresses:
            self._sources.popitem(last=False)
        passed_s = max(0.0, now_s - source.at_s)
        source.num_guesses = max(0.0, source.num_guesses - passed_s / SECONDS_PER_GUESS)
        source.at_s = now_s
        if source.num_guesses <= MAX_GUESSES - 1:
            source.num_guesses += 1
            source.is_over = False
            return Verdict()
        is_news, source.is_over = not source.is_over, True
        return Verdict((source.num_guesses - (MAX_GUESSES - 1)) * SECONDS_PER_GUESS, is_news)


def site_of(remote: str | None) -> str:
    """Return what counts as one address: an IPv4 address, or the network of an IPv6 one."""
    try:
        address = ipaddress.ip_address((remote or "").partition("%")[0])
    except ValueError:
        return "local"
    if isinstance(address, ipaddress.IPv4Address):
        return str(address)
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(ipaddress.ip_network((address, _IPV6_NET), strict=False))
