"""The drafts of all running sequences: where they come from, how good they were, and which go into the next pass.

Owns one state for each request. Pure: a draft model is asked through a protocol. Must not sample or plan.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from worker.engine.batch import Chunk, TokenArray
from worker.engine.cost import CostTable
from worker.engine.ngram import Draft, NgramIndex
from worker.engine.request import Pick, RequestId
from worker.engine.sequence import Sequence as TokenSequence
from worker.engine.speculation import Acceptance, Candidate, draft_lengths

DRAFT_MODEL = 0
"""The "size" of drafts that a draft model makes."""
FORCED = -1
"""The "size" of drafts that a constraint makes, where little else may come."""

PROBE_RATE = 0.8
PROBE_PERIOD = 32
PROBE_TOKENS = 4
"""Drafts that are as often right are tried now and then although they look too dear: the measured costs may be those
of a machine that was busy with something else, and would never be measured again."""


class DraftModel(Protocol):
    """A small model that drafts what the large one will say."""

    @property
    def seconds_per_draft(self) -> float:
        """What one more draft for all sequences costs."""
        ...

    def draft(self, wanted: Sequence[tuple[int, TokenSequence, int]]) -> Mapping[RequestId, TokenArray]:
        """Return drafts for (slot id, sequence, how many at most); none for a sequence it is not ready for."""
        ...

    def set_threads(self, num_threads: int) -> None:
        """Use so many CPU threads from the next pass on."""
        ...

    def close(self) -> None:
        """Free it."""
        ...


class Rule(Protocol):
    """What one answer is held to."""

    def forced(self, most: int) -> Sequence[int]:
        """Return tokens that are likely next because little else may come, at most so many."""
        ...

    def num_allowed(self, tokens: Sequence[int]) -> int:
        """Return how many of `tokens` may come one after another."""
        ...


Rules = Mapping[RequestId, Rule]
NO_RULES: Rules = {}


@dataclass(slots=True)
class _State:
    index: NgramIndex = field(default_factory=NgramIndex)
    acceptance: dict[int, Acceptance] = field(default_factory=dict)
    draft: Draft | None = None
    """What the next tokens are compared with, whether it is verified in the pass or not."""

    def rate(self, size: int) -> float:
        """Return how often drafts of this size are right."""
        return self.acceptance.setdefault(size, Acceptance()).rate


class Drafting:
    """Drafts for every generating sequence."""

    def __init__(self, max_each: int, max_all: int, draft_model: DraftModel | None = None) -> None:
        self._max_each = max_each
        self._max_all = max_all
        self._draft_model = draft_model
        self._states: dict[RequestId, _State] = {}
        self._num_passed_over = 0
        """Proposals in a row in which good drafts were left out."""

    def propose(
        self,
        generating: Sequence[tuple[int, TokenSequence]],
        costs: CostTable,
        *,
        max_seconds: float,
        rules: Rules = NO_RULES,
    ) -> dict[RequestId, TokenArray]:
        """Return the drafts that the next pass should verify, for (slot id, sequence) pairs that generate.

        `max_seconds` bounds the pass that they make longer; `rules` are those of constrained answers.
        """
        if not self._max_each:
            return {}
        from_text: list[tuple[TokenSequence, _State, Draft]] = []
        without: list[tuple[int, TokenSequence]] = []
        for slot_id, sequence in generating:
            state = self._states.setdefault(sequence.request_id, _State())
            state.index.extend(sequence.tokens)
            state.draft = self._from_text(state, sequence, rules.get(sequence.request_id))
            if state.draft is None:
                without.append((slot_id, sequence))
            else:
                from_text.append((sequence, state, state.draft))
        lengths = draft_lengths(
            [Candidate(state.rate(draft.size), len(draft.tokens)) for _, state, draft in from_text],
            costs,
            num_rows=len(generating),
            max_drafted=self._max_all,
            max_seconds=max_seconds,
        )
        if not any(lengths):
            lengths = self._probe([state.rate(draft.size) for _, state, draft in from_text])
        chosen = {
            sequence.request_id: draft.tokens[:length]
            for (sequence, _, draft), length in zip(from_text, lengths, strict=True)
            if length
        }
        if self._draft_model is not None and without:
            chosen |= self._ask(self._draft_model, without, costs, len(generating), sum(lengths), max_seconds)
        return chosen

    def _from_text(self, state: _State, sequence: TokenSequence, rule: Rule | None) -> Draft | None:
        """Return what the constraint forces, or else what followed before, as far as that is allowed."""
        most = self._limit(sequence)
        if rule is None or most < 1:
            return state.index.draft(sequence.tokens, most)
        if forced := rule.forced(most):
            return Draft(np.array(forced, dtype=np.int32), FORCED)
        draft = state.index.draft(sequence.tokens, most)
        if draft is None or not (num_allowed := rule.num_allowed(draft.tokens.tolist())):
            return None
        return Draft(draft.tokens[:num_allowed], draft.size)

    def _probe(self, rates: Sequence[float]) -> list[int]:
        """Return lengths by which costs are measured afresh, mostly none."""
        lengths = [0] * len(rates)
        if max(rates, default=0.0) < PROBE_RATE:
            return lengths
        self._num_passed_over += 1
        if self._num_passed_over >= PROBE_PERIOD:
            self._num_passed_over = 0
            lengths[max(range(len(rates)), key=rates.__getitem__)] = min(PROBE_TOKENS, self._max_each, self._max_all)
        return lengths

    def _ask(
        self,
        model: DraftModel,
        asked: Sequence[tuple[int, TokenSequence]],
        costs: CostTable,
        num_generating: int,
        num_drafted: int,
        max_seconds: float,
    ) -> dict[RequestId, TokenArray]:
        """Return the draft model's drafts for sequences whose text gives none."""
        states = [self._states[sequence.request_id] for _, sequence in asked]
        lengths = draft_lengths(
            [
                Candidate(state.rate(DRAFT_MODEL), self._limit(sequence))
                for state, (_, sequence) in zip(states, asked, strict=True)
            ],
            costs,
            num_rows=num_generating + num_drafted,
            num_tokens=float(num_generating),
            max_drafted=self._max_all - num_drafted,
            max_seconds=max_seconds,
            seconds_per_draft=model.seconds_per_draft / len(asked),
        )
        wanted = [(*pair, length) for pair, length in zip(asked, lengths, strict=True) if length]
        drafts = dict(model.draft(wanted)) if wanted else {}
        for request_id, tokens in drafts.items():
            self._states[request_id].draft = Draft(tokens, DRAFT_MODEL)
        return drafts

    def observe(self, chunk: Chunk, picks: Sequence[Pick]) -> None:
        """Learn from what was sampled after `chunk`."""
        state = self._states.get(chunk.request_id)
        if state is None or state.draft is None:
            return
        acceptance = state.acceptance.setdefault(state.draft.size, Acceptance())
        num_compared = max(1, len(chunk.drafts))
        for draft, pick in zip(state.draft.tokens[:num_compared], picks, strict=False):
            acceptance.observe(is_right=bool(draft == pick.token))
        state.draft = None

    def forget(self, request_id: RequestId) -> None:
        """The request has ended."""
        self._states.pop(request_id, None)

    def _limit(self, sequence: TokenSequence) -> int:
        """Return how many drafts can be of use: the token after the last right one must have room, too."""
        return min(self._max_each, sequence.num_left - 1)
