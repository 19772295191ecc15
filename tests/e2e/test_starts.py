"""A real `corral serve` with preloads, spare processes and hooks: what happens around the start of stub workers."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import psutil

from tests.support.served import Served, is_running, served, until


async def test_preloads_come_one_after_another_and_health_does_not_wait_for_them(tmp_path: Path) -> None:
    def model(name: str) -> dict[str, Any]:
        return {"preload": True, "fake": {"LOAD_HOLD": tmp_path / name}}

    models = {"first": model("go-1"), "later": {}, "second": model("go-2")}
    async with served(tmp_path, models) as server:
        await until(lambda: bool(server.journal("started")), what="the first preload")
        start_s = time.monotonic()
        health = await server.get("/health")
        assert time.monotonic() - start_s < 1.0
        assert (health["status"], health["loaded"]) == ("ok", 0)
        assert (await server.chat("later")).status == 200, "and nobody else does"
        assert {entry["model"] for entry in server.journal("started")} == {"first", "later"}
        (tmp_path / "go-1").touch()
        await until(lambda: len(server.journal("started")) == 3, what="the second preload")
        (tmp_path / "go-2").touch()
        await until(lambda: len(server.journal("ready")) == 3, what="the end of all loads")
        ready = {entry["model"]: entry["at_s"] for entry in server.journal("ready")}
        started = {entry["model"]: entry["at_s"] for entry in server.journal("started")}
        assert ready["first"] < started["second"]


def spare_pids(server: Served) -> list[int]:
    """Return the processes that wait to become workers."""
    children = psutil.Process(server.process.pid).children()
    return [child.pid for child in children if is_running(child.pid) and "--spare" in child.cmdline()]


async def test_the_next_worker_is_the_process_that_was_kept_ready(tmp_path: Path) -> None:
    async with served(tmp_path, {"small": {}, "other": {}}, spares=1) as server:
        assert (await server.chat("small")).status == 200
        journal = str(server.journal_path)

        def fitting() -> list[int]:
            return [pid for pid in spare_pids(server) if psutil.Process(pid).environ().get("FAKE_JOURNAL") == journal]

        await until(lambda: len(fitting()) == 1, what="a spare with the environment of the last start")
        (spare,) = fitting()
        assert (await server.chat("other")).status == 200
        start = server.journal("started")[-1]
        assert (start["model"], start["pid"], start["is_spare"]) == ("other", spare, True)
        await until(lambda: len(fitting()) == 1, what="the next spare")
        left = spare_pids(server)
        server.process.terminate()
        assert await asyncio.wait_for(server.process.wait(), 20) == 0
        await until(lambda: not any(is_running(pid) for pid in left), what="the end of the spare")


async def test_hooks_run_around_a_load_and_a_failed_one_prevents_it(tmp_path: Path) -> None:
    told = tmp_path / "told"

    def note(more: str = "") -> list[str]:
        return ["sh", "-c", f'echo "$CORRAL_EVENT $CORRAL_MODEL ${{CORRAL_MODEL_PATH##*/}}" >> told; {more}']

    models: dict[str, dict[str, Any]] = {
        "hooked": {"hooks": {turn: note() for turn in ("before_load", "after_load", "after_unload")}},
        "refused": {"hooks": {"before_load": note("echo the GPU is taken >&2; exit 3")}},
        "stuck": {"hooks": {"before_load": ["sleep", "60"], "timeout_s": 0.3}},
    }
    async with served(tmp_path, models) as server:
        assert (await server.chat("hooked")).status == 200
        await until(lambda: "after_load" in told.read_text(), what="the hook after the load")
        await server.session.post(f"{server.url}/models/unload", json={"model": "hooked"})
        await until(lambda: "after_unload" in told.read_text(), what="the hook after the unload")
        assert told.read_text().splitlines() == [
            "before_load hooked model.gguf",
            "after_load hooked model.gguf",
            "after_unload hooked model.gguf",
        ]
        refused, stuck = await asyncio.gather(server.chat("refused"), server.chat("stuck"))
        assert (refused.status, stuck.status) == (503, 503)
        assert "the GPU is taken" in (await refused.json())["error"]["message"]
        message = (await stuck.json())["error"]["message"]
        assert "before_load" in message
        assert "0.3 s" in message
        assert {entry["model"] for entry in server.journal("started")} == {"hooked"}
        assert (await server.get("/v1/models/refused"))["last_exit"]["reason"] == "hook_failed"


async def test_a_preload_is_started_once_and_has_never_been_gone(tmp_path: Path) -> None:
    async with served(tmp_path, {"early": {"preload": True}}) as server:
        await until(lambda: bool(server.journal("ready")), what="the preload")
        assert "last_exit" not in await server.get("/v1/models/early")
        assert not [line for line in server.lines if line["message"] == "early: unloaded"]
