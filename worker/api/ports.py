"""What the dialects need of the engine, as protocols: they depend on no thread and no llama.cpp.

Must hold no code.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from worker.api.vectors import Vector
from worker.contract import ModelFacts
from worker.engine.occupants import Client
from worker.engine.request import GenerationRequest, Output, RequestId
from worker.engine.vocabulary import Vocabulary

__all__ = ["Embedder", "Engine", "SavedSlots", "Vocabulary"]


class Engine(Protocol):
    """Generates tokens. Every method is called from the event-loop thread."""

    @property
    def facts(self) -> ModelFacts: ...

    def submit(self, request: GenerationRequest, sink: Callable[[Output], None]) -> RequestId: ...
    def abort(self, request_id: RequestId) -> None: ...
    def finish(self, request_id: RequestId, num_tokens: int) -> None: ...


class Embedder(Protocol):
    """Pools texts. Called from the event-loop thread."""

    async def embed(self, documents: Sequence[Sequence[int]]) -> Sequence[Vector]: ...


class Moved(Protocol):
    """What went to the disk or came from it."""

    @property
    def num_tokens(self) -> int: ...
    @property
    def num_bytes(self) -> int: ...


class SavedSlots(Protocol):
    """Moves prompts between slots and the disk. Called from the event-loop thread."""

    async def save(self, slot_id: int, client: Client, name: str) -> Moved: ...
    async def restore(self, slot_id: int, client: Client, name: str) -> Moved: ...
    async def erase(self, slot_id: int, client: Client) -> int: ...
