"""Which conversations a worker has served lately, by hashes of their beginnings.

Owns that memory, which is bounded. Must not know how the hashes are made (`prefixes.py` does).
"""

from __future__ import annotations

MAX_PREFIXES = 4096
"""Hashes that are remembered of each worker."""


class PrefixMemory:
    """What the router has sent to one worker: no proof that it is still there, but right nearly always."""

    __slots__ = ("_known",)

    def __init__(self) -> None:
        self._known: dict[int, None] = {}  # the latest last

    def remember(self, prefixes: tuple[int, ...]) -> None:
        """The conversation with these beginnings counts as one that it has served last."""
        for prefix in prefixes:
            self._known.pop(prefix, None)
            self._known[prefix] = None
        while len(self._known) > MAX_PREFIXES:
            del self._known[next(iter(self._known))]

    def match(self, prefixes: tuple[int, ...]) -> int:
        """Return how far it knows a conversation, in beginnings: they get longer, and some were served here."""
        return max((index for index, prefix in enumerate(prefixes, 1) if prefix in self._known), default=0)
