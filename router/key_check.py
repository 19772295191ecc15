"""The check of a request's API key, and what a request without a right one gets.

Owns counting and slowing down of wrong keys; how many are too many is decided by `key_guesses.py`, which keys are right
by `auth.py`. A right key is let in at once whatever else comes from its address, which may be a proxy's.
"""

from __future__ import annotations

import asyncio
import logging

from aiohttp import web

from router.auth import Grant, carries_key, unauthorized
from router.errors import TooManyWrongKeys
from router.key_guesses import Failure, site_of
from router.services import Services, current_exchange

_log = logging.getLogger(__name__)

HOLD_S = 1.0
"""So long an address that has sent too many wrong keys waits for each further answer."""
MAX_HELD = 64
"""So many answers are held back at once; those beyond go out immediately."""


class HeldAnswers:
    """How many answers are being held back."""

    def __init__(self) -> None:
        self.number = 0

    async def hold(self, seconds: float) -> None:
        """Return after that time, or at once where many wait already."""
        if self.number >= MAX_HELD:
            return
        self.number += 1
        try:
            await asyncio.sleep(seconds)
        finally:
            self.number -= 1


HELD_ANSWERS = web.AppKey("held_answers", HeldAnswers)


async def check_key(request: web.Request, services: Services) -> Grant:
    """Return what the sender may do. Raises: Unauthorized; TooManyWrongKeys."""
    grant = services.keys.find(request.headers)
    if grant is not None:
        return grant
    if not carries_key(request.headers):
        services.metrics.authentication_failed(Failure.MISSING)
        raise unauthorized()
    verdict = services.guesses.note(request.remote, asyncio.get_running_loop().time())
    if verdict.retry_after_s <= 0:
        services.metrics.authentication_failed(Failure.WRONG)
        raise unauthorized()
    services.metrics.authentication_failed(Failure.THROTTLED)
    if verdict.is_news:
        _log.warning("many wrong API keys come from %s: further ones are answered late", site_of(request.remote))
    await request.app[HELD_ANSWERS].hold(HOLD_S)
    raise _too_many(verdict.retry_after_s)


def _too_many(retry_after_s: float) -> TooManyWrongKeys:
    """Return the refusal. Clients that repeat every 429 by themselves are told not to: the key stays wrong."""
    current_exchange().reply.headers["x-should-retry"] = "false"
    return TooManyWrongKeys(
        "too many wrong API keys have come from this address: correct the key; a right one is accepted at any time",
        retry_after_s=retry_after_s,
    )
