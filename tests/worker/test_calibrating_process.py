"""Whole worker processes that find out what passes cost on this machine."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.support.served import until
from tests.support.tiny_gguf import write_tiny_llama
from tests.worker.test_process import CHATML, WITHIN_S, start
from worker.contract import Control, ControlOp, ExitCode, Phase


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tiny") / "tiny.gguf"
    write_tiny_llama(path, chat_template=CHATML)
    return path


async def test_a_worker_calibrates_once_and_its_successor_knows(tiny: Path, tmp_path: Path) -> None:
    def files() -> list[str]:
        return [name for name in os.listdir(tmp_path / "kept") if name.endswith(".json")]

    words = []
    kept, engine = str(tmp_path / "kept"), {"device": "cpu"}
    on_busy_machines_too = "from worker.engine import calibration; calibration.Measurements.is_undisturbed = True"
    for _ in range(2):
        async with start(tiny, broken_by=on_busy_machines_too, calibration_dir=kept, engine=engine) as worker:
            await worker.ready()
            await until(lambda: (tmp_path / "kept").is_dir() and files() != [], within_s=WITHIN_S, what="a record")
            assert (await worker.answer(max_tokens=3))["usage"]["completion_tokens"] == 3
            worker.order(Control(ControlOp.DRAIN))
            assert await worker.exit_code() == ExitCode.OK
            words.append(await worker.words())
    assert ["calibrated with flash attention off" in text for text in words] == [True, False]
    assert len(files()) == 1


@pytest.mark.slow
async def test_a_worker_that_is_calibrating_leaves_when_it_is_told(tiny: Path, tmp_path: Path) -> None:
    slow = "from worker.engine import calibrator; calibrator.passes = lambda options, rows: [('off', 8)] * 10**6"
    slow += "; from worker.engine import calibration; calibration.BUDGET_S = 10**6"
    async with start(tiny, broken_by=slow, calibration_dir=str(tmp_path), engine={"device": "cpu"}) as worker:
        await worker.until(lambda status: status.phase is Phase.READY and status.step > 20)
        worker.order(Control(ControlOp.DRAIN))
        assert await worker.exit_code() == ExitCode.OK
    assert os.listdir(tmp_path) == []
