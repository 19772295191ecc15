"""The files of one worker: found on this machine or brought here, and checked.

Owns how far a download is and what is said about it. Must not start processes, nor know where files come from
(`sources.py` does).
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from router.catalog import ModelSpec
from router.fetch.protocol import FetchProgress, SourceError
from router.file_names import all_parts
from router.fleet_log import fields
from router.gguf_header import GgufError, GgufHeader, read_gguf_header
from router.lora_files import check_lora, lora_error, lora_reference
from router.model_headers import Locator, ModelHeaders
from router.reasons import gigabytes
from router.references import Reference, parse_reference

logger = logging.getLogger(__name__)

_FETCH_LOG_EVERY_S = 10.0


class ModelFiles(Locator, Protocol):
    """What is needed of a model store here."""

    def may_download(self, reference: Reference) -> bool: ...

    async def fetch(
        self, reference: Reference, base_dir: Path, on_progress: Callable[[FetchProgress], None]
    ) -> Path: ...


@dataclass(frozen=True, slots=True)
class WorkerFiles:
    """What a worker loads, all of it on this machine."""

    path: Path
    header: GgufHeader
    lora_paths: tuple[Path, ...]
    """In the order of the model's adapters."""
    draft_path: Path | None = None

    @property
    def all_paths(self) -> tuple[Path, ...]:
        """Everything that is read, in the order of reading."""
        parts = tuple(self.path.with_name(name) for name in all_parts(self.path.name))
        return parts + self.lora_paths + (() if self.draft_path is None else (self.draft_path,))

    def describe(self) -> str:
        """Return the words for the log."""
        header = self.header
        parts = f" in {header.split_count} files" if header.split_count > 1 else ""
        count = len(self.lora_paths)
        adapters = "" if not count else ", 1 LoRA adapter" if count == 1 else f", {count} LoRA adapters"
        return f"{self.path.name}, {gigabytes(header.size_bytes)}{parts}{adapters}"


class Delivery:
    """The files of one worker on their way."""

    def __init__(
        self, spec: ModelSpec, store: ModelFiles, headers: ModelHeaders, on_progress: Callable[[], None]
    ) -> None:
        """`on_progress` is called whenever a download has moved on."""
        self.progress: FetchProgress | None = None
        """Of the download that runs now."""
        self.seconds: float | None = None
        """Until the last download was done; None = everything was here."""
        self._spec = spec
        self._store = store
        self._headers = headers
        self._on_progress = on_progress
        self._began_at_s = time.monotonic()
        self._logged_at_s = -float("inf")

    async def bring(self) -> WorkerFiles:
        """Return the files of the model and its adapters. Raises: SourceError, GgufError."""
        spec = self._spec
        try:
            reference = parse_reference(spec.source)
        except ValueError as error:
            raise SourceError(str(error), is_permanent=True) from None
        path = await self._bring_one(reference)
        header = await self._headers.read(spec, path)
        lora_paths = []
        for lora in spec.loras:
            try:
                lora_path = await self._bring_one(lora_reference(lora))
            except SourceError as error:
                raise lora_error(lora, error) from None
            await asyncio.to_thread(check_lora, lora, lora_path, header)
            lora_paths.append(lora_path)
        return WorkerFiles(path, header, tuple(lora_paths), await self._bring_draft())

    async def _bring_draft(self) -> Path | None:
        """Return the draft model's file, if there is one. Raises: SourceError that names it."""
        if self._spec.draft_source is None:
            return None
        try:
            path = await self._bring_one(parse_reference(self._spec.draft_source))
            await asyncio.to_thread(read_gguf_header, path)
        except SourceError as error:
            message = f"draft model: {error.message}"
            raise SourceError(message, is_permanent=error.is_permanent, details=error.details) from None
        except (ValueError, GgufError, OSError) as error:
            raise SourceError(f"draft model: {error}", is_permanent=True) from None
        return path

    async def _bring_one(self, reference: Reference) -> Path:
        """Return a file, after fetching it if need be. Raises: SourceError."""
        store, base_dir, model = self._store, self._spec.base_dir, self._spec.name
        path = await asyncio.to_thread(store.locate, reference, base_dir)
        if path is not None:
            return path
        if store.may_download(reference):
            logger.info("%s: fetching %s", model, reference.short(), extra=fields(model, "downloading"))
        try:
            path = await store.fetch(reference, base_dir, self._note)
        finally:
            self.progress = None
        self.seconds = time.monotonic() - self._began_at_s
        self._on_progress()
        return path

    def _note(self, progress: FetchProgress) -> None:
        self.progress = progress
        self._on_progress()
        now_s = time.monotonic()
        if now_s - self._logged_at_s >= _FETCH_LOG_EVERY_S and progress.total_bytes:
            self._logged_at_s = now_s
            model = self._spec.name
            logger.info("%s: %s", model, progress.text, extra=fields(model, "downloading"))
