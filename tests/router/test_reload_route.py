"""`POST /admin/reload` answers with a verdict, and `/health` tells what is wrong until it is corrected."""

from __future__ import annotations

import pytest

from tests.support.http_side import HttpSide, http_side

TWO = "models:\n  smol: {model: smol.gguf, aliases: [gpt]}\n  gem: gem.gguf\n"
BROKEN = "models: ["


def write(side: HttpSide, text: str) -> None:
    (side.folder / "models.yaml").write_text(text)


async def test_the_verdict_tells_what_has_changed() -> None:
    async with http_side() as side:
        write(side, "limits: {max_loaded: 1}\n" + TWO)
        reply = await side.client.post("/admin/reload")
        verdict = await reply.json()
        assert reply.status == 200
        assert verdict["success"] is True
        assert verdict["models"] == 2
        assert verdict["settings"] == ["limits.max_loaded"]
        assert verdict.keys() >= {"added", "removed", "changed", "restarted_when_idle", "unchanged"}
        models = await (await side.client.get("/models")).json()
        assert [model["id"] for model in models["data"]] == ["smol", "gem"]


async def test_the_verdict_on_a_broken_file_has_every_mistake_with_its_place() -> None:
    async with http_side() as side:
        write(side, "models:\n  smol: {model: smol.gguf, slotz: 1}\n  gem: {model: gem.gguf, slots: 0}\n")
        reply = await side.client.post("/admin/reload")
        verdict = await reply.json()
        assert reply.status == 422
        assert verdict["success"] is False
        assert [(one["where"], one["line"]) for one in verdict["errors"]] == [
            ("models.smol.slotz", 2),
            ("models.gem.slots", 3),
        ]
        assert verdict["errors"][0]["column"] == 28
        assert "nothing has changed" in verdict["error"]["message"]
        assert len((await (await side.client.get("/models")).json())["data"]) == 2


async def test_key_in_the_home_folder_of_a_stranger_is_a_mistake_like_any_other() -> None:
    async with http_side() as side:
        write(side, TWO + "keys: {team: {file: ~nobody-of-that-name/key}}\n")
        await side.reloader.take_edits()
        assert side.reloader.refused is not None, "and whoever watches the file goes on"
        reply = await side.client.post("/admin/reload")
        (mistake,) = (await reply.json())["errors"]
        assert (reply.status, "keys.team" in mistake["message"]) == (422, True)


async def test_health_tells_of_a_broken_file_and_stays_green() -> None:
    async with http_side() as side:
        write(side, BROKEN)
        await side.client.post("/admin/reload")
        reply = await side.client.get("/health")
        body = await reply.json()
        assert (reply.status, body["status"]) == (200, "ok")
        assert body["configuration"]["status"] == "invalid"
        assert "line 1, column 10" in body["configuration"]["error"]
        assert str(side.folder) not in body["configuration"]["error"], "health is open to everybody"
        assert body["configuration"]["since"] > 0
        write(side, TWO)
        assert (await side.client.post("/admin/reload")).status == 200
        assert "configuration" not in await (await side.client.get("/health")).json()


async def test_health_tells_strangers_only_where_a_file_is_broken_if_there_are_keys() -> None:
    async with http_side(keys={"admin_keys": "root"}) as side:
        for text, where in ((BROKEN, "line 1, column 10"), (TWO + "keys: {team: {file: /secret/place}}\n", "a key")):
            write(side, text)
            await side.reloader.take_edits()
            body = await (await side.client.get("/health")).json()
            error = body["configuration"]["error"]
            assert where in error
            assert "the server's log" in error
            assert side.reloader.refused is not None
            assert side.reloader.refused.problems[0].message not in error
            assert "/secret/place" not in error


async def test_keys_of_a_new_configuration_hold_for_the_next_request() -> None:
    async with http_side() as side:
        (side.folder / "secret").write_text("opens\n")
        write(side, "keys: {app: {file: secret, scopes: [admin]}}\n" + TWO)
        assert (await side.client.post("/admin/reload")).status == 200
        assert (await side.client.get("/models")).status == 401
        assert (await side.client.get("/models", headers={"x-api-key": "opens"})).status == 200


@pytest.mark.parametrize("body", [b'{"force": true}', b"[1]", b"{"])
async def test_a_reload_takes_no_options(body: bytes) -> None:
    async with http_side() as side:
        write(side, TWO)
        headers = {"Content-Type": "application/json"}
        assert (await side.client.post("/admin/reload", data=body, headers=headers)).status == 400
        assert "gem" in side.supervisor.catalog.models, "as it was before"
        assert side.reloader.taken == {}


async def test_a_reload_may_have_an_empty_object_as_its_body() -> None:
    async with http_side() as side:
        write(side, TWO)
        assert (await side.client.post("/admin/reload", json={})).status == 200


async def test_only_a_post_reads_the_configuration_again() -> None:
    async with http_side() as side:
        write(side, TWO)
        reply = await side.client.get("/admin/reload")
        assert (reply.status, reply.headers["Allow"]) == (405, "POST")
        assert (await side.client.get("/admin/nothing")).status == 404
        assert side.reloader.taken == {}
