"""A real worker in which llama.cpp or the HTTP side fails when it is told to: see `orders.py`.

Owns the faults. Everything else is the worker as it is shipped: only `llama_decode` and the application are wrapped.
The model's `env:` has

CHAOS_ORDERS=PATH   the folder of orders
CHAOS_PACE_S=0.01   how long each pass takes at least, so that answers run long enough to be caught in the middle

An order of the kind `decode`, whose passes fail from then on, is `WHAT` or `WHAT*TIMES`:

CODE        llama_decode returns this code without having done anything
late CODE   llama_decode does its work and returns this code all the same
abort       native code calls abort()
segv        native code reads where nothing is
hang        the pass never ends
memory      the process may have no more memory, and takes all that is left
zombie      a process that has ended is not reaped
files       many descriptors stay open
leak        much memory is never given back

One of the kind `reply`, for the next request that comes:

garbage     bytes that are no HTTP
head        a head of 10 MB
half        half a chunk, then the end of the connection
frames      HTTP as it should be, with something else than frames in it
endless     nothing at all, for ever
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import random
import resource
import subprocess
import sys
import threading
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, NoReturn

from tests.chaos.orders import take

HUGE_HEAD_BYTES = 10_000_000
_LEFT_BYTES = 16 * 2**20
_hoard: list[bytearray] = []
_left: list[object] = []


def faulty_worker_command() -> list[str]:
    """Return the command that starts such a worker."""
    root = str(Path(__file__).resolve().parents[2])
    code = f"import sys; sys.path.insert(0, {root!r}); from tests.chaos.faulty_worker import main; main()"
    return [sys.executable, "-P", "-c", code]


class _FaultyDecode:
    """`llama_decode` with a fault when one is ordered."""

    def __init__(self, decode: Callable[[Any, Any], int], folder: Path, pace_s: float) -> None:
        self._decode, self._folder, self._pace_s = decode, folder, pace_s
        self._what, self._left = "", 0

    def __call__(self, context: Any, batch: Any) -> int:
        if self._pace_s:
            time.sleep(self._pace_s)
        if not self._left and (order := take(self._folder, "decode")) is not None:
            self._what, _, times = order.partition("*")
            self._left = int(times or 1)
        if not self._left:
            return self._decode(context, batch)
        self._left -= 1
        match self._what.split():
            case ["abort"]:
                os.abort()
            case ["segv"]:
                ctypes.string_at(0)
            case ["hang"]:
                threading.Event().wait()
            case ["memory"]:
                _use_up_memory()
            case ["zombie" | "files" | "leak" as what]:
                _leave_behind(what)
                return self._decode(context, batch)
            case ["late", code]:
                self._decode(context, batch)
                return int(code)
        return int(self._what)


def _leave_behind(what: str) -> None:
    """Something is left that no worker should leave: for tests of the checks themselves."""
    match what:
        case "zombie":
            _left.append(subprocess.Popen(["true"]))
        case "files":
            _left.extend(os.dup(0) for _ in range(30))
        case "leak":
            _left.append(b"x" * 200_000_000)


def _use_up_memory() -> NoReturn:
    """Raises: MemoryError, and from then on every allocation of some size fails."""
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    limit = used + _LEFT_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    while True:
        _hoard.append(bytearray(2**20))


def _misbehaving(make_app: Callable[..., Any], folder: Path) -> Callable[..., Any]:
    from aiohttp import web

    @web.middleware
    async def misbehave(
        request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        order = take(folder, "reply")
        if order is None:
            return await handler(request)
        assert request.transport is not None
        if order == "endless":
            await asyncio.Event().wait()
        request.transport.write(_junk(order))
        request.transport.close()  # once all of it is written
        raise asyncio.CancelledError

    def made(*arguments: Any) -> Any:
        app = make_app(*arguments)
        app.middlewares.append(misbehave)
        return app

    return made


def _junk(order: str) -> bytes:
    from worker.contract import FRAMES_CONTENT_TYPE, Header

    head = f"HTTP/1.1 200 OK\r\nContent-Type: {FRAMES_CONTENT_TYPE}\r\n{Header.CONTENT_TYPE}: application/json\r\n"
    opened = f"{head}Transfer-Encoding: chunked\r\n\r\n".encode()
    match order:
        case "garbage":
            return random.randbytes(3000)
        case "head":
            return f"{head}X-Long: ".encode() + b"x" * HUGE_HEAD_BYTES + b"\r\n\r\n"
        case "half":
            return opened + b"400\r\n" + b"D\0\0\0\x10half a"
        case "frames":
            junk = b"?" + random.randbytes(200)
            return opened + b"%x\r\n%b\r\n0\r\n\r\n" % (len(junk), junk)
    raise ValueError(f"there is no reply {order!r}")


def main() -> None:
    """Be a worker, with faults."""
    from llama_cpp import llama_cpp as lib

    import worker.app

    folder = Path(os.environ["CHAOS_ORDERS"])
    lib.llama_decode = _FaultyDecode(lib.llama_decode, folder, float(os.environ.get("CHAOS_PACE_S", "0")))
    worker.app.make_app = _misbehaving(worker.app.make_app, folder)
    from worker.__main__ import main as be_worker

    be_worker()
