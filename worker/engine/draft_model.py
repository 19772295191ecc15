"""A small model of the same vocabulary that drafts what the large one will say.

Keeps its own context in step with the slots: what is in it is compared with the sequences at every call, so that
nobody has to tell it about rejected drafts, parked or ended sequences. Must not decide how many drafts are
worth making. All methods belong to the engine thread.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence

import numpy as np

from worker.contract import EngineOptions
from worker.engine.batch import Chunk, Clear, TokenArray, Trim
from worker.engine.errors import BadModel, ForwardError, LoadFailed
from worker.engine.llama_context import LlamaContext
from worker.engine.llama_model import LlamaModel
from worker.engine.llama_params import ContextShape
from worker.engine.prefix_cache import common_prefix
from worker.engine.request import RequestId
from worker.engine.sequence import Sequence as TokenSequence
from worker.engine.vocabulary import Vocabulary

log = logging.getLogger(__name__)

MAX_ROWS = 256
"""Tokens of prompts that one step takes in: the large model waits meanwhile."""

MAX_FAILURES = 3
"""After so many failed passes in a row the model is not asked any more."""

_NO_TOKENS: TokenArray = np.empty(0, dtype=np.int32)
_WEIGHT = 0.2


class LlamaDraftModel:
    """Drafts by always taking the most likely token."""

    def __init__(self, model: LlamaModel, context: LlamaContext, clock: Callable[[], float] = time.monotonic) -> None:
        self._model = model
        self._context = context
        self._clock = clock
        self._held: dict[int, TokenArray] = {}
        """By slot: the tokens that the context holds for it."""
        self._seconds = 0.0
        self._num_failures = 0

    @classmethod
    def load(
        cls, path: str, options: EngineOptions, vocabulary: Vocabulary, *, num_threads: int = 1
    ) -> LlamaDraftModel:
        """Return the loaded draft model of a large one with `options` and `vocabulary`.

        Raises: BadModel when it cannot draft for that vocabulary; OutOfMemory.
        """
        model = LlamaModel.load(path, options)
        try:
            if not model.can_generate:
                raise BadModel("the draft model cannot generate text")
            _check_vocabulary(model.vocabulary, vocabulary)
            context = LlamaContext(model, draft_shape(options), num_threads=num_threads, flash_attn=options.flash_attn)
        except LoadFailed:
            model.close()
            raise
        if not context.can_share:
            context.close()
            model.close()
            raise BadModel("the draft model's memory cannot take back wrong drafts; use one with plain attention")
        return cls(model, context)

    @property
    def device_bytes(self) -> dict[str, dict[str, int]]:
        """What llama.cpp has allocated for it: see `LlamaModel.device_bytes`."""
        return self._model.device_bytes

    @property
    def private_bytes(self) -> int:
        """How much of it no other process could share: see `LlamaModel.private_bytes`."""
        return self._model.private_bytes

    @property
    def seconds_per_draft(self) -> float:
        """Measured seconds of one more draft for all sequences; 0 before the first."""
        return self._seconds

    def draft(self, wanted: Sequence[tuple[int, TokenSequence, int]]) -> dict[RequestId, TokenArray]:
        """Return drafts for (slot id, sequence, how many); a sequence whose prompt is not in yet gets none."""
        if self._num_failures >= MAX_FAILURES:
            return {}
        try:
            drafts = self._draft(wanted)
        except ForwardError as error:
            self._num_failures += 1
            log.warning("the draft model failed (%d of %d): %s", self._num_failures, MAX_FAILURES, error)
            for slot_id in list(self._held):
                self._context.apply(Clear(slot_id))
            self._held.clear()
            return {}
        self._num_failures = 0
        return drafts

    def _draft(self, wanted: Sequence[tuple[int, TokenSequence, int]]) -> dict[RequestId, TokenArray]:
        ready = self._catch_up(wanted)
        drafts: dict[RequestId, list[int]] = {}
        depth = 0
        while ready:
            chunks = [
                Chunk(slot_id, sequence.request_id, pending, len(self._held[slot_id]), num_outputs=1)
                for slot_id, sequence, _, pending in ready
            ]
            started_s = self._clock()
            rows = self._context.forward(chunks)
            if depth:
                seconds = self._clock() - started_s
                self._seconds += (seconds - self._seconds) * (_WEIGHT if self._seconds else 1.0)
            depth += 1
            following = []
            for (slot_id, sequence, count, pending), row in zip(ready, rows, strict=True):
                self._held[slot_id] = np.concatenate([self._held[slot_id], pending])
                token = int(row.argmax())
                drafts.setdefault(sequence.request_id, []).append(token)
                if depth < count:
                    following.append((slot_id, sequence, count, np.array([token], dtype=np.int32)))
            ready = following
        return {request_id: np.array(tokens, dtype=np.int32) for request_id, tokens in drafts.items()}

    def _catch_up(
        self, wanted: Sequence[tuple[int, TokenSequence, int]]
    ) -> list[tuple[int, TokenSequence, int, TokenArray]]:
        """Compute what the sequences have more than the context, and return those that are ready, with the last part.

        At most MAX_ROWS tokens in all: the rest of a long prompt comes with the next calls.
        """
        ready = []
        behind = []
        room = MAX_ROWS
        for slot_id, sequence, count in wanted:
            tokens = sequence.tokens
            held = self._held.get(slot_id, _NO_TOKENS)
            num_held = min(common_prefix(held, tokens), len(tokens) - 1)
            if num_held < len(held):
                self._context.apply(Trim(slot_id, num_held))
                held = held[:num_held]
            self._held[slot_id] = held
            pending = tokens[num_held : num_held + room].copy()
            room -= len(pending)
            if num_held + len(pending) == len(tokens):
                ready.append((slot_id, sequence, count, pending))
            elif len(pending):
                behind.append((slot_id, sequence, pending))
        if behind:
            self._context.forward(
                [Chunk(slot_id, s.request_id, pending, len(self._held[slot_id])) for slot_id, s, pending in behind]
            )
            for slot_id, _, pending in behind:
                self._held[slot_id] = np.concatenate([self._held[slot_id], pending])
        return ready

    def set_threads(self, num_threads: int) -> None:
        """Use so many CPU threads from the next pass on."""
        self._context.set_threads(num_threads)

    def close(self) -> None:
        """Free context and weights."""
        self._context.close()
        self._model.close()


def draft_shape(options: EngineOptions) -> ContextShape:
    """Return what the context of a draft model needs room for."""
    return ContextShape(
        num_slots=options.slots,
        num_cells=options.slots * options.context,  # nothing is shared here
        max_rows=max(MAX_ROWS, options.slots),
        max_outputs=options.slots,
    )


def _check_vocabulary(small: Vocabulary, large: Vocabulary) -> None:
    """Raises: BadModel unless the same ids mean the same text in both."""
    differs = small.num_vocab != large.num_vocab or any(
        small.piece(token, special=True) != large.piece(token, special=True)
        for token in range(0, large.num_vocab, max(1, large.num_vocab // 2000))
    )
    if differs:
        raise BadModel(
            f"the draft model has another vocabulary ({small.num_vocab} tokens) than the model it is to draft for "
            f"({large.num_vocab} tokens); choose a smaller model of the same family"
        )
