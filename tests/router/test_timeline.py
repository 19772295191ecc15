"""The stages of a request, from what was noted while it ran."""

from __future__ import annotations

from typing import Any

from router.timeline import ANSWER, GENERATION, LOAD, PREFILL, WAIT, Stage, Timeline

TIMINGS = {"prompt_ms": 2000.0, "predicted_ms": 3000.0}
USAGE = {"prompt_tokens": 40, "completion_tokens": 9}
BY = {"corral.worker": "m/0"}


def stages(timeline: Timeline, closed_at_s: float, **known: Any) -> list[Stage]:
    return timeline.stages(closed_at_s, **({"usage": {}, "timings": {}, "first_byte_at_s": None} | known))


def spans(found: list[Stage] | tuple[Stage, ...]) -> list[tuple[str, float, float]]:
    return [(stage.name, stage.start_s, stage.end_s) for stage in found]


def granted(timeline: Timeline, at_s: float, **more: float) -> None:
    timeline.grant(at_s, BY, **more)


def test_a_request_that_never_asked_for_a_place_has_no_stages() -> None:
    assert stages(Timeline(), 5.0) == []


def test_the_workers_own_times_end_where_it_said_the_last() -> None:
    timeline = Timeline()
    timeline.ask(10.0)
    granted(timeline, 12.0)
    timeline.note_end(20.0)
    wait, answer = stages(timeline, 20.5, timings=TIMINGS, usage=USAGE)
    assert spans([wait, answer]) == [(WAIT, 10.0, 12.0), (ANSWER, 12.0, 20.5)]
    assert spans(answer.parts) == [(PREFILL, 15.0, 17.0), (GENERATION, 17.0, 20.0)]
    prefill, generation = answer.parts
    assert prefill.attributes == {"corral.measured_by": "worker", "corral.prompt_tokens": 40}
    assert generation.attributes == {"corral.measured_by": "worker", "corral.generated_tokens": 9}
    assert answer.attributes == BY


def test_a_load_lies_where_it_was_within_the_wait() -> None:
    timeline = Timeline()
    timeline.ask(10.0)
    granted(timeline, 30.0, load_s=6.0, ready_ago_s=4.0)
    wait, _ = stages(timeline, 31.0)
    assert spans([wait]) == [(WAIT, 10.0, 30.0)]
    assert spans(wait.parts) == [(LOAD, 20.0, 26.0)]


def test_no_part_lies_outside_of_what_it_is_a_part_of_whatever_other_clocks_say() -> None:
    timeline = Timeline()
    timeline.ask(10.0)
    granted(timeline, 11.0, load_s=50.0, ready_ago_s=-1.0)
    timeline.note_end(12.5)
    for stage in stages(timeline, 12.0, timings=TIMINGS):
        assert stage.parts
        for part in stage.parts:
            assert stage.start_s <= part.start_s <= part.end_s <= stage.end_s


def test_a_stream_that_broke_off_is_told_apart_by_its_first_byte() -> None:
    timeline = Timeline()
    timeline.ask(10.0)
    granted(timeline, 10.0)
    (answer,) = stages(timeline, 15.0, first_byte_at_s=13.0)
    assert spans(answer.parts) == [(PREFILL, 10.0, 13.0), (GENERATION, 13.0, 15.0)]
    assert all(part.attributes == {"corral.measured_by": "router"} for part in answer.parts)


def test_what_nobody_has_measured_is_not_told() -> None:
    timeline = Timeline()
    timeline.ask(10.0)
    granted(timeline, 11.0)
    (_, answer) = stages(timeline, 15.0)
    assert answer.parts == ()


def test_embeddings_have_a_prefill_alone() -> None:
    timeline = Timeline()
    timeline.ask(10.0)
    granted(timeline, 10.0)
    timeline.note_end(12.0)
    (answer,) = stages(timeline, 12.0, timings={"prompt_ms": 500.0, "predicted_ms": 0})
    assert spans(answer.parts) == [(PREFILL, 11.5, 12.0)]


def test_a_request_that_was_refused_in_the_line_ended_in_its_wait() -> None:
    timeline = Timeline()
    timeline.ask(10.0)
    assert stages(timeline, 40.0) == [Stage(WAIT, 10.0, 40.0, is_last=True)]


def test_each_try_has_stages_of_its_own_and_the_last_one_is_where_it_ended() -> None:
    timeline = Timeline()
    timeline.ask(10.0)
    granted(timeline, 11.0)
    timeline.ask(12.0)
    granted(timeline, 13.0)
    timeline.note_end(20.0)
    found = stages(timeline, 20.0, timings=TIMINGS)
    assert spans(found) == [(WAIT, 10.0, 11.0), (ANSWER, 11.0, 12.0), (WAIT, 12.0, 13.0), (ANSWER, 13.0, 20.0)]
    assert [stage.is_last for stage in found] == [False, False, False, True]
    assert [bool(stage.parts) for stage in found] == [False, False, False, True]
