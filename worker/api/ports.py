"""What the dialects need of the engine, as protocols: they depend on no thread, no numpy and no llama.cpp.

Must hold no code.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from worker.contract import ModelFacts
from worker.engine.request import GenerationRequest, Output, RequestId


class Vocabulary(Protocol):
    """Text to tokens and back. Thread-safe."""

    @property
    def num_vocab(self) -> int: ...
    @property
    def bos(self) -> int | None: ...
    @property
    def add_bos(self) -> bool: ...
    @property
    def bos_text(self) -> str: ...
    @property
    def eos_text(self) -> str: ...
    @property
    def control_texts(self) -> Sequence[str]: ...
    @property
    def chat_template(self) -> str | None: ...
    @property
    def sampling_defaults(self) -> Mapping[str, Any]: ...

    def tokenize(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]: ...
    def piece(self, token: int, *, special: bool = False) -> bytes: ...


class Engine(Protocol):
    """Generates tokens. Every method is called from the event-loop thread."""

    @property
    def facts(self) -> ModelFacts: ...

    def submit(self, request: GenerationRequest, sink: Callable[[Output], None]) -> RequestId: ...
    def abort(self, request_id: RequestId) -> None: ...
    def finish(self, request_id: RequestId, num_tokens: int) -> None: ...
