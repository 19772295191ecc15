"""A real `corral serve` as a service manager starts it: with sockets passed, and told where to report.

Must not know what the tests ask of the server.
"""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import yaml

from tests.support.gguf_bytes import gguf_bytes
from tests.support.served import Served, server_env

_ROOT = Path(__file__).resolve().parents[2]

_BECOME = """
import os, sys
for number, fd in enumerate(sys.argv[1].split(",") if sys.argv[1] else []):
    os.dup2(int(fd), 3 + number)
os.environ["LISTEN_PID"] = os.environ["WATCHDOG_PID"] = str(os.getpid())
os.execv(sys.executable, [sys.executable, "-m", "router", "serve", *sys.argv[2:]])
"""
"""What a service manager does between fork and exec. The descriptors come from above 100, so none is overwritten."""


def write_models(folder: Path, **fake: object) -> Path:
    """Return a models.yaml with one model, `small`, whose stub is controlled by `fake`."""
    (folder / "model.gguf").write_bytes(gguf_bytes())
    env = {"FAKE_JOURNAL": str(folder / "journal")} | {f"FAKE_{key}": str(value) for key, value in fake.items()}
    path = folder / "models.yaml"
    path.write_text(yaml.safe_dump({"models": {"small": {"model": "./model.gguf", "slots": 4, "env": env}}}))
    return path


async def start(
    folder: Path, sockets: Sequence[socket.socket] = (), *, env: dict[str, str] | None = None, port: int = 0
) -> asyncio.subprocess.Process:
    """Return a server of `folder`'s models.yaml that was given `sockets`."""
    high = [_above_100(sock) for sock in sockets]
    passed = {"LISTEN_FDS": str(len(high))} if high else {}
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("CORRAL_", "FAKE_"))}
    arguments = (",".join(map(str, high)), str(folder / "models.yaml"), "--port", str(port))
    try:
        return await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", _BECOME, *arguments),
            cwd=_ROOT,
            env=kept | server_env(folder) | passed | (env or {}),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            pass_fds=high,
        )
    finally:
        for fd in high:
            os.close(fd)


@asynccontextmanager
async def managed(
    folder: Path, sockets: Sequence[socket.socket] = (), *, env: dict[str, str] | None = None
) -> AsyncIterator[Served]:
    """The same, ready inside the block."""
    server = Served(await start(folder, sockets, env=env), folder)
    try:
        await server.wait_ready()
        yield server
    finally:
        await server.close()


def _above_100(sock: socket.socket) -> int:
    import fcntl

    return fcntl.fcntl(sock.fileno(), fcntl.F_DUPFD, 100)
