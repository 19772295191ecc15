"""One request on its way: its tokens, and how many of them have been computed.

There is no prefill or generation phase: `num_computed` catches up with `num_tokens`. Must not know slots (it only
keeps the number of its own), cells or text.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from worker.engine.batch import TokenArray
from worker.engine.request import GenerationRequest, PrefillProgress, RequestId, RequestTimings


class Sequence:
    """Mutable state of one request, prompt and answer in one array."""

    def __init__(self, request_id: RequestId, request: GenerationRequest, submitted_at_s: float) -> None:
        self.request_id = request_id
        self.request = request
        self.num_prompt = len(request.prompt)
        self._tokens = np.empty(self.num_prompt + request.max_tokens, dtype=np.int32)
        self._tokens[: self.num_prompt] = request.prompt
        self.num_tokens = self.num_prompt
        self._earlier = None if request.earlier is None else request.earlier.timings
        if request.earlier is not None:
            self.num_tokens += len(request.earlier.tokens)
            self._tokens[self.num_prompt : self.num_tokens] = request.earlier.tokens
        self.num_computed = 0
        self.num_cached = 0
        """Tokens of the prompt that were reused when the sequence was first admitted."""
        self.num_drafted = 0
        self.num_accepted = 0
        self.slot_id: int | None = None
        """Where it runs, or ran last."""
        self.submitted_at_s = submitted_at_s
        self.admitted_at_s: float | None = None
        self.first_token_at_s: float | None = None
        self.last_token_at_s: float | None = None

    @property
    def tokens(self) -> TokenArray:
        """Prompt and answer so far. Shape: (num_tokens,); a view."""
        return self._tokens[: self.num_tokens]

    @property
    def num_pending(self) -> int:
        """Tokens that still have to go through the model: 1 when generating, more in prefill."""
        return self.num_tokens - self.num_computed

    @property
    def num_generated(self) -> int:
        """Tokens of the answer."""
        return self.num_tokens - self.num_prompt

    @property
    def is_prefilling(self) -> bool:
        """Whether more than the newest token is pending."""
        return self.num_pending > 1 or self.num_generated == 0

    @property
    def is_continued(self) -> bool:
        """Whether another worker has begun the answer."""
        return self._earlier is not None

    @property
    def cache_key(self) -> str:
        """Only sequences of equal key can share cells: same tenant, same adapters."""
        request = self.request
        return f"{request.adapters}{request.cache_salt}" if request.adapters else request.cache_salt

    @property
    def num_left(self) -> int:
        """Tokens that may still be generated."""
        return len(self._tokens) - self.num_tokens

    def pending(self, num_rows: int) -> TokenArray:
        """Return the next `num_rows` tokens to compute, drafts included; a view."""
        return self._tokens[self.num_computed : self.num_computed + num_rows]

    def draft(self, tokens: TokenArray) -> None:
        """Write drafts behind the tokens, to be verified by the next pass."""
        self._tokens[self.num_tokens : self.num_tokens + len(tokens)] = tokens

    def tokens_with(self, num_drafted: int) -> TokenArray:
        """Return the tokens and the first so many drafts, which have turned out right; a view."""
        return self._tokens[: self.num_tokens + num_drafted]

    def append(self, token: int, now_s: float) -> None:
        """Add a sampled token."""
        self._tokens[self.num_tokens] = token
        self.num_tokens += 1
        if self.first_token_at_s is None:
            self.first_token_at_s = now_s
        self.last_token_at_s = now_s

    def timings(self, now_s: float, num_generated: int | None = None) -> RequestTimings:
        """Return where the time went so far."""
        admitted = self.admitted_at_s if self.admitted_at_s is not None else now_s
        first = self.first_token_at_s if self.first_token_at_s is not None else now_s
        last = self.last_token_at_s if self.last_token_at_s is not None else first
        earlier, num_generated = self._earlier, self.num_generated if num_generated is None else num_generated
        if earlier is not None:  # that the beginning was computed once more is no part of the answer's time
            return replace(
                earlier,
                generation_s=earlier.generation_s + last - first,
                generated_tokens=num_generated,
                drafted_tokens=earlier.drafted_tokens + self.num_drafted,
                accepted_tokens=earlier.accepted_tokens + self.num_accepted,
            )
        return RequestTimings(
            queue_s=admitted - self.submitted_at_s,
            prompt_s=first - admitted,
            generation_s=last - first,
            prompt_tokens=self.num_prompt,
            cached_tokens=self.num_cached,
            generated_tokens=num_generated,
            drafted_tokens=self.num_drafted,
            accepted_tokens=self.num_accepted,
        )

    def progress(self, now_s: float) -> PrefillProgress:
        """Return how far the prompt is; one that lost its cells does not fall below what was reused."""
        admitted = self.admitted_at_s if self.admitted_at_s is not None else now_s
        return PrefillProgress(
            total_tokens=self.num_prompt,
            cached_tokens=self.num_cached,
            processed_tokens=min(max(self.num_computed, self.num_cached), self.num_prompt),
            elapsed_s=now_s - admitted,
        )
