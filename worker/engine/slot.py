"""A place with a sequence id: at most one running sequence, and the tokens resident under that id.

Must not decide who runs; refuses illegal moves of its state.
"""

from __future__ import annotations

from worker.contract import SlotReport, SlotState
from worker.engine.batch import Chunk
from worker.engine.sequence import Sequence

TRANSITIONS: dict[SlotState, frozenset[SlotState]] = {
    SlotState.IDLE: frozenset({SlotState.STARTED}),
    SlotState.STARTED: frozenset({SlotState.PROCESSING_PROMPT, SlotState.IDLE}),
    SlotState.PROCESSING_PROMPT: frozenset({SlotState.DONE_PROMPT, SlotState.IDLE}),
    SlotState.DONE_PROMPT: frozenset({SlotState.GENERATING, SlotState.IDLE}),
    SlotState.GENERATING: frozenset({SlotState.IDLE}),
}
"""Along the states in order, or from any of them back to IDLE when the sequence ends early."""


class Slot:
    """One of the `slots` places; its id is the `seq_id` of its rows."""

    def __init__(self, slot_id: int) -> None:
        self.id = slot_id
        self.state = SlotState.IDLE
        self.sequence: Sequence | None = None

    def advance(self, new: SlotState) -> None:
        """Move to `new`. Raises: ValueError on a move that the table does not have."""
        if new not in TRANSITIONS[self.state]:
            raise ValueError(f"slot {self.id}: {self.state} -> {new} is not a legal move")
        self.state = new

    def start(self, sequence: Sequence) -> None:
        """Take the sequence. The slot was idle."""
        self.advance(SlotState.STARTED)
        self.sequence = sequence

    def next_chunk(self, num_rows: int, num_drafted: int = 0) -> Chunk:
        """Return the next pending tokens of the sequence as rows of a pass, and drafts after the last of them."""
        sequence = self.sequence
        assert sequence is not None
        if self.state is SlotState.STARTED:
            self.advance(SlotState.PROCESSING_PROMPT)
        start = sequence.num_computed
        is_sampled = num_rows == sequence.num_pending and sequence.request.max_tokens > 0
        return Chunk(
            self.id,
            sequence.request_id,
            sequence.pending(num_rows + num_drafted),
            start,
            num_outputs=1 + num_drafted if is_sampled else 0,
            num_prompt_rows=max(0, min(start + num_rows, sequence.num_prompt) - start),
        )

    def release(self) -> None:
        """Become idle; idempotent."""
        if self.state is not SlotState.IDLE:
            self.advance(SlotState.IDLE)
        self.sequence = None

    def report(self, num_resident: int) -> SlotReport:
        """Return the slot as `/slots` shows it. May be called from another thread: reads each field once."""
        sequence = self.sequence
        if sequence is None:
            return SlotReport(id=self.id, state=SlotState.IDLE, cached_tokens=num_resident)
        return SlotReport(
            id=self.id,
            state=self.state,
            request_id=sequence.request.external_id or str(sequence.request_id),
            prompt_total=sequence.num_prompt,
            prompt_processed=min(sequence.num_computed, sequence.num_prompt),
            prompt_cached=sequence.num_cached,
            generated=sequence.num_generated,
            cached_tokens=sequence.num_computed,
            first_token_at_s=sequence.first_token_at_s,
            started_at_s=sequence.admitted_at_s,
        )
