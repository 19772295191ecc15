"""The one model of this worker as the dialects see it, and one client request turned into tokens.

Plain data. Must not read bodies, nor talk to the engine.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from worker.api.answer_wishes import AnswerPlan
from worker.api.formatter import Formatter
from worker.api.loras import AskedLora, read_lora_header
from worker.api.ports import Embedder, Engine, SavedSlots, Vocabulary
from worker.api.speech import Speech
from worker.api.text_limits import TextLimits
from worker.contract import Header, LoraFile
from worker.engine.grammar import Grammars
from worker.engine.pair_prompt import PairPrompt
from worker.engine.request import GenerationRequest
from worker.errors import RequestError

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
    identity: str = ""
    """Tells apart models, options and releases: only one of the same can go on with a reply."""
    saved_slots: SavedSlots | None = None
    """Saves, restores and erases slots; None = the model has none."""
    speech: Speech = field(default_factory=Speech)
    """How answers to the model's own chat template are read."""
    grammars: Grammars = field(init=False)
    """What answers can be held to."""

    def __post_init__(self) -> None:
        special = frozenset(self.speech.markers.tokens.values()) | self.vocabulary.control_tokens
        object.__setattr__(self, "grammars", Grammars(self.vocabulary, special))

    @property
    def context(self) -> int:
        """Tokens that one request may use, prompt and answer together."""
        return min(self.engine.facts.context, self.engine.facts.kv_cells)


@dataclass(frozen=True, slots=True)
class Envelope:
    """What the router says about a request beside its body. Replies depend on the body and on this alone."""

    request_id: str = ""
    created: int = 0
    seed: int = 0
    priority: int = 0
    key_id: str = ""
    """Whose request it is; "" = there are no keys."""
    cache_salt: str = ""
    owner: str = ""
    """Tells API keys apart; "" = there are none."""
    loras: tuple[AskedLora, ...] = ()
    """Adapters of the alias that was asked for."""
    load_ms: int = 0
    """How long the request has waited for the model to load."""
    num_history_bytes: int = 0
    """Bytes of the body, in front of the client's, that are `history`."""
    num_earlier_bytes: int = 0
    """Bytes in front of that, which are `earlier`."""
    earlier: bytes = b""
    """The steps of a reply that another worker has begun, as `resuming.py` has them."""
    earlier_identity: str = ""
    """That worker's `ServedModel.identity`."""
    history: bytes = b""
    """The items of the conversation that this request goes on with, as its `Formatter.stored` wrote them."""

    @classmethod
    def from_headers(cls, headers: Mapping[str, str]) -> Envelope:
        """Return the envelope; a header that is absent counts as zero or empty.

        Raises: RequestError naming a header that is not what it should be.
        """
        return cls(
            request_id=headers.get(Header.REQUEST_ID, ""),
            created=_whole_number(headers, Header.CREATED),
            seed=_whole_number(headers, Header.SEED),
            priority=_whole_number(headers, Header.PRIORITY),
            key_id=headers.get(Header.KEY_ID, ""),
            cache_salt=headers.get(Header.CACHE_SALT, ""),
            owner=headers.get(Header.OWNER, ""),
            loras=read_lora_header(headers[Header.LORA]) if Header.LORA in headers else (),
            load_ms=_whole_number(headers, Header.LOAD_MS),
            num_history_bytes=_whole_number(headers, Header.HISTORY_BYTES),
            num_earlier_bytes=_whole_number(headers, Header.RESUME),
            earlier_identity=headers.get(Header.RESUME_OF, ""),
        )

    def unpacked(self, body: bytes) -> tuple[Envelope, bytes]:
        """Return the envelope with what stands in front of the client's body, and that body."""
        if not self.num_history_bytes and not self.num_earlier_bytes:
            return self, body
        start, end = self.num_earlier_bytes, self.num_earlier_bytes + self.num_history_bytes
        unpacked = replace(
            self, earlier=body[:start], history=body[start:end], num_earlier_bytes=0, num_history_bytes=0
        )
        return unpacked, body[end:]


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
class Job:
    """One client request, ready for the engine: its choices in the order of their index."""

    requests: tuple[GenerationRequest, ...]
    choices_per_prompt: int
    stop: tuple[str, ...]
    is_stream: bool
    formatter: Formatter
    plan: AnswerPlan = field(default_factory=AnswerPlan)
    """How answers are read, and what is checked of them."""
    stream_type: str = "text/event-stream"
    """`Content-Type` of a streamed reply."""
    limits: TextLimits = field(default_factory=TextLimits)
    """What ends an answer by its text, beside `stop`."""


@dataclass(frozen=True, slots=True)
class ReadyJob:
    """One client request that is answered as soon as it is read: it needs no pass of the engine."""

    body: bytes
    """The whole reply."""
    num_tokens: int = 0
    """Tokens of what was sent, for the account."""
