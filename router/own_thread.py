"""One long piece of work in a thread of its own, while the event loop goes on.

Owns the way there and back. For work that may take seconds: asyncio's own threads, which are few and which every
request may need, stay free, and the end of the process does not wait for it. Must not know what the work is.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def in_own_thread(work: Callable[[], T], name: str) -> asyncio.Future[T]:
    """Return what will be the result of `work` or its error; cancelling that does not end `work`."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()

    def tell(result: T | None, error: BaseException | None) -> None:
        if future.done():
            return
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(result)  # type: ignore[arg-type]

    def run() -> None:
        result, error = None, None
        try:
            result = work()
        except BaseException as caught:  # noqa: BLE001 - it is raised where it is waited for
            error = caught
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
            loop.call_soon_threadsafe(tell, result, error)

    threading.Thread(target=run, name=name, daemon=True).start()
    return future
