"""An embedder without a model: vectors that tell the text they were made of, and a record of what was asked."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from tests.fakes.engine import FakeEngine, make_facts

SIZE = 4
LONGEST = 16
"""Tokens of a text."""


def fake_vector(tokens: Sequence[int]) -> npt.NDArray[np.float32]:
    """Return what the fake model makes of a text; not of length 1."""
    return np.array([len(tokens), tokens[0], tokens[-1], sum(tokens) % 97], dtype=np.float32)


def unit(tokens: Sequence[int], size: int | None = None) -> list[float]:
    """Return what clients get of it: its first `size` numbers at length 1."""
    vector = fake_vector(tokens)[:size]
    return list(vector / np.linalg.norm(vector))


@dataclass
class FakeEmbedder:
    """The interface of `worker.engine.embedder.Embedder`."""

    failure: Exception | None = None
    rows: Sequence[npt.NDArray[np.float32]] | None = None
    """What is returned instead of `fake_vector` of each text."""
    is_endless: bool = False
    asked: list[list[tuple[int, ...]]] = field(default_factory=list)
    num_left: int = 0
    """Requests that were cancelled."""

    async def embed(self, documents: Sequence[Sequence[int]]) -> Sequence[npt.NDArray[np.float32]]:
        self.asked.append([tuple(document) for document in documents])
        if self.failure is not None:
            raise self.failure
        if self.is_endless:
            try:
                await asyncio.Event().wait()
            finally:
                self.num_left += 1
        return self.rows if self.rows is not None else [fake_vector(document) for document in documents]


def embedding_engine(*, pooling: str = "mean", can_generate: bool = False) -> FakeEngine:
    """Return an engine whose model embeds, or ranks."""
    facts = replace(
        make_facts(),
        can_generate=can_generate,
        pooling=pooling,
        embedding_size=SIZE,
        embedding_context=LONGEST,
    )
    return FakeEngine(facts=facts)
