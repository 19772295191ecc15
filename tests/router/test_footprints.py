"""What models need, asked of llama.cpp once, measured after loads, and remembered across restarts."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from router import footprint_files
from router.catalog import LoraSpec, ModelSpec, Remote
from router.device import Footprint, FootprintSource
from router.footprint_files import FootprintFiles
from router.footprint_parts import Knowledge, OnCpu
from router.footprints import Footprints
from router.model_headers import ModelHeaders
from router.references import Reference
from tests.router.test_footprint import FACTS, GPU_PLAN, PLAN, status
from tests.support.gguf_bytes import LLAMA, gguf_bytes
from tests.support.stub_world import eventually

TENSORS = [("blk.0.attn_k.weight", (8, 4), 0, 0)]


class FolderStore:
    """A store that finds files by their names in one folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def locate(self, reference: Reference, base_dir: Path) -> Path | None:
        path = self.folder / Path(reference.short()).name
        return path if path.exists() else None


@dataclass
class World:
    """A folder with models and a probe that notes what it is asked."""

    folder: Path
    answer: Any = field(default_factory=lambda: {"cpu": PLAN, "gpu": GPU_PLAN})
    code: str = ""
    told: list[tuple[str, Footprint, float | None]] = field(default_factory=list)

    def write(self, name: str = "a.gguf", **more: Any) -> Path:
        path = self.folder / name
        path.write_bytes(gguf_bytes(LLAMA, TENSORS, **more))
        return path

    def footprints(self, kept: str | None = "kept", **more: Any) -> Footprints:
        asked, answer = str(self.folder / "asked"), json.dumps(self.answer)
        code = (
            f"import sys, os, time\nline = sys.stdin.readline()\nopen({asked!r}, 'a').write(line)\n{self.code}\n"
            f"print({answer!r})"
        )
        store = FolderStore(self.folder)
        return Footprints(
            None if kept is None else self.folder / kept,
            store,
            ModelHeaders(store),
            lambda *known: self.told.append(known),
            environ={},
            command=[sys.executable, "-c", code],
            timeout_s=20.0,
            **more,
        )

    @property
    def asked(self) -> list[Any]:
        path = self.folder / "asked"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def spec(self, name: str = "a", **more: Any) -> ModelSpec:
        given: dict[str, Any] = {"context": 512, "slots": 2} | more
        return ModelSpec(name, f"./{name}.gguf", self.folder, **given)


@pytest.fixture
def world(tmp_path: Path) -> World:
    made = World(tmp_path)
    made.write()
    return made


def sources(world: World) -> list[FootprintSource]:
    return [footprint.source for _, footprint, _ in world.told]


async def test_the_header_is_told_first_and_then_the_plan(world: World) -> None:
    footprints = world.footprints()
    spec = world.spec()
    assert footprints.of(spec) is None
    await footprints.survey([spec])
    assert sources(world) == [FootprintSource.HEADER, FootprintSource.PROBE]
    found = footprints.of(spec)
    assert found is not None
    assert (found.source, found.num_layers) == (FootprintSource.PROBE, 5)
    (question,) = world.asked
    assert question["model_path"] == str(world.folder / "a.gguf")
    assert (question["engine"]["context"], question["engine"]["slots"], question["gpu"]) == (512, 2, None)


async def test_llama_cpp_is_asked_when_loads_are_over_and_not_before(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("router.footprints._WAIT_S", 0.001)
    num_looks = 0

    def is_busy() -> bool:
        nonlocal num_looks
        num_looks += 1
        assert world.asked == []
        return num_looks < 20

    await world.footprints(is_busy=is_busy).survey([world.spec()])
    assert num_looks == 20
    assert sources(world) == [FootprintSource.HEADER, FootprintSource.PROBE]


async def test_what_is_known_is_not_asked_again_not_even_after_a_restart(world: World) -> None:
    spec = world.spec()
    first = world.footprints()
    await first.survey([spec])
    await first.survey([spec])
    second = world.footprints()
    await second.survey([spec])
    assert len(world.asked) == 1
    assert second.of(spec) == first.of(spec)


async def test_options_that_matter_are_asked_for_anew_and_others_are_not(world: World) -> None:
    footprints = world.footprints()
    await footprints.survey([world.spec()])
    same = world.spec(engine={"threads": 1, "device": "cpu", "mlock": True}, description="other words")
    assert footprints.of(same) is not None
    await footprints.survey([same])
    assert len(world.asked) == 1
    other = world.spec(engine={"cache_type_k": "q8_0"})
    assert footprints.of(other) is None, "what is known of other options is no answer"
    await footprints.survey([other])
    assert len(world.asked) == 2


async def test_a_file_that_was_replaced_is_asked_about_anew(world: World) -> None:
    footprints = world.footprints()
    await footprints.survey([world.spec()])
    path = world.write()
    os.utime(path, ns=(1, 1))
    await footprints.survey([replace(world.spec(), file_marks=(1, 1))])  # as the catalogue has it from then on
    assert len(world.asked) == 2


async def test_models_with_the_same_file_and_options_are_asked_about_once(world: World) -> None:
    footprints = world.footprints()
    await footprints.survey([world.spec(), replace(world.spec(), name="twin")])
    assert len(world.asked) == 1
    twin = footprints.of(replace(world.spec(), name="twin"))
    assert twin is not None
    assert twin.source is FootprintSource.PROBE


async def test_a_gpu_is_planned_for_as_soon_as_there_is_one(world: World) -> None:
    footprints = world.footprints()
    await footprints.survey([world.spec()])
    await footprints.survey([world.spec()], gpu="CUDA0")
    await footprints.survey([world.spec()], gpu="CUDA0")
    assert [question["gpu"] for question in world.asked] == [None, "CUDA0"]
    found = footprints.of(world.spec())
    assert found is not None
    assert found.gpu_bytes == 116


async def test_models_that_are_not_here_or_run_elsewhere_are_left_alone(world: World) -> None:
    footprints = world.footprints()
    missing, remote = world.spec("missing"), world.spec("far", remote=Remote("http://x/v1", "y"))
    broken = world.spec("broken")
    (world.folder / "broken.gguf").write_bytes(b"GGUF nothing")
    await footprints.survey([missing, remote, broken, world.spec()])
    assert [name for name, _, _ in world.told] == ["a", "a"]
    assert footprints.of(missing) is None
    assert len(world.asked) == 1


async def test_a_start_never_waits_for_a_plan(world: World) -> None:
    footprints = world.footprints()
    found = await footprints.size(world.spec(), world.folder / "a.gguf")
    assert found is not None
    assert found.source is FootprintSource.HEADER
    assert world.asked == []
    assert await footprints.size(world.spec("gone"), world.folder / "gone.gguf") is None


async def test_a_failing_probe_leaves_the_estimate_and_is_not_repeated(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    world.answer = {"error": "this kind of model cannot be planned"}
    footprints = world.footprints()
    await footprints.survey([world.spec()])
    await footprints.survey([world.spec()])
    assert sources(world) == [FootprintSource.HEADER]
    assert len(world.asked) == 1
    assert "a: llama.cpp does not say what it needs" in caplog.text
    assert "this kind of model cannot be planned" in caplog.text


async def test_a_survey_that_is_cancelled_can_be_made_again(world: World) -> None:
    world.code = "time.sleep(0 if os.path.exists('go') else 60)".replace("'go'", repr(str(world.folder / "go")))
    footprints = world.footprints()
    task = asyncio.create_task(footprints.survey([world.spec()]))
    await eventually(lambda: world.asked)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    (world.folder / "go").touch()
    await footprints.survey([world.spec()])
    assert sources(world)[-1] is FootprintSource.PROBE


async def test_a_later_survey_ends_an_earlier_one(world: World) -> None:
    world.write("b.gguf")
    footprints = world.footprints()
    old = [world.spec(), world.spec("b")]
    new = [world.spec(slots=3), world.spec("b", slots=3)]
    await asyncio.gather(footprints.survey(old), footprints.survey(new))
    found = [footprints.of(spec) for spec in new]
    assert [one.source for one in found if one is not None] == [FootprintSource.PROBE] * 2
    assert {question["engine"]["slots"] for question in world.asked} == {3}


# --- measured --------------------------------------------------------------------------------------------


async def test_measured_replaces_planned_at_once_and_survives_a_restart(world: World) -> None:
    footprints, spec = world.footprints(), world.spec()
    await footprints.survey([spec])
    learnt = footprints.learn(spec, world.folder / "a.gguf", status({"CPU": {"weights": 10**9}}))
    assert learnt is not None
    assert learnt.source is FootprintSource.MEASURED
    assert learnt.cpu_bytes > 10**9
    assert world.told[-1] == ("a", learnt, 1.25)
    assert footprints.load_s(spec) == 1.25
    await footprints.close()
    again = world.footprints()
    await again.survey([spec])
    assert (again.of(spec), again.load_s(spec)) == (learnt, 1.25)
    assert len(world.asked) == 1


async def test_a_measured_model_is_not_planned_for(world: World) -> None:
    first, spec = world.footprints(), world.spec()
    await first.size(spec, world.folder / "a.gguf")
    first.learn(spec, world.folder / "a.gguf", status({"CPU": {"weights": 10**9}}))
    await first.close()
    await world.footprints().survey([spec])
    assert world.asked == []


async def test_a_model_that_was_never_looked_at_is_learnt_all_the_same(world: World) -> None:
    footprints, spec = world.footprints(), world.spec()
    learnt = footprints.learn(spec, world.folder / "a.gguf", status({"CPU": {"weights": 10**9}}))
    assert learnt is not None
    await footprints.close()
    again = world.footprints()
    await again.size(spec, world.folder / "a.gguf")
    found = again.of(spec)
    assert found is not None
    assert found.source is FootprintSource.MEASURED


async def test_a_status_without_news_is_not_told_again(world: World) -> None:
    footprints, spec = world.footprints(), world.spec()
    await footprints.size(spec, world.folder / "a.gguf")
    told = status({"CPU": {"weights": 10**9}}, replace(FACTS, num_vocab=1000))
    footprints.learn(spec, world.folder / "a.gguf", told)
    count = len(world.told)
    footprints.learn(spec, world.folder / "a.gguf", told)
    assert len(world.told) == count


async def test_without_a_folder_everything_works_but_memory_ends_with_the_router(world: World) -> None:
    footprints = world.footprints(kept=None)
    await footprints.survey([world.spec()])
    footprints.learn(world.spec(), world.folder / "a.gguf", status({"CPU": {"weights": 1}}))
    await footprints.close()
    assert [path.name for path in world.folder.iterdir() if path.is_dir()] == []


# --- all of a model's files --------------------------------------------------------------------------------


async def test_all_parts_of_a_split_model_count(world: World) -> None:
    names = ["m-00001-of-00002.gguf", "m-00002-of-00002.gguf"]
    parts = [("general.architecture", 8, "llama"), *LLAMA[1:]], [("split.no", 2, 1)]
    for name, keys in zip(names, parts, strict=True):
        (world.folder / name).write_bytes(gguf_bytes(keys, TENSORS))
    footprints = world.footprints()
    spec = replace(world.spec(), source=f"./{names[0]}")
    whole = await footprints.size(spec, world.folder / names[0])
    alone = await world.footprints().size(world.spec(), world.folder / "a.gguf")
    assert whole is not None
    assert alone is not None
    assert whole.cpu_bytes - alone.cpu_bytes == 128
    (world.folder / names[1]).unlink()
    assert await world.footprints(kept=None).size(spec, world.folder / names[0]) is None


async def test_drafts_and_adapters_are_part_of_the_question(world: World) -> None:
    world.write("draft.gguf")
    (world.folder / "tone.gguf").write_bytes(bytes(1000))
    spec = world.spec(draft_source="./draft.gguf", loras=(LoraSpec("tone", "./tone.gguf"),))
    footprints = world.footprints()
    await footprints.survey([spec])
    (question,) = world.asked
    assert question["draft_model_path"] == str(world.folder / "draft.gguf")
    with_both = footprints.of(spec)
    await footprints.survey([world.spec()])
    plain = footprints.of(world.spec())
    assert with_both is not None
    assert plain is not None
    assert with_both.cpu_bytes - plain.cpu_bytes == 1000, "the adapter's file; the probe's answer is the same"


# --- the disk ----------------------------------------------------------------------------------------------

KNOWN = Knowledge(planned_cpu=OnCpu(5, 6), load_s=2.0)


@pytest.mark.parametrize(
    "content", ["", "{", "[]", "null", '{"format": 0, "known": {}}', '{"format": 1, "known": {}}', "[" * 100_000]
)
def test_broken_files_are_as_good_as_none(tmp_path: Path, content: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    disk = FootprintFiles(tmp_path)
    disk.write("key", KNOWN, "m")
    assert disk.read("key") == KNOWN
    (tmp_path / "key.json").write_text(content)
    assert disk.read("key") == Knowledge()
    assert "key.json is ignored" in caplog.text
    assert disk.read("other") == Knowledge()


def test_a_pipe_under_the_name_of_a_file_blocks_nobody(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    os.mkfifo(tmp_path / "key.json")
    with ThreadPoolExecutor(max_workers=1) as executor:
        reading = executor.submit(FootprintFiles(tmp_path).read, "key")
        try:
            assert reading.result(timeout=10) == Knowledge()
        finally:  # let a reader that waits for a writer go
            with suppress(OSError):
                os.close(os.open(tmp_path / "key.json", os.O_WRONLY | os.O_NONBLOCK))
    assert "key.json is ignored: it is not a regular file" in caplog.text


def test_a_disk_that_cannot_be_written_to_is_only_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").touch()
    FootprintFiles(tmp_path / "file" / "folder").write("key", KNOWN, "m")
    assert "cannot be kept" in caplog.text


def test_the_oldest_files_go_when_there_are_too_many(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(footprint_files, "MAX_FILES", 3)
    disk = FootprintFiles(tmp_path)
    for number in range(5):
        disk.write(f"key{number}", KNOWN, "m")
        os.utime(tmp_path / f"key{number}.json", (number, number))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["key2.json", "key3.json", "key4.json"]
