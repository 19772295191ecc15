"""`POST /admin/pin` pins a model, lets it go, or gives it back to its configuration; nothing is loaded for it."""

from __future__ import annotations

from typing import Any

import pytest

from router.catalog import Remote
from tests.support.http_side import CHAT, http_side, make_catalog, make_spec

KEYS = {"api_keys": "user", "admin_keys": "root"}


async def test_pin_holds_until_it_is_given_back() -> None:
    async with http_side(make_catalog(make_spec("smol"), make_spec("kept", pin=True))) as side:
        for name, pin, is_pinned, source in (
            ("smol", True, True, "request"),
            ("smol", False, False, "request"),
            ("smol", None, False, None),
            ("kept", False, False, "request"),
            ("kept", None, True, "configuration"),
        ):
            reply = await side.client.post("/admin/pin", json={"model": name, "pin": pin})
            told = {"success": True, "model": name, "is_pinned": is_pinned, "pin_source": source}
            assert (reply.status, await reply.json()) == (200, told)
            status = await (await side.client.get("/status")).json()
            (model,) = [model for model in status["models"] if model["id"] == name]
            assert (model["is_pinned"], model["pin_source"]) == (is_pinned, source)
        assert side.supervisor.loaded == []


async def test_model_may_be_named_by_an_alias() -> None:
    async with http_side() as side:
        reply = await side.client.post("/admin/pin", json={"model": "gpt", "pin": True})
        assert (await reply.json())["model"] == "smol"


@pytest.mark.parametrize(
    ("body", "status", "param"),
    [
        ({"pin": True}, 400, "model"),
        ({"model": "smol"}, 400, "pin"),
        ({"model": "smol", "pin": 1}, 400, "pin"),
        ({"model": "smol", "pin": "yes"}, 400, "pin"),
        ({"model": "smol", "pin": True, "for_s": 1}, 400, "for_s"),
        ({"model": "nobody", "pin": True}, 404, "model"),
        ({"model": "far", "pin": True}, 400, "model"),
    ],
)
async def test_order_that_is_not_understood_changes_nothing(body: Any, status: int, param: str) -> None:
    far = make_spec("far", remote=Remote("http://far/v1", "far"))
    async with http_side(make_catalog(make_spec("smol"), far)) as side:
        reply = await side.client.post("/admin/pin", json=body)
        assert (reply.status, (await reply.json())["error"]["param"]) == (status, param)
        assert side.supervisor.pin_orders == {}


async def test_only_administrators_may_pin() -> None:
    async with http_side(keys=KEYS) as side:
        for key, status in (("user", 403), ("root", 200)):
            body = {"model": "smol", "pin": True}
            reply = await side.client.post("/admin/pin", json=body, headers={"x-api-key": key})
            assert reply.status == status


async def test_client_is_told_that_a_pinned_model_does_not_go_when_it_is_idle() -> None:
    async with http_side(make_catalog(make_spec("smol"), make_spec("kept", pin=True))) as side:

        async def ask(model: str) -> tuple[int, str]:
            reply = await side.client.post(CHAT, json={"model": model, "messages": [], "keep_alive": 0})
            return reply.status, await reply.text()

        assert (await ask("smol"))[0] == 200
        status, text = await ask("kept")
        assert status == 400
        assert "`pin` in models.yaml says that it stays" in text
        for name, pin in (("smol", True), ("kept", False)):
            await side.client.post("/admin/pin", json={"model": name, "pin": pin})
        status, text = await ask("smol")
        assert status == 400
        assert "it is pinned (POST /admin/pin)" in text
        assert (await ask("kept"))[0] == 200
