"""Whole worker processes: what one has computed, the next one of the same model need not compute again."""

from __future__ import annotations

import os
import resource
import shutil
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.tiny_gguf import write_tiny_llama
from tests.support.tiny_lora import write_tiny_lora
from tests.worker.test_process import CHATML, Process, start
from worker.contract import Control, ControlOp, ExitCode, LoraFile

TEXT = "tell story red marker hello world " * 12
ENGINE = {"context": 512, "device": "cpu"}


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tiny") / "tiny.gguf"
    write_tiny_llama(path, chat_template=CHATML, embedding=128)
    return path


def drain(worker: Process) -> None:
    worker.order(Control(ControlOp.DRAIN))


def terminate(worker: Process) -> None:
    worker.process.terminate()


def kill(worker: Process) -> None:
    worker.process.kill()


def part_from_router(worker: Process) -> None:
    worker.close_stdin()


async def one_life(
    model: Path, folder: Path, end: Callable[[Process], None] = terminate, max_bytes: int = 10**8, **engine: Any
) -> tuple[str, int, str]:
    """Return the answer to the text, the tokens of it that were cached, and what the worker wrote."""
    engine = ENGINE | {"prompt_cache_disk_bytes": max_bytes} | engine
    async with start(model, prompts_dir=str(folder), engine=engine) as worker:
        await worker.ready()
        reply = await worker.answer(text=TEXT, max_tokens=8, temperature=0)
        end(worker)
        code = await worker.exit_code()
        assert code == (-9 if end is kill else ExitCode.OK)
        cached = reply["usage"]["prompt_tokens_details"]["cached_tokens"]
        assert reply["usage"]["prompt_tokens"] > 64
        return reply["choices"][0]["message"]["content"], cached, await worker.words()


def kept(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


@pytest.mark.parametrize("end", [drain, terminate])
async def test_the_next_worker_goes_on_where_this_one_was_told_to_leave(
    tiny: Path, tmp_path: Path, end: Callable[[Process], None]
) -> None:
    folder = tmp_path / "prompts"
    answer, cached, words = await one_life(tiny, folder, end)
    assert cached == 0
    assert "prompts kept on the disk: 1, " in words
    (path,) = kept(folder)
    assert [stat.S_IMODE(one.stat().st_mode) for one in (path, path.parent, folder)] == [0o600, 0o700, 0o700]
    again, cached, words = await one_life(tiny, folder, end)
    assert again == answer
    assert cached > 64
    assert "prompts on the disk: 1, " in words
    assert "tell" not in words, "no prompt is in a log"


@pytest.mark.parametrize("end", [kill, part_from_router])
@pytest.mark.slow
async def test_a_worker_that_is_killed_or_loses_its_router_keeps_nothing(
    tiny: Path, tmp_path: Path, end: Callable[[Process], None]
) -> None:
    await one_life(tiny, tmp_path, end)
    assert kept(tmp_path) == []


async def test_a_full_disk_keeps_no_worker_from_leaving_and_nothing_half_behind(tiny: Path, tmp_path: Path) -> None:
    def leave_with_a_full_disk(worker: Process) -> None:
        limits = resource.RLIMIT_FSIZE, (4096, 4096)  # files end there, as on a disk that is full
        resource.prlimit(worker.process.pid, *limits)
        drain(worker)

    _, _, words = await one_life(tiny, tmp_path / "prompts", leave_with_a_full_disk)
    assert words.count("prompts cannot be kept on the disk") == 1
    assert words.count("WARNING") == 1
    assert kept(tmp_path) == []


@pytest.mark.slow
async def test_nothing_is_written_unless_it_is_wanted_and_what_was_written_goes(tiny: Path, tmp_path: Path) -> None:
    await one_life(tiny, tmp_path)
    assert len(kept(tmp_path)) == 1
    _, cached, words = await one_life(tiny, tmp_path, max_bytes=0)
    assert cached == 0
    assert kept(tmp_path) == []
    assert "1 prompts of earlier times were removed" in words


@pytest.mark.slow
async def test_cells_of_another_type_or_of_another_file_are_not_reused(tiny: Path, tmp_path: Path) -> None:
    model = tmp_path / "m.gguf"
    shutil.copy(tiny, model)
    folder = tmp_path / "prompts"
    await one_life(model, folder)
    _, cached, _ = await one_life(model, folder, cache_type_k="q8_0")
    assert cached == 0
    os.utime(model)
    _, cached, words = await one_life(model, folder, cache_type_k="q8_0")
    assert cached == 0
    assert "1 removed that are not of this model as it is now" in words


@pytest.mark.slow
async def test_an_adapter_that_was_exchanged_makes_earlier_prompts_worthless(tiny: Path, tmp_path: Path) -> None:
    lora, folder = tmp_path / "lora.gguf", tmp_path / "prompts"
    write_tiny_lora(lora, seed=1, embedding=128)
    loras = (LoraFile("tone", str(lora)),)
    await one_life(tiny, folder, loras=loras)
    write_tiny_lora(lora, seed=2, embedding=128)
    _, cached, _ = await one_life(tiny, folder, loras=loras)
    assert cached == 0


async def test_damaged_files_never_keep_a_worker_from_answering(tiny: Path, tmp_path: Path) -> None:
    answer, _, _ = await one_life(tiny, tmp_path)
    (path,) = kept(tmp_path)
    whole = path.read_bytes()
    path.write_bytes(whole[:-9] + bytes([whole[-9] ^ 1]) + whole[-8:])
    path.with_name("short.kv").write_bytes(whole[:1000])
    path.with_name("odd.kv").write_bytes(b"\0" * 5000)
    again, cached, words = await one_life(tiny, tmp_path)
    assert (again, cached) == (answer, 0)
    assert words.count("is not used and removed") == 3
    assert len(kept(tmp_path)) == 1, "written anew"
