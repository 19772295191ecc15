"""Restarts without systemd, as docs/operations.md describes them: `deploy/restart/hold.py`, `systemd-socket-activate`.

Must not test what the server does when it stops: `test_restart.py` does.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import socket
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import psutil
import pytest

from tests.e2e.test_restart import Clients
from tests.support.deploy_files import DEPLOY, ROOT
from tests.support.managed import write_models
from tests.support.served import server_env, until

HOLD = DEPLOY / "restart" / "hold.py"
SERVE = (sys.executable, "-m", "router", "serve")


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as sock:
        return int(sock.getsockname()[1])


@asynccontextmanager
async def running(folder: Path, *command: str) -> AsyncIterator[asyncio.subprocess.Process]:
    """A process with a server's environment, and whatever it has started is gone afterwards."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("CORRAL_", "FAKE_"))}
    env = kept | server_env(folder)
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(*command, cwd=ROOT, env=env, stdout=pipe, stderr=pipe)
    try:
        yield process
    finally:
        if process.returncode is None:
            below = psutil.Process(process.pid).children(recursive=True)
            for one in (*below, process):
                one.kill()
            await process.wait()


def server_below(process: asyncio.subprocess.Process) -> int | None:
    """Return the id of the router that runs below `process`."""
    for one in psutil.Process(process.pid).children(recursive=True):
        try:
            if one.cmdline()[1:4] == ["-m", "router", "serve"]:
                return one.pid
        except psutil.Error:
            continue
    return None


async def line_of(stream: asyncio.StreamReader | None, text: str) -> str:
    """Return the next line with `text` in it."""
    assert stream is not None
    async with asyncio.timeout(20):
        while text not in (line := (await stream.readline()).decode()):
            assert line, f"ended without {text!r}"
    return line


@pytest.mark.slow
async def test_holder_restarts_the_server_without_a_failed_request_and_ends_with_it(tmp_path: Path) -> None:
    models, port = write_models(tmp_path), free_port()
    command = (sys.executable, str(HOLD), f"127.0.0.1:{port}", *SERVE, str(models))
    async with running(tmp_path, *command) as holder:
        await until(lambda: server_below(holder) is not None, what="the first server")
        async with Clients(f"http://127.0.0.1:{port}") as clients:
            await clients.until_more()
            before = server_below(holder)
            holder.send_signal(signal.SIGUSR2)
            holder.send_signal(signal.SIGUSR2)
            await until(lambda: server_below(holder) not in (None, before), what="another server")
            await clients.until_more()
            await clients.stop()
            assert clients.failures == []

        killed = server_below(holder)
        assert killed is not None
        os.kill(killed, signal.SIGKILL)
        assert await line_of(holder.stderr, "has ended") == "hold.py: the command has ended with code -9\n"
        await until(lambda: server_below(holder) not in (None, killed), what="the next server")
        holder.send_signal(signal.SIGTERM)
        assert await asyncio.wait_for(holder.wait(), 15) in (0, 128 + signal.SIGTERM), "it may not have started yet"
        with pytest.raises(OSError, match="refused"):
            socket.create_connection(("127.0.0.1", port))


@pytest.mark.slow
async def test_holder_gives_up_when_the_server_cannot_start(tmp_path: Path) -> None:
    code = f"import sys; sys.argv[:] = ['hold.py', '127.0.0.1:{free_port()}', 'no-such-program']; import runpy; "
    code += f"found = runpy.run_path({str(HOLD)!r}); found['Holder'].run.__globals__['PAUSE_S'] = 0.01; "
    code += "sys.exit(found['main']())"
    async with running(tmp_path, sys.executable, "-c", code) as holder:
        _, said = await asyncio.wait_for(holder.communicate(), 20)
        assert said.decode().count("no-such-program: No such file or directory") == 5
        assert "giving up: 5 times within 60 seconds" in said.decode()
        assert holder.returncode == 1


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [((), 2, "usage"), (("localhost", "corral"), 2, "usage"), (("192.0.2.1:1", "corral"), 1, "cannot be had")],
)
async def test_holder_says_what_it_wants(tmp_path: Path, arguments: Sequence[str], code: int, said: str) -> None:
    async with running(tmp_path, sys.executable, str(HOLD), *arguments) as holder:
        _, told = await asyncio.wait_for(holder.communicate(), 20)
        assert (holder.returncode, said in told.decode()) == (code, True)


@pytest.mark.slow
@pytest.mark.deploy
async def test_loop_below_systemd_socket_activate_restarts_without_a_failed_request(tmp_path: Path) -> None:
    program = shutil.which("systemd-socket-activate")
    if program is None:
        pytest.skip("Debian's package `systemd` has systemd-socket-activate")
    models, port = write_models(tmp_path), free_port()
    serve = " ".join((*SERVE, str(models)))
    loop = f"while :; do sh -c 'LISTEN_PID=$$ exec {serve}'; sleep 1; done"
    names = [one for name in (*server_env(tmp_path), "PATH", "HOME") for one in ("-E", name)]
    command = (program, *names, "-l", f"127.0.0.1:{port}", "sh", "-c", loop)
    async with running(tmp_path, *command) as holder:
        await line_of(holder.stderr, "Listening on")
        async with Clients(f"http://127.0.0.1:{port}") as clients:
            await clients.until_more()
            before = server_below(holder)
            assert before is not None
            os.kill(before, signal.SIGTERM)
            await until(lambda: server_below(holder) not in (None, before), what="another server")
            await clients.until_more()
            await clients.stop()
            assert clients.failures == []
