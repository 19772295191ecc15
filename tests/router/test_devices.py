"""Finding devices through the probe process, and measuring what others use of them."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
import uvloop

from router.catalog import DeviceSpec
from router.device import DeviceKind
from router.devices import DeviceMonitor, MachineMemory
from router.nvml import Nvml
from router.probe_process import ProbeFailed, ask_probe
from tests.router.test_device_facts import GIB, MIB, PROCESSOR, TWO_CUDA, card
from tests.support.stub_world import eventually


def saying(answer: object, *, before: str = "", after: str = "") -> list[str]:
    """Return the command of a probe that answers this to every question."""
    code = f"import sys, os, time, json\nsys.stdin.readline()\n{before}\nprint({json.dumps(answer)!r})\n{after}"
    return [sys.executable, "-c", code]


class FixedMemory(MachineMemory):
    """A machine of 64 GiB with so much of it free."""

    def __init__(self, free: int) -> None:
        self.free = free

    def total_bytes(self) -> int:
        return 64 * GIB

    def free_bytes(self) -> int:
        return self.free


def monitor(devices: list[dict[str, Any]], *, free: int = 40 * GIB, **options: Any) -> DeviceMonitor:
    return DeviceMonitor({}, command=saying({"devices": devices}), memory=FixedMemory(free), **options)


async def test_devices_are_those_that_the_probe_has_seen() -> None:
    devices = await monitor(TWO_CUDA).discover({"CUDA0": DeviceSpec("CUDA0", budget_bytes=GIB)})
    assert [(device.id, device.budget_bytes) for device in devices] == [("CPU", None), ("CUDA0", GIB), ("CUDA1", None)]
    assert devices[0].description == "Some Processor"
    assert devices[0].total_bytes == 64 * GIB


async def test_the_real_probe_finds_this_machine() -> None:
    found = DeviceMonitor()
    devices = await found.discover({})
    assert found.warning is None
    assert devices[0].id == "CPU"
    assert 0 < devices[0].total_bytes <= psutil.virtual_memory().total
    assert devices[0].description
    assert found.measure({})["CPU"] < devices[0].total_bytes


async def test_the_machine_is_asked_once_and_configuration_applied_again(tmp_path: Path) -> None:
    asked = tmp_path / "asked"
    before = f"open({str(asked)!r}, 'a').write('x')"
    found = DeviceMonitor({}, command=saying({"devices": TWO_CUDA}, before=before), memory=FixedMemory(GIB))
    await found.discover({"nowhere": DeviceSpec("nowhere")})
    assert len(found.problems) == 1
    devices = await found.discover({"CUDA1": DeviceSpec("CUDA1", prefer=3)})
    assert asked.read_text() == "x"
    assert devices[2].prefer == 3
    assert found.problems == ()


@pytest.mark.parametrize(
    ("command", "word"),
    [
        (saying({"error": "no driver"}), "no driver"),
        (saying([1]), "without an answer"),
        (saying({"devices": "none"}), "list of devices"),
        ([sys.executable, "-c", "import sys; sys.exit('the library is missing')"], "the library is missing"),
        ([sys.executable, "-c", "import os, signal; os.kill(os.getpid(), 11)"], "signal 11"),
        (["/nowhere/at/all"], "cannot be started"),
        (saying({}, before="time.sleep(60)"), "no answer within"),
    ],
)
async def test_a_failing_probe_leaves_the_cpu_and_says_why(
    command: list[str], word: str, caplog: pytest.LogCaptureFixture
) -> None:
    found = DeviceMonitor(
        {}, command=command, memory=FixedMemory(GIB), timeout_s=0.5 if "time.sleep" in str(command) else 30
    )
    assert [device.id for device in await found.discover({})] == ["CPU"]
    assert found.warning is not None
    assert word in found.warning
    assert found.warning in caplog.text
    assert found.measure({}) == {"CPU": 63 * GIB}


async def test_a_probe_that_failed_is_asked_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    works = tmp_path / "works"
    before = f"os.path.exists({str(works)!r}) or sys.exit('not yet')"
    found = DeviceMonitor({}, command=saying({"devices": TWO_CUDA}, before=before), memory=FixedMemory(GIB))
    for _ in range(2):
        assert len(await found.discover({})) == 1
    assert caplog.text.count("not yet") == 1, "said once, however often it is asked"
    works.touch()
    assert len(await found.discover({})) == 3
    assert found.warning is None


async def test_a_cancelled_probe_leaves_no_process(tmp_path: Path) -> None:
    told = tmp_path / "pid"
    before = f"open({str(told)!r}, 'w').write(str(os.getpid())); time.sleep(60)"
    task = asyncio.create_task(ask_probe({}, environ={}, timeout_s=60, command=saying({}, before=before)))
    await eventually(lambda: told.exists() and told.read_text() != "")
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not psutil.pid_exists(int(told.read_text()))


async def test_probe_sees_what_workers_see_and_counts_cards_as_the_system_does() -> None:
    command = [sys.executable, "-c", "import os, json; print(json.dumps(dict(os.environ)))"]
    inherited = {"CUDA_VISIBLE_DEVICES": "1,0", "SECRET": "x", "PATH": os.environ["PATH"]}
    seen = await ask_probe({}, environ=inherited, timeout_s=20, command=command)
    assert seen["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"
    assert seen["CUDA_VISIBLE_DEVICES"] == "1,0"
    assert "SECRET" not in seen
    own = await ask_probe({}, environ={"CUDA_DEVICE_ORDER": "FASTEST_FIRST"}, timeout_s=20, command=command)
    assert own["CUDA_DEVICE_ORDER"] == "FASTEST_FIRST"


@pytest.mark.parametrize("loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_a_probe_that_ends_before_it_has_read_the_question_has_failed(loop: Any) -> None:
    command = [sys.executable, "-c", "import os, sys; os.close(0); sys.exit('no such library')"]

    async def ask() -> None:
        for _ in range(3):
            with pytest.raises(ProbeFailed, match="no such library"):
                await ask_probe({"long": "x" * 2**20}, environ={}, timeout_s=20, command=command)

    with asyncio.Runner(loop_factory=loop) as runner:
        runner.run(ask())


@pytest.mark.parametrize("error", [BrokenPipeError(), ConnectionResetError(), RuntimeError("the handler is closed")])
@pytest.mark.parametrize("step", ["write", "communicate"])
async def test_a_question_that_nobody_takes_any_more_is_a_failure_of_the_probe(
    error: Exception, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> Any:
        raise error

    owner = asyncio.StreamWriter if step == "write" else asyncio.subprocess.Process
    monkeypatch.setattr(owner, step, fail)
    said = "no such library" if step == "write" else "ended before it was asked"
    with pytest.raises(ProbeFailed, match=said):
        await ask_probe({}, environ={}, timeout_s=20, command=[sys.executable, "-c", "exit('no such library')"])


async def test_what_libraries_print_is_not_taken_for_the_answer() -> None:
    answer = await ask_probe({}, environ={}, timeout_s=20, command=saying({"a": 1}, before="print('hello')"))
    assert answer == {"a": 1}


async def test_an_answer_beyond_all_measure_is_refused() -> None:
    command = [sys.executable, "-c", "print('{' * 5_000_000)"]
    with pytest.raises(ProbeFailed):
        await ask_probe({}, environ={}, timeout_s=20, command=command)


# --- measuring -----------------------------------------------------------------------------------------------


async def test_main_memory_of_others_is_what_is_neither_free_nor_ours() -> None:
    found = monitor([PROCESSOR], free=40 * GIB)
    await found.discover({})
    assert found.measure({}) == {"CPU": 24 * GIB}
    assert found.measure({"CPU": 20 * GIB}) == {"CPU": 4 * GIB}
    assert found.measure({"CPU": 30 * GIB, "elsewhere": 1}) == {"CPU": 0}


async def test_of_declared_memory_nothing_is_used_by_others() -> None:
    found = monitor([PROCESSOR], free=GIB)
    await found.discover({"cpu": DeviceSpec("cpu", memory_bytes=8 * GIB), "gpu0": DeviceSpec("gpu0", memory_bytes=GIB)})
    assert found.measure({}) == {"CPU": 0, "gpu0": 0}


async def test_a_card_that_nobody_can_ask_is_as_it_was_when_found() -> None:
    found = monitor([card("Vulkan0", "Vulkan", 8 * GIB), PROCESSOR])
    await found.discover({}, ours={"Vulkan0": GIB // 2})
    assert found.measure({"Vulkan0": 5 * GIB})["Vulkan0"] == GIB // 2


async def test_an_integrated_gpu_has_what_main_memory_has() -> None:
    found = monitor([card("MTL0", "MTL", 48 * GIB), PROCESSOR], free=20 * GIB)
    devices = await found.discover({})
    assert devices[1].kind is DeviceKind.INTEGRATED
    assert found.measure({"MTL0": 8 * GIB})["MTL0"] == 20 * GIB


async def test_the_kernel_tells_what_is_used_of_an_amd_card(tmp_path: Path) -> None:
    folder = tmp_path / "bus/pci/devices/0000:03:00.0"
    folder.mkdir(parents=True)
    (folder / "mem_info_vram_used").write_text(f"{6 * GIB}\n")
    found = monitor([card("ROCm0", "ROCm", 16 * GIB, "0000:03:00.0")], sys_folder=tmp_path)
    await found.discover({})
    assert found.measure({"ROCm0": 2 * GIB})["ROCm0"] == 4 * GIB
    (folder / "mem_info_vram_used").write_text("unknown")
    assert found.measure({})["ROCm0"] == GIB


class FakeNvml:
    """The library with two cards, which are not in the registry's order."""

    def __init__(self) -> None:
        self.free: dict[str, Any] = {"00000000:41:00.0": 3 * GIB, "00000000:01:00.0": 10 * GIB}

    def nvmlInit(self) -> None:  # noqa: N802 - the library's own names
        pass

    def nvmlDeviceGetCount(self) -> int:  # noqa: N802
        return 2

    def nvmlDeviceGetHandleByIndex(self, index: int) -> str:  # noqa: N802
        return list(self.free)[index]

    def nvmlDeviceGetPciInfo(self, handle: str) -> Any:  # noqa: N802
        return SimpleNamespace(busId=handle.encode())

    def nvmlDeviceGetUUID(self, handle: str) -> str:  # noqa: N802
        return f"GPU-{handle[9:11]}"

    def nvmlDeviceGetMemoryInfo(self, handle: str) -> Any:  # noqa: N802
        if self.free[handle] is None:
            raise RuntimeError("fallen off the bus")
        return SimpleNamespace(free=self.free[handle])


async def test_nvidia_cards_are_matched_by_their_address_and_measured_live(monkeypatch: pytest.MonkeyPatch) -> None:
    library = FakeNvml()
    monkeypatch.setitem(sys.modules, "pynvml", library)  # type: ignore[arg-type]
    found = monitor(TWO_CUDA)
    devices = await found.discover({})
    assert [device.visible_as for device in devices[1:]] == ["GPU-01", "GPU-41"]
    ours: Mapping[str, int] = {"CUDA0": 4 * GIB}
    assert found.measure(ours) == {"CPU": 24 * GIB, "CUDA0": 10 * GIB, "CUDA1": 9 * GIB}
    library.free["00000000:41:00.0"] = 12 * GIB
    assert found.measure(ours)["CUDA1"] == 0
    library.free["00000000:01:00.0"] = None
    assert found.measure(ours)["CUDA0"] == GIB, "as it was when it was found"


@pytest.mark.parametrize(("is_there", "found_at"), [(False, TWO_CUDA), (True, TWO_CUDA), (False, [PROCESSOR])])
async def test_without_nvidia_s_library_it_is_said_once_that_memory_is_not_measured(
    is_there: bool, found_at: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", FakeNvml() if is_there else None)  # type: ignore[arg-type]
    found = monitor(found_at)
    for _ in range(2):
        await found.discover({})
    warnings = [message for message in caplog.messages if "nvidia-ml-py" in message]
    assert len(warnings) == (0 if is_there or found_at != TWO_CUDA else 1)


def test_a_broken_driver_is_as_good_as_no_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", SimpleNamespace())  # type: ignore[arg-type]
    assert Nvml.open() is None
    monkeypatch.setitem(sys.modules, "pynvml", None)  # type: ignore[arg-type]
    assert Nvml.open() is None


# --- containers ----------------------------------------------------------------------------------------------


def cgroup(folder: Path, **files: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name.replace("__", ".")).write_text(text)


def memory_of(tmp_path: Path, membership: str) -> MachineMemory:
    (tmp_path / "membership").write_text(membership)
    return MachineMemory(tmp_path / "cgroup", tmp_path / "membership")


def test_a_container_has_its_limit_less_what_it_uses_and_cannot_give_back(tmp_path: Path) -> None:
    stat = f"inactive_file {10 * MIB}\nactive_file {20 * MIB}\nanon {60 * MIB}\n"
    cgroup(tmp_path / "cgroup", memory__max=f"{100 * MIB}", memory__current=f"{90 * MIB}", memory__stat=stat)
    memory = memory_of(tmp_path, "0::/\n")
    assert memory.total_bytes() == 100 * MIB
    assert memory.free_bytes() == 40 * MIB


def test_the_tightest_limit_on_the_way_up_counts(tmp_path: Path) -> None:
    outer, inner = tmp_path / "cgroup/system.slice", tmp_path / "cgroup/system.slice/corral.service"
    cgroup(outer, memory__max=f"{80 * MIB}", memory__current=f"{50 * MIB}", memory__stat="")
    cgroup(inner, memory__max=f"{60 * MIB}", memory__current=f"{10 * MIB}", memory__stat="")
    memory = memory_of(tmp_path, "0::/system.slice/corral.service\n")
    assert memory.total_bytes() == 60 * MIB
    assert memory.free_bytes() == 30 * MIB


def test_the_first_version_of_cgroups_is_read_too(tmp_path: Path) -> None:
    folder = tmp_path / "cgroup/memory"
    stat = f"total_inactive_file {5 * MIB}\ntotal_active_file 0\n"
    cgroup(
        folder,
        memory__limit_in_bytes=f"{64 * MIB}",
        memory__usage_in_bytes=f"{32 * MIB}",
        memory__stat=stat,
    )
    memory = memory_of(tmp_path, "4:memory:/docker/abc\n")
    assert (memory.total_bytes(), memory.free_bytes()) == (64 * MIB, 37 * MIB)


def test_without_a_limit_the_machine_counts(tmp_path: Path) -> None:
    cgroup(tmp_path / "cgroup", memory__max="max", memory__current="1", memory__stat="")
    for memory in (memory_of(tmp_path, "0::/\n"), MachineMemory(tmp_path, tmp_path / "none")):
        assert memory.total_bytes() == psutil.virtual_memory().total
        assert 0 < memory.free_bytes() <= memory.total_bytes()


async def test_measuring_is_cheap_enough_for_the_event_loop() -> None:
    found = DeviceMonitor({}, command=saying({"devices": [PROCESSOR]}))
    await found.discover({})
    best_s = 1.0
    for _ in range(20):
        started_s = time.perf_counter()
        found.measure({"CPU": GIB})
        best_s = min(best_s, time.perf_counter() - started_s)
    assert best_s < 0.001
