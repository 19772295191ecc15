"""Requests that may be what kills their workers: of each model only one at a time goes on.

Owns the turns. Must not decide who is suspect (`resuming.py` does).
"""

from __future__ import annotations

import asyncio
from weakref import WeakValueDictionary


class Quarantine:
    """One line of suspects for each model."""

    def __init__(self) -> None:
        self._turns: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    def turn(self, model: str) -> Turn:
        """Return a place in the line of `model`, which is not asked for yet."""
        turn = self._turns.get(model)
        if turn is None:
            turn = self._turns[model] = asyncio.Lock()
        return Turn(turn)


class Turn:
    """One request's place in the line."""

    def __init__(self, lock: asyncio.Lock) -> None:
        self._lock = lock
        self._is_held = False

    async def take(self) -> None:
        """It is this request's turn."""
        if not self._is_held:
            await self._lock.acquire()
            self._is_held = True

    def give_up(self) -> None:
        """The next one may go. Idempotent."""
        if self._is_held:
            self._is_held = False
            self._lock.release()
