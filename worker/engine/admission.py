"""The rules by which waiting sequences get a slot and prefills get rows: pure functions on sequences.

Must not hold state or order anything: the scheduler asks and acts.
"""

from __future__ import annotations

from collections.abc import Iterable

from worker.engine.prefix_cache import Match, common_prefix
from worker.engine.sequence import Sequence

RESERVED_ANSWER = 256
"""Tokens of an answer that admission keeps free; the rest is claimed as it grows."""

LEADER_MARGIN = 16
"""A request waits for a running prefill if that will give it at least that many more tokens than it finds now."""

AGEING_S = 4.0
"""A prefill that has run for so long goes before shorter ones."""


TURN_S = 2.0
"""What a request with many choices yields to others for each further round of slots that its choices fill."""


def admission_order(sequence: Sequence, num_slots: int) -> tuple[int, float, int]:
    """Sort key of the line: priority, then age, where later choices of one request count as submitted later."""
    rounds = sequence.request.sampling.choice // num_slots
    return -sequence.request.priority, sequence.submitted_at_s + TURN_S * rounds, sequence.request_id


def has_leader(sequence: Sequence, match: Match | None, running: Iterable[Sequence]) -> bool:
    """Whether a running prefill is about to compute much of what this sequence would compute itself.

    The wait is bounded: a leader holds a slot and advances, or goes, and then this is asked again.
    """
    if not sequence.request.cache_prompt:
        return False
    found = match.num_tokens if match else 0
    tokens = sequence.tokens[:-1]
    return any(
        leader.is_prefilling
        and leader.request.cache_prompt
        and leader.cache_key == sequence.cache_key
        and common_prefix(leader.tokens, tokens) >= found + LEADER_MARGIN
        for leader in running
    )


def outstanding(sequence: Sequence, num_shared: int, running: Iterable[Sequence]) -> int:
    """Return how many cells the running sequences and this one will surely take beyond what they have."""
    return claim(sequence, num_shared) + sum(claim(s, s.num_computed) for s in running)


def claim(sequence: Sequence, num_computed: int) -> int:
    """Return how many more cells the sequence will surely need, its answer counted up to a limit."""
    answer = min(sequence.request.max_tokens, RESERVED_ANSWER)
    return max(0, max(sequence.num_prompt + answer, sequence.num_tokens + 1) - num_computed)


def prefill_order(sequence: Sequence, now_s: float) -> tuple[int, bool, float, float]:
    """Sort key: priority, then those that have run long, by age; then the shortest remaining prompt."""
    admitted_s = sequence.admitted_at_s if sequence.admitted_at_s is not None else now_s
    is_old = now_s - admitted_s > AGEING_S
    return (
        -sequence.request.priority,
        not is_old,
        admitted_s if is_old else float(sequence.num_pending),
        admitted_s,
    )
