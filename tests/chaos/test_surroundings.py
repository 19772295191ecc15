"""What is wrong around the server: no descriptors, no room on the disk, model files replaced by broken ones."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.chaos.arena import Arena, arena
from tests.chaos.storm import rounds, storm
from tests.chaos.table import Table
from tests.chaos.traffic import ALL_KINDS
from tests.support.real_server import api_of
from tests.support.served import until
from tests.support.tiny_gguf import write_not_gguf, write_truncated

pytestmark = pytest.mark.chaos

MAX_FILES = 120
FLOOD = 200
FLOOD_S = 4.0


async def test_connections_that_use_up_all_descriptors_cost_no_request(tmp_path: Path, table: Table) -> None:
    """Whoever asks still gets an answer, maybe later; when the others leave all is as before."""
    with arena(tmp_path, env={"CHAOS_MAX_FILES": str(MAX_FILES)}) as field:

        async def flood() -> None:
            parts = urlsplit(field.url)
            with ExitStack() as opened:
                for _ in range(FLOOD):
                    sock = opened.enter_context(socket.socket())
                    sock.setblocking(False)
                    sock.connect_ex((parts.hostname, parts.port))
                await asyncio.sleep(FLOOD_S)

        # Clients that leave would need new connections, and wait behind the flood with everybody else.
        kinds = [kind for kind in ALL_KINDS if kind != "cancel"]
        async with storm(field, table, f"{FLOOD} idle connections, {MAX_FILES} descriptors", kinds=kinds) as it:
            for _ in range(rounds(3, 1)):
                await it.strike(flood)


async def test_disk_that_is_full_costs_prompts_that_would_be_kept_and_no_request(tmp_path: Path, table: Table) -> None:
    models = {"text": {"prompt_cache_disk_bytes": 2**26}}
    with arena(tmp_path, models=models, env={"CHAOS_MAX_BYTES": "1"}) as field:
        async with api_of(field.server) as api:

            async def unload() -> None:
                long = "hello world tell the story " * 20
                assert (await api.complete("text", long, 4)).status == 200  # which is worth keeping
                assert (await api.post("/models/unload", {"model": "text"}))[0] == 200

            async with storm(field, table, "unloaded while the disk is full") as it:
                for _ in range(rounds(4, 2)):
                    await it.strike(unload)
    written = [path for path in (tmp_path / "cache").rglob("*") if path.is_file() and path.stat().st_size > 1]
    assert not written, "the disk was full"
    assert any("cannot be kept on the disk" in str(line) for line in field.server.lines), "somebody has tried"


@pytest.mark.parametrize(
    ("spoil", "fault"),
    [
        (write_truncated, "its file replaced by a truncated one"),
        (write_not_gguf, "its file replaced by a web page"),
        (None, "its file removed"),
    ][: rounds(3, 1)],
)
async def test_worker_goes_on_when_its_file_is_replaced_by_one_that_is_broken(
    tmp_path: Path, table: Table, spoil: Callable[[Path], None] | None, fault: str
) -> None:
    """What cannot be loaded is refused with the reason while other models go on, and loads again once it is whole."""
    with arena(tmp_path) as field:
        path = tmp_path / "text.gguf"
        whole = path.read_bytes()

        async def replace() -> None:
            if spoil is None:
                path.unlink()
            else:
                spoil(tmp_path / "new.gguf")
                os.replace(tmp_path / "new.gguf", path)
            await asyncio.sleep(3)  # the router looks at its files every second or two

        async with storm(field, table, fault) as it:
            for _ in range(rounds(2, 1)):
                await it.strike(replace)
        await check_refused_until_whole(field, path, whole)


async def check_refused_until_whole(field: Arena, path: Path, whole: bytes) -> None:
    async with api_of(field.server) as api:

        async def is_unloaded() -> bool:
            return not field.server.worker_pids("text")

        await api.post("/models/unload", {"model": "text"})
        await until(is_unloaded, within_s=30, what="the unload")
        for _ in range(3):
            answer = await api.complete("text", "hello", 2)
            assert answer.status == 503, answer
            assert answer.error is not None
            assert "text" in answer.error["message"]
            vectors = await api.post("/v1/embeddings", {"model": "embed", "input": "hello"})
            assert vectors[0] == 200, vectors
        path.with_suffix(".new").write_bytes(whole)
        os.replace(path.with_suffix(".new"), path)

        async def is_back() -> bool:
            return (await api.complete("text", "hello", 2)).status == 200

        await until(is_back, within_s=30, what="an answer from the whole file")
