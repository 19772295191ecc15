"""Whose turn it is: the tokens that each API key has had of a model, by its weight, while others wanted them too.

Start-time fair queueing, a standard of packet networks, with tokens for bytes. Each key has an account of tokens
divided by its weight; the key with the smallest one is next. Three rules make that fair:

- A granted request is charged at once with what it will probably take, which is what the key's last one took: a burst
  cannot have every place before the first of its answers has ended. At the end the charge becomes what was really used.
- A key that comes with nobody of its own in line starts where those stand who are served now: to be idle saves nothing
  up.
- What a key had while nobody else waited is not held against it: a newcomer starts beside the others, not at 0.

Source: Goyal, Vin, Cheng, "Start-time Fair Queueing" (1996): between two keys that both always wait, tokens by weight
differ by no more than the largest requests of each, and what runs of them at the same time.

Must not know lines, priorities (each has a `FairShare` of its own) or clocks.
"""

from __future__ import annotations

from dataclasses import dataclass

from router.events import LeaseId

KeyId = str | None

FIRST_GUESS = 256
"""Tokens that the first request of a key is charged with until it ends."""
LEAST_GUESS = 64
"""Short requests are charged with so many: else many of them at once would weigh nothing."""


@dataclass(slots=True)
class _Account:
    """What one key has had. Units: tokens divided by the weight."""

    used: float
    floor: float
    """Where it stood when it last came with nobody in line: corrections never give back more."""
    guess: int = FIRST_GUESS
    """Tokens that its next request will probably take."""


@dataclass(frozen=True, slots=True)
class _Charge:
    """What a running request was charged with."""

    key_id: KeyId
    tokens: int
    weight: float


class FairShare:
    """The accounts of all keys for the requests of one model and one priority."""

    def __init__(self) -> None:
        self._accounts: dict[KeyId, _Account] = {}
        self._num_waiting: dict[KeyId, int] = {}
        """Of keys that have somebody in line."""
        self._charges: dict[LeaseId, _Charge] = {}
        self._served_at = 0.0
        """The highest account that was ever next."""

    @property
    def is_idle(self) -> bool:
        """Nobody waits or runs, so that all may as well begin anew."""
        return not self._charges and not self._num_waiting

    def used(self, key_id: KeyId) -> float:
        """Return the account of a key that has somebody in line."""
        return self._accounts[key_id].used

    def join(self, key_id: KeyId) -> None:
        """One more request of the key waits; if it is the only one, it starts no further back than whoever is next."""
        if key_id not in self._num_waiting:
            start = min([self._served_at, *(self._accounts[other].used for other in self._num_waiting)])
            account = self._accounts.setdefault(key_id, _Account(start, start))
            account.used = account.floor = max(account.used, start)
        self._num_waiting[key_id] = self._num_waiting.get(key_id, 0) + 1

    def leave(self, key_id: KeyId) -> None:
        """One request of the key waits no longer."""
        self._num_waiting[key_id] -= 1
        if not self._num_waiting[key_id]:
            del self._num_waiting[key_id]

    def charge(self, lease_id: LeaseId, key_id: KeyId, weight: float) -> None:
        """A request of the key is granted."""
        account = self._accounts[key_id]
        self._served_at = max(self._served_at, account.used)
        self._charges[lease_id] = _Charge(key_id, account.guess, weight)
        account.used += account.guess / weight

    def settle(self, lease_id: LeaseId, tokens: int | None) -> None:
        """The request is over and took so many tokens; None = nobody knows, and the guess stands."""
        charge = self._charges.pop(lease_id)
        if tokens is None:
            return
        account = self._accounts[charge.key_id]
        account.used = max(account.floor, account.used + (tokens - charge.tokens) / charge.weight)
        account.guess = max(LEAST_GUESS, tokens)
