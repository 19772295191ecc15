"""Prompts and fields to what the engine is asked: order of choices, limits, what every choice shares."""

from __future__ import annotations

from typing import Any

import pytest

from tests.fakes.engine import FakeEngine, make_facts
from worker.api.engine_requests import make_requests
from worker.api.fields import read_fields
from worker.api.sampling_fields import SamplingFields
from worker.api.served import Envelope, ServedModel
from worker.contract import Header
from worker.engine.request import GenerationRequest
from worker.errors import ContextLengthExceeded, RequestError

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


def make(body: dict[str, Any], *, max_tokens: int | None = None) -> GenerationRequest:
    fields = read_fields(SamplingFields, body)
    [made] = make_requests(served(), Envelope(), fields, [(1,)], param="prompt", max_tokens=max_tokens)
    return made


def test_wishes_beside_the_sampling_reach_the_engine() -> None:
    made = make({"min_tokens": 3, "id_slot": 2, "return_progress": True, "timings_per_token": True})
    assert (made.min_tokens, made.slot, made.wants_progress, made.wants_timings) == (3, 2, True, True)


@pytest.mark.parametrize("body", [{}, {"id_slot": -1}, {"id_slot": None, "min_tokens": None, "return_progress": None}])
def test_without_wishes_any_slot_will_do_and_nothing_is_told(body: dict[str, Any]) -> None:
    made = make(body)
    assert (made.min_tokens, made.slot, made.wants_progress, made.wants_timings) == (0, None, False, False)


@pytest.mark.parametrize("id_slot", [4, 10**12])
def test_slot_that_the_model_lacks_is_refused_with_those_that_it_has(id_slot: int) -> None:
    with pytest.raises(RequestError, match=f"'id_slot' is {id_slot}, .* slots 0 to 3") as caught:
        make({"id_slot": id_slot})
    assert (caught.value.status, caught.value.param) == (400, "id_slot")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("id_slot", -2),
        ("id_slot", "0"),
        ("min_tokens", -1),
        ("min_tokens", 1.5),
        ("t_max_predict_ms", -2),
        ("return_progress", 1),
        ("timings_per_token", "yes"),
    ],
)
def test_wish_of_a_wrong_kind_is_refused_by_name(name: str, value: object) -> None:
    with pytest.raises(RequestError) as caught:
        make({name: value})
    assert (caught.value.status, caught.value.param) == (400, name)


def test_answer_of_no_token_can_be_asked_for() -> None:
    assert make({}, max_tokens=0).max_tokens == 0


@pytest.mark.parametrize(("ms", "seconds"), [(None, None), (-1, None), (0, None), (1, 0.001), (1500, 1.5)])
def test_time_limit_is_in_milliseconds_and_off_unless_positive(ms: int | None, seconds: float | None) -> None:
    assert read_fields(SamplingFields, {"t_max_predict_ms": ms}).max_predict_s == seconds


def test_the_router_tells_whose_a_request_is() -> None:
    envelope = Envelope.from_headers({Header.KEY_ID: "team"})
    [made] = make_requests(served(), envelope, SamplingFields(), [(1,)], param="prompt")
    assert made.key == "team"
    assert make({}).key == ""
