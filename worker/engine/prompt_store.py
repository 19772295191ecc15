"""Brings finished prompts from the engine to the disk and back.

Decides what is worth its bytes and its seconds. Must not know what files look like (`prompt_format.py`), nor when a
worker leaves. Everything but the making of it happens on the engine's thread.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
from typing import Protocol

from worker.engine.batch import Fetch, Forget, KvOp, Restore, Save
from worker.engine.kv_store import KvStore
from worker.engine.prefix_cache import Holder
from worker.engine.prompt_files import PromptFolder
from worker.engine.prompt_format import Bytes, PromptFile

log = logging.getLogger(__name__)

MIN_STORED = 64
"""A prompt of fewer tokens is computed again as fast as it is read."""

ASSUMED_BYTES_PER_S = 500e6
"""Until a file has been written that tells more."""
TELLING_BYTES = 8_000_000


class Blobs(Protocol):
    """What is needed of a backend."""

    @property
    def bytes_per_token(self) -> int: ...
    def apply(self, op: KvOp) -> bool: ...
    def blob(self, blob_id: int) -> Bytes | None: ...
    def put_blob(self, blob_id: int, data: Bytes) -> None: ...


class PromptStore:
    """One engine's prompts on the disk."""

    def __init__(self, folder: PromptFolder, kv: KvStore, backend: Blobs, clock: Callable[[], float]) -> None:
        self._folder = folder
        self._kv = kv
        self._backend = backend
        self._clock = clock
        self._files: dict[int, PromptFile] = {}
        """By the ids of their blobs."""
        self._fetched: set[int] = set()
        now_s, now_at = clock(), time.time()
        for file in folder.files:
            self._files[kv.offer(file.tokens, file.salt, now_s - max(0.0, now_at - file.used_at))] = file

    # --- back -------------------------------------------------------------------------------------------

    def fetch(self, blob_id: int) -> bool:
        """Have the blob's bytes in host memory; False if they cannot be had or believed."""
        self._fetched.discard(blob_id)
        data = self._folder.read(self._files[blob_id])
        if data is None:
            return False
        self._fetched.add(blob_id)
        self._backend.put_blob(blob_id, data)
        return True

    def note_failed(self, failed: Iterable[KvOp | Fetch]) -> None:
        """What llama.cpp could not read is not offered again."""
        for op in failed:
            if isinstance(op, Restore) and op.blob_id in self._fetched:
                self._discard(op.blob_id, "llama.cpp does not take it")

    def distrust(self) -> None:
        """Numbers that are not finite may have come from the disk: what was read is not read again."""
        for blob_id in list(self._fetched):
            self._discard(blob_id, "numbers that are not finite turned up after it was used")

    def _discard(self, blob_id: int, why: str) -> None:
        self._fetched.discard(blob_id)
        self._folder.discard(self._files[blob_id], why)

    # --- there ------------------------------------------------------------------------------------------

    def save(self, until_s: float) -> None:
        """The prompts used last are on the disk, as far as its limit and the time allow. No operation is pending."""
        started_s = self._clock()
        saving = _Saving(self._folder, self._backend, self._kv.temporary_blob(), until_s, self._clock)
        try:
            self._folder.prepare()
            for holder in self._kv.cache.worth_keeping():
                if self._clock() > until_s:
                    break
                if len(holder.tokens) >= MIN_STORED:
                    saving.keep(holder, time.time() - max(0.0, started_s - holder.last_used_s))
        except OSError as error:
            log.warning("prompts cannot be kept on the disk: %s", error)
        if saving.num_prompts or saving.num_left_out:
            log.info(
                "prompts kept on the disk: %d, %d tokens; %.1f MB written in %.3f s%s",
                saving.num_prompts,
                saving.num_tokens,
                saving.num_written / 1e6,
                self._clock() - started_s,
                f"; {saving.num_left_out} left out for want of time or room" if saving.num_left_out else "",
            )


class _Saving:
    """One way of all prompts to the disk."""

    def __init__(
        self, folder: PromptFolder, backend: Blobs, spare_blob: int, until_s: float, clock: Callable[[], float]
    ) -> None:
        self._folder = folder
        self._backend = backend
        self._spare_blob = spare_blob
        self._until_s = until_s
        self._clock = clock
        self._bytes_per_s = ASSUMED_BYTES_PER_S
        self.num_prompts = self.num_tokens = self.num_written = self.num_left_out = 0

    def keep(self, holder: Holder, used_at: float) -> None:
        """The holder's prompt is on the disk, or counted as left out. Raises: OSError."""
        tokens, salt = holder.tokens, holder.salt
        if self._folder.has(tokens, salt):
            self._folder.touch(tokens, salt, used_at)
        elif holder.is_stored:  # its file has gone meanwhile
            return
        elif not self._write(holder, used_at):
            self.num_left_out += 1
            return
        self.num_prompts += 1
        self.num_tokens += len(tokens)

    def _write(self, holder: Holder, used_at: float) -> bool:
        started_s = self._clock()
        expected = len(holder.tokens) * self._backend.bytes_per_token
        if started_s + expected / self._bytes_per_s > self._until_s or not self._folder.make_room(expected, used_at):
            return False
        is_copied = holder.seq_id is not None and self._backend.apply(Save(holder.seq_id, self._spare_blob))
        data = self._backend.blob(self._spare_blob if is_copied else holder.blob_id or 0)
        try:
            if data is None:
                return False
            num_bytes = self._folder.write(holder.tokens, holder.salt, data, used_at=used_at, until_s=self._until_s)
        finally:
            if is_copied:
                self._backend.apply(Forget(self._spare_blob))
        if num_bytes >= TELLING_BYTES:
            self._bytes_per_s = num_bytes / max(1e-6, self._clock() - started_s)
        self.num_written += num_bytes
        return num_bytes > 0
