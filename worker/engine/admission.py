"""The rules by which waiting sequences get a slot and prefills get rows: pure functions on sequences.

Must not hold state or order anything: the scheduler asks and acts.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping

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
    """Sort key of one key's line: priority, then age, where later choices of one request count as submitted later."""
    rounds = sequence.request.sampling.choice // num_slots
    return -sequence.request.priority, sequence.submitted_at_s + TURN_S * rounds, sequence.request_id


def admission_turns(waiting: Iterable[Sequence], num_running: Mapping[str, int], num_slots: int) -> Iterator[Sequence]:
    """Yield those that wait: by priority, then of the key that has the fewest slots, then by age.

    `num_running` has the slots of each key, and may change between two turns.
    """
    lines: dict[str, deque[Sequence]] = {}
    for sequence in sorted(waiting, key=lambda s: admission_order(s, num_slots)):
        lines.setdefault(sequence.request.key, deque()).append(sequence)

    def turn(key: str) -> tuple[int, int, tuple[int, float, int]]:
        order = admission_order(lines[key][0], num_slots)
        return order[0], num_running.get(key, 0), order

    while lines:
        key = min(lines, key=turn)
        yield lines[key].popleft()
        if not lines[key]:
            del lines[key]


def parking_order(running: Iterable[Sequence]) -> Callable[[Sequence], tuple[int, int, float, int]]:
    """Return the sort key by which sequences make room for others: lower priority, more slots of the key, younger.

    The oldest of all never goes while another one runs, so that somebody always comes on.
    """
    num_running = Counter(sequence.request.key for sequence in running)
    return lambda s: (s.request.priority, -num_running[s.request.key], -s.submitted_at_s, -s.request_id)


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


def prefill_line(prefilling: Iterable[Sequence], now_s: float) -> list[Sequence]:
    """Return the prefills in the order in which they get rows: by `prefill_order`, but no key's second one before
    the first one of another key."""
    ordered = sorted(prefilling, key=lambda s: prefill_order(s, now_s))
    num_before: Counter[tuple[int, str]] = Counter()
    ranked: list[tuple[int, int, Sequence]] = []
    for sequence in ordered:
        whose = sequence.request.priority, sequence.request.key
        ranked.append((-sequence.request.priority, num_before[whose], sequence))
        num_before[whose] += 1
    return [sequence for *_, sequence in sorted(ranked, key=lambda one: one[:2])]
