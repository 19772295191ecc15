"""What is kept of responses, so that other requests can go on from them whichever worker answers, or none is left.

Owns the bounds: bytes, count and age. Each API key has its own, so that none reads another's; whoever has most makes
room. Pure: must not know a clock, nor parse more of a conversation than its first line.

What a worker gives is lines of JSON:

    {"id": …, "num_input_items": …}
    the response
    one item of the conversation each: those of the input, then those of the answer
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field

import orjson

_OVERHEAD_BYTES = 1024
"""Of each one, about, besides its texts."""


@dataclass(frozen=True, slots=True)
class Kept:
    """One response and the conversation that it ends."""

    id: str
    num_input_items: int
    response: bytes = field(repr=False)
    """As the client got it."""
    items: bytes = field(repr=False)
    """Lines of JSON, one for each item."""
    prefixes: tuple[int, ...] = ()
    """Hashes of the beginnings of the request that it answers."""

    @property
    def num_bytes(self) -> int:
        """What it takes of the memory."""
        return len(self.response) + len(self.items) + _OVERHEAD_BYTES

    @property
    def input_items(self) -> list[bytes]:
        """The items that are not the answer's, each as JSON."""
        return self.items.split(b"\n", self.num_input_items)[: self.num_input_items]


def read_kept(lines: bytes, prefixes: tuple[int, ...] = ()) -> Kept:
    """Return what a worker wants to have kept. Raises: ValueError when it is not in that form."""
    end = lines.find(b"\n")
    head = orjson.loads(lines[: max(end, 0)])
    items_at = lines.find(b"\n", end + 1) + 1
    if not isinstance(head, dict) or items_at == 0:
        raise ValueError("it has no line for the response and its items")
    id_, num_input_items = head.get("id"), head.get("num_input_items")
    if not isinstance(id_, str) or not isinstance(num_input_items, int):
        raise ValueError("its first line lacks `id` or `num_input_items`")
    return Kept(id_, num_input_items, lines[end + 1 : items_at - 1], lines[items_at:], prefixes)


@dataclass(slots=True)
class _Shelf:
    """All that is kept for one API key; in front what was not used for the longest time."""

    kept: OrderedDict[str, tuple[float, Kept]] = field(default_factory=OrderedDict)
    """By id, with the time of the last use."""
    num_bytes: int = 0

    def put(self, kept: Kept, now_s: float) -> None:
        self.remove(kept.id)
        self.kept[kept.id] = (now_s, kept)
        self.num_bytes += kept.num_bytes

    def remove(self, response_id: str) -> bool:
        found = self.kept.pop(response_id, None)
        if found is not None:
            self.num_bytes -= found[1].num_bytes
        return found is not None

    def remove_first(self) -> None:
        self.remove(next(iter(self.kept)))


class Conversations:
    """Responses by API key and id. The one kept last stays, even if it is larger than all may be."""

    def __init__(self, *, max_bytes: int = 256 * 2**20, max_count: int = 10_000, max_age_s: float = 86_400.0) -> None:
        self._max_bytes = max_bytes
        self._max_count = max_count
        self._max_age_s = max_age_s
        self._shelves: dict[str | None, _Shelf] = {}

    @property
    def num_bytes(self) -> int:
        """What all of them take of the memory."""
        return sum(shelf.num_bytes for shelf in self._shelves.values())

    @property
    def num_kept(self) -> int:
        """How many there are."""
        return sum(len(shelf.kept) for shelf in self._shelves.values())

    def keep(self, owner: str | None, kept: Kept, now_s: float) -> None:
        """From now on it is found; others are forgotten where the bounds demand it."""
        self._forget_old(now_s)
        self._shelves.setdefault(owner, _Shelf()).put(kept, now_s)
        while self.num_kept > max(self._max_count, 1):
            self._make_room(kept.id, lambda shelf: len(shelf.kept))
        while self.num_bytes > self._max_bytes and self.num_kept > 1:
            self._make_room(kept.id, lambda shelf: shelf.num_bytes)

    def find(self, owner: str | None, response_id: str, now_s: float) -> Kept | None:
        """Return the response that was kept for this API key, which counts as a use; None = there is none."""
        self._forget_old(now_s)
        shelf = self._shelves.get(owner)
        found = None if shelf is None else shelf.kept.get(response_id)
        if shelf is None or found is None:
            return None
        shelf.kept[response_id] = (now_s, found[1])
        shelf.kept.move_to_end(response_id)
        return found[1]

    def forget(self, owner: str | None, response_id: str) -> bool:
        """Return whether there was such a response; there is none any more."""
        shelf = self._shelves.get(owner)
        was_there = shelf is not None and shelf.remove(response_id)
        self._drop_empty()
        return was_there

    def _make_room(self, newest: str, size: Callable[[_Shelf], int]) -> None:
        """Forget one response other than `newest`, of the API key that has the most."""
        others = [shelf for shelf in self._shelves.values() if next(iter(shelf.kept)) != newest]
        max(others, key=size).remove_first()
        self._drop_empty()

    def _forget_old(self, now_s: float) -> None:
        for shelf in self._shelves.values():
            while shelf.kept and next(iter(shelf.kept.values()))[0] < now_s - self._max_age_s:
                shelf.remove_first()
        self._drop_empty()

    def _drop_empty(self) -> None:
        for owner in [owner for owner, shelf in self._shelves.items() if not shelf.kept]:
            del self._shelves[owner]
