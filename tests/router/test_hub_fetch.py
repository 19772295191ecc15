"""Downloads from the Hub, against a small Hub on this machine and through the real fetch process."""

from __future__ import annotations

import asyncio
import hashlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from router.references import parse_reference
from router.sources import FetchProgress, ModelStore, SourceError
from tests.fakes.hub import COMMIT, FakeHub, Repo, fake_hub
from tests.support.gguf_bytes import gguf_bytes

MODEL = gguf_bytes(data=os.urandom(400_000), tensors=[("w", (1000, 100), 0, 0)])
DIGEST = hashlib.sha256(MODEL).hexdigest()


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    for name in list(os.environ):
        if name.startswith("HF_") or name.lower().endswith("_proxy"):
            monkeypatch.delenv(name)
    with fake_hub() as hub:
        hub.repos["o/r"] = Repo({"m-Q4_K_M.gguf": MODEL, "README.md": b"hello"})
        monkeypatch.setenv("HF_ENDPOINT", hub.endpoint)
        monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
        yield hub


@pytest.fixture
def repo(tmp_path: Path) -> Path:
    return tmp_path / "hf" / "hub" / "models--o--r"


async def fetch(text: str, tmp_path: Path, progress: list[FetchProgress] | None = None) -> Path:
    store = ModelStore(tmp_path / "cache")
    seen = [] if progress is None else progress
    path = await store.fetch(parse_reference(text), tmp_path, seen.append)
    assert store.locate(parse_reference(text), tmp_path) == path
    return path


async def refusal(text: str, tmp_path: Path) -> SourceError:
    with pytest.raises(SourceError) as caught:
        await fetch(text, tmp_path)
    return caught.value


async def test_a_file_comes_into_the_cache_that_all_clients_share(hub: FakeHub, repo: Path, tmp_path: Path) -> None:
    progress: list[FetchProgress] = []
    path = await fetch("hf:o/r/m-Q4_K_M.gguf", tmp_path, progress)
    assert path == repo / "snapshots" / COMMIT / "m-Q4_K_M.gguf"
    assert path.read_bytes() == MODEL
    assert path.resolve() == repo / "blobs" / DIGEST
    assert (repo / "refs" / "main").read_text() == COMMIT
    assert os.listdir(repo / "blobs") == [DIGEST]
    assert {p.phase for p in progress} == {"downloading", "verifying"}
    assert max(p.done_bytes for p in progress) == progress[-1].total_bytes == len(MODEL)


async def test_the_hubs_own_library_finds_the_file_offline(
    hub: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = await fetch("hf:o/r/m-Q4_K_M.gguf", tmp_path)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    script = "import huggingface_hub; print(huggingface_hub.hf_hub_download('o/r', 'm-Q4_K_M.gguf'))"
    done = await asyncio.to_thread(
        subprocess.run, [sys.executable, "-P", "-c", script], check=True, capture_output=True, text=True
    )
    assert Path(done.stdout.strip()) == path


async def test_a_quantisation_is_chosen_and_projectors_are_not(hub: FakeHub, tmp_path: Path) -> None:
    hub.repos["o/r"].files |= {"m-Q8_0.gguf": MODEL, "mmproj-m-Q4_K_M.gguf": MODEL}
    assert (await fetch("hf:o/r:q4_k_m", tmp_path)).name == "m-Q4_K_M.gguf"


async def test_a_split_model_brings_all_its_parts(hub: FakeHub, tmp_path: Path) -> None:
    second = gguf_bytes(data=os.urandom(400_000))
    hub.repos["o/r"].files = {"b/s-00001-of-00002.gguf": MODEL, "b/s-00002-of-00002.gguf": second}
    progress: list[FetchProgress] = []
    path = await fetch("hf:o/r/b/s-00001-of-00002.gguf", tmp_path, progress)
    assert (path.parent / "s-00002-of-00002.gguf").read_bytes() == second
    assert progress[-1].done_bytes == progress[-1].total_bytes == len(MODEL) + len(second)


async def test_a_revision_is_fetched_by_its_commit(hub: FakeHub, repo: Path, tmp_path: Path) -> None:
    path = await fetch(f"hf:o/r/m-Q4_K_M.gguf@{COMMIT}", tmp_path)
    assert path.read_bytes() == MODEL
    assert not (repo / "refs").exists()


async def test_a_blob_that_is_here_is_not_downloaded_again(hub: FakeHub, repo: Path, tmp_path: Path) -> None:
    (repo / "blobs").mkdir(parents=True)
    (repo / "blobs" / DIGEST).write_bytes(MODEL)
    assert (await fetch("hf:o/r/m-Q4_K_M.gguf", tmp_path)).read_bytes() == MODEL
    assert hub.seen_storage == []


async def test_a_broken_connection_is_resumed(hub: FakeHub, tmp_path: Path) -> None:
    hub.cut_after = [150_000, 100_000]
    assert (await fetch("hf:o/r/m-Q4_K_M.gguf", tmp_path)).read_bytes() == MODEL
    assert [seen.range for seen in hub.seen_storage] == [None, "bytes=150000-", "bytes=250000-"]


async def test_a_killed_download_is_resumed_by_the_next_process(hub: FakeHub, repo: Path, tmp_path: Path) -> None:
    hub.gate.clear()
    store = ModelStore(tmp_path / "cache")
    has_some = asyncio.Event()

    def watch(progress: FetchProgress) -> None:
        if progress.done_bytes > 0:
            has_some.set()

    waiter = asyncio.create_task(store.fetch(parse_reference("hf:o/r/m-Q4_K_M.gguf"), tmp_path, watch))
    await asyncio.wait_for(has_some.wait(), 30)
    await store.close()
    with pytest.raises(SourceError, match="corral stops"):
        await waiter
    hub.gate.set()
    have = (repo / "blobs" / f"{DIGEST}.corral.incomplete").stat().st_size
    assert 0 < have < len(MODEL)
    assert (await fetch("hf:o/r/m-Q4_K_M.gguf", tmp_path)).read_bytes() == MODEL
    assert hub.seen_storage[-1].range == f"bytes={have}-"


async def test_a_storage_without_ranges_sends_the_whole_file_again(hub: FakeHub, tmp_path: Path) -> None:
    hub.has_ranges = False
    hub.cut_after = [150_000]
    assert (await fetch("hf:o/r/m-Q4_K_M.gguf", tmp_path)).read_bytes() == MODEL


async def test_a_rest_that_is_too_long_is_begun_again(hub: FakeHub, repo: Path, tmp_path: Path) -> None:
    (repo / "blobs").mkdir(parents=True)
    (repo / "blobs" / f"{DIGEST}.corral.incomplete").write_bytes(bytes(len(MODEL) + 1))
    assert (await fetch("hf:o/r/m-Q4_K_M.gguf", tmp_path)).read_bytes() == MODEL


async def test_damaged_bytes_are_deleted(hub: FakeHub, repo: Path, tmp_path: Path) -> None:
    hub.flips_a_byte = True
    error = await refusal("hf:o/r/m-Q4_K_M.gguf", tmp_path)
    assert "arrived damaged" in str(error)
    assert not error.is_permanent
    assert os.listdir(repo / "blobs") == []


async def test_more_bytes_than_listed_are_refused(hub: FakeHub, repo: Path, tmp_path: Path) -> None:
    hub.has_extra_bytes = True
    assert "more bytes than the Hub lists" in str(await refusal("hf:o/r/m-Q4_K_M.gguf", tmp_path))
    assert os.listdir(repo / "blobs") == []


async def test_what_is_no_model_is_refused(hub: FakeHub, repo: Path, tmp_path: Path) -> None:
    hub.repos["o/r"].files["m-Q4_K_M.gguf"] = MODEL[:-9]
    error = await refusal("hf:o/r/m-Q4_K_M.gguf", tmp_path)
    assert "is not a usable model: it is truncated" in str(error)
    assert error.is_permanent
    assert os.listdir(repo / "blobs") == []


async def test_a_missing_file_is_answered_with_what_there_is(hub: FakeHub, tmp_path: Path) -> None:
    error = await refusal("hf:o/r/other.gguf", tmp_path)
    assert str(error) == "hf:o/r/other.gguf: o/r has no file other.gguf; it has m-Q4_K_M.gguf"
    assert error.is_permanent


async def test_a_missing_quantisation_is_answered_with_what_there_is(hub: FakeHub, tmp_path: Path) -> None:
    error = await refusal("hf:o/r:Q2_K", tmp_path)
    assert "o/r has no model with the quantisation Q2_K; it has m-Q4_K_M.gguf" in str(error)


async def test_a_missing_repository_or_revision_is_a_permanent_failure(hub: FakeHub, tmp_path: Path) -> None:
    error = await refusal("hf:o/none/m.gguf", tmp_path)
    assert "there is no repository o/none" in str(error)
    assert "HF_TOKEN" in str(error)
    assert error.is_permanent
    error = await refusal("hf:o/r/m-Q4_K_M.gguf@v9", tmp_path)
    assert str(error) == "o/r has no revision v9"
    assert error.is_permanent


async def test_a_gated_repository_says_where_to_accept_its_terms(
    hub: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.repos["o/r"].is_gated = True
    error = await refusal("hf:o/r/m-Q4_K_M.gguf", tmp_path)
    assert f"o/r is gated: accept its terms at {hub.endpoint}/o/r; then set HF_TOKEN" in str(error)
    assert error.is_permanent
    monkeypatch.setenv("HF_TOKEN", "hf_secretsecretsecret")
    assert (await fetch("hf:o/r/m-Q4_K_M.gguf", tmp_path)).read_bytes() == MODEL


async def test_the_token_goes_to_the_hub_and_nowhere_else(
    hub: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.repos["o/r"].token = "hf_secretsecretsecret"
    monkeypatch.setenv("HF_TOKEN", "hf_secretsecretsecret")
    progress: list[FetchProgress] = []
    await fetch("hf:o/r/m-Q4_K_M.gguf", tmp_path, progress)
    assert {seen.authorization for seen in hub.seen if "agent" not in seen.path} == {"Bearer hf_secretsecretsecret"}
    assert {seen.authorization for seen in hub.seen_storage} == {None}
    assert "secret" not in repr(progress)


@pytest.mark.parametrize(
    ("status", "is_permanent", "step"),
    [(403, True, "set HF_TOKEN"), (429, False, "set HF_TOKEN to get a higher limit"), (503, False, "try again later")],
)
async def test_a_hub_that_refuses_is_quoted_with_the_next_step(
    hub: FakeHub, tmp_path: Path, status: int, is_permanent: bool, step: str
) -> None:
    hub.status = status
    error = await refusal("hf:o/r/m-Q4_K_M.gguf", tmp_path)
    assert f"with status {status}" in str(error)
    assert step in str(error)
    assert error.is_permanent is is_permanent


async def test_a_hub_out_of_reach_is_worth_another_try(
    hub: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:1")
    error = await refusal("hf:o/r/m-Q4_K_M.gguf", tmp_path)
    assert "cannot download hf:o/r/m-Q4_K_M.gguf from http://127.0.0.1:1" in str(error)
    assert "check the network" in str(error)
    assert not error.is_permanent


async def test_the_hubs_offline_switch_is_obeyed(hub: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    error = await refusal("hf:o/r/m-Q4_K_M.gguf", tmp_path)
    assert "HF_HUB_OFFLINE forbids" in str(error)
    assert hub.seen == []


async def test_a_folder_that_cannot_be_written_is_named(
    hub: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("HF_HOME", str(tmp_path / "file"))
    error = await refusal("hf:o/r/m-Q4_K_M.gguf", tmp_path)
    assert f"could not be stored ({tmp_path / 'file'}" in str(error)


def run_with(patch: str, text: str) -> subprocess.CompletedProcess[str]:
    """Return the outcome of a fetch in a process in which `patch` was executed."""
    script = (
        "import shutil, router.fetch.hub as hub; from router.references import parse_reference\n"
        f"{patch}\n"
        f"print(hub.fetch_from_hub(parse_reference({text!r}), is_offline=False, report=print))\n"
    )
    return subprocess.run([sys.executable, "-P", "-c", script], check=False, capture_output=True, text=True)


def test_a_file_too_large_for_plain_http_is_left_to_the_library(hub: FakeHub, repo: Path) -> None:
    done = run_with("hub._MAX_PLAIN_BYTES = 1000; hub._WATCH_S = 0.01", "hf:o/r/m-Q4_K_M.gguf")
    assert done.returncode == 0, done.stderr
    path = Path(done.stdout.splitlines()[-1])
    assert path == repo / "snapshots" / COMMIT / "m-Q4_K_M.gguf"
    assert path.read_bytes() == MODEL


def test_a_file_that_does_not_fit_on_the_disk_is_not_begun(hub: FakeHub) -> None:
    patch = "shutil.disk_usage = lambda folder: shutil._ntuple_diskusage(10**9, 10**9, 1000)"
    done = run_with(patch, "hf:o/r/m-Q4_K_M.gguf")
    assert "not enough disk space for hf:o/r/m-Q4_K_M.gguf" in done.stderr
    assert hub.seen_storage == []
