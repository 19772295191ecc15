"""llama-server's `/slots/{id}?action=…`: a slot's prompt is saved, restored or erased.

Owns its fields, its replies and the words of its refusals. Must not know where files lie or what is in a cell.
"""

from __future__ import annotations

import errno
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Literal

import orjson
from pydantic import Field, field_validator

from worker.api.body import read_object
from worker.api.fields import Fields, Whole, read_fields, wrong
from worker.api.served import Envelope, ServedModel
from worker.api.stream import data_frames, end_frame
from worker.api.usage import Totals
from worker.engine.errors import EngineStopped
from worker.engine.occupants import Client
from worker.engine.prompt_format import Foreign, Unusable
from worker.engine.saved_slots import CannotSave
from worker.engine.slot_files import NoRoomOnDisk
from worker.engine.slot_state import NoRoomInCache, NotTaken, SlotBusy, SlotEmpty
from worker.errors import CacheFull, EngineGone, RequestError

MAX_NAME_CHARS = 255
_NAME = f"a string that is not empty, of at most {MAX_NAME_CHARS} characters"

Action = Literal["save", "restore", "erase"]


class SlotError(RequestError):
    """The slot or the file is not what the client takes it for."""


class SlotIsBusy(SlotError):
    """It answers a request of the same client: later it will do."""

    status = 409
    code = "conflict"
    retry_after_s = 1.0


class NotSavedHere(SlotError):
    """This model, or this server, saves no slots."""

    status = 501
    code = "not_available_yet"


class NotOnDisk(SlotError):
    """The disk refuses the file."""

    status = 500
    code = "not_written"
    outcome = "error"


class NoDiskRoom(NotOnDisk):
    """The disk, or what is allowed of it, is full."""

    status = 507
    code = "disk_full"


class SlotFields(Fields):
    """The body that the router makes of a request to `/slots/{id}`."""

    id_slot: Whole = Field(ge=0, description="the number of a slot")
    action: Action = Field(description="save, restore or erase")
    filename: str | None = Field(None, description=_NAME)

    @field_validator("filename")
    @classmethod
    def _check_name(cls, value: str | None) -> str | None:
        if value is not None and not 0 < len(value) <= MAX_NAME_CHARS:
            raise wrong(f"must be {_NAME}")
        return value


@dataclass(frozen=True, slots=True)
class SlotJob:
    """What is to be done with a slot, and for whom."""

    id_slot: int
    action: Action
    filename: str
    client: Client


def read_slot_action(model: ServedModel, body: bytes, envelope: Envelope) -> SlotJob:
    """Return what the request asks for. Raises: RequestError."""
    fields = read_fields(SlotFields, read_object(body))
    num_slots = model.engine.facts.slots
    if model.saved_slots is None:
        raise NotSavedHere(f"The model '{model.name}' has no slots: it generates nothing.")
    if fields.id_slot >= num_slots:
        raise RequestError(
            f"Invalid slot ID: {fields.id_slot}. The model '{model.name}' has the slots 0 to {num_slots - 1}.",
            param="id_slot",
        )
    if fields.filename is None and fields.action != "erase":
        raise RequestError(
            f"'filename' is missing: it names what is to be {fields.action}d, and is any string of 1 to "
            f"{MAX_NAME_CHARS} characters.",
            param="filename",
        )
    client = Client(envelope.owner, envelope.cache_salt)
    return SlotJob(fields.id_slot, fields.action, fields.filename or "", client)


class SlotReply:
    """The answer, when it is done."""

    totals = Totals()

    def __init__(self, model: ServedModel, job: SlotJob, write: Callable[[bytes], Awaitable[None]]) -> None:
        self._model = model
        self._job = job
        self._write = write

    async def run(self) -> None:
        """It is done, and the reply with its last frame has been written. Raises: RequestError."""
        job, started_s = self._job, time.perf_counter()
        try:
            told = await self._act()
        except OSError as error:
            if isinstance(error, FileNotFoundError) and job.action == "restore":
                raise _refusal(job, error) from None
            raise _refusal_of_disk(job, error) from error
        except (Unusable, NoRoomOnDisk, MemoryError, *_WORDS) as error:
            raise _refusal(job, error) from None
        except EngineStopped:
            raise EngineGone("The engine of this model has stopped. Please try again.") from None
        took_ms = round(1e3 * (time.perf_counter() - started_s), 3)
        timings = {} if job.action == "erase" else {"timings": {f"{job.action}_ms": took_ms}}
        body = orjson.dumps({"id_slot": job.id_slot} | told | timings)
        await self._write(data_frames(body) + end_frame("ok", self.totals, []))

    async def _act(self) -> dict[str, Any]:
        job, slots = self._job, self._model.saved_slots
        assert slots is not None, "the request was read"
        match job.action:
            case "save":
                moved = await slots.save(job.id_slot, job.client, job.filename)
                return {"filename": job.filename, "n_saved": moved.num_tokens, "n_written": moved.num_bytes}
            case "restore":
                moved = await slots.restore(job.id_slot, job.client, job.filename)
                return {"filename": job.filename, "n_restored": moved.num_tokens, "n_read": moved.num_bytes}
            case "erase":
                return {"n_erased": await slots.erase(job.id_slot, job.client)}


_WORDS = (SlotBusy, SlotEmpty, NoRoomInCache, NotTaken, CannotSave)


def _refusal(job: SlotJob, error: Exception) -> RequestError:
    """Return what the client is told."""
    match error:
        case SlotBusy() | SlotEmpty() | NotTaken():
            return _refusal_of_slot(job, error)
        case FileNotFoundError() | Unusable():
            return _refusal_of_file(job, error)
        case NoRoomOnDisk():
            return NoDiskRoom(f"The slot {job.id_slot} cannot be saved: {error}.")
        case CannotSave():
            return NotSavedHere(str(error))
        case _:
            what = "is not enough memory" if isinstance(error, MemoryError) else "is no room in the cache now"
            return CacheFull(f"There {what} beside the running requests. Please try again later.")


def _refusal_of_slot(job: SlotJob, error: SlotBusy | SlotEmpty | NotTaken) -> RequestError:
    match error:
        case SlotBusy():
            return SlotIsBusy(
                f"The slot {job.id_slot} answers a request of yours: {job.action} it when that has ended.",
                param="id_slot",
            )
        case SlotEmpty():
            return SlotError(
                f"There is nothing of yours in the slot {job.id_slot} to be saved: nothing with your API key and "
                "'cache_salt' was computed in it, or it has left the cache. Replies of /completion tell their slot in "
                "'id_slot'; prompts of fewer than 16 tokens are not kept.",
                param="id_slot",
            )
        case NotTaken():
            return SlotError(f"llama.cpp could not {job.action} the state of the slot {job.id_slot}.", param="id_slot")


def _refusal_of_file(job: SlotJob, error: FileNotFoundError | Unusable) -> RequestError:
    if isinstance(error, FileNotFoundError):
        message = f"Nothing is saved as '{job.filename}' with your API key and 'cache_salt'."
    elif isinstance(error, Foreign):
        message = (
            f"What was saved as '{job.filename}' is of another model file, of other options or of another release: its "
            "prompt must be computed anew."
        )
    else:
        message = f"What was saved as '{job.filename}' cannot be used and was removed: {error}."
    return SlotError(message, param="filename")


def _refusal_of_disk(job: SlotJob, error: OSError) -> RequestError:
    reason = error.strerror or "the disk refuses it"
    if job.action == "restore":
        if error.errno == errno.ELOOP:  # a link, which leads wherever somebody likes
            return SlotError(f"What was saved as '{job.filename}' cannot be used and was removed.", param="filename")
        return NotOnDisk(f"What was saved as '{job.filename}' cannot be read: {reason}.")
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return NoDiskRoom(f"The slot {job.id_slot} cannot be saved: {reason}.")
    return NotOnDisk(f"The slot {job.id_slot} cannot be saved: {reason}.")
