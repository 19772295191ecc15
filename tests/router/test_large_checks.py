"""Checks of texts that are made to be dear: one at a time, apart from what requests need, and in few words.

Must not measure seconds: what would take them is counted.
"""

from __future__ import annotations

import asyncio
import difflib
import hashlib
import threading
from typing import Any

import pytest

from router.catalog_parser import read_catalog
from tests.support.catalogs import PATH
from tests.support.http_side import HttpSide, http_side
from tests.support.served import until

TWO = "models:\n  smol: {model: smol.gguf, aliases: [gpt]}\n  gem: gem.gguf\n"


def write(side: HttpSide, text: str) -> str:
    """Write the file and return its digest."""
    (side.folder / "models.yaml").write_text(text)
    return hashlib.sha256(text.encode()).hexdigest()


async def test_texts_are_checked_one_after_another_and_the_fifth_is_told_to_come_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each may keep a core busy for seconds, and asyncio's own threads are needed by everybody."""
    async with http_side() as side:
        write(side, TWO)
        go, names, begun = threading.Event(), [], side.reloader._check

        def slow_check(text: str, old: Any) -> Any:
            names.append(threading.current_thread().name)
            go.wait(20)
            return begun(text, old)

        monkeypatch.setattr(side.reloader, "_check", slow_check)
        checks = [asyncio.create_task(side.client.post("/admin/config/check", json={"text": TWO})) for _ in range(4)]
        await until(lambda: side.reloader._num_checks == 4)
        refused = await side.client.post("/admin/config/check", json={"text": TWO})
        assert (refused.status, refused.headers["Retry-After"]) == (429, "5")
        assert names == ["config-check"]
        go.set()
        assert [reply.status for reply in await asyncio.gather(*checks)] == [200] * 4
        assert names == ["config-check"] * 4
        assert (await side.client.post("/admin/config/check", json={"text": TWO})).status == 200


async def test_check_goes_on_alone_when_whoever_wanted_it_has_left(monkeypatch: pytest.MonkeyPatch) -> None:
    async with http_side() as side:
        go, running, most, begun = threading.Event(), [], [], side.reloader._check

        def slow_check(text: str, old: Any) -> Any:
            running.append(text)
            most.append(len(running))
            go.wait(20)
            running.pop()
            return begun(text, old)

        monkeypatch.setattr(side.reloader, "_check", slow_check)
        first = asyncio.create_task(side.reloader.check(TWO))
        await until(lambda: bool(running))
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
        second = asyncio.create_task(side.reloader.check(TWO))
        await until(side.reloader._check_turn.locked)
        go.set()
        assert (await second).problems == ()
        assert most == [1, 1]


async def test_of_very_many_problems_the_first_are_told_and_how_many_more_there_are() -> None:
    async with http_side(allow_config_edits=True) as side:
        text = "models:\n" + "".join(f"  m{number}: {{model: m.gguf, slotz: 1}}\n" for number in range(1203))
        told = await (await side.client.post("/admin/config/check", json={"text": text})).json()
        assert len(told["problems"]) == 201
        assert told["problems"][199]["line"] == 201
        assert told["problems"][200]["message"].startswith("and 1003 more")
        digest = write(side, TWO)
        answer = await side.client.put("/admin/config", json={"text": text, "sha256": digest})
        status, reply = answer.status, await answer.json()
        assert (status, len(reply["errors"])) == (422, 201)
        write(side, text)
        assert len((await (await side.client.post("/admin/reload")).json())["errors"]) == 201
        assert len((await (await side.client.get("/admin/config")).json())["problems"]) == 201


def test_names_are_guessed_once_for_a_mistake_that_is_made_everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    asked, guess = [], difflib.get_close_matches

    def counting(word: str, *rest: Any, **named: Any) -> list[str]:
        asked.append(word)
        return guess(word, *rest, **named)

    monkeypatch.setattr(difflib, "get_close_matches", counting)
    text = "models:\n" + "".join(f"  m{number}: {{model: m.gguf, slottz: 1}}\n" for number in range(300))
    found = read_catalog(text, PATH).problems
    assert [("did you mean `slots`?" in problem.message) for problem in found] == [True] * 300
    assert len(asked) <= 2


def test_after_very_many_problems_keys_are_refused_without_a_guess(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    monkeypatch.setattr(difflib, "get_close_matches", lambda word, *_, **__: asked.append(word) or [])
    text = "models:\n" + "".join(f"  m{number}: {{model: m.gguf, wrong{number}: 1}}\n" for number in range(1500))
    assert len(read_catalog(text, PATH).problems) == 1500
    assert len(asked) <= 2000
