"""What each slot has computed last, and for whom: a client that names a slot means its own prompt, nobody else's.

Owns how much is remembered. Must not know cells: what is left of a prompt in the cache is the KV store's affair.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

from worker.engine.batch import TokenArray
from worker.engine.sequence import Sequence

MAX_REMEMBERED = 256
MAX_TOKENS = 2**22
"""Of all that is remembered, four bytes each; what was used longest ago is forgotten first."""


@dataclass(frozen=True, slots=True)
class Client:
    """Whose prompts are meant."""

    owner: str = ""
    """Tells API keys apart; "" = there are none."""
    salt: str = ""
    """The request's `cache_salt`."""


@dataclass(frozen=True, slots=True, eq=False)
class Occupant:
    """A finished sequence: prompt and answer."""

    tokens: TokenArray
    cache_key: str
    """See `Sequence.cache_key`."""


class Occupants:
    """The last occupant of every slot, by client."""

    def __init__(self) -> None:
        self._known: OrderedDict[tuple[int, Client], Occupant] = OrderedDict()
        self._num_tokens = 0

    def __len__(self) -> int:
        return len(self._known)

    def note(self, slot_id: int, client: Client, occupant: Occupant) -> None:
        """This is what the client has last had computed in the slot."""
        self.forget(slot_id, client)
        self._known[slot_id, client] = occupant
        self._num_tokens += len(occupant.tokens)
        while len(self._known) > MAX_REMEMBERED or (self._num_tokens > MAX_TOKENS and len(self._known) > 1):
            _, oldest = self._known.popitem(last=False)
            self._num_tokens -= len(oldest.tokens)

    def find(self, slot_id: int, client: Client) -> Occupant | None:
        """Return what the client has last had computed in the slot."""
        return self._known.get((slot_id, client))

    def forget(self, slot_id: int, client: Client) -> Occupant | None:
        """Return the same, and remember it no longer."""
        occupant = self._known.pop((slot_id, client), None)
        if occupant is not None:
            self._num_tokens -= len(occupant.tokens)
        return occupant


def client_of(sequence: Sequence) -> Client:
    """Return whose sequence it is."""
    return Client(sequence.request.owner, sequence.request.cache_salt)
