"""Conversations with secret markers on a backend that says aloud which markers it finds in a sequence's cells.

A marker is a token that one conversation alone has in its prompts. Every other token of an answer is a marker out of
the cells that the answer was computed from, or a hash of all of them: a cell of somebody else's cannot stay unheard.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from tests.fakes.backend import END, FakeBackend, computed_with
from tests.fakes.rules import Law
from worker.engine.batch import KvOp, Restore, Share, TokenArray, Trim
from worker.engine.cost import CostTable
from worker.engine.drafting import NO_RULES, Drafting, Rules
from worker.engine.request import AdapterSet, RequestId
from worker.engine.sequence import Sequence as TokenSequence

NUM_VOCAB = 4096
FIRST_MARKER = 3072
NUM_WORDS = 2900
"""Words are the tokens from 1 to here; the end token is one in so many answers' tokens."""
POISON = 3000
"""llama.cpp refuses a pass with this token."""
FOUL = 3001
"""What is computed of this token is not finite."""
CONTEXT = 160


def spoken(cells: Sequence[int]) -> int:
    """Return the token that follows these cells: a marker that is in them, or a word that depends on all of them."""
    digest = hashlib.blake2b(np.asarray(cells, dtype=np.int64).tobytes(), digest_size=16).digest()
    kind, number = digest[0] % 2, int.from_bytes(digest[8:], "little")
    markers = [cell % 2**20 for cell in cells if cell % 2**20 >= FIRST_MARKER]
    return markers[number % len(markers)] if kind and markers else number % NUM_WORDS


def lone_answer(prompt: Sequence[int], max_tokens: int, adapters: AdapterSet, law: Law | None) -> list[int]:
    """Return the answer of a greedy request that is alone in the world, without any engine."""
    answer: list[int] = []
    while len(answer) < max_tokens and len(prompt) + len(answer) < CONTEXT:
        best = spoken([computed_with(token, adapters) for token in [*prompt, *answer]])
        allowed = None if law is None else law.after(answer)
        if isinstance(allowed, int):
            best = allowed
        elif allowed is not None and best not in allowed:
            best = min(allowed)  # all others are equally likely: greedy takes the first
        if best == END:
            break
        answer.append(best)
        if law is not None and law.is_over(answer):
            break
    return answer


class SpeakingBackend(FakeBackend):
    """Has, on demand, the faults that a real cache could have."""

    def __init__(self, *, num_slots: int = 4, num_cells: int | None = None) -> None:
        super().__init__(num_vocab=NUM_VOCAB, num_slots=num_slots, context=CONTEXT, num_cells=num_cells)
        self.poisoned_token = POISON
        self.foul_token = FOUL
        self.bytes_per_token = 8
        self.fault = ""
        """`share-wrong`: the last shared cell is another sequence's. `share-more`: one cell more is shared.
        `trim-less`: one cell too many is kept. `restore-wrong`: another blob's tokens come back."""
        self.num_faults = 0
        """How often it has really gone wrong."""

    def apply(self, op: KvOp) -> bool:
        match op, self.fault:
            case Trim(seq_id, num_tokens), "trim-less" if num_tokens < self.num_cached(seq_id):
                self.num_faults += 1
                op = Trim(seq_id, num_tokens + 1)
            case Share(src, dst, num_tokens), "share-more" if num_tokens < self.num_cached(src):
                self.num_faults += 1
                op = Share(src, dst, num_tokens + 1)
            case Restore(blob_id, seq_id, num_tokens), "restore-wrong":
                room = self.num_cells - len(self._cell_owners)
                fitting = (other for other, held in self.blobs.items() if num_tokens <= len(held) <= room)
                other = next((one for one in fitting if self.blobs[one][:num_tokens] != self.blobs[blob_id]), blob_id)
                self.num_faults += other != blob_id
                op = Restore(other, seq_id, num_tokens)
        done = super().apply(op)
        match op, self.fault:
            case Share(src, dst, num_tokens), "share-wrong":
                strangers = [rows[-1] for seq_id, rows in self._rows.items() if rows and seq_id not in (src, dst)]
                if strangers and self._rows[dst]:
                    self.num_faults += 1
                    self._swap_last(dst, strangers[-1])
        return done

    def _swap_last(self, seq_id: int, cell: int) -> None:
        rows = self._rows[seq_id]
        kept = len(rows) - 1
        self._disown(seq_id, kept)
        self._rows[seq_id] = [*rows[:kept], cell]
        self._cell_owners[cell].add(seq_id)

    def _logits(self, seq_id: int) -> npt.NDArray[np.float32]:
        row = super()._logits(seq_id)
        if np.isfinite(row).all():
            row[:] = 0.0
            row[spoken(self.tokens_of(seq_id))] = 60.0
        return row


class Guesses(Drafting):
    """Drafts what will be said, with somebody else's marker in between now and then."""

    def __init__(self, markers: Sequence[int]) -> None:
        super().__init__(3, 9)
        self._markers = markers

    def propose(
        self,
        generating: Sequence[tuple[int, TokenSequence]],
        costs: CostTable,
        *,
        max_seconds: float,
        rules: Rules = NO_RULES,
    ) -> dict[RequestId, TokenArray]:
        drafts = {}
        for slot_id, sequence in generating:
            tokens = sequence.tokens.tolist()
            for _ in range(3):
                tokens.append(spoken([computed_with(token, sequence.request.adapters) for token in tokens]))
            if len(tokens) % 3 == 0:
                tokens[-1 - len(tokens) % 2] = self._markers[(len(tokens) + slot_id) % len(self._markers)]
            drafts[sequence.request_id] = np.array(tokens[sequence.num_tokens :], dtype=np.int32)
        return drafts


class WordsOnly(Law):
    """A law that allows words alone where it allows not everything: no marker is ever asked for."""

    def after(self, answer: Sequence[int]) -> frozenset[int] | int | None:
        allowed = super().after(answer)
        if allowed is None:
            return None
        return allowed % NUM_WORDS if isinstance(allowed, int) else frozenset(one % NUM_WORDS for one in allowed)
