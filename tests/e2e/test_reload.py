"""Edits of models.yaml under a real `corral serve` with stub workers: what changes, and what nobody notices."""

from __future__ import annotations

import asyncio
import fcntl
import os
import pty
import signal
import sys
import termios
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.served import Served, is_running, served, server_env, until

NOTICED_WITHIN_S = 6.0
"""Two seconds are promised; the rest is the machine's, which may be busy with other tests."""

Models = dict[str, dict[str, Any]]


def text_of(folder: Path, models: Models, **top: Any) -> str:
    """Return a models.yaml over stub workers."""
    fake = {"FAKE_JOURNAL": str(folder / "journal")}
    described = {name: {"model": "./model.gguf", "slots": 2, "env": fake} | options for name, options in models.items()}
    return yaml.safe_dump({"models": described} | top, sort_keys=False)


def save(server: Served, models: Models, **top: Any) -> None:
    (server.folder / "models.yaml").write_text(text_of(server.folder, models, **top))


async def names_of(server: Served) -> list[str]:
    return [model["id"] for model in (await server.get("/models"))["data"]]


def serves(server: Served, *names: str) -> Callable[[], Awaitable[bool]]:
    async def check() -> bool:
        return await names_of(server) == list(names)

    return check


def reload_lines(server: Served) -> list[dict[str, Any]]:
    return [line for line in server.lines if line.get("logger") == "router.reload"]


async def metric(server: Served, name: str) -> float:
    page = await (await server.session.get(f"{server.url}/metrics")).text()
    return next(float(line.split()[1]) for line in page.splitlines() if line.startswith(name + " "))


# --- files that cannot be used ----------------------------------------------------------------------------


@pytest.mark.slow
async def test_a_broken_file_changes_nothing_until_the_next_good_one(tmp_path: Path) -> None:
    async with served(tmp_path, {"small": {}}) as server:
        assert (await server.chat("small")).status == 200
        good = text_of(tmp_path, {"small": {}, "other": {}})
        half = good[: good.index("other:") + 3]
        for number, broken in enumerate(["models: [", "", half], 1):
            (tmp_path / "models.yaml").write_text(broken)

            async def is_told() -> bool:
                error = (await server.get("/health")).get("configuration", {}).get("error", "")
                return bool(error) and len(reload_lines(server)) == number  # noqa: B023 - awaited in this turn

            await until(is_told, within_s=NOTICED_WITHIN_S, what=f"the complaint about {broken!r}")
            line = reload_lines(server)[-1]
            assert line["level"] == "error"
            assert "models.yaml:" in line["message"]
            assert (await server.chat("small")).status == 200
            assert await metric(server, "corral_catalog_reload_success") == 0
        (tmp_path / "models.yaml").write_text(good)
        await until(serves(server, "small", "other"), within_s=NOTICED_WITHIN_S, what="the next good file")
        assert await metric(server, "corral_catalog_reload_success") == 1
        assert "configuration" not in await server.get("/health")
        assert len(server.journal("started")) == 1


@pytest.mark.slow
async def test_a_file_that_is_written_in_two_steps_is_never_read_half(tmp_path: Path) -> None:
    async with served(tmp_path, {"small": {}, "last": {}}) as server:
        new = text_of(tmp_path, {"small": {}, "other": {}, "last": {}})
        half = new.index("  other:")
        assert yaml.safe_load(new[:half]), "the half would be sound and take a model away"
        await asyncio.sleep(2.5)  # the first look of all is over
        with (tmp_path / "models.yaml").open("w") as file:
            file.write(new[:half])
            file.flush()
            await asyncio.sleep(1.0)
            file.write(new[half:])
        await until(serves(server, "small", "other", "last"), within_s=NOTICED_WITHIN_S, what="the whole file")
        (line,) = reload_lines(server)
        assert (line["level"], line["removed"]) == ("info", [])


# --- however files are replaced ---------------------------------------------------------------------------


@pytest.mark.slow
async def test_an_edit_is_picked_up_however_the_file_is_replaced(tmp_path: Path) -> None:
    async with served(tmp_path, {"aaaa": {}}) as server:
        path = tmp_path / "models.yaml"
        old = path.read_text()

        path.write_text(old.replace("aaaa", "bbbb"))  # in place, of the same size
        await until(serves(server, "bbbb"), within_s=NOTICED_WITHIN_S, what="the edit in place")

        other = tmp_path / "other"
        other.write_text(old.replace("aaaa", "cccc"))
        other.replace(path)
        await until(serves(server, "cccc"), within_s=NOTICED_WITHIN_S, what="the file renamed over it")

        path.unlink()
        await asyncio.sleep(0.3)
        path.write_text(old.replace("aaaa", "dddd"))
        await until(serves(server, "dddd"), within_s=NOTICED_WITHIN_S, what="the file that was gone for a moment")

        for name in ("eeee", "ffff"):  # as Kubernetes does it, to a file that is a link from now on
            version = tmp_path / f"..{name}"
            version.mkdir()
            (version / "models.yaml").write_text(old.replace("aaaa", name))
            (tmp_path / "..new").symlink_to(version.name)
            (tmp_path / "..new").replace(tmp_path / "..data")
            if not path.is_symlink():
                (tmp_path / "link").symlink_to("..data/models.yaml")
                (tmp_path / "link").replace(path)
            await until(serves(server, name), within_s=NOTICED_WITHIN_S, what=f"the folder that was swapped: {name}")

        await until(lambda: len(reload_lines(server)) >= 5, what="the fifth line of the log")
        assert [line["level"] for line in reload_lines(server)] == ["info"] * 5, "and nothing was ever complained about"


async def test_a_hangup_signal_has_the_file_read_at_once(tmp_path: Path) -> None:
    async with served(tmp_path, {"small": {}}) as server:
        save(server, {"small": {}, "other": {}})
        server.process.send_signal(signal.SIGHUP)
        await until(lambda: bool(reload_lines(server)), what="the log line")
        assert reload_lines(server)[0]["message"].startswith("configuration read again (SIGHUP): 1 model added (other)")
        assert await names_of(server) == ["small", "other"]


async def test_a_hangup_signal_while_the_server_starts_is_a_reload_once_it_has(tmp_path: Path) -> None:
    """The signal is sent from inside the start, after the file was read, and before the event loop is there."""
    (tmp_path / "model.gguf").touch()
    (tmp_path / "models.yaml").write_text("models: {small: ./model.gguf}\n")
    code = """if True:
        import os, signal, sys
        import router.serve as room
        run = room.run
        def hang_up_first(catalog, settings):
            os.kill(os.getpid(), signal.SIGHUP)
            return run(catalog, settings)
        room.run = hang_up_first
        from router.cli import main
        main()
    """
    command = [sys.executable, "-c", code, "serve", str(tmp_path / "models.yaml"), "--port", "0"]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("CORRAL_")}
    environment |= server_env(tmp_path)
    process = await asyncio.create_subprocess_exec(
        *command, stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, env=environment
    )
    try:
        assert process.stdout is not None
        async with asyncio.timeout(30):
            while b"(SIGHUP)" not in (line := await process.stdout.readline()):
                assert line, "the server has ended"
            process.terminate()
            assert await process.wait() == 0
    finally:
        if process.returncode is None:
            process.kill()


async def test_a_terminal_that_is_closed_stops_the_server(tmp_path: Path) -> None:
    (tmp_path / "model.gguf").touch()
    (tmp_path / "models.yaml").write_text("models: {small: ./model.gguf}\n")
    ours, its = pty.openpty()

    def take_terminal() -> None:
        os.setsid()
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)

    command = [sys.executable, "-m", "router", "serve", str(tmp_path / "models.yaml"), "--port", "0"]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("CORRAL_")}
    environment |= server_env(tmp_path)
    process = await asyncio.create_subprocess_exec(
        *command, stdin=its, stdout=asyncio.subprocess.PIPE, env=environment, preexec_fn=take_terminal
    )
    os.close(its)
    try:
        assert process.stdout is not None
        async with asyncio.timeout(30):
            while b'"listening"' not in (line := await process.stdout.readline()):
                assert line, "the server has ended"
            process.send_signal(signal.SIGHUP)
            while b"router.reload" not in (line := await process.stdout.readline()):
                assert line, "a signal alone must not stop it"
            os.close(ours)
            assert await process.wait() == 0
    finally:
        if process.returncode is None:
            process.kill()


# --- what is touched and what is not ----------------------------------------------------------------------


async def test_a_new_model_touches_neither_streams_nor_workers(tmp_path: Path) -> None:
    async with served(tmp_path, {"small": {}}) as server:
        release = tmp_path / "release"
        stream = await server.chat("small", stream=True, tokens=6, hold_after=3, hold=str(release))
        await until(lambda: bool(server.journal("generating")), what="the stream")
        (pid,) = server.worker_pids()
        save(server, {"small": {}, "other": {}})
        await until(serves(server, "small", "other"), within_s=NOTICED_WITHIN_S, what="the new model")
        assert (await server.chat("other")).status == 200
        release.touch()
        text = await stream.text()
        assert text.count('"w') == 6
        assert text.endswith("data: [DONE]\n\n")
        assert server.worker_pids()[0] == pid
        assert server.journal("term") == []


@pytest.mark.parametrize("is_busy", [pytest.param(False, marks=pytest.mark.slow), True])
async def test_a_model_that_is_removed_is_refused_at_once_and_unloaded_when_it_is_idle(
    tmp_path: Path, is_busy: bool
) -> None:
    async with served(tmp_path, {"small": {}, "other": {}}) as server:
        release = tmp_path / "release"
        assert (await server.chat("small")).status == 200
        pids = server.worker_pids()
        stream = None
        if is_busy:
            stream = await server.chat("small", stream=True, tokens=4, hold_after=2, hold=str(release))
        save(server, {"other": {}})
        await until(serves(server, "other"), within_s=NOTICED_WITHIN_S, what="the removal")
        refused = await server.chat("small")
        assert refused.status == 404
        assert (await refused.json())["error"]["code"] == "model_not_found"
        if stream is not None:
            assert server.worker_pids() == pids, "its answer goes on"
            release.touch()
            assert (await stream.text()).endswith("data: [DONE]\n\n")
        await until(lambda: not server.worker_pids(), what="the unload")


@pytest.mark.slow
async def test_an_alias_comes_and_goes_under_load_without_a_lost_request_or_a_restart(tmp_path: Path) -> None:
    async with served(tmp_path, {"small": {}}) as server:
        statuses: list[int] = []
        is_over = asyncio.Event()

        async def ask() -> None:
            async with await server.chat("small", tokens=3) as reply:
                await reply.read()
                statuses.append(reply.status)

        async def load() -> None:
            async with asyncio.TaskGroup() as group:
                while not is_over.is_set():
                    group.create_task(ask())
                    await asyncio.sleep(1 / 20)

        loading = asyncio.create_task(load())
        save(server, {"small": {"aliases": {"fast": {"request": {"force": {"temperature": 0}}}}}})
        await until(serves_alias(server, "fast"), within_s=NOTICED_WITHIN_S, what="the alias")
        forced = [entry for entry in server.journal("request") if entry["body"].get("temperature") == 0]
        assert forced, "its rules hold with it"
        save(server, {"small": {}})
        await until(refuses(server, "fast"), within_s=NOTICED_WITHIN_S, what="its end")
        is_over.set()
        await loading
        assert len(statuses) >= 20
        assert set(statuses) == {200}
        assert len(server.journal("started")) == 1


def serves_alias(server: Served, name: str) -> Callable[[], Awaitable[bool]]:
    async def check() -> bool:
        return (await server.chat(name)).status == 200

    return check


def refuses(server: Served, name: str) -> Callable[[], Awaitable[bool]]:
    async def check() -> bool:
        return (await server.chat(name)).status == 404

    return check


async def test_the_verdict_names_what_changes_now_and_what_waits_for_an_idle_worker(tmp_path: Path) -> None:
    async with served(tmp_path, {"small": {}, "other": {}, "third": {}}) as server:
        release = tmp_path / "release"
        await server.chat("other")
        stream = await server.chat("small", stream=True, tokens=4, hold_after=2, hold=str(release))
        (small,) = [entry["pid"] for entry in server.journal("started") if entry["model"] == "small"]
        save(server, {"small": {"slots": 3}, "other": {"priority": 1}, "new": {}}, limits={"max_queue": 7})
        async with server.session.post(f"{server.url}/admin/reload") as reply:
            verdict = await reply.json()
            assert reply.status == 200
        assert verdict["added"] == ["new"]
        assert verdict["removed"] == ["third"]
        assert verdict["changed"] == {"small": ["max_queue"], "other": ["max_queue", "priority"]}
        assert verdict["restarted_when_idle"] == {"small": ["slots"]}
        assert verdict["settings"] == ["limits.max_queue"]
        assert is_running(small), "its answer goes on"
        release.touch()
        assert (await stream.text()).endswith("data: [DONE]\n\n")
        await until(lambda: not is_running(small), what="the end of the outdated worker")
        assert (await server.chat("small")).status == 200
        assert [entry["spec"]["engine"]["slots"] for entry in server.journal("started")][-1] == 3
        assert len([one for one in server.journal("started") if one["model"] == "other"]) == 1


async def test_the_verdict_on_a_broken_file_is_an_error_with_its_place(tmp_path: Path) -> None:
    async with served(tmp_path, {"small": {}}) as server:
        save(server, {"small": {"slotz": 3}})
        async with server.session.post(f"{server.url}/admin/reload") as reply:
            verdict = await reply.json()
            assert reply.status == 422
        (error,) = verdict["errors"]
        assert (error["where"], error["line"]) == ("models.small.slotz", 7)
        assert (await server.chat("small")).status == 200


@pytest.mark.slow
async def test_keys_are_exchanged_while_the_server_runs(tmp_path: Path) -> None:
    (tmp_path / "keys").write_text("first\n")
    async with served(tmp_path, {"small": {}}, env={"CORRAL_API_KEY_FILE": str(tmp_path / "keys")}) as server:
        server.session.headers["Authorization"] = "Bearer first"
        assert (await server.chat("small")).status == 200
        (tmp_path / "keys").write_text("second\n")

        async def is_withdrawn() -> bool:
            return (await server.chat("small")).status == 401

        await until(is_withdrawn, within_s=NOTICED_WITHIN_S, what="the end of the first key")
        server.session.headers["Authorization"] = "Bearer second"
        assert (await server.chat("small")).status == 200
        assert len(server.journal("started")) == 1
