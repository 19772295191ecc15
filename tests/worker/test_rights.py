"""A worker gives up what it does not need before it reads a model, and works all the same."""

from __future__ import annotations

import ctypes
import json
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from router.launch import worker_command, worker_folders
from tests.support.tiny_gguf import write_tiny_llama
from tests.worker.test_process import CHATML, start
from worker.bytecode import store_bytecode

TRY = """
import json, os, socket, sys
from pathlib import Path
from worker import rights

inside, outside = map(Path, sys.argv[1:3])
rights.give_up_privileges()
rights.restrict([inside] if {is_confined} else [])


def attempt(what):
    try:
        what()
    except OSError as error:
        return type(error).__name__
    return "done"


def make_and_rename():
    (inside / "a").write_text("x")
    os.rename(inside / "a", inside / "b")


print(json.dumps({{
    "held": rights.held,
    "inside": attempt(make_and_rename),
    "temporary": attempt(lambda: Path("/dev/shm", outside.name).touch() or Path("/dev/shm", outside.name).unlink()),
    "device": attempt(lambda: Path("/dev/null").write_text("x")),
    "make": attempt((outside / "new").touch),
    "folder": attempt((outside / "sub").mkdir),
    "change": attempt(lambda: (outside / "kept").write_text("y")),
    "append": attempt(lambda: (outside / "kept").open("a").close()),
    "truncate": attempt(lambda: os.truncate(outside / "kept", 0)),
    "remove": attempt((outside / "kept").unlink),
    "read": attempt((outside / "kept").read_text),
    "connect": attempt(lambda: socket.create_connection(("127.0.0.1", {port}))),
    "status": Path("/proc/self/status").read_text(),
    "limits": Path("/proc/self/limits").read_text(),
}}))
"""
"""The kernel's side of it, tried by a process that has done what a worker does."""


def landlock_version() -> int:
    """Source: landlock(7), LANDLOCK_CREATE_RULESET_VERSION."""
    version: int = ctypes.CDLL(None).syscall(444, None, ctypes.c_size_t(0), 1)
    return version


@pytest.fixture
def outside() -> Iterator[Path]:
    """A folder in which a worker has nothing to write, with a file."""
    with tempfile.TemporaryDirectory(prefix="corral-outside-", dir="/var/tmp") as name:
        (Path(name) / "kept").write_text("precious")
        yield Path(name)


def try_everything(inside: Path, outside: Path, *, is_confined: bool = True) -> dict[str, Any]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        code = TRY.format(is_confined=is_confined, port=server.getsockname()[1])
        words = [sys.executable, "-c", code, str(inside), str(outside)]
        done = subprocess.run(words, capture_output=True, check=True, timeout=30)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_what_is_promised_holds_and_nothing_that_is_needed_is_refused(tmp_path: Path, outside: Path) -> None:
    found = try_everything(tmp_path / "made", outside)
    needed = ("inside", "temporary", "device", "read")
    assert {name: found[name] for name in needed} == dict.fromkeys(needed, "done")
    assert "NoNewPrivs:\t1" in found["status"]
    core = next(line for line in found["limits"].splitlines() if line.startswith("Max core file size"))
    assert core.split()[4:6] == ["0", "0"]
    refused = ("make", "folder", "change", "append", "truncate", "remove")
    is_confined = any(right.startswith("writes only in") for right in found["held"])
    assert is_confined == (landlock_version() >= 1), "it is used where the kernel has it"
    assert {name: found[name] for name in refused} == dict.fromkeys(
        refused, "PermissionError" if is_confined else "done"
    ), "what the log says is what holds"
    assert found["connect"] == ("PermissionError" if "no TCP connections" in found["held"] else "done")


def test_without_folders_files_are_as_before(tmp_path: Path, outside: Path) -> None:
    found = try_everything(tmp_path, outside, is_confined=False)
    assert found["held"] == ["no core dumps", "no new privileges"]
    assert found["make"] == found["change"] == "done"


async def test_confined_worker_answers_and_its_log_says_what_holds(tmp_path: Path, outside: Path) -> None:
    model = outside / "tiny.gguf"
    write_tiny_llama(model, chat_template=CHATML)
    before = f"import sys; sys.argv.append('--writes={tmp_path}')"
    async with start(model, broken_by=before, prompts_dir=str(tmp_path / "prompts")) as worker:
        await worker.ready()
        assert (await worker.answer(max_tokens=5))["usage"]["completion_tokens"] == 5
        process = Path(f"/proc/{worker.process.pid}")
        assert "NoNewPrivs:\t1" in (process / "status").read_text()
        assert worker.process.stderr is not None
        async for line in worker.process.stderr:
            if b"rights: " in line:
                assert b"no new privileges" in line
                assert b"no core dumps" in line
                return
        pytest.fail("the log says nothing of its rights")


def test_router_names_its_own_folders_unless_the_worker_is_another_program(tmp_path: Path) -> None:
    folders = worker_folders(tmp_path / "run", tmp_path / "cache")
    assert [folder.relative_to(tmp_path).as_posix() for folder in folders] == [
        "run",
        "cache/calibration",
        "cache/prompts",
    ]
    assert worker_command(writes=folders)[-1] == f"--writes={tmp_path}/cache/prompts"
    assert worker_command(["stub"], writes=folders) == ["stub"]


def test_modules_without_bytecode_are_compiled_by_a_process_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    module = tmp_path / "some.py"
    module.write_text("x = 1\n")
    store_bytecode(lambda: None, own=tmp_path)
    from worker.bytecode import _compiling

    assert _compiling.pop().wait(30) == 0
    assert len(list((tmp_path / "__pycache__").iterdir())) == 1
    store_bytecode(lambda: None, own=tmp_path)
    assert _compiling == [], "nothing is left to do"
