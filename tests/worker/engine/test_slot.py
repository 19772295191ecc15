"""A slot goes through its states in order, and reports what it holds."""

from __future__ import annotations

import itertools

import pytest

from worker.contract import SlotState
from worker.engine.request import GenerationRequest, RequestId
from worker.engine.sequence import Sequence
from worker.engine.slot import TRANSITIONS, Slot

ORDER = (
    SlotState.IDLE,
    SlotState.STARTED,
    SlotState.PROCESSING_PROMPT,
    SlotState.DONE_PROMPT,
    SlotState.GENERATING,
)


def sequence(*prompt: int, external_id: str = "") -> Sequence:
    return Sequence(RequestId(7), GenerationRequest(prompt, 5, external_id=external_id), submitted_at_s=1.0)


def slot_in(state: SlotState) -> Slot:
    slot = Slot(2)
    if state is not SlotState.IDLE:
        slot.start(sequence(1, 2, 3))
        for passed in ORDER[2 : ORDER.index(state) + 1]:
            slot.advance(passed)
    return slot


def test_states_follow_each_other_in_order_and_end_idle_from_anywhere() -> None:
    assert set(TRANSITIONS) == set(SlotState)
    for state, following in itertools.pairwise((*ORDER, SlotState.IDLE)):
        wanted = {following} if state is SlotState.IDLE else {following, SlotState.IDLE}
        assert TRANSITIONS[state] == wanted


@pytest.mark.parametrize(("old", "new"), list(itertools.product(SlotState, SlotState)))
def test_slot_refuses_every_move_that_is_not_in_the_table(old: SlotState, new: SlotState) -> None:
    slot = slot_in(old)
    assert slot.state is old
    if new in TRANSITIONS[old]:
        slot.advance(new)
        assert slot.state is new
    else:
        with pytest.raises(ValueError, match=rf"slot 2: {old} -> {new}"):
            slot.advance(new)
        assert slot.state is old


def test_slot_takes_one_sequence_at_a_time() -> None:
    slot = slot_in(SlotState.GENERATING)
    running = slot.sequence
    with pytest.raises(ValueError, match="not a legal move"):
        slot.start(sequence(9))
    assert slot.sequence is running


@pytest.mark.parametrize("state", SlotState)
def test_released_slot_is_idle_and_empty_whatever_it_did(state: SlotState) -> None:
    slot = slot_in(state)
    slot.release()
    slot.release()
    assert (slot.state, slot.sequence) == (SlotState.IDLE, None)


def test_report_of_an_idle_slot_tells_what_is_left_in_it() -> None:
    report = Slot(3).report(num_resident=40)
    assert (report.id, report.state, report.cached_tokens, report.request_id) == (3, SlotState.IDLE, 40, None)


def test_report_counts_prompt_and_answer_apart() -> None:
    slot = Slot(0)
    running = sequence(1, 2, 3, external_id="req-1")
    slot.start(running)
    running.num_computed, running.num_cached, running.admitted_at_s = 2, 1, 4.5
    report = slot.report(num_resident=2)
    assert (report.request_id, report.prompt_total, report.prompt_processed, report.prompt_cached) == ("req-1", 3, 2, 1)
    assert (report.generated, report.started_at_s) == (0, 4.5)
    running.num_computed = 3
    running.append(8, now_s=5.0)
    running.num_computed = 4
    report = slot.report(num_resident=4)
    assert (report.prompt_processed, report.generated, report.cached_tokens) == (3, 1, 4)


def test_request_without_a_name_of_its_own_is_shown_by_its_number() -> None:
    slot = Slot(0)
    slot.start(sequence(1))
    assert slot.report(0).request_id == "7"
