"""An answer may take as long as the model allows, and nothing on the way has a limit of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import aiohttp
import pytest

from router.remotes import Remotes
from tests.fakes.supervisor import EVENTS, Received, Sender
from tests.support.http_side import CHAT, http_side, make_catalog, make_spec
from worker.contract import Header

HELLO = {"model": "smol", "messages": [{"role": "user", "content": "hi"}]}
PATIENT = aiohttp.ClientTimeout(total=None)


@pytest.fixture
def skip(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Return what lets seconds pass on the loop's clock: every timer that is due by then fires."""
    skipped_s = 0.0

    def forward(seconds: float) -> None:
        nonlocal skipped_s
        skipped_s += seconds
        loop = asyncio.get_running_loop()
        real = type(loop).time
        monkeypatch.setattr(loop, "time", lambda: real(loop) + skipped_s, raising=False)

    return forward


@pytest.mark.parametrize("limit_s", [0.0, 3600.0])
@pytest.mark.parametrize("stream", [False, True])
async def test_silence_of_many_minutes_is_no_failure_where_the_model_allows_it(
    limit_s: float, stream: bool, skip: Callable[[float], None]
) -> None:
    release = asyncio.Event()

    async def slow(received: Received, sender: Sender) -> None:
        if stream:
            sender.headers[Header.CONTENT_TYPE] = EVENTS
        await release.wait()
        await sender.data(b"data: [DONE]\n\n" if stream else b'{"text":"late"}')
        await sender.end()

    async with http_side(make_catalog(make_spec("smol", request_timeout_s=limit_s))) as side:
        side.worker.script = slow
        asking = asyncio.create_task(side.client.post(CHAT, json=HELLO | {"stream": stream}, timeout=PATIENT))
        await side.worker.arrived.wait()
        for _ in range(5):
            skip(400.0)
            for _ in range(20):
                await asyncio.sleep(0)
        release.set()
        reply = await asking
        assert reply.status == 200
        assert (await reply.read()).endswith(b"data: [DONE]\n\n" if stream else b'{"text":"late"}')


async def test_answer_is_cut_off_when_the_models_own_limit_has_passed(skip: Callable[[float], None]) -> None:
    async def never(received: Received, sender: Sender) -> None:
        await asyncio.Event().wait()

    async with http_side(make_catalog(make_spec("smol", request_timeout_s=3600.0))) as side:
        side.worker.script = never
        asking = asyncio.create_task(side.client.post(CHAT, json=HELLO, timeout=PATIENT))
        await side.worker.arrived.wait()
        skip(3601.0)
        reply = await asking
        assert (reply.status, (await reply.json())["error"]["code"]) == (503, "request_timeout")


async def test_client_of_other_servers_limits_the_connection_and_not_the_answer() -> None:
    remotes = Remotes()
    timeout = remotes.session.timeout
    await remotes.close()
    assert timeout.total is None
    assert timeout.sock_read is None
    assert timeout.sock_connect is not None
