"""A real `corral serve` with stub workers: what only processes, signals and raw sockets can show."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import sys
import time
from pathlib import Path
from typing import Any

import aiohttp
import openai
import pytest

from tests.support.gguf_bytes import gguf_bytes
from tests.support.openai_stream import payloads_of
from tests.support.served import Served, is_running, served, server_env, until

ALIASES = ["gpt-4o-mini", "org/small:fast"]
MODELS: dict[str, dict[str, Any]] = {"small": {"aliases": ALIASES}}

FREED_WITHIN_S = 2.0
"""One step of the stub takes no time; the rest is the machine's, which may be busy with other tests."""


def models(**fake: Any) -> dict[str, dict[str, Any]]:
    return {"small": {"aliases": ALIASES, "fake": fake}}


async def test_thirty_first_requests_by_three_names_start_one_process(tmp_path: Path) -> None:
    async with served(tmp_path, models(LOAD_S=0.5)) as server:
        names = ["small", *ALIASES] * 10
        replies = await asyncio.gather(*(server.chat(name, tokens=1) for name in names))
        assert [reply.status for reply in replies] == [200] * 30
        assert {(await reply.json())["model"] for reply in replies} == {"small"}
        assert {reply.headers.get("X-Corral-Alias") for reply in replies} == {None, *ALIASES}
        assert len(server.journal("started")) == 1
        # The stub writes its journal after the answer's last byte, so the client may be here first.
        await until(lambda: len(server.journal("done")) == 30, what="thirty finished answers")
        assert server.journal("aborted") == [], "a finished answer's connection is not cut"


@pytest.mark.parametrize("stream", [True, False])
async def test_client_that_leaves_a_running_answer_frees_its_slot(tmp_path: Path, stream: bool) -> None:
    async with served(tmp_path, models()) as server:
        reader, writer = await server.raw_chat("small", stream=stream, tokens=10_000, delay_s=0.01)
        await until(lambda: bool(server.journal("generating")), what="generating")
        if stream:
            await reader.readuntil(b'"w3 "')
        writer.transport.abort()
        freed_s = await until(lambda: bool(server.journal("aborted")), what="the abort")
        assert freed_s < FREED_WITHIN_S
        await _until_idle(server)
        await _until_outcome(server, "client_gone")


@pytest.mark.parametrize("stream", [True, False])
async def test_client_that_leaves_during_prefill_frees_its_slot(tmp_path: Path, stream: bool) -> None:
    async with served(tmp_path, models()) as server:
        _, writer = await server.raw_chat("small", stream=stream, hold=str(tmp_path / "never"))
        await until(lambda: bool(server.journal("request")), what="the request")
        writer.close()
        assert await until(lambda: bool(server.journal("aborted"))) < FREED_WITHIN_S
        await _until_idle(server)


@pytest.mark.parametrize("stream", [True, False])
async def test_client_that_leaves_the_queue_frees_its_place(tmp_path: Path, stream: bool) -> None:
    release = tmp_path / "release"
    async with served(tmp_path, {"small": {"slots": 1, "fake": {"MAX_LEASES": 1}}}) as server:
        first = asyncio.create_task(server.chat("small", hold=str(release)))
        await until(lambda: bool(server.journal("request")), what="the first request")
        _, writer = await server.raw_chat("small", stream=stream)
        await until(_is_queue_length(server, 1), what="the second request in the queue")
        writer.transport.abort()
        assert await until(_is_queue_length(server, 0), what="an empty queue") < FREED_WITHIN_S
        release.touch()
        assert (await first).status == 200
        assert len(server.journal("request")) == 1, "who has left is never sent to a worker"


async def test_client_that_leaves_during_the_load_frees_its_place_and_the_load_goes_on(tmp_path: Path) -> None:
    loaded = tmp_path / "loaded"
    async with served(tmp_path, models(LOAD_HOLD=loaded)) as server:
        _, writer = await server.raw_chat("small", stream=True)
        await until(_is_queue_length(server, 1), what="the request in the queue")
        writer.transport.abort()
        await until(_is_queue_length(server, 0), what="an empty queue")
        loaded.touch()
        assert (await server.chat("small")).status == 200
        assert len(server.journal("started")) == 1


@pytest.mark.slow
async def test_storm_of_clients_that_leave_at_any_moment_leaves_every_place_free(tmp_path: Path) -> None:
    async with served(tmp_path, models(LOAD_S=0.2)) as server:
        for number in range(60):
            _, writer = await server.raw_chat("small", stream=number % 2 == 0, tokens=20, delay_s=0.002)
            await asyncio.sleep(number % 7 * 0.004)
            writer.transport.abort()
        await _until_idle(server)
        await until(_is_queue_length(server, 0), what="an empty queue")
        replies = await asyncio.gather(*(server.chat("small") for _ in range(8)))
        assert [reply.status for reply in replies] == [200] * 8
        assert len(server.journal("started")) == 1


async def test_killed_router_leaves_no_worker(tmp_path: Path) -> None:
    async with served(tmp_path, {"small": {}, "other": {}}) as server:
        await asyncio.gather(server.chat("small"), server.chat("other"))
        busy = asyncio.create_task(server.chat("small", stream=True, tokens=10_000, delay_s=0.01))
        await until(lambda: len(server.journal("generating")) == 3, what="a running answer")
        pids = server.worker_pids()
        assert len(pids) == 2
        os.kill(server.process.pid, signal.SIGKILL)
        await until(lambda: not any(is_running(pid) for pid in pids), within_s=5.0, what="the end of all workers")
        await asyncio.gather(busy, return_exceptions=True)


async def test_worker_killed_in_mid_stream_is_an_error_event_without_done(tmp_path: Path) -> None:
    async with served(tmp_path, models()) as server:
        reply = await server.chat("small", stream=True, tokens=10_000, delay_s=0.01)
        await reply.content.readuntil(b'"w3 "')
        os.kill(server.worker_pids()[0], signal.SIGKILL)
        *_, last = payloads_of((await reply.content.read()).decode())
        assert last["error"]["code"] == "worker_died"
        assert "SIGKILL" in last["error"]["message"]
        await _until_outcome(server, "worker_died")


async def test_worker_killed_before_its_whole_answer_is_a_503(tmp_path: Path) -> None:
    async with served(tmp_path, models()) as server:
        reply = await server.chat("small", tokens=10, die_after=3)
        assert reply.status == 503
        assert (await reply.json())["error"]["code"] == "worker_died"


async def test_worker_killed_while_idle_is_replaced_by_the_next_request(tmp_path: Path) -> None:
    async with served(tmp_path, models()) as server:
        assert (await server.chat("small")).status == 200
        os.kill(server.worker_pids()[0], signal.SIGSEGV)
        assert (await server.chat("small")).status == 200
        assert len(server.journal("started")) == 2


async def test_openai_client_raises_when_the_worker_dies_in_mid_stream(tmp_path: Path) -> None:
    async with served(tmp_path, models()) as server:
        client = openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)
        stream = await client.chat.completions.create(
            model="gpt-4o-mini",
            messages=[{"role": "user", "content": "hi"}],
            stream=True,
            extra_body={"fake": {"tokens": 9, "die_after": 4}},
        )
        pieces: list[str | None] = []

        async def read() -> None:
            async for chunk in stream:
                pieces.append(chunk.choices[0].delta.content)  # noqa: PERF401 - what came before the error counts

        with pytest.raises(openai.APIError, match="ended in the middle"):
            await read()
        assert pieces == ["w0 ", "w1 ", "w2 ", "w3 "]
        await client.close()


@pytest.mark.slow
async def test_openai_client_waits_for_a_slow_load_through_pings(tmp_path: Path) -> None:
    env = {"CORRAL_STREAM_OPEN_AFTER_S": "0.1", "CORRAL_PING_INTERVAL_S": "0.1"}
    async with served(tmp_path, models(LOAD_S=1), env=env) as server:
        client = openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=0.8)
        stream = await client.chat.completions.create(
            model="small", messages=[{"role": "user", "content": "hi"}], stream=True
        )
        assert "".join([chunk.choices[0].delta.content or "" async for chunk in stream]) == "w0 w1 w2 w3 w4 "
        await client.close()


async def test_term_lets_running_answers_end_and_refuses_new_ones(tmp_path: Path) -> None:
    async with served(tmp_path, models()) as server:
        reply = await server.chat("small", stream=True, tokens=100, delay_s=0.01)
        await reply.content.readuntil(b'"w3 "')
        pids = server.worker_pids()
        server.process.send_signal(signal.SIGTERM)
        await until(lambda: any("stopping" in line["message"] for line in server.lines), what="the stop")
        refused = await server.chat("small")
        assert (refused.status, (await refused.json())["error"]["code"]) == (503, "shutting_down")
        assert "Retry-After" in refused.headers
        assert refused.headers["Connection"] == "close", "a kept connection would keep its client here"
        async with server.session.get(f"{server.url}/health") as health:
            assert (health.status, (await health.json())["status"]) == (503, "draining")
        events = payloads_of((await reply.content.read()).decode())
        assert events[-1] == "[DONE]"
        assert await asyncio.wait_for(server.process.wait(), 10) == 0
        assert not any(is_running(pid) for pid in pids)


async def test_drain_that_takes_too_long_ends_in_an_error_event(tmp_path: Path) -> None:
    async with served(tmp_path, models(), env={"CORRAL_SHUTDOWN_DRAIN_S": "0.3"}) as server:
        reply = await server.chat("small", stream=True, tokens=10_000, delay_s=0.01)
        await reply.content.readuntil(b'"w3 "')
        server.process.send_signal(signal.SIGTERM)
        *_, last = payloads_of((await reply.content.read()).decode())
        assert last["error"]["code"] == "shutting_down"
        assert await asyncio.wait_for(server.process.wait(), 10) == 0


async def test_models_whose_file_is_no_good_are_named_once_the_server_listens(tmp_path: Path) -> None:
    (tmp_path / "cut.gguf").write_bytes(b"GGUF")
    chosen = MODELS | {"lost": {"model": "./lost.gguf"}, "cut": {"model": "./cut.gguf"}}
    async with served(tmp_path, chosen) as server:

        def warnings() -> dict[str, Any]:
            return {line["model"]: line for line in server.lines if line.get("level") == "warning"}

        await until(lambda: len(warnings()) == 2, what="two warnings")
        assert (await server.chat("small")).status == 200
        told = warnings()
        assert told.keys() == {"lost", "cut"}
        assert "lost.gguf does not exist" in told["lost"]["message"]
        assert "cut.gguf: it is truncated" in told["cut"]["message"]
        listed = {model["id"]: model for model in (await server.get("/v1/models"))["data"]}
        assert {name: line["state"] for name, line in told.items()} == {name: listed[name]["state"] for name in told}
        assert [line["message"] for line in server.lines].index("listening") < server.lines.index(told["lost"])


async def test_people_are_told_which_models_cannot_be_used_and_where_to_ask(tmp_path: Path) -> None:
    (tmp_path / "model.gguf").write_bytes(gguf_bytes())
    described = {"small": "./model.gguf", "lost": "./lost.gguf", "away": "hf:o/r/m.gguf"}
    (tmp_path / "models.yaml").write_text(json.dumps({"models": described}))
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "router", "serve", str(tmp_path / "models.yaml"), "--port", "0", "--offline"),
        env=os.environ | server_env(tmp_path) | {"CORRAL_LOG_FORMAT": "text", "HF_HOME": str(tmp_path / "hf")},
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdout is not None
    try:
        told = (await asyncio.wait_for(process.stdout.readuntil(b"Ctrl-C stops the server."), 20)).decode()
    finally:
        process.terminate()
        await process.communicate()
    assert re.search(r"serves 3 models, 2 of them unavailable, at http://127\.0\.0\.1:\d+\n", told)
    assert re.search(r"\n  lost   unavailable: .*lost\.gguf does not exist\n", told)
    assert re.search(r"\n  away   unavailable: .*--offline forbids fetching it\n", told)
    assert re.search(r"http://127\.0\.0\.1:\d+/docs\n", told)
    assert '"model": "small"' in told


async def test_stop_tells_how_many_requests_run_and_wait(tmp_path: Path) -> None:
    async with served(tmp_path, models(MAX_LEASES=1)) as server:
        running = asyncio.create_task(server.chat("small", tokens=10_000, delay_s=0.01))
        await until(lambda: bool(server.journal("generating")), what="a running answer")
        waiting = asyncio.create_task(server.chat("small"))
        await until(_is_queue_length(server, 1), what="a waiting request")
        server.process.send_signal(signal.SIGTERM)
        await until(lambda: any("stopping" in line["message"] for line in server.lines), what="the stop")
        (told,) = (line for line in server.lines if "running_requests" in line)
        assert (told["running_requests"], told["waiting_requests"]) == (1, 1)
        server.process.send_signal(signal.SIGTERM)
        await asyncio.gather(running, waiting, return_exceptions=True)


@pytest.mark.parametrize("fake", [{}, {"IGNORE_TERM": 1}])
async def test_second_signal_stops_at_once(tmp_path: Path, fake: dict[str, int]) -> None:
    async with served(tmp_path, models(**fake)) as server:
        reply = await server.chat("small", stream=True, tokens=10_000, delay_s=0.01)
        await reply.content.readuntil(b'"w3 "')
        server.process.send_signal(signal.SIGINT)
        await until(lambda: any("stopping" in line["message"] for line in server.lines), what="the stop")
        start_s = time.monotonic()
        server.process.send_signal(signal.SIGINT)
        assert await asyncio.wait_for(server.process.wait(), 10) == 1
        assert time.monotonic() - start_s < 2
        assert server.worker_pids() == []
        assert [line for line in server.lines if line.get("level") == "warning"] == []


async def test_model_that_cannot_load_is_refused_with_the_workers_own_words(tmp_path: Path) -> None:
    chosen = models(FAIL_EXIT=65, FAIL_MESSAGE="tensor 'x' is missing") | {"other": {}}
    async with served(tmp_path, chosen) as server:
        replies = [await server.chat("small", stream=stream) for stream in (False, True)]
        for reply in replies:
            assert reply.status == 503
            assert "tensor 'x' is missing" in (await reply.json())["error"]["message"]
        assert (await server.chat("other")).status == 200
        entries = {entry["id"]: entry for entry in (await server.get("/v1/models"))["data"]}
        assert entries["small"]["state"] == "failed"
        assert "tensor 'x' is missing" in entries["small"]["reason"]


async def test_load_and_unload_outlive_the_client_that_asked(tmp_path: Path) -> None:
    loaded = tmp_path / "loaded"
    async with served(tmp_path, models(LOAD_HOLD=loaded)) as server:
        async with aiohttp.ClientSession() as client:
            await client.post(f"{server.url}/models/load", json={"model": "gpt-4o-mini"})
        await until(lambda: bool(server.journal("started")), what="the start")
        loaded.touch()
        await until(_is_status(server, "loaded"), what="the load")
        async with aiohttp.ClientSession() as client:
            await client.post(f"{server.url}/models/unload", json={"model": "small"})
        await until(_is_status(server, "unloaded"), what="the unload")
        assert server.worker_pids() == []


async def test_keys_are_checked_and_show_up_nowhere(tmp_path: Path) -> None:
    env = {"CORRAL_API_KEYS": "hush-user", "CORRAL_ADMIN_KEYS": "hush-admin"}
    async with served(tmp_path, models(), env=env) as server:
        assert (await server.chat("small")).status == 401
        server.session.headers["Authorization"] = "Bearer hush-user"
        assert (await server.chat("small")).status == 200
        assert (await server.session.post(f"{server.url}/models/load", json={"model": "small"})).status == 403
        (start,) = server.journal("started")
        assert "hush" not in json.dumps(start)
        assert "hush" not in json.dumps(server.lines)
        page = await (await server.session.get(f"{server.url}/v1/models")).text()
        assert "hush" not in page


async def _until_idle(server: Served) -> None:
    async def is_idle() -> bool:
        return await server.busy_slots() == 0

    await until(is_idle, what="idle slots")


async def _until_outcome(server: Served, outcome: str) -> None:
    await until(lambda: any(line.get("outcome") == outcome for line in server.lines), what=f"a log line with {outcome}")


def _is_queue_length(server: Served, length: int) -> Any:
    async def check() -> bool:
        return bool((await server.get("/health"))["queue_length"] == length)

    return check


def _is_status(server: Served, value: str) -> Any:
    async def check() -> bool:
        return bool((await server.get("/models"))["data"][0]["status"]["value"] == value)

    return check
