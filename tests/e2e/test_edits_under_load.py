"""One real `corral serve` with stub workers, steady traffic, and every kind of edit of models.yaml meanwhile."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path
from typing import Any

import yaml

from tests.support.served import Served, served, until

PER_SECOND = 20


def text_of(folder: Path, models: dict[str, dict[str, Any]]) -> str:
    env = {"FAKE_JOURNAL": str(folder / "journal")}
    described = {name: {"model": "./model.gguf", "slots": 2, "env": env} | options for name, options in models.items()}
    return yaml.safe_dump({"models": described}, sort_keys=False)


async def reload(server: Served, text: str) -> tuple[int, dict[str, Any]]:
    """Write the file and return the verdict on it."""
    (server.folder / "models.yaml").write_text(text)
    async with server.session.post(f"{server.url}/admin/reload") as reply:
        return reply.status, await reply.json()


async def test_edits_of_all_kinds_lose_no_request_and_restart_no_worker_that_they_do_not_touch(tmp_path: Path) -> None:
    async with served(tmp_path, {"kept": {}, "streaming": {}}) as server:
        statuses: Counter[int] = Counter()
        is_over = asyncio.Event()

        async def ask() -> None:
            async with await server.chat("kept", tokens=3, delay_s=0.01) as reply:
                assert "w2 " in await reply.text()
                statuses[reply.status] += 1

        async def load() -> None:
            async with asyncio.TaskGroup() as group:
                while not is_over.is_set():
                    group.create_task(ask())
                    await asyncio.sleep(1 / PER_SECOND)

        stream = await server.chat("streaming", stream=True, tokens=8, hold_after=4, hold=str(tmp_path / "go"))
        await stream.content.readuntil(b'"w3 "')
        loading = asyncio.create_task(load())
        await until(lambda: statuses[200] > 0, what="the first answer")
        base: dict[str, dict[str, Any]] = {"kept": {}, "streaming": {}}

        status, verdict = await reload(server, text_of(tmp_path, base | {"added": {}}))
        assert (status, verdict["added"], verdict["restarted_when_idle"]) == (200, ["added"], {})
        assert (await server.chat("added")).status == 200

        edited = {"kept": {"aliases": ["fast"], "queue_timeout_s": 7}, "streaming": {"description": "talks"}}
        status, verdict = await reload(server, text_of(tmp_path, edited | {"added": {}}))
        assert (status, verdict["restarted_when_idle"]) == (200, {})
        assert sorted(verdict["changed"]) == ["kept", "streaming"]
        assert (await server.chat("fast")).status == 200

        good = text_of(tmp_path, edited | {"added": {}})
        for broken in ("models: [", good.replace("slots", "slotz"), good[: len(good) // 2] + "\n\t:"):
            status, verdict = await reload(server, broken)
            assert (status, verdict["success"]) == (422, False)
            assert all(error["line"] for error in verdict["errors"])
            assert (await server.chat("fast")).status == 200, "what was in force still is"
        assert (await server.get("/health"))["configuration"]["status"] == "invalid"

        status, verdict = await reload(server, good)
        assert (status, verdict["changed"], verdict["added"], verdict["removed"]) == (200, {}, [], [])
        assert "configuration" not in await server.get("/health")

        last = asyncio.create_task(server.chat("added", tokens=4, hold_after=2, hold=str(tmp_path / "go")))
        await until(lambda: _num(server, "generating", "added") == 2, what="a running answer of the model that goes")
        status, verdict = await reload(server, text_of(tmp_path, base))
        assert (status, verdict["removed"]) == (200, ["added"])
        assert (await server.chat("added")).status == 404
        assert (await server.chat("fast")).status == 404

        (tmp_path / "go").touch()
        assert (await last).status == 200
        assert (await stream.text()).endswith("data: [DONE]\n\n")
        before = statuses[200]
        await until(lambda: statuses[200] > before + 5, what="more answers after the last edit")
        is_over.set()
        await loading
        assert set(statuses) == {200}
        assert Counter(entry["model"] for entry in server.journal("started")) == {
            "kept": 1,
            "streaming": 1,
            "added": 1,
        }
        assert _num(server, "aborted", "kept") == _num(server, "aborted", "streaming") == 0
        await until(lambda: _num(server, "exit", "added") == 1, what="the end of the removed one")
        assert {entry["model"] for entry in server.journal("term")} == {"added"}


def _num(server: Served, event: str, model: str) -> int:
    return sum(entry["model"] == model for entry in server.journal(event))
