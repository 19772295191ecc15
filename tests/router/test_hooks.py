"""Hooks run as configured: with a small environment, in order, in limited time, and what they say is passed on."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from router.catalog import Hooks, ModelSpec
from router.hooks import HookFailed, HookRunner, Occasion, _HookOutput
from router.log_tail import LogTail
from tests.support.stub_world import eventually

PYTHON = sys.executable


def occasion(
    folder: Path, *command: str, event: Any = "before_load", name: str = "m", timeout_s: float = 20.0
) -> Occasion:
    hooks = Hooks(**{event: command}, timeout_s=timeout_s)
    spec = ModelSpec(name=name, source="./m.gguf", base_dir=folder, hooks=hooks)
    return Occasion(event, spec, folder / "m.gguf")


async def test_a_hook_learns_what_it_is_for_and_nothing_that_it_need_not_know(tmp_path: Path) -> None:
    command = ("sh", "-c", "env > seen; pwd >> seen")
    await HookRunner().run(occasion(tmp_path, *command), os.environ | {"HF_TOKEN": "secret", "MY_KEY": "secret"})
    seen = (tmp_path / "seen").read_text().splitlines()
    assert {"CORRAL_EVENT=before_load", "CORRAL_MODEL=m", f"CORRAL_MODEL_PATH={tmp_path / 'm.gguf'}"} <= set(seen)
    assert seen[-1] == str(tmp_path)
    assert "secret" not in "".join(seen)


async def test_words_of_a_command_reach_it_as_they_are(tmp_path: Path) -> None:
    await HookRunner().run(occasion(tmp_path, "touch", "a b; $HOME *"), os.environ)
    assert os.listdir(tmp_path) == ["a b; $HOME *"]


async def test_without_a_command_nothing_happens(tmp_path: Path) -> None:
    await HookRunner().run(occasion(tmp_path), {})
    HookRunner().run_later(occasion(tmp_path, event="after_load"), {})


async def test_a_failure_tells_the_exit_code_and_the_last_line(tmp_path: Path) -> None:
    command = ("sh", "-c", "echo first; echo no such share >&2; exit 3")
    with pytest.raises(HookFailed, match=r"^its hook `before_load` ended with exit code 3: no such share$"):
        await HookRunner().run(occasion(tmp_path, *command), os.environ)
    with pytest.raises(HookFailed, match=r"was ended by SIGTERM$"):
        await HookRunner().run(occasion(tmp_path, "sh", "-c", "kill -TERM $$"), os.environ)
    with pytest.raises(HookFailed, match=r"cannot be started: .*No such file.*nowhere"):
        await HookRunner().run(occasion(tmp_path, "/nowhere/at/all"), os.environ)


async def test_what_a_hook_prints_is_in_the_log(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "router.hooks")
    await HookRunner().run(occasion(tmp_path, "echo", "mounted /models"), os.environ)
    assert "m: before_load: mounted /models" in caplog.messages


async def test_a_hook_that_prints_without_end_fills_neither_the_log_nor_the_loop(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "router.hooks")
    longest_s, is_over = 0.0, False

    async def watch_loop() -> None:
        nonlocal longest_s
        while not is_over:
            started_s = time.monotonic()
            await asyncio.sleep(0)
            longest_s = max(longest_s, time.monotonic() - started_s)

    watching = asyncio.create_task(watch_loop())
    command = ("sh", "-c", "yes | head -c 4000000; echo the reason; exit 1")
    with pytest.raises(HookFailed, match=r"exit code 1: the reason$"):
        await HookRunner().run(occasion(tmp_path, *command), os.environ)
    is_over = True
    await watching
    assert len([message for message in caplog.messages if message == "m: before_load: y"]) <= 200
    assert sum(int(message.split()[2]) for message in caplog.messages if "lines left out" in message) > 1_900_000
    assert len([message for message in caplog.messages if "lines left out" in message]) <= 6
    assert longest_s < 0.5


async def test_a_hook_has_fifty_lines_of_the_log_in_a_second_and_two_hundred_in_all(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level("INFO", "router.hooks")
    now = [0.0]
    monkeypatch.setattr(asyncio.get_running_loop(), "time", lambda: now[0])
    output = _HookOutput("m: before_load", LogTail())
    num_logged = []
    for second in range(6):
        now[0] = second * 1.5
        output.data_received(b"line\n" * 300)
        num_logged.append(caplog.messages.count("m: before_load: line"))
    assert num_logged == [50, 100, 150, 200, 200, 200]
    output.connection_lost(None)
    assert caplog.messages[-1] == "m: before_load: 850 lines left out: they came too fast"


async def test_a_hook_that_takes_too_long_is_killed_with_all_it_started(tmp_path: Path) -> None:
    command = ("sh", "-c", "echo waiting; sleep 60 & echo $! > child; echo $$ > own; wait")
    with pytest.raises(HookFailed, match=r"took longer than 0\.3 s and was killed: waiting"):
        await HookRunner().run(occasion(tmp_path, *command, timeout_s=0.3), os.environ)
    for name in ("child", "own"):
        pid = int((tmp_path / name).read_text())
        await eventually(lambda pid=pid: not psutil.pid_exists(pid) or psutil.Process(pid).status() == "zombie")


async def test_a_cancelled_hook_is_killed(tmp_path: Path) -> None:
    before = psutil.Process().num_fds()
    task = asyncio.ensure_future(
        HookRunner().run(occasion(tmp_path, "sh", "-c", "echo $$ > own; sleep 60"), os.environ)
    )
    await eventually(lambda: (tmp_path / "own").exists() and (tmp_path / "own").read_text().strip())
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not psutil.pid_exists(int((tmp_path / "own").read_text()))
    await eventually(lambda: psutil.Process().num_fds() <= before + 1)  # the loop's own watcher of children


async def test_something_that_a_hook_leaves_in_the_background_holds_nothing_up(tmp_path: Path) -> None:
    await asyncio.wait_for(
        HookRunner().run(occasion(tmp_path, "sh", "-c", "sleep 60 & echo $! > child"), os.environ), 10
    )
    os.kill(int((tmp_path / "child").read_text()), signal.SIGKILL)


async def test_hooks_of_one_model_run_one_after_another_and_those_of_others_beside_them(tmp_path: Path) -> None:
    runner = HookRunner()
    go = tmp_path / "go"
    runner.run_later(
        occasion(
            tmp_path, "sh", "-c", "while ! [ -e go ]; do sleep 0.01; done; echo unload >> done", event="after_unload"
        ),
        os.environ,
    )
    loading = asyncio.ensure_future(runner.run(occasion(tmp_path, "sh", "-c", "echo load >> done"), os.environ))
    await runner.run(occasion(tmp_path, "sh", "-c", "echo other >> done", name="other"), os.environ)
    assert (tmp_path / "done").read_text().split() == ["other"]
    go.touch()
    await loading
    assert (tmp_path / "done").read_text().split() == ["other", "unload", "load"]


async def test_a_failure_in_the_background_is_logged_alone(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    runner = HookRunner()
    runner.run_later(occasion(tmp_path, "sh", "-c", "exit 5", event="after_load"), os.environ)
    await eventually(lambda: "m: its hook `after_load` ended with exit code 5" in caplog.messages)


async def test_close_waits_for_hooks_and_then_ends_them(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    runner = HookRunner()
    runner.run_later(occasion(tmp_path, "touch", "done", event="after_unload"), os.environ)
    await runner.close()
    assert (tmp_path / "done").exists()
    runner.run_later(occasion(tmp_path, "sh", "-c", "echo $$ > own; sleep 60", event="after_unload"), os.environ)
    await eventually(lambda: (tmp_path / "own").exists() and (tmp_path / "own").read_text().strip())
    await runner.close(patience_s=0.0)
    assert not psutil.pid_exists(int((tmp_path / "own").read_text()))
    assert "hook `after_unload` was killed" in caplog.text
