"""The one model of this worker as the dialects see it, and one client request turned into tokens.

Plain data. Must not read bodies, nor talk to the engine.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from worker.api.logprobs import PlacedPick
from worker.api.loras import AskedLora, read_lora_header
from worker.api.ports import Embedder, Engine, Vocabulary
from worker.api.usage import Totals
from worker.contract import Header, LoraFile, ModelFacts
from worker.engine.pair_prompt import PairPrompt
from worker.engine.request import FinishReason, GenerationRequest
from worker.errors import NotAvailableYet, RequestError

if TYPE_CHECKING:  # Jinja is loaded beside the weights, not before them
    from worker.chat.template import ChatTemplate


@dataclass(frozen=True, slots=True)
class ServedModel:
    """Everything about the model that a request can depend on."""

    name: str
    engine: Engine
    vocabulary: Vocabulary
    template: ChatTemplate | None = None
    template_problem: str | None = None
    """Why there is no template although the model brings one: what is wrong with it."""
    template_source: str = ""
    template_lock: threading.Lock = field(default_factory=threading.Lock)
    """Templates are rendered by one thread at a time."""
    template_kwargs: Mapping[str, Any] = field(default_factory=dict)
    max_tokens: int | None = None
    """Cap on the answer's length; None = the room left in the context."""
    loras: tuple[LoraFile, ...] = ()
    """Adapters that requests may ask for, by their place or name."""
    embedder: Embedder | None = None
    """Makes what is pooled of texts: vectors, or a reranker's scores."""
    pair_prompt: PairPrompt | None = None
    """How a reranker reads a question and a document; None = it is none."""

    @property
    def context(self) -> int:
        """Tokens that one request may use, prompt and answer together."""
        return min(self.engine.facts.context, self.engine.facts.kv_cells)


def fingerprint(facts: ModelFacts) -> str:
    """Return `system_fingerprint`: equal for every worker that has loaded the same file."""
    told = f"{facts.description}|{facts.num_params}|{facts.size_bytes}|{facts.num_vocab}"
    return f"fp_{hashlib.sha256(told.encode()).hexdigest()[:12]}"


@dataclass(frozen=True, slots=True)
class Envelope:
    """What the router says about a request beside its body. Replies depend on the body and on this alone."""

    request_id: str = ""
    created: int = 0
    seed: int = 0
    priority: int = 0
    cache_salt: str = ""
    loras: tuple[AskedLora, ...] = ()
    """Adapters of the alias that was asked for."""

    @classmethod
    def from_headers(cls, headers: Mapping[str, str]) -> Envelope:
        """Return the envelope; a header that is absent counts as zero or empty.

        Raises: NotAvailableYet when the router wants to have a broken reply continued; RequestError naming a header
        that is not what it should be.
        """
        if Header.RESUME in headers:
            raise NotAvailableYet("This worker cannot continue the reply of another one.")
        return cls(
            request_id=headers.get(Header.REQUEST_ID, ""),
            created=_whole_number(headers, Header.CREATED),
            seed=_whole_number(headers, Header.SEED),
            priority=_whole_number(headers, Header.PRIORITY),
            cache_salt=headers.get(Header.CACHE_SALT, ""),
            loras=read_lora_header(headers[Header.LORA]) if Header.LORA in headers else (),
        )


def _whole_number(headers: Mapping[str, str], name: Header) -> int:
    text = headers.get(name, "0")
    try:
        return int(text)
    except ValueError:
        raise RequestError(
            f"The header {name} must be a whole number, not {text[:40]!r}: the router and this worker do not fit "
            "together. Are both of the same release?"
        ) from None


@dataclass(frozen=True, slots=True)
class Answer:
    """One finished choice of a reply that is sent as a whole."""

    text: str
    finish: FinishReason
    picks: Sequence[PlacedPick] = ()
    """Of its tokens, if the request asks for log-probabilities."""


class Formatter(Protocol):
    """Turns text into one dialect's bytes, for one request. Streamed pieces may be joined freely.

    `picks` are those of the tokens whose text the piece completes, if the request asks for log-probabilities.
    """

    def first(self, choice: int) -> bytes:
        """Return what opens a choice."""

    def delta(self, choice: int, text: str, picks: Sequence[PlacedPick]) -> bytes:
        """Return one more piece of text."""

    def last(self, choice: int, finish: FinishReason, totals: Totals | None, picks: Sequence[PlacedPick]) -> bytes:
        """Return what closes a choice; `totals` comes with the last choice to close, `picks` are those left over."""

    def closing(self, totals: Totals) -> bytes:
        """Return what ends the stream."""

    def whole(self, answers: Sequence[Answer], totals: Totals) -> bytes:
        """Return the whole reply of a request that is not streamed."""


@dataclass(frozen=True, slots=True)
class Job:
    """One client request, ready for the engine: its choices in the order of their index."""

    requests: tuple[GenerationRequest, ...]
    choices_per_prompt: int
    stop: tuple[str, ...]
    is_stream: bool
    formatter: Formatter
