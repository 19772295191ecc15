"""Headers of model files that have been read, so that a model's context is known without a worker.

Owns that memory. Must not fetch anything: what is not on this machine has no header yet.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from pathlib import Path
from typing import Protocol

from router.catalog import ModelSpec
from router.fetch.protocol import SourceError
from router.gguf_header import GgufError, GgufHeader, read_gguf_header
from router.references import Reference, parse_reference

logger = logging.getLogger(__name__)


class Locator(Protocol):
    """What is needed of a model store here."""

    def locate(self, reference: Reference, base_dir: Path) -> Path | None: ...


class ModelHeaders:
    """One header for each model reference."""

    def __init__(self, store: Locator) -> None:
        self._store = store
        self._known: dict[tuple[str, Path], GgufHeader] = {}

    def get(self, spec: ModelSpec) -> GgufHeader | None:
        """Return the header as it was last read; None = never."""
        return self._known.get((spec.source, spec.base_dir))

    async def read(self, spec: ModelSpec, path: Path) -> GgufHeader:
        """Return the header of `path`, the file of `spec`, and keep it. Raises: GgufError."""
        header = await asyncio.to_thread(read_gguf_header, path)
        self._known[spec.source, spec.base_dir] = header
        return header

    async def survey(self, specs: Iterable[ModelSpec]) -> None:
        """Read the headers of all models that are here and not known yet; those that cannot be read are skipped."""
        for spec in specs:
            if spec.remote is not None or self.get(spec) is not None:
                continue
            try:
                path = await asyncio.to_thread(self._store.locate, parse_reference(spec.source), spec.base_dir)
                if path is not None:
                    await self.read(spec, path)
            except (SourceError, GgufError, ValueError, OSError) as error:
                # The start of a worker meets the same error and reports it where somebody waits for it.
                logger.debug("%s: header not read: %s", spec.name, error)
