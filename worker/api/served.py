"""The one model of this worker as the dialects see it, and one client request turned into tokens.

Plain data. Must not read bodies, nor talk to the engine.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from worker.api.deltas import Delta, OutputParser, PlainText, text_of
from worker.api.logprobs import PlacedPick
from worker.api.loras import AskedLora, read_lora_header
from worker.api.ports import Embedder, Engine, Vocabulary
from worker.api.usage import Totals
from worker.contract import Header, LoraFile, ModelFacts
from worker.engine.pair_prompt import PairPrompt
from worker.engine.request import FinishReason, GenerationRequest, PrefillProgress, RequestTimings
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
    allows_request_templates: bool = False
    drops_billing_header: bool = True
    """Whether the line that changes with every request is taken out of system prompts."""
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
    load_ms: int = 0
    """How long the request has waited for the model to load."""
    num_history_bytes: int = 0
    """Bytes of the body, in front of the client's, that are `history`."""
    history: bytes = b""
    """The items of the conversation that this request goes on with, as its `Formatter.stored` wrote them."""

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
            load_ms=_whole_number(headers, Header.LOAD_MS),
            num_history_bytes=_whole_number(headers, Header.HISTORY_BYTES),
        )

    def with_history(self, body: bytes) -> tuple[Envelope, bytes]:
        """Return the envelope with the stored conversation that stands in front of the client's body, and the rest."""
        if not self.num_history_bytes:
            return self, body
        num = self.num_history_bytes
        return replace(self, history=body[:num], num_history_bytes=0), body[num:]


def _whole_number(headers: Mapping[str, str], name: Header) -> int:
    text = headers.get(name, "0")
    try:
        return int(text)
    except ValueError:
        raise RequestError(
            f"The header {name} must be a whole number, not {text[:40]!r}: the router and this worker do not fit "
            "together. Are both of the same release?"
        ) from None


class Piece(NamedTuple):
    """More of one choice, as it may be shown. Of several made of the same tokens only the first has the rest.

    A tuple because there is one for every token: it is made three times as fast as a frozen dataclass.
    """

    delta: Delta
    tokens: tuple[int, ...] = ()
    """Sampled since the last piece; text that is held back comes later than its tokens."""
    picks: Sequence[PlacedPick] = ()
    """Of the tokens whose text this piece completes, if the request asks for log-probabilities."""
    totals: Totals | None = None
    """So far; only for requests that want timings with every token."""
    slot: int | None = None
    """The slot that the choice runs in."""


@dataclass(frozen=True, slots=True)
class Ending:
    """How one choice ended."""

    finish: FinishReason
    stop_string: str | None = None
    """The one that was found; None = an end token, or the length."""
    has_calls: bool = False
    tokens: tuple[int, ...] = ()
    """In a stream: those that came with no piece. Else all of the answer's."""
    picks: Sequence[PlacedPick] = ()
    """As for `tokens`."""
    slot: int | None = None
    """The slot that the choice ran in last."""
    num_tokens: int = 0
    """Tokens of this choice's answer."""
    timings: RequestTimings | None = None
    """Of this choice alone."""


@dataclass(frozen=True, slots=True)
class Answer:
    """One finished choice of a reply that is sent as a whole."""

    deltas: Sequence[Delta]
    """In order, joined where two of a kind follow each other."""
    ending: Ending

    @property
    def text(self) -> str:
        """The visible text."""
        return text_of(self.deltas)


class Formatter:
    """Turns an answer into one dialect's bytes, for one request. Streamed bytes may be joined freely.

    Each dialect has its own; what it does not override it does without.
    """

    def first(self, choice: int, totals: Totals) -> bytes:
        """Return what opens a choice; `totals` knows the prompt, and what of it was cached as soon as that is known."""
        return b""

    def progress(self, choice: int, progress: PrefillProgress) -> bytes:
        """Return what tells how far a choice's prompt is, for requests that want it; the choice is open."""
        return b""

    def piece(self, choice: int, piece: Piece) -> bytes:
        """Return one more piece of an answer."""
        raise NotImplementedError

    def last(self, choice: int, ending: Ending, totals: Totals | None) -> bytes:
        """Return what closes a choice; `totals` comes with the last choice to close."""
        raise NotImplementedError

    def closing(self, totals: Totals) -> bytes:
        """Return what ends the stream."""
        raise NotImplementedError

    def whole(self, answers: Sequence[Answer], totals: Totals) -> bytes:
        """Return the whole reply of a request that is not streamed."""
        raise NotImplementedError

    def stored(self) -> bytes | None:
        """Return what the router keeps of the finished reply, as a `STORE` frame has it; None = nothing. Asked last."""
        return None


@dataclass(frozen=True, slots=True)
class Job:
    """One client request, ready for the engine: its choices in the order of their index."""

    requests: tuple[GenerationRequest, ...]
    choices_per_prompt: int
    stop: tuple[str, ...]
    is_stream: bool
    formatter: Formatter
    parser: Callable[[], OutputParser] = PlainText
    """Makes what tells apart text, reasoning and calls in one choice."""
    stream_type: str = "text/event-stream"
    """`Content-Type` of a streamed reply."""
    min_indent: int = 0
    """An answer ends at the first line that begins with fewer blanks."""
    max_predict_s: float | None = None
    """An answer ends when it has taken longer since its first token and there is a line break in its text."""


@dataclass(frozen=True, slots=True)
class ReadyJob:
    """One client request that is answered as soon as it is read: it needs no pass of the engine."""

    body: bytes
    """The whole reply."""
    num_tokens: int = 0
    """Tokens of what was sent, for the account."""

    @property
    def is_stream(self) -> bool:
        """These replies come in one piece."""
        return False
