"""`/slots` of the worker over a real socket: what reaches the slots, and how each refusal is told."""

from __future__ import annotations

import errno
import os
from dataclasses import dataclass, field
from typing import Any

import pytest

from tests.fakes.engine import FakeEngine
from tests.support.worker_client import WorkerReply, serve
from worker.contract import Header
from worker.engine.errors import EngineStopped
from worker.engine.occupants import Client
from worker.engine.prompt_format import Foreign, Unusable
from worker.engine.saved_slots import CannotSave, Moved
from worker.engine.slot_files import NoRoomOnDisk
from worker.engine.slot_state import NoRoomInCache, NotTaken, SlotBusy, SlotEmpty


@dataclass
class FakeSlots:
    """Records what is asked; fails if it is told to."""

    error: Exception | None = None
    asked: list[tuple[Any, ...]] = field(default_factory=list)

    async def save(self, slot_id: int, client: Client, name: str) -> Moved:
        return self._answer("save", slot_id, client, name)

    async def restore(self, slot_id: int, client: Client, name: str) -> Moved:
        return self._answer("restore", slot_id, client, name)

    async def erase(self, slot_id: int, client: Client) -> int:
        return self._answer("erase", slot_id, client).num_tokens

    def _answer(self, *asked: Any) -> Moved:
        self.asked.append(asked)
        if self.error is not None:
            raise self.error
        return Moved(84, 14309)


async def ask(slots: FakeSlots | None, action: str, id_slot: Any = 1, **fields: Any) -> WorkerReply:
    async with serve(FakeEngine(), saved_slots=slots) as worker:
        worker.headers = {**worker.headers, Header.OWNER: "key a"}
        return await worker.post("/slots", {"id_slot": id_slot, "action": action, **fields})


@pytest.mark.parametrize(
    ("action", "told", "timing"),
    [
        ("save", {"filename": "../x", "n_saved": 84, "n_written": 14309}, "save_ms"),
        ("restore", {"filename": "../x", "n_restored": 84, "n_read": 14309}, "restore_ms"),
    ],
)
async def test_what_was_moved_is_told_in_llama_servers_words(action: str, told: dict[str, Any], timing: str) -> None:
    slots = FakeSlots()
    reply = await ask(slots, action, filename="../x")
    body = reply.json
    assert list(body.pop("timings")) == [timing]
    assert body == {"id_slot": 1, **told}
    assert slots.asked == [(action, 1, Client("key a", "salt"), "../x")]
    assert reply.end["outcome"] == "ok"


async def test_what_was_erased_is_told(tmp_path: object) -> None:
    slots = FakeSlots()
    assert (await ask(slots, "erase")).json == {"id_slot": 1, "n_erased": 84}
    assert slots.asked == [("erase", 1, Client("key a", "salt"))]


@pytest.mark.parametrize(
    ("fields", "param", "told"),
    [
        ({"action": "save"}, "filename", "missing"),
        ({"action": "restore", "filename": None}, "filename", "missing"),
        ({"action": "save", "filename": ""}, "filename", "255"),
        ({"action": "save", "filename": "x" * 256}, "filename", "255"),
        ({"action": "save", "filename": 5}, "filename", "string"),
        ({"action": "save", "filename": ["x"]}, "filename", "string"),
        ({"action": "dance"}, "action", "erase"),
        ({"action": "erase", "id_slot": -1}, "id_slot", "number"),
        ({"action": "erase", "id_slot": 99}, "id_slot", "Invalid slot ID"),
        ({"action": "erase", "id_slot": "0"}, "id_slot", "number"),
    ],
)
async def test_a_wrong_field_is_named(fields: dict[str, Any], param: str, told: str) -> None:
    slots = FakeSlots()
    error = (await ask(slots, **fields)).error
    assert (error.status, error.param, slots.asked) == (400, param, [])
    assert told in error.message


@pytest.mark.parametrize(
    ("error", "status", "told"),
    [
        (SlotBusy(), 409, "when that has ended"),
        (SlotEmpty(), 400, "nothing of yours in the slot 1"),
        (NotTaken(), 400, "llama.cpp"),
        (FileNotFoundError(2, "No such file", "/secret/path"), 500, "No such file"),
        (Foreign("it is of another model"), 400, "of another model file"),
        (Unusable("it is not complete"), 400, "was removed: it is not complete"),
        (NoRoomOnDisk("it has 9 bytes"), 507, "it has 9 bytes"),
        (NoRoomInCache(), 503, "room in the cache"),
        (MemoryError(), 503, "memory"),
        (CannotSave("set `prompt_cache_disk_bytes`"), 501, "`prompt_cache_disk_bytes`"),
        (EngineStopped(), 503, "stopped"),
        (OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "/secret/path"), 507, os.strerror(errno.ENOSPC)),
        (OSError(errno.EFBIG, os.strerror(errno.EFBIG), "/secret/path"), 507, os.strerror(errno.EFBIG)),
        (PermissionError(errno.EACCES, os.strerror(errno.EACCES), "/secret/path"), 500, os.strerror(errno.EACCES)),
    ],
)
async def test_each_refusal_has_its_status_and_its_words(error: Exception, status: int, told: str) -> None:
    reply = await ask(FakeSlots(error), "save", filename="x")
    assert reply.error.status == status
    assert told in reply.error.message
    assert "secret" not in reply.error.message
    assert reply.end["outcome"] == ("error" if status in (500, 503, 507) else "rejected")


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (FileNotFoundError(errno.ENOENT, "No such file", "/secret/path"), 400),
        (OSError(errno.ELOOP, "Too many levels of symbolic links", "/secret"), 400),
        (OSError(errno.EIO, "I/O"), 500),
    ],
)
async def test_a_file_that_cannot_be_read_is_told_without_its_path(error: OSError, status: int) -> None:
    reply = await ask(FakeSlots(error), "restore", filename="x")
    assert (reply.error.status, "secret" in reply.error.message) == (status, False)


async def test_a_model_that_generates_nothing_has_no_slots() -> None:
    assert (await ask(None, "erase")).error.status == 501
