"""`/admin/config`: the text is shown, checked, and written as a whole or not at all, for those who may."""

from __future__ import annotations

import asyncio
import errno
import hashlib
import logging
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from router import admin_config as routes_room
from router import config_editor as room
from router.admin_config import CONFIG_EDITOR
from router.catalog_problems import CatalogError, Problem
from router.errors import ShuttingDown
from router.watcher import look
from tests.support.http_side import HttpSide, http_side
from tests.support.served import until

KEYS = {"api_keys": "user", "admin_keys": "root"}
TWO = "models:\n  smol: {model: smol.gguf, aliases: [gpt]}\n  gem: gem.gguf\n"
THREE = TWO + "  new: new.gguf\n"
BROKEN = "models:\n  smol: {model: smol.gguf, slotz: 1}\n"


def file_of(side: HttpSide) -> Path:
    return side.folder / "models.yaml"


def write(side: HttpSide, text: str) -> str:
    """Write the file and return its digest."""
    file_of(side).write_text(text)
    return hashlib.sha256(text.encode()).hexdigest()


async def put(side: HttpSide, text: Any, sha256: Any) -> tuple[int, Any]:
    reply = await side.client.put("/admin/config", json={"text": text, "sha256": sha256})
    return reply.status, await reply.json()


async def shown(side: HttpSide) -> Mapping[str, Any]:
    found: Mapping[str, Any] = await (await side.client.get("/admin/config")).json()
    return found


async def test_text_is_shown_with_its_digest_and_verdict() -> None:
    async with http_side(allow_config_edits=True) as side:
        digest = write(side, TWO)
        told = await shown(side)
        assert (told["text"], told["sha256"], told["path"]) == (TWO, digest, str(file_of(side)))
        assert (told["is_editable"], told["why_not"]) == (True, None)
        assert (told["status"], told["problems"]) == ("valid", [])


async def test_text_that_is_not_in_force_is_shown_with_its_mistakes() -> None:
    async with http_side() as side:
        write(side, BROKEN)
        await side.client.post("/admin/reload")
        told = await shown(side)
        assert (told["text"], told["status"]) == (BROKEN, "invalid")
        assert [(one["where"], one["line"]) for one in told["problems"]] == [("models.smol.slotz", 2)]


async def test_edits_are_off_unless_the_operator_has_allowed_them() -> None:
    async with http_side() as side:
        digest = write(side, TWO)
        told = await shown(side)
        assert told["is_editable"] is False
        assert "CORRAL_ALLOW_CONFIG_EDITS=true" in told["why_not"]
        status, reply = await put(side, THREE, digest)
        assert status == 403
        assert "CORRAL_ALLOW_CONFIG_EDITS=true" in reply["error"]["message"]
        assert file_of(side).read_text() == TWO


async def test_new_text_is_written_and_in_force_at_once() -> None:
    async with http_side(allow_config_edits=True) as side:
        digest = write(side, TWO)
        await side.client.post("/admin/reload")
        status, reply = await put(side, THREE, digest)
        assert status == 200, reply
        assert (reply["success"], reply["added"], reply["models"]) == (True, ["new"], 3)
        assert reply["sha256"] == hashlib.sha256(THREE.encode()).hexdigest()
        assert file_of(side).read_text() == THREE
        assert "new" in side.supervisor.catalog.models
        assert [path.name for path in side.folder.iterdir() if "models.yaml" in path.name] == ["models.yaml"]


async def test_edit_is_not_told_once_more_by_the_watcher(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "router.reload")
    async with http_side(allow_config_edits=True) as side:
        await put(side, THREE, write(side, TWO))
        assert side.reloader.taken[file_of(side)] == look([file_of(side)])[file_of(side)]
        await side.reloader.take_edits()
        (line,) = caplog.messages
        assert "(PUT /admin/config)" in line


async def test_edit_of_a_text_that_has_changed_meanwhile_is_refused() -> None:
    async with http_side(allow_config_edits=True) as side:
        digest = write(side, TWO)
        write(side, TWO + "# by hand\n")
        status, reply = await put(side, THREE, digest)
        assert (status, reply["error"]["code"]) == (409, "conflict")
        assert "read it again" in reply["error"]["message"]
        assert file_of(side).read_text() == TWO + "# by hand\n"


async def test_edit_by_hand_while_a_text_is_checked_is_not_overwritten(monkeypatch: pytest.MonkeyPatch) -> None:
    async with http_side(allow_config_edits=True) as side:
        digest, check = write(side, TWO), side.reloader.check

        async def slow_check(text: str) -> Any:
            write(side, TWO + "# by hand\n")
            return await check(text)

        monkeypatch.setattr(side.reloader, "check", slow_check)
        assert (await put(side, THREE, digest))[0] == 409
        assert file_of(side).read_text() == TWO + "# by hand\n"


async def test_the_second_of_two_edits_at_once_is_refused() -> None:
    async with http_side(allow_config_edits=True) as side:
        digest = write(side, TWO)
        replies = await asyncio.gather(put(side, THREE, digest), put(side, TWO + "# me too\n", digest))
        assert sorted(status for status, _ in replies) == [200, 409]


async def test_text_with_mistakes_is_refused_with_their_places_and_nothing_is_written() -> None:
    async with http_side(allow_config_edits=True) as side:
        digest = write(side, TWO)
        before = file_of(side).stat()
        status, reply = await put(side, BROKEN, digest)
        assert (status, reply["success"]) == (422, False)
        assert [(one["where"], one["line"], one["column"]) for one in reply["errors"]] == [("models.smol.slotz", 2, 28)]
        assert file_of(side).read_text() == TWO
        assert file_of(side).stat().st_ino == before.st_ino, "not even for a moment"
        assert side.reloader.refused is None


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (CatalogError([Problem("", "the disk is on fire")]), 422),
        (ShuttingDown("the server is stopping"), 503),
        (ZeroDivisionError("a fault of ours"), 500),
    ],
)
async def test_the_old_text_comes_back_when_the_new_one_cannot_be_taken_over(
    monkeypatch: pytest.MonkeyPatch, error: Exception, expected: int
) -> None:
    async with http_side(allow_config_edits=True) as side:
        digest = write(side, TWO)
        reload, seen = side.reloader.reload, []

        async def fail_once(why: str) -> Any:
            seen.append(file_of(side).read_text())
            if len(seen) == 1:
                raise error
            return await reload(why)

        monkeypatch.setattr(side.reloader, "reload", fail_once)
        status, reply = await put(side, THREE, digest)
        assert status == expected, reply
        assert seen == [THREE, TWO]
        assert file_of(side).read_text() == TWO


async def test_the_old_text_does_not_take_the_place_of_a_newer_one(monkeypatch: pytest.MonkeyPatch) -> None:
    async with http_side(allow_config_edits=True) as side:
        digest, texts = write(side, TWO), [TWO + "# by hand\n"]

        async def fail(_: str) -> Any:
            for text in texts[:1]:
                write(side, text)
            texts.clear()
            raise CatalogError([Problem("", "the disk is on fire")])

        monkeypatch.setattr(side.reloader, "reload", fail)
        assert (await put(side, THREE, digest))[0] == 422
        assert file_of(side).read_text() == TWO + "# by hand\n"


async def test_edit_goes_on_when_its_client_leaves(monkeypatch: pytest.MonkeyPatch) -> None:
    async with http_side(allow_config_edits=True) as side:
        digest, check, may_go_on = write(side, TWO), side.reloader.check, asyncio.Event()
        is_checked = asyncio.Event()

        async def slow_check(text: str) -> Any:
            is_checked.set()
            await may_go_on.wait()
            return await check(text)

        monkeypatch.setattr(side.reloader, "check", slow_check)
        assert side.client.app is not None
        asked = asyncio.create_task(side.client.app[CONFIG_EDITOR].save(THREE, digest))
        await is_checked.wait()
        asked.cancel()
        await asyncio.wait({asked})
        may_go_on.set()
        await until(lambda: "new" in side.supervisor.catalog.models, what="the edit is in force")
        assert file_of(side).read_text() == THREE


async def test_file_keeps_its_mode_and_a_link_its_target() -> None:
    async with http_side(allow_config_edits=True) as side:
        (side.folder / "real").mkdir()
        target = side.folder / "real" / "served.yaml"
        target.write_text(TWO)
        target.chmod(0o604)
        file_of(side).symlink_to(target)
        status, _ = await put(side, THREE, hashlib.sha256(TWO.encode()).hexdigest())
        assert status == 200
        assert file_of(side).is_symlink()
        assert (target.read_text(), stat.S_IMODE(target.stat().st_mode)) == (THREE, 0o604)


async def test_file_keeps_its_group_where_its_owner_may_not_be_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    given = []

    def fchown(_: int, owner: int, group: int) -> None:
        if owner != -1:
            raise PermissionError
        given.append(group)

    async with http_side(allow_config_edits=True) as side:
        digest = write(side, TWO)
        monkeypatch.setattr(room.os, "fchown", fchown)
        assert (await put(side, THREE, digest))[0] == 200
        assert given == [file_of(side).stat().st_gid]


async def test_file_that_is_mounted_by_itself_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    def busy(*_: Any) -> None:
        raise OSError(errno.EBUSY, "Device or resource busy")

    async with http_side(allow_config_edits=True) as side:
        digest = write(side, TWO)
        monkeypatch.setattr(room.os, "replace", busy)
        status, reply = await put(side, THREE, digest)
        assert (status, reply["error"]["code"], file_of(side).read_text()) == (500, "not_written", TWO)
        assert "mount its folder" in reply["error"]["message"]


async def test_nothing_is_left_behind_when_the_disk_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    async with http_side(allow_config_edits=True) as side:
        digest = write(side, TWO)
        monkeypatch.setattr(room.os, "fsync", full)
        status, reply = await put(side, THREE, digest)
        assert (status, reply["error"]["code"]) == (507, "disk_full"), "it is no mistake in the text"
        assert "models.yaml cannot be written: No space left on device" in reply["error"]["message"]
        assert file_of(side).read_text() == TWO
        assert [path.name for path in side.folder.iterdir() if "models.yaml" in path.name] == ["models.yaml"]


async def test_check_tells_what_a_text_would_change_and_changes_nothing() -> None:
    async with http_side() as side:
        write(side, TWO)
        await side.client.post("/admin/reload")
        reply = await side.client.post("/admin/config/check", json={"text": THREE + "limits: {max_loaded: 2}\n"})
        told = await reply.json()
        assert (told["ok"], told["problems"]) == (True, [])
        assert (told["changes"]["added"], told["changes"]["settings"]) == (["new"], ["limits.max_loaded"])
        assert file_of(side).read_text() == TWO
        assert "new" not in side.supervisor.catalog.models


async def test_check_tells_every_mistake_with_its_place() -> None:
    async with http_side() as side:
        told = await (await side.client.post("/admin/config/check", json={"text": BROKEN})).json()
        assert (told["ok"], told["changes"]) == (False, None)
        assert [(one["where"], one["line"], one["column"]) for one in told["problems"]] == [
            ("models.smol.slotz", 2, 28)
        ]
        told = await (await side.client.post("/admin/config/check", json={"text": "models: ["})).json()
        assert told["problems"][0]["line"] == 1


async def test_check_warns_of_models_that_could_not_be_used() -> None:
    async with http_side() as side:
        text = "models:\n  smol: {model: smol.gguf, chat_template: ./nowhere.jinja}\n"
        told = await (await side.client.post("/admin/config/check", json={"text": text})).json()
        assert told["ok"] is True
        assert [one["where"] for one in told["warnings"]] == ["models.smol.chat_template"]


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"text": 5, "sha256": ""}, "text"),
        ({"text": "half a pair \ud800", "sha256": ""}, None),
        ({"text": TWO}, "sha256"),
        ({"text": TWO, "sha256": "", "x": 1}, "x"),
    ],
)
async def test_body_that_is_not_understood_is_refused(body: Any, param: str | None) -> None:
    async with http_side(allow_config_edits=True) as side:
        reply = await side.client.put("/admin/config", json=body)
        assert (reply.status, (await reply.json())["error"]["param"]) == (400, param)


async def test_text_that_is_too_large_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(routes_room, "MAX_CATALOG_BYTES", len(TWO))
    async with http_side(allow_config_edits=True) as side:
        digest = write(side, TWO)
        assert [(await put(side, text, digest))[0] for text in (THREE, TWO)] == [413, 200]


@pytest.mark.parametrize("refused", ["models.yaml", ""])
async def test_file_that_the_server_may_not_write_says_so(refused: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async with http_side(allow_config_edits=True) as side:
        digest = write(side, TWO)
        place = (side.folder / refused).resolve()
        monkeypatch.setattr(room.os, "access", lambda path, _: path != place)
        told = await shown(side)
        assert (told["text"], told["is_editable"]) == (TWO, False)
        assert f"may not write {'' if refused else 'in the folder '}{place}" in told["why_not"]
        assert (await put(side, THREE, digest))[0] == 403


@pytest.mark.parametrize(
    ("name", "words"), [("models", "a folder"), ("one.gguf", "one model file"), ("gone.yaml", "not there")]
)
async def test_what_has_no_text_says_so(name: str, words: str) -> None:
    async with http_side(allow_config_edits=True) as side:
        (side.folder / "models").mkdir()
        (side.folder / "one.gguf").write_bytes(b"")
        assert side.client.app is not None
        side.client.app[CONFIG_EDITOR]._path = side.folder / name
        told = await shown(side)
        assert (told["text"], told["sha256"], told["is_editable"]) == (None, None, False)
        assert words in told["why_not"]
        assert (await put(side, TWO, ""))[0] == 403


async def test_text_that_is_not_for_everybody_is_not_shown_where_everybody_may_ask() -> None:
    async with http_side(allow_config_edits=True) as side:
        digest = write(side, TWO)
        file_of(side).chmod(0o640)
        told = await shown(side)
        assert (told["text"], told["sha256"], told["is_editable"]) == (None, None, False)
        assert "CORRAL_ADMIN_KEYS" in told["why_not"]
        status, reply = await put(side, THREE, digest)
        assert (status, "CORRAL_ADMIN_KEYS" in reply["error"]["message"]) == (403, True)
        file_of(side).chmod(0o644)
        assert (await shown(side))["text"] == TWO


async def test_text_that_is_not_for_everybody_is_shown_to_the_key_of_an_administrator() -> None:
    async with http_side(keys=KEYS) as side:
        write(side, TWO)
        file_of(side).chmod(0o600)
        reply = await side.client.get("/admin/config", headers={"x-api-key": "root"})
        assert (await reply.json())["text"] == TWO


async def test_only_administrators_see_or_write_it() -> None:
    async with http_side(keys=KEYS, allow_config_edits=True) as side:
        write(side, TWO)
        for method, path in (("GET", ""), ("PUT", ""), ("POST", "/check")):
            url, body = f"/admin/config{path}", {"text": TWO} | ({"sha256": "0"} if method == "PUT" else {})
            wrong = await side.client.request(method, url, json=body, headers={"x-api-key": "user"})
            right = await side.client.request(method, url, json=body, headers={"x-api-key": "root"})
            assert (wrong.status, right.status) == (403, 409 if method == "PUT" else 200)


async def test_the_own_page_may_write_and_a_foreign_one_may_not() -> None:
    async with http_side(allow_config_edits=True) as side:
        digest = write(side, TWO)
        own = f"http://{side.client.host}:{side.client.port}"
        for origin, status in (("https://evil.example", 403), (own, 200)):
            body = {"text": THREE, "sha256": digest}
            reply = await side.client.put("/admin/config", json=body, headers={"Origin": origin})
            assert reply.status == status, await reply.text()
