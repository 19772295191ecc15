"""Where the folder, the output or the environment of a command is broken, it says so in a line, without a traceback.

Each command is a process of its own, for what is broken is the process's.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.command_line import work_in


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return work_in(tmp_path, monkeypatch)


def shell(line: str, **environ: str) -> subprocess.CompletedProcess[str]:
    """Return what came of a line of the shell in which `corral` is the program."""
    script = f'corral() {{ "{sys.executable}" -m router "$@"; }}; {line}'
    root = str(Path(__file__).parents[3])
    return subprocess.run(
        ["sh", "-c", script],
        env={**os.environ, "PYTHONPATH": root, **environ},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


@pytest.mark.parametrize("command", ["check", "serve", "pull x.gguf"])
def test_a_folder_that_is_gone_is_told(command: str) -> None:
    done = shell(f'mkdir gone; cd gone; rmdir "$PWD"; corral {command}')
    assert done.returncode == 1
    assert done.stderr == "corral: the folder in which this was started is gone: change into another one\n"


@pytest.mark.slow
def test_the_doctor_looks_at_the_rest_where_the_folder_is_gone() -> None:
    done = shell('mkdir gone; cd gone; rmdir "$PWD"; corral doctor')
    assert "there is no models.yaml in this folder (which is gone)" in done.stdout
    assert "Traceback" not in done.stderr


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
@pytest.mark.parametrize("command", ["completion bash", "config schema"])
def test_an_output_that_takes_no_more_is_told(command: str) -> None:
    done = shell(f"corral {command} >/dev/full")
    assert done.returncode == 1
    assert done.stderr == "corral: what is to be printed cannot be written: No space left on device\n"


def test_an_output_that_is_closed_is_no_failure() -> None:
    done = shell("corral completion bash >&-")
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("command", ["serve models.yaml", "check", "cache"])
def test_a_cache_in_a_home_that_there_is_not_is_told(folder: Path, command: str) -> None:
    (folder / "models.yaml").write_text("models:\n  a: x.gguf\n", encoding="utf-8")
    done = shell(f"corral {command}", CORRAL_CACHE="~no-such-user/x")
    assert done.returncode == 1
    assert "CORRAL_CACHE: begins with ~no-such-user" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.slow
def test_the_doctor_tells_of_a_cache_in_a_home_that_there_is_not() -> None:
    done = shell("corral doctor", CORRAL_CACHE="~no-such-user/x")
    assert "CORRAL_CACHE: begins with ~no-such-user" in done.stdout
    assert "the system does not know the home folder" in done.stdout
    assert "Traceback" not in done.stderr
