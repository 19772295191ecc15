"""Load and unload tell the supervisor, by any name of the model, and refuse what they do not know."""

from __future__ import annotations

from typing import Any

import pytest

from router.lifecycle import WorkerState
from tests.fakes.supervisor import make_view
from tests.support.http_side import http_side


async def test_load_and_unload_take_any_name_of_the_model() -> None:
    async with http_side() as side:
        side.supervisor.views["smol"] = make_view("smol", WorkerState.STARTING)
        reply = await side.client.post("/models/load", json={"model": "gpt"})
        assert (reply.status, await reply.json()) == (200, {"success": True, "model": "smol", "state": "starting"})
        reply = await side.client.post("/models/unload", json={"model": "secret"})
        assert (reply.status, await reply.json()) == (200, {"success": True, "model": "gem", "state": "unloaded"})
        assert (side.supervisor.loaded, side.supervisor.unloaded) == (["smol"], ["gem"])


@pytest.mark.parametrize(
    ("body", "status", "param"),
    [
        ({}, 400, "model"),
        ({"model": ""}, 400, "model"),
        ({"model": 5}, 400, "model"),
        ({"model": "nobody"}, 404, "model"),
        ({"model": "smol", "wait": True}, 400, "wait"),
        ([], 400, None),
    ],
)
async def test_order_that_is_not_understood_is_refused(body: Any, status: int, param: str | None) -> None:
    async with http_side() as side:
        for path in ("/models/load", "/models/unload"):
            reply = await side.client.post(path, json=body)
            assert (reply.status, (await reply.json())["error"].get("param")) == (status, param)
        assert (side.supervisor.loaded, side.supervisor.unloaded) == ([], [])


async def test_nothing_is_loaded_or_pinned_while_the_server_stops() -> None:
    async with http_side() as side:
        side.supervisor.is_shutting_down = True
        for path, body in (("/models/load", {}), ("/admin/pin", {"pin": True})):
            reply = await side.client.post(path, json={"model": "smol"} | body)
            assert (reply.status, (await reply.json())["error"]["message"].partition(":")[0]) == (
                503,
                "the server is stopping",
            )
            assert "Retry-After" in reply.headers
        assert side.supervisor.loaded == []
        assert (await side.client.post("/models/unload", json={"model": "smol"})).status == 200
