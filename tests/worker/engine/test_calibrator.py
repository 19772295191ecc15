"""Measuring happens while nobody wants anything, once, and gives way at once."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.backend import FakeBackend
from tests.support.served import until
from worker.contract import EngineOptions
from worker.engine import calibrator as module
from worker.engine.calibration import Subject, passes
from worker.engine.calibration_files import read_calibration
from worker.engine.calibrator import Calibrator
from worker.engine.engine import Engine
from worker.engine.errors import ForwardAborted, OutOfMemory
from worker.engine.request import GenerationRequest, Output

OPTIONS = EngineOptions(context=128)
SUBJECT = Subject("m.gguf", 1000, 5, "0.3 CPU : AVX2", "A CPU", 1, 256, "f16", "f16", swa_full=True)


class FakeProbe:
    """Takes as long as it is told to, in figures alone; `blocks` holds a measurement until it is interrupted."""

    def __init__(self, lab: Lab, setting: str) -> None:
        self.lab = lab
        self.setting = setting
        self.interrupted = threading.Event()
        self.cpu_share = lab.cpu_share
        self.filled = 0
        self.is_closed = False

    def fill(self, num_rows: int) -> float:
        self.filled = num_rows
        return self.seconds(num_rows)

    def seconds(self, num_rows: int) -> float:
        assert not self.is_closed
        assert threading.current_thread().name == "engine"
        self.lab.measured.append((self.setting, num_rows))
        self.lab.has_measured.set()
        if self.lab.blocks:
            assert self.interrupted.wait(30)
            self.interrupted.clear()
            raise ForwardAborted
        return num_rows * self.lab.seconds_per_row[self.setting]

    def interrupt(self) -> None:
        self.interrupted.set()

    def close(self) -> None:
        assert threading.current_thread().name == "engine"
        self.is_closed = True


class Lab:
    """An engine over a fake backend, and probes that are recorded."""

    def __init__(self, folder: Path) -> None:
        self.engine = Engine(FakeBackend(num_vocab=5000), OPTIONS)
        self.folder = folder
        self.probes: list[FakeProbe] = []
        self.measured: list[tuple[str, int]] = []
        self.has_measured = threading.Event()
        self.seconds_per_row = {"on": 0.001, "off": 0.002}
        self.cpu_share = 1.0
        self.blocks = False
        self.error: Exception | None = None

    def open_probe(self, setting: str, num_threads: int) -> FakeProbe:
        if self.error is not None:
            raise self.error
        self.probes.append(FakeProbe(self, setting))
        return self.probes[-1]

    def calibrator(self, **options: Any) -> Calibrator:
        return Calibrator(self.engine, replace(OPTIONS, **options), SUBJECT, self.folder, self.open_probe)

    async def first_measurement(self) -> None:
        assert await asyncio.to_thread(self.has_measured.wait, 30)

    async def answer(self, max_tokens: int = 5) -> None:
        is_over = asyncio.Event()

        def take(output: Output) -> None:
            if output.finish is not None:
                is_over.set()

        self.engine.submit(GenerationRequest((1, 2, 3), max_tokens), take)
        async with asyncio.timeout(30):
            await is_over.wait()


@pytest.fixture
async def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Lab]:
    monkeypatch.setattr(module, "QUIET_S", 0.01)
    lab = Lab(tmp_path / "calibration")
    lab.engine.start()
    yield lab
    lab.engine.stop()


async def test_everything_is_measured_once_and_kept_and_known_after_the_next_load(lab: Lab) -> None:
    found = await lab.calibrator().run("on")
    assert found is not None
    assert set(found.times["on"]) == {1, 4, 8, 32, 64, 128, 256}
    assert set(found.times["off"]) == {1, 4, 8, 32, 128}
    # Before these, each context has had a first pass and was filled.
    assert lab.measured == [("on", 8), ("on", 128), ("off", 8), ("off", 128), *passes(OPTIONS, 256)]
    assert all(probe.is_closed and probe.filled == 128 for probe in lab.probes)
    assert read_calibration(lab.folder, SUBJECT) == found
    count = len(lab.measured)
    assert await lab.calibrator().run("on") == found
    assert len(lab.measured) == count, "nothing is measured again"


async def test_cost_table_begins_with_the_times_of_the_setting_in_use(lab: Lab) -> None:
    costs = lab.engine._core.costs
    assert costs.estimate(64) is None
    await lab.calibrator().run("off")
    assert costs.estimate(4) == pytest.approx(0.008)
    await lab.calibrator().run("on")
    assert costs.estimate(64) == pytest.approx(0.064)


async def test_better_setting_is_announced_for_the_next_load(lab: Lab, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    lab.seconds_per_row["off"] = 0.0005
    await lab.calibrator().run("auto")
    assert "flash attention off is clearly faster here" in caplog.text
    assert "from the next load on" in caplog.text


async def test_nothing_is_announced_where_the_default_is_best(lab: Lab, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    await lab.calibrator().run("auto")
    assert "next load" not in caplog.text


async def test_what_a_busy_machine_gives_is_used_now_but_not_kept(lab: Lab, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    lab.seconds_per_row = {"on": 1e-5, "off": 1e-6}
    lab.cpu_share = 0.5
    assert await lab.calibrator().run("on") is not None
    assert lab.engine._core.costs.estimate(4) is not None
    assert not lab.folder.exists()
    assert "repeated after the next load" in caplog.text
    assert "clearly faster" not in caplog.text


async def test_configured_setting_is_the_only_one_measured(lab: Lab) -> None:
    found = await lab.calibrator(flash_attn="off").run("off")
    assert found is not None
    assert set(found.times) == {"off"}
    assert 64 in found.times["off"], "its times are those that will be used"


async def test_request_breaks_off_a_measurement_which_is_repeated_later(lab: Lab) -> None:
    lab.blocks = True
    running = asyncio.create_task(lab.calibrator().run("on"))
    await lab.first_measurement()
    lab.blocks = False
    await asyncio.wait_for(lab.answer(), 5)
    found = await asyncio.wait_for(running, 30)
    assert found is not None
    assert lab.measured[0] == lab.measured[1], "what was broken off is measured again"


async def test_nothing_is_measured_while_answers_are_generated(lab: Lab) -> None:
    ends = [asyncio.create_task(lab.answer(100)) for _ in range(8)]
    await asyncio.sleep(0)
    running = asyncio.create_task(lab.calibrator().run("on"))
    while not all(end.done() for end in ends):
        assert lab.measured == []
        await asyncio.sleep(0)
    assert await running is not None


async def test_slow_model_is_left_alone(lab: Lab) -> None:
    lab.seconds_per_row = {"on": 1.0, "off": 1.0}
    assert await lab.calibrator().run("on") is None
    assert lab.measured == [("on", 8), ("off", 8)]
    assert read_calibration(lab.folder, SUBJECT) is None


async def test_no_memory_for_a_probe_is_no_harm(lab: Lab, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    lab.error = OutOfMemory("failed to allocate 9 GiB")
    assert await lab.calibrator().run("on") is None
    assert "9 GiB" in caplog.text
    await lab.answer()


async def test_times_of_a_changing_number_of_threads_are_not_kept(lab: Lab) -> None:
    lab.blocks = True
    running = asyncio.create_task(lab.calibrator().run("on"))
    await lab.first_measurement()
    lab.engine.set_threads(2)
    lab.blocks = False
    lab.probes[0].interrupt()
    assert await running is None
    assert not lab.folder.exists()


async def test_cancelled_calibration_closes_its_context(lab: Lab) -> None:
    lab.blocks = True
    running = asyncio.create_task(lab.calibrator().run("on"))
    await lab.first_measurement()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    await until(lambda: lab.probes[0].is_closed, what="a closed context")
    await lab.answer()


async def test_stop_of_the_engine_breaks_off_a_measurement(lab: Lab) -> None:
    lab.blocks = True
    running = asyncio.create_task(lab.calibrator().run("on"))
    await lab.first_measurement()
    await asyncio.wait_for(asyncio.to_thread(lab.engine.stop), 5)
    assert await asyncio.wait_for(running, 5) is None
