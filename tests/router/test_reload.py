"""The configuration of the running server changes as a whole or not at all, and says what it did."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from router import reload as room
from router.auth import KeyRing, load_key_ring
from router.body import BodyMemory
from router.catalog import ModelSpec
from router.catalog_files import Locate, load_catalog
from router.catalog_problems import CatalogError
from router.errors import ShuttingDown
from router.host_guard import HostGuard
from router.metrics import RouterMetrics
from router.reload import Parts, Reloader
from router.settings import RouterSettings
from router.sources import ModelStore
from router.watcher import Watcher
from tests.fakes.supervisor import FakeSupervisor
from tests.support.busy_metrics import look_up

ONE = "models:\n  smol: {model: smol.gguf, aliases: [gpt]}\n"
TWO = ONE + "  gem: gem.gguf\n"
BROKEN = "models: ["


class Bench:
    """A reloader over a folder, with everything that it changes."""

    def __init__(self, folder: Path, text: str = ONE, *, locate: Locate | None = None, **settings: Any) -> None:
        self.path = folder / "models.yaml"
        self.path.write_text(text)
        catalog = load_catalog(self.path, locate)
        self.settings = RouterSettings(**settings)
        self.supervisor = FakeSupervisor(catalog, [])
        keys = load_key_ring(self.settings, catalog.keys, {})
        self.parts = Parts(
            supervisor=self.supervisor,  # type: ignore[arg-type]
            keys=keys,
            guard=HostGuard(host=self.settings.host, has_keys=not keys.is_empty),
            body_memory=BodyMemory(room.body_memory_bytes(self.settings, catalog.limits)),
            metrics=RouterMetrics(),
        )
        self.looked_at: list[str] = []
        self.has_new_models = asyncio.Event()
        self.reloader = Reloader(
            self.path,
            self.parts,
            settings=self.settings,
            environ={},
            locate=locate,
            on_models=self._note_models,
        )

    def _note_models(self, specs: Sequence[ModelSpec]) -> None:
        self.looked_at += [spec.name for spec in specs]
        self.has_new_models.set()

    @property
    def models(self) -> list[str]:
        return list(self.supervisor.catalog.models)

    def metric(self, name: str, **labels: str) -> float | None:
        return look_up(self.parts.metrics, name, labels)

    async def refusal(self) -> CatalogError:
        with pytest.raises(CatalogError) as refused:
            await self.reloader.reload("a test")
        return refused.value


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == "router.reload"]


async def test_a_new_model_is_served_after_a_reload(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.path.write_text(TWO)
    diff = await bench.reloader.reload("a test")
    assert (diff.added, diff.num_unchanged) == (("gem",), 1)
    assert bench.models == ["smol", "gem"]
    assert bench.looked_at == ["gem"], "only a new model's file is looked at"


@pytest.mark.parametrize("text", [BROKEN, "", "models: {}\n", "models:\n  smol: {model: smol.gguf, slotz: 1}\n", "7"])
async def test_a_file_that_cannot_be_used_changes_nothing(tmp_path: Path, text: str) -> None:
    bench = Bench(tmp_path)
    before = bench.supervisor.catalog
    bench.path.write_text(text)
    error = await bench.refusal()
    assert bench.supervisor.catalog is before
    assert error.problems[0].line is not None
    assert bench.reloader.refused is not None
    assert bench.reloader.refused.problems == error.problems


async def test_a_file_that_is_gone_changes_nothing(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.path.unlink()
    assert "no such file" in (await bench.refusal()).summary
    assert bench.models == ["smol"]


async def test_a_broken_file_is_told_with_its_place_and_counted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    bench = Bench(tmp_path)
    bench.path.write_text(BROKEN)
    await bench.refusal()
    (line,) = lines(caplog)
    assert f"{bench.path}:1:10: " in line
    assert "stays as it was" in line
    assert bench.metric("corral_catalog_reloads_total", result="failure") == 1
    assert bench.metric("corral_catalog_reload_success") == 0


async def test_the_next_good_file_ends_the_complaint(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    bench = Bench(tmp_path)
    bench.path.write_text(BROKEN)
    await bench.refusal()
    bench.path.write_text(ONE)
    assert (await bench.reloader.reload("a test")).is_empty
    assert bench.reloader.refused is None
    assert bench.metric("corral_catalog_reload_success") == 1
    assert lines(caplog)[-1] == "configuration read again (a test), and sound again: nothing has changed"


async def test_it_is_known_since_when_the_file_is_broken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([500.0, 1000.0, 2000.0])
    monkeypatch.setattr(room, "time", SimpleNamespace(time=lambda: next(clock)))
    bench = Bench(tmp_path)
    bench.path.write_text(BROKEN)
    await bench.refusal()
    bench.path.write_text("still: [")
    await bench.refusal()
    assert bench.reloader.refused is not None
    assert bench.reloader.refused.since_s == 1000.0


# --- keys and limits --------------------------------------------------------------------------------------


def keyed(file: str) -> str:
    return f"keys: {{app: {{file: {file}}}}}\n" + ONE


def is_good(keys: KeyRing, key: str) -> bool:
    return keys.find({"x-api-key": key}) is not None


async def test_a_key_is_exchanged_by_an_edit_of_its_file_alone(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("old\n")
    bench = Bench(tmp_path, keyed("secret"))
    (tmp_path / "secret").write_text("new\n")
    diff = await bench.reloader.reload("a test")
    assert diff.settings == ("keys",)
    assert not is_good(bench.parts.keys, "old")
    assert is_good(bench.parts.keys, "new")


async def test_the_key_file_of_the_settings_is_read_again_too(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text("old\n")
    bench = Bench(tmp_path, api_key_file=file)
    file.write_text("old\nnew\n")
    assert (await bench.reloader.reload("a test")).settings == ("keys",)
    assert is_good(bench.parts.keys, "new")


async def test_a_key_that_cannot_be_read_refuses_the_whole_reload(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("old\n")
    bench = Bench(tmp_path, keyed("secret"))
    bench.path.write_text(keyed("lost") + "  gem: gem.gguf\n")
    assert "keys.app" in (await bench.refusal()).summary
    assert bench.models == ["smol"]
    assert is_good(bench.parts.keys, "old")
    (tmp_path / "lost").write_text("found\n")
    assert tmp_path / "lost" in bench.reloader.files, "whose appearance is an edit"
    await bench.reloader.reload("a test")
    assert bench.models == ["smol", "gem"]
    assert is_good(bench.parts.keys, "found")


async def test_a_public_address_is_never_left_without_keys(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("old\n")
    bench = Bench(tmp_path, keyed("secret"), host="0.0.0.0")
    bench.path.write_text(ONE)
    assert "without API keys" in (await bench.refusal()).summary
    assert is_good(bench.parts.keys, "old")


async def test_foreign_pages_are_refused_once_the_last_key_is_gone(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("old\n")
    bench = Bench(tmp_path, keyed("secret"), host="0.0.0.0", allow_unauthenticated=True)
    assert bench.parts.guard.has_keys
    bench.path.write_text(ONE)
    await bench.reloader.reload("a test")
    assert not bench.parts.guard.has_keys


async def test_the_memory_for_bodies_follows_the_limit_of_one(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.path.write_text("limits: {max_body_bytes: 4096}\n" + ONE)
    await bench.reloader.reload("a test")
    assert bench.parts.body_memory.max_bytes == 8 * 4096


# --- edits ------------------------------------------------------------------------------------------------


async def settle(watcher: Watcher, from_s: float) -> None:
    for step in range(4):
        await watcher.poll(from_s + step)


async def test_the_first_look_says_nothing_if_nothing_has_changed_since_the_start(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    bench = Bench(tmp_path)
    await settle(Watcher(bench.reloader), 0)
    assert bench.reloader.taken
    assert lines(caplog) == []
    assert not bench.metric("corral_catalog_reloads_total", result="success")


async def test_what_was_edited_while_the_server_started_is_found(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.path.write_text(TWO)
    await settle(Watcher(bench.reloader), 0)
    assert bench.models == ["smol", "gem"]


async def test_a_broken_file_is_complained_about_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    bench = Bench(tmp_path)
    watcher = Watcher(bench.reloader)
    await settle(watcher, 0)
    bench.path.write_text(BROKEN)
    for from_s in (10, 20, 30):
        await settle(watcher, from_s)
    assert len(lines(caplog)) == 1
    bench.path.write_text(TWO)
    await settle(watcher, 40)
    assert bench.models == ["smol", "gem"]
    assert len(lines(caplog)) == 2


async def test_an_edit_of_a_comment_is_answered_in_the_log(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    bench = Bench(tmp_path)
    watcher = Watcher(bench.reloader)
    await settle(watcher, 0)
    bench.path.write_text("# hello\n" + ONE)
    await settle(watcher, 10)
    assert lines(caplog) == ["configuration edited: nothing has changed"]


async def test_a_template_file_is_part_of_the_configuration(tmp_path: Path) -> None:
    (tmp_path / "chat.jinja").write_text("{{ messages }}")
    bench = Bench(tmp_path, "models:\n  smol: {model: smol.gguf, chat_template: chat.jinja}\n")
    watcher = Watcher(bench.reloader)
    await settle(watcher, 0)
    (tmp_path / "chat.jinja").write_text("{{ messages[0] }}")
    await settle(watcher, 10)
    assert bench.supervisor.catalog.models["smol"].chat_template == "{{ messages[0] }}"


async def test_files_that_an_edit_names_for_the_first_time_are_watched_from_then_on(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    watcher = Watcher(bench.reloader)
    await settle(watcher, 0)
    template = tmp_path / "chat.jinja"
    template.write_text("{{ messages }}")
    bench.path.write_text("models:\n  smol: {model: smol.gguf, chat_template: chat.jinja}\n")
    await settle(watcher, 10)
    template.write_text("{{ messages[0] }}")
    await settle(watcher, 20)
    assert bench.supervisor.catalog.models["smol"].chat_template == "{{ messages[0] }}"


async def test_a_new_file_in_a_served_folder_is_a_new_model(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.path.unlink()
    (tmp_path / "a.gguf").write_bytes(b"")
    bench.supervisor.catalog = load_catalog(tmp_path)
    reloader = Reloader(tmp_path, bench.parts, settings=bench.settings, environ={})
    watcher = Watcher(reloader)
    await settle(watcher, 0)
    (tmp_path / "b.gguf").write_bytes(b"")
    await settle(watcher, 10)
    assert bench.models == ["a", "b"]


async def test_a_model_becomes_available_when_its_missing_file_comes(tmp_path: Path) -> None:
    store = ModelStore(tmp_path / "cache", offline=True)
    bench = Bench(tmp_path, "models: {smol: ./smol.gguf}\n", locate=store.locate)
    assert bench.supervisor.catalog.models["smol"].problem is not None
    watcher = Watcher(bench.reloader)
    await settle(watcher, 0)
    (tmp_path / "smol.gguf").write_bytes(b"GGUF")
    await settle(watcher, 10)
    assert bench.supervisor.catalog.models["smol"].problem is None
    assert bench.looked_at == ["smol"]


# --- one after another ------------------------------------------------------------------------------------


@contextmanager
def slow_reading(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[asyncio.Event, asyncio.Event]]:
    """Hold two events: the first reading has read the file; it may go on."""
    has_read, release = asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()
    first = [True]

    def load(*arguments: Any) -> Any:
        catalog = load_catalog(*arguments)
        if first and first.pop():
            loop.call_soon_threadsafe(has_read.set)
            asyncio.run_coroutine_threadsafe(release.wait(), loop).result()
        return catalog

    monkeypatch.setattr(room, "load_catalog", load)
    yield has_read, release
    release.set()


async def test_reloads_take_turns_and_the_last_file_wins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(tmp_path)
    with slow_reading(monkeypatch) as (has_read, release):
        bench.path.write_text(TWO)
        first = asyncio.create_task(bench.reloader.reload("first"))
        await has_read.wait()
        bench.path.write_text(TWO.replace("gem:", "new:"))
        second = asyncio.create_task(bench.reloader.reload("second"))
        release.set()
        assert (await first).added == ("gem",)
        assert (await second).added == ("new",)
    assert bench.models == ["smol", "new"]


async def test_a_reload_outlives_whoever_asked_for_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(tmp_path)
    with slow_reading(monkeypatch) as (has_read, release):
        bench.path.write_text(TWO)
        asked = asyncio.create_task(bench.reloader.reload("somebody who leaves"))
        await has_read.wait()
        asked.cancel()
        await asyncio.wait({asked})
        assert bench.models == ["smol"]
        release.set()
        await bench.has_new_models.wait()
        assert bench.models == ["smol", "gem"]


async def test_nothing_is_read_any_more_while_the_server_stops(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    await bench.reloader.close()
    bench.path.write_text(TWO)
    with pytest.raises(ShuttingDown):
        await bench.reloader.reload("too late")
    await bench.reloader.take_edits()
    assert bench.models == ["smol"]


async def test_who_waits_for_a_reload_is_told_that_the_server_stops(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = Bench(tmp_path)
    with slow_reading(monkeypatch) as (has_read, release):
        bench.path.write_text(TWO)
        asked = asyncio.create_task(bench.reloader.reload("just now"))
        await has_read.wait()
        await bench.reloader.close()
        with pytest.raises(ShuttingDown):
            await asked
        release.set()
    assert bench.models == ["smol"]


async def test_names_of_a_key_that_fit_nothing_are_warned_of(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    text = f"{ONE.rstrip()}\nkeys: {{team: {{sha256: '{'0' * 64}', models: [smol, nope]}}}}\n"
    await Bench(tmp_path, text).reloader.reload("a test")
    assert lines(caplog) == ["keys.team.models[1]: fits no model and no alias, so that it allows nothing"]
