"""A spare worker process has nothing left to import once it is told what to load, and ends with its router."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.stub_world import eventually
from tests.support.tiny_gguf import write_tiny_llama
from tests.worker.test_process import CHATML, start
from worker.contract import ExitCode, Phase

SPY = """
import sys
from worker.lifeline import Lifeline
class Spy:
    is_told = False
    def find_spec(self, name, path=None, target=None):
        if self.is_told:
            print("imports", name, file=sys.stderr, flush=True)
spy = Spy()
sys.meta_path.insert(0, spy)
wait_told = Lifeline.wait_told
def wait_and_note(lifeline):
    open("waits", "w").close()
    wait_told(lifeline)
    spy.is_told = True
Lifeline.wait_told = wait_and_note
"""
"""Makes a file when everything is imported, and prints what is imported after the launch."""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("spare") / "tiny.gguf"
    write_tiny_llama(path, chat_template=CHATML)
    return path


@pytest.mark.parametrize("when", ["at once", "later"])
async def test_it_becomes_a_worker_whenever_it_is_told_what_to_load(model: Path, when: str) -> None:
    async with start(model, b"" if when == "later" else None, broken_by=SPY, is_spare=True) as worker:
        if when == "later":
            await eventually((worker.folder / "waits").exists)
            assert worker.process.stdin is not None
            worker.process.stdin.write(worker.spec.to_line())
        status = await worker.ready()
        assert worker.statuses[0].phase is Phase.STARTING
        assert status.load_seconds["spawn"] == 0
        assert (await worker.answer(max_tokens=5))["usage"]["completion_tokens"] == 5


async def test_it_imports_nothing_between_its_launch_and_its_first_answer(model: Path, tmp_path: Path) -> None:
    async with start(model, b"", broken_by=SPY, is_spare=True, calibration_dir=str(tmp_path)) as worker:
        await eventually((worker.folder / "waits").exists)
        assert worker.process.stdin is not None
        worker.process.stdin.write(worker.spec.to_line())
        await worker.ready()
        await worker.answer(max_tokens=5, temperature=1.0, seed=1)
        worker.process.terminate()
        await worker.exit_code()
        words = (await worker.words()).splitlines()
        assert "\n".join(line for line in words if line.startswith("imports")) == ""


async def test_it_ends_with_a_router_that_never_needed_it(model: Path) -> None:
    async with start(model, b"", is_spare=True) as worker:
        worker.close_stdin()
        assert await worker.exit_code() == ExitCode.OK
