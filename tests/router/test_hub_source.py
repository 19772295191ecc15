"""Finding files in the Hub's cache without its library and without a network."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from router.hub_source import hub_cache_dir, is_hub_offline, locate_hub, repo_folder
from router.references import HubReference, parse_reference

OLD, NEW = "a" * 40, "b" * 40


def reference(text: str) -> HubReference:
    parsed = parse_reference(text)
    assert isinstance(parsed, HubReference)
    return parsed


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    """Return a cache as the Hub's clients leave it: two commits, `main` at the newer one."""
    repo = repo_folder(tmp_path, reference("hf:o/r/x.gguf"))
    assert repo.name == "models--o--r"
    for number, (commit, names) in enumerate(
        {
            OLD: ["gone-Q8_0.gguf", "m-Q4_K_M.gguf"],
            NEW: ["m-Q4_K_M.gguf", "sub/s-F16-00001-of-00002.gguf", "sub/s-F16-00002-of-00002.gguf"],
        }.items()
    ):
        for name in names:
            path = repo / "snapshots" / commit / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(b"x")
        os.utime(repo / "snapshots" / commit, (number, number))
    (repo / "refs").mkdir()
    (repo / "refs" / "main").write_text(NEW)
    return tmp_path


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("hf:o/r/m-Q4_K_M.gguf", f"{NEW}/m-Q4_K_M.gguf"),
        ("hf:o/r/m-Q4_K_M.gguf@main", f"{NEW}/m-Q4_K_M.gguf"),
        (f"hf:o/r/m-Q4_K_M.gguf@{OLD}", f"{OLD}/m-Q4_K_M.gguf"),
        ("hf:o/r:q4_k_m", f"{NEW}/m-Q4_K_M.gguf"),
        ("hf:o/r/gone-Q8_0.gguf", f"{OLD}/gone-Q8_0.gguf"),
        ("hf:o/r:Q8_0", f"{OLD}/gone-Q8_0.gguf"),
        ("hf:o/r:F16", f"{NEW}/sub/s-F16-00001-of-00002.gguf"),
        ("hf:o/r/sub/s-F16-00001-of-00002.gguf", f"{NEW}/sub/s-F16-00001-of-00002.gguf"),
        ("hf:o/r/gone-Q8_0.gguf@main", None),
        ("hf:o/r/m-Q4_K_M.gguf@v2", None),
        (f"hf:o/r/m-Q4_K_M.gguf@{'c' * 40}", None),
        ("hf:o/r:Q2_K", None),
        ("hf:o/other/m-Q4_K_M.gguf", None),
    ],
)
def test_what_is_in_the_cache_is_found(cache: Path, text: str, found: str | None) -> None:
    expected = None if found is None else cache / "models--o--r" / "snapshots" / found
    assert locate_hub(reference(text), cache) == expected


def test_a_split_model_that_lacks_a_part_must_be_fetched(cache: Path) -> None:
    (cache / "models--o--r" / "snapshots" / NEW / "sub/s-F16-00002-of-00002.gguf").unlink()
    assert locate_hub(reference("hf:o/r/sub/s-F16-00001-of-00002.gguf"), cache) is None
    assert locate_hub(reference("hf:o/r:F16"), cache) is None


def test_a_link_whose_blob_is_gone_is_not_a_file(cache: Path) -> None:
    path = cache / "models--o--r" / "snapshots" / NEW / "m-Q4_K_M.gguf"
    path.unlink()
    path.symlink_to("../../blobs/none")
    assert locate_hub(reference("hf:o/r/m-Q4_K_M.gguf@main"), cache) is None


def test_the_cache_is_where_the_hubs_library_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/u")
    monkeypatch.setenv("BIG", "/big")
    assert hub_cache_dir({}) == Path("/home/u/.cache/huggingface/hub")
    assert hub_cache_dir({"XDG_CACHE_HOME": "/x"}) == Path("/x/huggingface/hub")
    assert hub_cache_dir({"HF_HOME": "~/hf", "XDG_CACHE_HOME": "/x"}) == Path("/home/u/hf/hub")
    assert hub_cache_dir({"HF_HUB_CACHE": "$BIG/hub", "HF_HOME": "/hf"}) == Path("/big/hub")
    assert hub_cache_dir({"HUGGINGFACE_HUB_CACHE": "/old"}) == Path("/old")


@pytest.mark.parametrize(
    ("value", "is_offline"), [("1", True), ("yes", True), ("True", True), ("0", False), ("", False)]
)
def test_the_hubs_offline_switch_is_understood(value: str, is_offline: bool) -> None:
    assert is_hub_offline({"HF_HUB_OFFLINE": value}) is is_offline
    assert is_hub_offline({"TRANSFORMERS_OFFLINE": value}) is is_offline
    assert not is_hub_offline({})
