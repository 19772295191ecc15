"""Two real servers, one of which has a model on the other: what only sockets and processes can show."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.support.served import Served, served, until

FREED_WITHIN_S = 2.0
STOPPED_WITHIN_S = 2.0


@asynccontextmanager
async def two_servers(folder: Path, *, key: str | None = None, told: str | None = None) -> AsyncIterator[list[Served]]:
    """Run a server whose model `big` is the model `small` of another one, which may want a key."""
    for name in ("near", "far"):
        (folder / name).mkdir()
    far_env = {} if key is None else {"CORRAL_API_KEYS": key}
    async with served(folder / "far", {"small": {"aliases": ["tiny-*"]}}, env=far_env) as far:
        big: dict[str, Any] = {"url": far.url, "url_model": "tiny-one", "aliases": {"preset": {}, "gpt-*": {}}}
        big["aliases"]["preset"] = {"request": {"force": {"max_tokens": 2}}}
        if told is not None:
            big["url_key_env"] = "FAR_KEY"
        async with served(folder / "near", {"big": big}, env={"FAR_KEY": told or ""}) as near:
            yield [near, far]


def error_code(text: str) -> str | None:
    """Return the code of the stream's last event if that is an error."""
    last = text.rstrip().rpartition("\n\n")[2].removeprefix("data: ")
    code: str | None = json.loads(last).get("error", {}).get("code") if last != "[DONE]" else None
    return code


async def test_a_model_on_another_machine_answers_streams_and_is_metered_like_one_here(tmp_path: Path) -> None:
    async with two_servers(tmp_path, key="sk-far", told="sk-far") as (near, far):
        whole = await near.chat("gpt-anything", tokens=3)
        assert whole.status == 200
        assert whole.headers["X-Corral-Model"] == "big"
        assert whole.headers["X-Corral-Alias"] == "gpt-anything"
        assert (await whole.json())["choices"][0]["message"]["content"].split() == ["w0", "w1", "w2"]
        text = await (await near.chat("preset", stream=True, tokens=9)).text()
        assert text.endswith("data: [DONE]\n\n")
        assert "w1" in text
        assert "w2" not in text, "the alias's rule holds on the way"
        assert len(far.journal("started")) == 1
        assert near.journal("started") == []
        async with near.session.get(f"{near.url}/metrics") as reply:
            metrics = await reply.text()
        assert 'corral_generated_tokens_total{model="big"} ' in metrics
        assert 'corral_requests_total{model="big",outcome="ok",route="/v1/chat/completions"} 2.0' in metrics


@pytest.mark.slow
async def test_clients_that_leave_and_a_machine_that_goes_away_are_noticed_at_the_other_end(tmp_path: Path) -> None:
    async with two_servers(tmp_path) as (near, far):
        for number, stream in enumerate((True, False), 1):
            _, writer = await near.raw_chat("big", stream=stream, tokens=10_000, delay_s=0.01)
            await until(lambda n=number: len(far.journal("generating")) == n, what="generating")  # type: ignore[misc]
            writer.transport.abort()
            freed_s = await until(lambda n=number: len(far.journal("aborted")) == n, what="the abort")  # type: ignore[misc]
            assert freed_s < FREED_WITHIN_S
        reply = await near.chat("big", stream=True, tokens=10_000, delay_s=0.01)
        await reply.content.readuntil(b'"w3 "')
        os.kill(far.process.pid, signal.SIGKILL)
        text = (await asyncio.wait_for(reply.content.read(), 20)).decode()
        assert error_code(text) == "remote_failed"
        again = await near.chat("big")
        assert (again.status, (await again.json())["error"]["code"]) == (503, "remote_unreachable")


@pytest.mark.slow
async def test_a_second_signal_and_the_end_of_a_drain_cut_off_an_answer_of_another_machine_and_say_so(
    tmp_path: Path,
) -> None:
    (tmp_path / "far").mkdir()
    async with served(tmp_path / "far", {"small": {}}) as far:
        for name, drain_s, num_signals in (("second", "60", 2), ("drained", "0.5", 1)):
            (tmp_path / name).mkdir()
            big = {"url": far.url, "url_model": "small"}
            async with served(tmp_path / name, {"big": big}, env={"CORRAL_SHUTDOWN_DRAIN_S": drain_s}) as near:
                stream = await near.chat("big", stream=True, tokens=10_000, delay_s=0.01)
                whole = asyncio.create_task(near.chat("big", tokens=10_000, delay_s=0.01))
                await stream.content.readuntil(b'"w3 "')
                await until(lambda: len(far.journal("generating")) % 2 == 0, what="both requests")
                near.process.send_signal(signal.SIGTERM)
                if num_signals == 2:
                    await until(lambda: any("stopping:" in line["message"] for line in near.lines))
                    near.process.send_signal(signal.SIGTERM)
                at_s = asyncio.get_running_loop().time()
                assert error_code((await stream.content.read()).decode()) == "shutting_down"
                reply = await whole
                assert (reply.status, (await reply.json())["error"]["code"]) == (503, "shutting_down")
                await asyncio.wait_for(near.process.wait(), 10)
                assert asyncio.get_running_loop().time() - at_s < STOPPED_WITHIN_S


async def test_a_body_that_does_not_come_does_not_hold_up_a_second_signal(tmp_path: Path) -> None:
    async with served(tmp_path, {"small": {}}) as server:
        _, writer = await server.connect()
        writer.write(
            b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            b'Content-Length: 1000\r\n\r\n{"a"'
        )
        await writer.drain()
        assert (await server.chat("small")).status == 200  # by now it has been read
        server.process.send_signal(signal.SIGTERM)
        await until(lambda: any("stopping:" in line["message"] for line in server.lines))
        server.process.send_signal(signal.SIGTERM)
        at_s = asyncio.get_running_loop().time()
        await asyncio.wait_for(server.process.wait(), 10)
        assert asyncio.get_running_loop().time() - at_s < STOPPED_WITHIN_S
        writer.close()
