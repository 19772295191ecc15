"""Texts of concurrent requests through common pooled passes, beside running answers.

Lives on the event loop; each pass is one errand of the engine's thread, so that a running answer waits for one pass
at most between two tokens. Must not decide which texts share a pass (`embedding_batches.py`) nor touch llama.cpp.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from worker.engine.embedding_batches import DocumentLine
from worker.engine.errors import BackendFailed
from worker.engine.pooling import Piece, PoolingShape

T = TypeVar("T")
Tokens = npt.NDArray[np.int32]
Vector = npt.NDArray[np.float32]

TARGET_GAP_S = 0.15
"""How long a pass beside running answers may take unless configured: each waits that much longer for its next token."""
MIN_ROWS = 16
"""Rows of a pass beside running answers at least: fewer would cost nearly the same time."""
GUESSED_ROW_S = 0.005
"""Time of a row before any was measured."""
MAX_FAILURES = 3
"""So many failed passes in a row mean that the backend is broken."""


class Errands(Protocol):
    """What is needed of the engine."""

    @property
    def is_generating(self) -> bool:
        """Whether any request is running or waits for a slot."""
        ...

    def call(self, work: Callable[[], T]) -> asyncio.Future[T]:
        """Run `work` on the engine's thread between two passes. Raises: EngineStopped."""
        ...

    def observe_pooled(self, num_rows: int, seconds: float) -> None:
        """Count a pass; called on the engine's thread."""
        ...


class PooledPasses(Protocol):
    """What is needed of the backend; used on the engine's thread alone."""

    @property
    def shape(self) -> PoolingShape:
        """What a pass may hold."""
        ...

    def open(self) -> None:
        """Passes can be made. Idempotent. Raises: LoadFailed."""
        ...

    def forward(self, pieces: Sequence[Piece], *, is_last: bool = True) -> Vector:
        """Return a row of numbers for each piece."""
        ...


@dataclass(slots=True)
class _Request:
    documents: Sequence[Tokens]
    done: asyncio.Future[None]
    results: dict[int, Vector] = field(default_factory=dict)


class Embedder:
    """Collects texts while a pass runs. All methods are called from the event-loop thread."""

    def __init__(
        self,
        engine: Errands,
        passes: PooledPasses,
        *,
        target_gap_ms: float | None = None,
        on_failure: Callable[[BaseException], None] | None = None,
    ) -> None:
        self.shape = passes.shape
        self._on_failure = on_failure
        self._num_failures = 0
        self._engine = engine
        self._passes = passes
        self._target_gap_s = TARGET_GAP_S if target_gap_ms is None else target_gap_ms / 1000
        self._line = DocumentLine(max_documents=self.shape.max_documents)
        self._requests: dict[int, _Request] = {}
        self._ids = itertools.count(1)
        self._working: asyncio.Task[None] | None = None
        self._row_s = GUESSED_ROW_S

    @property
    def has_work(self) -> bool:
        """Whether anybody waits for a result."""
        return bool(self._requests)

    async def embed(self, documents: Sequence[Sequence[int]]) -> list[Vector]:
        """Return what is pooled of each text, in their order, not normalised.

        Leaving early takes the texts that have had no pass yet out of the line.
        Raises: EngineStopped, ForwardError, LoadFailed; ValueError for a text that is empty or too long for this model.
        """
        for index, document in enumerate(documents):
            if not 0 < len(document) <= self.shape.max_document:
                raise ValueError(f"text {index} has {len(document)} tokens, allowed are 1 to {self.shape.max_document}")
        if not documents:
            return []
        request_id = next(self._ids)
        arrays = [np.asarray(document, dtype=np.int32) for document in documents]
        request = _Request(arrays, asyncio.get_running_loop().create_future())
        self._requests[request_id] = request
        self._line.add(request_id, [len(array) for array in arrays])
        if self._working is None or self._working.done():
            self._working = asyncio.create_task(self._work(), name="embeddings")
        try:
            await request.done
        finally:
            self._line.drop(request_id)
            del self._requests[request_id]
        return [request.results[index] for index in range(len(documents))]

    async def _work(self) -> None:
        """Return when nobody waits any more."""
        while not self._line.is_empty:
            places = self._line.take(self._max_rows())
            owners = {place.request: self._requests[place.request] for place in places}
            try:
                documents = [owners[place.request].documents[place.index] for place in places]
                rows = await self._run(documents, owners[places[0].request])
            except Exception as error:  # noqa: BLE001 - it belongs to whoever waits for the results
                self._note_failure(error)
                for request_id, owner in owners.items():
                    self._line.drop(request_id)
                    if not owner.done.done():
                        owner.done.set_exception(error)
                continue
            self._num_failures = 0
            if rows is None:  # whoever asked has left in the middle of a long text
                continue
            for place, row in zip(places, rows, strict=True):
                owner = owners[place.request]
                owner.results[place.index] = row
                if len(owner.results) == len(owner.documents) and not owner.done.done():
                    owner.done.set_result(None)

    def _note_failure(self, error: Exception) -> None:
        if isinstance(error, BackendFailed):
            self._num_failures += 1
            if self._num_failures == MAX_FAILURES and self._on_failure is not None:
                self._on_failure(error)

    async def _run(self, documents: Sequence[Tokens], owner: _Request) -> Vector | None:
        """Return the pooled rows of texts that share a pass; a single long one, of `owner`, takes several."""
        if len(documents) == 1 and self.shape.is_divisible:
            return await self._run_alone(documents[0], owner)
        return await self._engine.call(partial(self._forward, [Piece(document) for document in documents]))

    async def _run_alone(self, document: Tokens, owner: _Request) -> Vector | None:
        """Return the row of a text that is computed piece by piece; None once nobody waits for it."""
        start = 0
        while not owner.done.done():
            piece = Piece(document[start : start + self._max_rows()], start)
            start += len(piece.tokens)
            is_last = start == len(document)
            rows = await self._engine.call(partial(self._forward, [piece], is_last=is_last))
            if is_last:
                return rows
        return None

    def _forward(self, pieces: Sequence[Piece], *, is_last: bool = True) -> Vector:
        """Run one pass and note what it took. On the engine's thread."""
        self._passes.open()
        started_s = time.monotonic()
        rows = self._passes.forward(pieces, is_last=is_last)
        seconds = time.monotonic() - started_s
        num_rows = sum(len(piece.tokens) for piece in pieces)
        self._engine.observe_pooled(num_rows, seconds)
        self._row_s += 0.3 * (seconds / num_rows - self._row_s)
        return rows

    def _max_rows(self) -> int:
        """Return how many rows the next pass may have."""
        if not self._engine.is_generating:
            return self.shape.usual_rows
        return min(self.shape.usual_rows, max(MIN_ROWS, int(self._target_gap_s / self._row_s)))
