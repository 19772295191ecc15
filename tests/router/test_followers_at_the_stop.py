"""Who follows topics hears of the stop as soon as it begins. Must not stop a server: `e2e/test_restart.py` does."""

from __future__ import annotations

from router.services import SERVICES
from router.topics import TOPIC_HUB
from tests.support.event_reader import following
from tests.support.http_side import http_side


async def test_stop_is_told_at_once_and_to_those_who_come_later() -> None:
    async with http_side() as side:
        assert side.client.app is not None
        hub, services = side.client.app[TOPIC_HUB], side.client.app[SERVICES]
        hub.every_s = 60.0
        async with following(side, "server") as reader:
            assert (await reader.next())[1]["status"] == "ok"
            hub.tell_stop(services)
            kind, data = await reader.next()
            assert (kind, data["status"]) == ("server", "draining")
        async with following(side, "server") as reader:
            assert (await reader.next())[1]["status"] == "draining"
