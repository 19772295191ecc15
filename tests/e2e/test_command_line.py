"""Commands against a real `corral serve` with real workers: what an operator does in an hour, in a minute."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.models import smollm2_path
from tests.support.real_server import RealServer, real_server
from tests.support.terminals import terminal

pytestmark = pytest.mark.slow
ROOT = Path(__file__).resolve().parents[2]
SMALL = {"slots": 2, "context": 512, "device": "cpu", "threads": 2, "idle_unload_s": 600}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("command-line")


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[RealServer]:
    """A server with `small`, and `broken`, which is no model file."""
    (folder / "broken.gguf").write_text("not a model" * 100)
    models = {"small": {"model": str(smollm2_path()), **SMALL}, "broken": {"model": "./broken.gguf"}}
    with real_server(folder, models, env={"CORRAL_ADMIN_KEYS": "admin-key", "CORRAL_API_KEYS": "user-key"}) as found:
        yield found


def corral(
    server: RealServer, *arguments: str, key: str = "admin-key", typed: str = ""
) -> subprocess.CompletedProcess[str]:
    environ = {name: value for name, value in os.environ.items() if not name.startswith("CORRAL_")}
    return subprocess.run(
        [sys.executable, "-m", "router", *arguments],
        cwd=ROOT,
        env=environ | {"CORRAL_URL": server.url, "CORRAL_API_KEY": key},
        input=typed,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


def state_of(server: RealServer, name: str) -> dict[str, Any]:
    status = json.loads(corral(server, "ps", "--json").stdout)
    return next(model for model in status["models"] if model["id"] == name)


def test_a_model_is_loaded_asked_pinned_and_unloaded(server: RealServer) -> None:
    loaded = corral(server, "load", "small")
    assert (loaded.returncode, loaded.stdout.partition(" after")[0]) == (0, "small: ready")
    assert "small: loading" in loaded.stderr
    answer = corral(server, "chat", "small", "--set", "max_tokens=8", "--set", "temperature=0", "Say hello.")
    assert (answer.returncode, answer.stderr) == (0, "")
    assert answer.stdout.strip()
    shown = corral(server, "ps")
    (row,) = [line for line in shown.stdout.splitlines() if line.startswith("small ")]
    assert row.split()[:2] == ["small", "ready"]
    assert corral(server, "pin", "small").returncode == 0
    assert state_of(server, "small")["is_pinned"] is True
    assert corral(server, "unpin", "small", "--as-configured").returncode == 0
    assert state_of(server, "small")["is_pinned"] is False
    assert "small: ready" in corral(server, "logs", "small").stdout
    gone = corral(server, "unload", "--all")
    assert gone.stdout.startswith("small: unloaded after")
    assert state_of(server, "small")["state"] == "unloaded"


def test_a_broken_file_is_told_with_its_reason(server: RealServer) -> None:
    done = corral(server, "load", "broken")
    assert done.returncode == 1
    assert "not a GGUF file" in done.stderr


def test_a_key_that_may_only_ask_is_refused_what_is_for_administrators(server: RealServer) -> None:
    assert corral(server, "ps", key="user-key").returncode == 0
    for arguments in (("load", "small"), ("unload", "small"), ("pin", "small"), ("reload",), ("logs",)):
        done = corral(server, *arguments, key="user-key")
        assert (done.returncode, done.stdout) == (4, ""), arguments
        assert "admin" in done.stderr
    assert corral(server, "ps", key="wrong").returncode == 4
    assert corral(server, "load", "nope").returncode == 5


def test_a_mistake_in_the_file_is_told_with_its_line_and_put_right(server: RealServer, folder: Path) -> None:
    file = folder / "models.yaml"
    right = file.read_text()
    try:
        file.write_text(right + "  wrong: {modl: ./x.gguf}\n")
        refused = corral(server, "reload")
        assert refused.returncode == 1
        checked = corral(server, "check", str(file))
        assert refused.stderr.splitlines()[:-1] == checked.stderr.splitlines()[:-1]
        assert "the one before stays in force" in corral(server, "ps").stdout
    finally:
        file.write_text(right)
    assert corral(server, "reload").stdout == "nothing has changed; 2 models\n"
    wider = yaml.safe_load(right)
    wider["models"]["small"]["aliases"] = ["tiny"]
    file.write_text(yaml.safe_dump(wider))
    assert "small: aliases" in corral(server, "reload").stdout + corral(server, "logs", "-n", "5").stdout


def test_a_sweep_measures_a_real_model(server: RealServer) -> None:
    done = corral(server, "bench", "small", "-p", "16", "-t", "8", "-c", "1,2", "-r", "2", "--json")
    assert done.returncode == 0, done.stderr
    levels = json.loads(done.stdout)["levels"]
    assert [level["concurrency"] for level in levels] == [1, 2]
    for level in levels:
        assert level["errors"] == 0
        assert level["cached_share"] < 0.5
        assert level["ttft_s"]["p50"] > 0
        assert level["tokens_per_second"]["total"] > 0


def test_the_screen_shows_a_request_while_it_runs(server: RealServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CORRAL_URL", server.url)
    monkeypatch.setenv("CORRAL_API_KEY", "admin-key")
    with terminal("ps", "--watch", columns=120) as shown:
        shown.wait_for("q quits")
        for _ in range(20):  # the screen is drawn once a second, and an answer may be over sooner
            asked = corral(server, "chat", "small", "Tell me a very long story.", "--set", "max_tokens=64")
            assert asked.returncode == 0
            if b"generating" in shown.seen:
                break
        shown.wait_for("generating")
        shown.press(b"q")
        assert shown.end() == 0


def test_a_followed_log_goes_on_over_the_next_worker(server: RealServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CORRAL_URL", server.url)
    monkeypatch.setenv("CORRAL_API_KEY", "admin-key")
    corral(server, "load", "small")
    with terminal("logs", "small", "-f") as shown:
        place = shown.wait_for("ready")
        corral(server, "unload", "small")
        place = shown.wait_for("draining", since=place)
        corral(server, "load", "small")
        shown.wait_for("ready", since=place)
        shown.press(b"\x03")
        assert shown.end() == 130
        assert b"Traceback" not in shown.seen
