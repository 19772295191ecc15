"""Slots of a running engine go to the disk and come back, one at a time and to the end, beside running answers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.fakes.backend import FakeBackend, expected_answer
from tests.fakes.bench import GREEDY, prompt_of
from worker.contract import EngineOptions
from worker.engine.engine import Engine
from worker.engine.errors import EngineStopped
from worker.engine.occupants import Client
from worker.engine.prompt_files import PromptFolder
from worker.engine.prompt_format import Unusable
from worker.engine.request import GenerationRequest, Output
from worker.engine.saved_slots import CannotSave, Moved, SavedSlots, saved_slots_of
from worker.engine.slot_state import NotTaken, SlotBusy, SlotEmpty

LONG = prompt_of(100)
ME = Client("key a", "salt")
NUM_VOCAB = 100_000


class Life:
    """An engine and its saved slots."""

    def __init__(self, root: Path) -> None:
        self.backend = FakeBackend(num_slots=2, num_vocab=NUM_VOCAB, context=256)
        self.backend.bytes_per_token = 8
        prompts = PromptFolder.open(root, "m", "model", 10**9)
        options = EngineOptions(context=256, slots=2)
        self.engine = Engine(self.backend, options, check_cells=True, prompts=prompts)
        self.slots = saved_slots_of(self.engine, prompts, can_share=True, disk_bytes=10**9)

    async def answer(self, prompt: list[int], *, client: Client = ME, slot: int = 0, max_tokens: int = 4) -> Output:
        """Return the last output, with all tokens of the answer."""
        ended: asyncio.Future[Output] = asyncio.get_running_loop().create_future()
        self.tokens: list[int] = []

        self.has_begun = asyncio.Event()

        def sink(output: Output) -> None:
            self.has_begun.set()
            self.tokens += output.tokens
            if output.finish is not None:
                ended.set_result(output)

        asked = GenerationRequest(
            tuple(prompt), max_tokens, GREEDY, owner=client.owner, cache_salt=client.salt, slot=slot
        )
        self.engine.submit(asked, sink)
        return await ended


@asynccontextmanager
async def life(root: Path) -> AsyncIterator[Life]:
    made = Life(root)
    made.engine.start()
    try:
        yield made
    finally:
        made.engine.stop()


def files(root: Path) -> list[Path]:
    return [path for path in root.rglob("*") if path.is_file()]


async def saved(root: Path) -> Moved:
    async with life(root) as first:
        await first.answer(LONG)
        return await first.slots.save(0, ME, "x")


async def test_another_life_goes_on_from_what_was_saved(tmp_path: Path) -> None:
    moved = await saved(tmp_path)
    (path,) = files(tmp_path)
    assert moved == Moved(103, path.stat().st_size)
    async with life(tmp_path) as second:
        assert await second.slots.restore(1, ME, "x") == moved
        prompt = [*LONG, 7]
        output = await second.answer(prompt)
        assert output.timings is not None
        assert output.timings.cached_tokens == len(LONG)
        assert second.tokens == expected_answer(prompt, 4, NUM_VOCAB, 256)
        assert second.backend.blobs == {}


async def test_a_name_of_somebody_else_is_not_there(tmp_path: Path) -> None:
    await saved(tmp_path)
    async with life(tmp_path) as second:
        for other in (Client(), Client("key b", "salt"), Client("key a")):
            with pytest.raises(FileNotFoundError):
                await second.slots.restore(0, other, "x")
        with pytest.raises(SlotEmpty):
            await second.slots.save(0, ME, "y")


async def test_a_damaged_file_is_refused_before_it_touches_the_cache(tmp_path: Path) -> None:
    await saved(tmp_path)
    (path,) = files(tmp_path)
    content = bytearray(path.read_bytes())
    content[-100] ^= 1
    path.write_bytes(content)
    async with life(tmp_path) as second:
        with pytest.raises(Unusable):
            await second.slots.restore(0, ME, "x")
        assert (second.backend.num_restored, second.backend.num_used(), second.backend.blobs) == (0, 0, {})
        await second.answer(LONG)
        assert second.tokens == expected_answer(LONG, 4, NUM_VOCAB, 256)


async def test_what_llama_cpp_does_not_take_harms_no_answer(tmp_path: Path) -> None:
    await saved(tmp_path)
    async with life(tmp_path) as second:
        second.backend.fails_to_restore = True
        with pytest.raises(NotTaken):
            await second.slots.restore(0, ME, "x")
        await second.answer(LONG)
        assert second.tokens == expected_answer(LONG, 4, NUM_VOCAB, 256)


async def test_a_slot_is_saved_and_erased_beside_running_answers(tmp_path: Path) -> None:
    async with life(tmp_path) as one:
        await one.answer(LONG)
        running = asyncio.create_task(one.answer([*LONG, 5], client=Client("key b", "salt"), slot=0, max_tokens=100))
        await asyncio.sleep(0)
        assert (await one.slots.save(0, ME, "x")).num_tokens == 103
        await one.slots.erase(0, ME)
        await running
        assert one.tokens == expected_answer([*LONG, 5], 100, NUM_VOCAB, 256)


async def test_a_slot_that_answers_its_client_is_busy(tmp_path: Path) -> None:
    async with life(tmp_path) as one:
        running = asyncio.create_task(one.answer(LONG, max_tokens=150))
        await asyncio.sleep(0)
        await one.has_begun.wait()
        with pytest.raises(SlotBusy):
            await one.slots.save(0, ME, "x")
        await running
        assert (await one.slots.save(0, ME, "x")).num_tokens > 103


async def test_a_client_that_leaves_does_not_leave_half_of_a_file(tmp_path: Path) -> None:
    async with life(tmp_path) as one:
        await one.answer(LONG)
        saving = asyncio.create_task(one.slots.save(0, ME, "x"))
        await asyncio.sleep(0)
        saving.cancel()
        with pytest.raises(asyncio.CancelledError):
            await saving
        assert (await one.slots.restore(0, ME, "x")).num_tokens == 103, "it was done before this"
        assert [path.suffix for path in files(tmp_path)] == [".slot"]


async def test_a_client_that_leaves_while_it_waits_for_others_has_nothing_saved(tmp_path: Path) -> None:
    async with life(tmp_path) as one:
        await one.answer(LONG)
        first, *waiting = (asyncio.create_task(one.slots.save(0, ME, name)) for name in "xyz")
        await asyncio.sleep(0)
        for saving in waiting:
            saving.cancel()
        assert (await first).num_tokens == 103
        assert [type(error) for error in await asyncio.gather(*waiting, return_exceptions=True)] == [
            asyncio.CancelledError
        ] * 2
        assert (await one.slots.restore(0, ME, "x")).num_tokens == 103, "and the line goes on"
        assert len(files(tmp_path)) == 1


@pytest.mark.parametrize(
    ("can_share", "disk_bytes", "told"),
    [(True, 0, "prompt_cache_disk_bytes"), (False, 0, "swa_full"), (False, 9, "cannot be cut"), (True, 9, "folder")],
)
async def test_where_nothing_can_be_saved_the_reason_is_told_and_erasing_works(
    tmp_path: Path, can_share: bool, disk_bytes: int, told: str
) -> None:
    async with life(tmp_path) as one:
        slots = saved_slots_of(one.engine, None, can_share=can_share, disk_bytes=disk_bytes)
        await one.answer(LONG)
        for act in (slots.save, slots.restore):
            with pytest.raises(CannotSave, match=told):
                await act(0, ME, "x")
        assert await slots.erase(0, ME) == 103


async def test_an_engine_that_has_stopped_is_told(tmp_path: Path) -> None:
    async with life(tmp_path) as one:
        slots: SavedSlots = one.slots
    with pytest.raises(EngineStopped):
        await slots.save(0, ME, "x")
    with pytest.raises(EngineStopped):
        await slots.erase(0, ME)
