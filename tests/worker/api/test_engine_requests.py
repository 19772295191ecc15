"""Prompts and fields to what the engine is asked: order of choices, limits, what every choice shares."""

from __future__ import annotations

import pytest

from tests.fakes.engine import FakeEngine, make_facts
from worker.api.engine_requests import make_requests
from worker.api.sampling_fields import SamplingFields
from worker.api.served import Envelope, ServedModel
from worker.errors import ContextLengthExceeded

CONTEXT = 100


def served(*, max_tokens: int | None = None) -> ServedModel:
    engine = FakeEngine(facts=make_facts(context=CONTEXT))
    return ServedModel("m", engine, engine.vocabulary, max_tokens=max_tokens)


@pytest.mark.parametrize(
    ("asked", "cap", "room", "expected"),
    [(None, None, 9, 9), (None, 4, 9, 4), (5, 4, 9, 4), (5, None, 3, 3), (5, 50, 90, 5)],
)
def test_the_answer_is_as_long_as_the_request_the_model_and_the_context_allow(
    asked: int | None, cap: int | None, room: int, expected: int
) -> None:
    prompt = (1,) * (CONTEXT - room)
    made = make_requests(
        served(max_tokens=cap), Envelope(), SamplingFields(), [prompt], param="prompt", max_tokens=asked
    )
    assert [one.max_tokens for one in made] == [expected]


def test_choices_come_in_the_order_of_their_prompts_each_with_an_index_of_its_own() -> None:
    made = make_requests(served(), Envelope(), SamplingFields(), [(1,), (2,)], param="prompt", num_choices=2)
    assert [(one.prompt, one.sampling.choice) for one in made] == [((1,), 0), ((1,), 1), ((2,), 2), ((2,), 3)]


def test_a_prompt_without_room_for_an_answer_is_refused_by_the_name_of_its_field() -> None:
    with pytest.raises(ContextLengthExceeded) as caught:
        make_requests(served(), Envelope(), SamplingFields(), [(1,) * CONTEXT], param="messages")
    assert caught.value.param == "messages"
