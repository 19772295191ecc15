"""Many answers whose clients lose their connections again and again, and whose workers are killed: nothing is lost."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
from pathlib import Path
from typing import Any

import pytest

from router.kept_streams import CONVERSATION
from tests.fakes.engine_worker import engine_worker_command
from tests.support.gguf_bytes import gguf_bytes
from tests.support.raw_http import ask, read_chunked, read_head, send
from tests.support.real_server import Api, api_of, real_server
from tests.support.served import until

pytestmark = pytest.mark.slow

MODELS = {"fake": {"model": "./fake.gguf", "slots": 16, "context": 256, "env": {"FAKE_PASS_S": "0.01"}}}
PATH = "/v1/completions"
NUM = 40


def body(number: int) -> dict[str, Any]:
    fields = {"model": "fake", "prompt": f"number {number}", "max_tokens": 60, "ignore_eos": True, "temperature": 0}
    return fields | {"stream": True, "cache_prompt": False}


def told(reply: bytes) -> tuple[str, str]:
    """Return the text and the end of a stream, of which every event is whole."""
    *events, last, done = [one for one in reply.decode().split("\n\n") if one not in ("", ": ping")]
    chunks = [json.loads(event.removeprefix("data: ")) for event in (*events, last)]
    assert len({chunk["id"] for chunk in chunks}) == 1
    return "".join(chunk["choices"][0]["text"] for chunk in chunks), chunks[-1]["choices"][0]["finish_reason"] + done


async def cut_again_and_again(url: str, number: int, chance: random.Random) -> bytes:
    """Return an answer that was read in many pieces, each on a connection of its own that is cut."""
    name, got = f"{number:030}", b""
    reader, writer = await send(url, "POST", PATH, body(number), {CONVERSATION: name})
    while True:
        status, head = await read_head(reader)
        assert status == 200
        wanted = chance.randrange(1, 3000)
        if "content-length" in head:
            return got + await reader.readexactly(int(head["content-length"]))
        piece = await read_chunked(reader, wanted)
        got += piece
        if len(piece) < wanted:
            writer.close()
            return got
        writer.transport.abort()
        await asyncio.sleep(chance.random() * 0.1)
        reader, writer = await send(url, "GET", f"/v1/streams/{name}?from={len(got)}")


async def test_answers_read_in_pieces_over_killed_workers_are_those_of_an_undisturbed_run(tmp_path: Path) -> None:
    (tmp_path / "fake.gguf").write_bytes(gguf_bytes())
    env = {"CORRAL_WORKER_COMMAND": json.dumps(engine_worker_command())}
    with real_server(tmp_path, MODELS, env=env) as server:
        async with api_of(server) as api:
            whole = await asyncio.gather(*(ask(server.url, "POST", PATH, body(number)) for number in range(NUM)))
            chance = random.Random(7)
            reading = [
                asyncio.create_task(cut_again_and_again(server.url, number, random.Random(chance.random())))
                for number in range(NUM)
            ]

            async def all_run() -> bool:
                return (await api.states("fake")).count("GENERATING") == 16

            await until(all_run, within_s=30, what="as many growing answers as there are slots")
            os.kill(server.worker_pids()[0], signal.SIGKILL)
            disturbed = await asyncio.gather(*reading)
            assert [told(got) for got in disturbed] == [told(got) for _, _, got in whole]
            assert await api.metric("corral_requests_total", outcome="ok") == 2 * NUM
            assert await api.metric("corral_kept_streams", state="finished") == NUM
            assert await api.metric("corral_kept_streams") == NUM
            await is_quiet(api)


async def test_random_starts_cuts_and_stops_leave_nothing_behind(tmp_path: Path) -> None:
    (tmp_path / "fake.gguf").write_bytes(gguf_bytes())
    env = {"CORRAL_WORKER_COMMAND": json.dumps(engine_worker_command()), "CORRAL_DETACHED_STREAM_S": "0.5"}
    env |= {"CORRAL_KEPT_STREAM_S": "0.5", "CORRAL_KEPT_STREAMS_MAX_COUNT": "30"}
    with real_server(tmp_path, MODELS, env=env) as server:
        async with api_of(server) as api:
            await ask(server.url, "POST", PATH, body(0))
            before = os_files(server.process.pid)
            chance = random.Random(3)

            async def client(number: int) -> None:
                for _ in range(8):
                    name = f"{chance.randrange(40):030}"
                    _, writer = await send(server.url, "POST", PATH, body(number), {CONVERSATION: name})
                    await asyncio.sleep(chance.random() * 0.3)
                    writer.transport.abort()
                    if chance.random() < 0.3:
                        assert (await ask(server.url, "DELETE", f"/v1/streams/{name}"))[0] in (204, 404)

            await asyncio.gather(*(client(number) for number in range(25)))

            async def is_clean() -> bool:
                is_kept = await api.metric("corral_kept_streams") > 0
                return not is_kept and await api.is_idle("fake") and os_files(server.process.pid) <= before + 3

            await until(is_clean, within_s=20, what="the end of every answer")
            assert await api.metric("corral_kept_streams_bytes") == 0
            assert (await ask(server.url, "POST", PATH, body(0)))[0] == 200
            await is_quiet(api)
            assert [line for line in server.lines if line.get("level") == "error"] == []


def os_files(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/fd"))


async def is_quiet(api: Api) -> None:
    async def idle() -> bool:
        return await api.is_idle("fake") and await api.metric("corral_request_body_bytes") == 0

    await until(idle, within_s=10, what="every slot's end")
