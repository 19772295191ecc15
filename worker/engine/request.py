"""What a client asks of the engine and what the engine answers, in tokens.

Plain frozen data; must not know text, JSON or llama.cpp.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NewType

from worker.engine.constraint import MakeConstraint

RequestId = NewType("RequestId", int)
"""Given by `Engine.submit`; unique within the process."""


SamplerState = tuple[float, ...]
"""What samplers with a memory remember."""

AdapterSet = tuple[tuple[int, float], ...]
"""LoRA adapters in use: (index in the model's list, scale), ordered by index, no scale of 0."""


@dataclass(frozen=True, slots=True)
class Pick:
    """One sampled token and, where the request asks for them, log-probabilities."""

    token: int
    logprob: float | None = None
    top: tuple[tuple[int, float], ...] = ()
    """The most likely tokens with theirs, best first."""
    is_last: bool = False
    """Nothing can follow: the answer's constraint is fulfilled."""


class SamplerKind(StrEnum):
    """The samplers, by llama-server's names."""

    PENALTIES = "penalties"
    DRY = "dry"
    TOP_N_SIGMA = "top_n_sigma"
    TOP_K = "top_k"
    TYPICAL_P = "typ_p"
    TOP_P = "top_p"
    MIN_P = "min_p"
    XTC = "xtc"
    TEMPERATURE = "temperature"
    INFILL = "infill"
    """For filling in the middle; behind top-k and top-p."""
    ADAPTIVE_P = "adaptive_p"
    """Draws the token itself: it always comes last, wherever it stands."""


DEFAULT_SAMPLERS = (
    SamplerKind.PENALTIES,
    SamplerKind.DRY,
    SamplerKind.TOP_N_SIGMA,
    SamplerKind.TOP_K,
    SamplerKind.TYPICAL_P,
    SamplerKind.TOP_P,
    SamplerKind.MIN_P,
    SamplerKind.XTC,
    SamplerKind.TEMPERATURE,
)

Breakers = Mapping[int, tuple[tuple[int, ...], ...]]
"""Where DRY's repetitions end: a token, and what may follow it to make it a breaker; `()` if it is one alone."""


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How to pick a token from a row of logits. Defaults are llama-server's."""

    temperature: float = 0.8
    """0 = greedy."""
    dynatemp_range: float = 0.0
    """The temperature lies within so much of `temperature`, by the entropy; 0 = off."""
    dynatemp_exponent: float = 1.0
    top_k: int = 40
    """0 = off."""
    top_p: float = 0.95
    min_p: float = 0.05
    typical_p: float = 1.0
    """1 = off."""
    top_n_sigma: float = -1.0
    """0 or less = off."""
    xtc_probability: float = 0.0
    """0 = off."""
    xtc_threshold: float = 0.1
    """More than 0.5 = off."""
    min_keep: int = 0
    """So many tokens are left by typical-p, top-p, min-p and XTC, if there are so many."""
    dry_multiplier: float = 0.0
    """0 = off."""
    dry_base: float = 1.75
    dry_allowed_length: int = 2
    dry_penalty_last_n: int = 64
    """Tokens that DRY looks back on; 0 = none, -1 = the whole context."""
    dry_breakers: Breakers = field(default_factory=dict, hash=False)
    mirostat: int = 0
    """1 or 2: temperature, then this version of Mirostat, and no other sampler. 0 = off."""
    mirostat_tau: float = 5.0
    mirostat_eta: float = 0.1
    adaptive_target: float = -1.0
    """Less than 0 = off, and so is a chain without this sampler."""
    adaptive_decay: float = 0.9
    samplers: tuple[SamplerKind, ...] = DEFAULT_SAMPLERS
    """Which samplers work, and in which order."""
    repeat_penalty: float = 1.0
    repeat_last_n: int = 64
    """Tokens that the penalties look back on; 0 = none, -1 = the whole context."""
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    """(token id, added logit); -inf bans a token. Comes before all samplers."""
    ignore_eos: bool = False
    """End tokens are never sampled."""
    seed: int = 0
    """Unsigned 64 bits: together with the choice it keys a counter-based generator."""
    choice: int = 0


@dataclass(frozen=True, slots=True)
class Earlier:
    """What another worker has done of an answer already."""

    tokens: tuple[int, ...]
    """The beginning of the answer, at least one."""
    timings: RequestTimings
    sampler_state: SamplerState = ()
    """As the last output with tokens told it."""


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """One sequence to generate. Checked against the engine's facts before it is submitted."""

    prompt: tuple[int, ...]
    """Token ids, at least one."""
    max_tokens: int
    """Already clipped to the room in the context. 0 = the prompt is computed and kept, and nothing is sampled."""
    sampling: SamplingParams = field(default_factory=SamplingParams)
    external_id: str = ""
    """The client-visible request id, for `/slots`."""
    priority: int = 0
    cache_prompt: bool = True
    """May reuse tokens that are resident from earlier requests, and leave its own for later ones."""
    cache_salt: str = ""
    """Only requests of equal salt share cached prefixes."""
    owner: str = ""
    """Tells apart who may save and erase what it leaves; "" = everybody may."""
    num_logprobs: int | None = None
    """How many of the most likely tokens come with each token of the answer; 0 = only its own; None = nothing."""
    post_sampling_logprobs: bool = False
    """Of the distribution that was drawn from, instead of the model's own."""
    adapters: AdapterSet = ()
    itl_target_ms: float | None = None
    """Longest gap between two tokens that prompts of others may cause while this runs; None = the model's."""
    reproducible: bool = False
    """The same tokens whatever else runs and whatever is cached."""
    min_tokens: int = 0
    """No end token is sampled before so many tokens of the answer."""
    slot: int | None = None
    """Wanted slot: taken if it is free, else any; a cached prefix is found from every slot, unless the memory is
    recurrent: then it stays where it is."""
    wants_progress: bool = False
    """Outputs tell how far the prompt is."""
    wants_timings: bool = False
    """Every output has `timings`, not only the first and the last."""
    constraint: MakeConstraint | None = field(default=None, compare=False)
    """Makes what the answer is held to; None = nothing."""
    earlier: Earlier | None = field(default=None, compare=False)
    """The answer goes on behind this; None = it begins."""
    key: str = ""
    """Whose it is: of those who wait, a key with fewer slots goes first. "" = there are no keys."""


class FinishReason(StrEnum):
    """Why a sequence ended."""

    STOP = "stop"
    """An end token, or a stop string that the text side found."""
    LENGTH = "length"
    """`max_tokens` or the context is used up."""
    ABORT = "abort"
    """The client left."""
    ERROR = "error"
    """The engine could not go on with this sequence."""


@dataclass(frozen=True, slots=True)
class RequestTimings:
    """Where the time went. Seconds of wall time, tokens as counts."""

    queue_s: float = 0.0
    prompt_s: float = 0.0
    """From the slot to the first sampled token."""
    generation_s: float = 0.0
    """From the first sampled token to the last."""
    prompt_tokens: int = 0
    cached_tokens: int = 0
    """Of the prompt, reused instead of computed."""
    generated_tokens: int = 0
    drafted_tokens: int = 0
    """Guessed ahead and verified beside the sampled ones."""
    accepted_tokens: int = 0
    """Of the drafted ones, those that were right."""


@dataclass(frozen=True, slots=True)
class PrefillProgress:
    """How far a prompt is."""

    total_tokens: int
    cached_tokens: int
    """Reused instead of computed."""
    processed_tokens: int
    """Reused or computed."""
    elapsed_s: float
    """Since the request got a slot."""


@dataclass(frozen=True, slots=True)
class Output:
    """What one step brought for one request: new tokens, its end, or both."""

    request_id: RequestId
    tokens: tuple[int, ...] = ()
    """Sampled tokens in order; an end token is not among them."""
    num_generated: int = 0
    """Tokens generated so far, these included."""
    finish: FinishReason | None = None
    timings: RequestTimings | None = None
    """Set together with `finish`, and with the first token."""
    error: str | None = None
    """Set when `finish` is ERROR."""
    picks: tuple[Pick, ...] = ()
    """One for each of `tokens` if the request asked for log-probabilities, else none."""
    progress: PrefillProgress | None = None
    """Set while the prompt is computed, if the request wants it."""
    slot: int | None = None
    """The slot that it runs in; set together with `timings`."""
    sampler_state: SamplerState = ()
    """After `tokens`; () if the request's samplers remember nothing."""
    is_continued: bool = False
    """Another worker has begun the answer, and counted its prompt and first token."""
