"""What one request may wish of the engine beside its sampling: a slot, progress, timings, no answer, a least length."""

from __future__ import annotations

import itertools

import pytest

from tests.fakes.backend import END, FakeBackend, next_token
from tests.fakes.bench import GREEDY, Bench, prompt_of
from tests.fakes.drafts import OftenRight
from worker.contract import SlotState
from worker.engine.request import FinishReason, Output, PrefillProgress, RequestId, SamplingParams

LARGE = 100_000
"""So many tokens of a vocabulary hardly ever end an answer."""


def outputs_of(bench: Bench, request_id: RequestId) -> list[Output]:
    """Run to the end and return what the request got."""
    got = []
    while bench.core.has_work:
        got += [output for output in bench.step() if output.request_id == request_id]
    return got


def timed(output: Output) -> tuple[int | None, int]:
    assert output.timings is not None
    return output.slot, output.timings.cached_tokens


# --- no answer --------------------------------------------------------------------------------------------


def test_a_request_for_no_token_computes_its_prompt_and_samples_nothing() -> None:
    bench = Bench(FakeBackend(num_vocab=LARGE))
    [only] = outputs_of(bench, bench.submit(prompt_of(40), 0))
    assert (only.tokens, only.num_generated, only.finish) == ((), 0, FinishReason.LENGTH)
    assert only.timings is not None
    assert (only.timings.prompt_tokens, only.timings.generated_tokens, only.timings.generation_s) == (40, 0, 0.0)
    assert only.timings.prompt_s > 0
    assert only.slot == 0
    assert set(bench.states()) == {SlotState.IDLE}


def test_the_prompt_of_a_request_for_no_token_is_there_for_the_next_one() -> None:
    bench = Bench(FakeBackend(num_vocab=LARGE))
    bench.submit(prompt_of(40), 0)
    bench.run()
    second = bench.submit([*prompt_of(40), 5], 3)
    bench.run()
    assert timed(bench.ends[second])[1] == 40
    assert bench.answers[second] == bench.expected([*prompt_of(40), 5], 3)


def test_a_request_for_no_token_runs_beside_others_and_changes_nothing_for_them() -> None:
    bench = Bench(FakeBackend(num_slots=3, num_vocab=LARGE))
    first = bench.submit(prompt_of(20), 12)
    for _ in range(4):
        bench.step()
    nothing = bench.submit(prompt_of(50, start=3), 0)
    last = bench.submit(prompt_of(30, start=5), 6)
    bench.run()
    assert bench.answers[nothing] == []
    assert bench.answers[first] == bench.expected(prompt_of(20), 12)
    assert bench.answers[last] == bench.expected(prompt_of(30, start=5), 6)


def test_a_request_for_no_token_survives_a_failed_pass() -> None:
    bench = Bench(FakeBackend(num_vocab=LARGE))
    request_id = bench.submit(prompt_of(40), 0)
    bench.backend.failures = [1, -2, 2]
    bench.run()
    assert bench.ends[request_id].finish is FinishReason.LENGTH


def test_a_request_for_no_token_is_counted_but_not_as_a_first_token() -> None:
    bench = Bench(FakeBackend(num_vocab=LARGE))
    bench.submit(prompt_of(40), 0)
    bench.run()
    bench.submit(prompt_of(40), 0)
    bench.run()
    counters = bench.core.statistics.counters()
    assert (counters.finished, counters.generated_tokens, counters.drafted_tokens) == (2, 0, 0)
    assert counters.prompt_tokens_computed + counters.prompt_tokens_cached == 80
    assert sum(bench.core.statistics.histograms()["time_to_first_token_seconds"].counts) == 0


# --- a slot -----------------------------------------------------------------------------------------------


def test_a_free_slot_is_taken_that_the_request_asks_for() -> None:
    bench = Bench(FakeBackend(num_slots=4, num_vocab=LARGE))
    for slot in (2, 2, 0, 3):
        first, *_, last = outputs_of(bench, bench.submit(prompt_of(20, start=slot), 3, slot=slot))
        assert (timed(first)[0], timed(last)[0]) == (slot, slot)


def test_a_request_for_another_slot_finds_what_an_earlier_one_has_computed() -> None:
    bench = Bench(FakeBackend(num_slots=2, num_vocab=LARGE))
    found = []
    for slot in (0, 0, 1):
        request_id = bench.submit(prompt_of(40), 3, slot=slot)
        bench.run()
        found.append(timed(bench.ends[request_id]))
    assert found == [(0, 0), (0, 39), (1, 39)]


def test_a_request_whose_slot_is_busy_takes_another_one_at_once() -> None:
    bench = Bench(FakeBackend(num_slots=2, num_vocab=LARGE))
    long = bench.submit(prompt_of(20), 50, slot=1)
    for _ in range(3):
        bench.step()
    short = bench.submit(prompt_of(20, start=4), 2, slot=1)
    bench.run()
    assert list(bench.ends) == [short, long]
    assert (timed(bench.ends[short])[0], timed(bench.ends[long])[0]) == (0, 1)


def test_a_number_that_no_slot_has_means_any() -> None:
    bench = Bench(FakeBackend(num_slots=2, num_vocab=LARGE))
    request_id = bench.submit(prompt_of(20), 2, slot=7)
    bench.run()
    assert timed(bench.ends[request_id])[0] == 0


def test_where_prefixes_cannot_move_the_slot_goes_before_what_another_one_has() -> None:
    bench = Bench(FakeBackend(num_slots=2, num_vocab=LARGE, can_share=False))
    found = []
    for prompt, slot in ((prompt_of(40), 0), (prompt_of(60), 1), (prompt_of(80), 0)):
        request_id = bench.submit(prompt, 1, slot=slot)
        bench.run()
        assert bench.answers[request_id] == bench.expected(prompt, 1)
        found.append(timed(bench.ends[request_id]))
    assert found == [(0, 0), (1, 0), (0, 40)]


def test_an_answer_that_the_text_ends_and_one_that_fails_tell_their_slot_too() -> None:
    bench = Bench(FakeBackend(num_slots=2, num_vocab=LARGE))
    stopped, failed = bench.submit(prompt_of(20), 50, slot=1), bench.submit(prompt_of(20, start=2), 50, slot=0)
    for _ in range(5):
        bench.step()
    end = bench.core.finish(stopped, 1)
    assert end is not None
    assert (end.slot, bench.core.scheduler.fail(failed, "broken", 9.0).slot) == (1, 0)


# --- progress and timings ---------------------------------------------------------------------------------


def test_progress_comes_after_each_pass_over_the_prompt_and_ends_at_its_length() -> None:
    bench = Bench(FakeBackend(num_vocab=LARGE), max_rows=16)
    outputs = outputs_of(bench, bench.submit(prompt_of(40), 3, wants_progress=True))
    told = [output.progress for output in outputs]
    assert told[:3] == [
        PrefillProgress(40, 0, 16, 0.0),
        PrefillProgress(40, 0, 32, 1.0),
        PrefillProgress(40, 0, 40, 2.0),
    ]
    assert told[3:] == [None, None]
    assert [output.tokens != () for output in outputs] == [False, False, True, True, True]


def test_progress_counts_what_was_reused() -> None:
    bench = Bench(FakeBackend(num_vocab=LARGE), max_rows=16)
    bench.submit(prompt_of(30), 0)
    bench.run()
    outputs = outputs_of(bench, bench.submit([*prompt_of(30), *prompt_of(20, start=9)], 1, wants_progress=True))
    told = [(one.cached_tokens, one.processed_tokens) for output in outputs if (one := output.progress)]
    assert told == [(30, 46), (30, 50)]


def test_progress_of_a_request_for_no_token_comes_with_its_end_at_last() -> None:
    bench = Bench(FakeBackend(num_vocab=LARGE), max_rows=16)
    outputs = outputs_of(bench, bench.submit(prompt_of(20), 0, wants_progress=True))
    assert [(one.progress.processed_tokens if one.progress else 0, one.finish) for one in outputs] == [
        (16, None),
        (20, FinishReason.LENGTH),
    ]


def test_nobody_is_told_of_progress_who_did_not_ask() -> None:
    bench = Bench(FakeBackend(num_vocab=LARGE), max_rows=16)
    asking = bench.submit(prompt_of(40), 2, wants_progress=True)
    silent = outputs_of(bench, bench.submit(prompt_of(40, start=5), 2))
    assert bench.ends[asking].finish
    assert [output.progress for output in silent] == [None, None]


def test_an_answer_that_is_computed_anew_tells_no_progress_again() -> None:
    bench = Bench(FakeBackend(num_vocab=LARGE, num_slots=2, context=96), max_rows=16)
    request_id = bench.submit(prompt_of(40), 12, wants_progress=True)
    while len(bench.answers[request_id]) < 4:
        bench.step()
    bench.core.scheduler._park_youngest(bench.now_s)
    assert all(output.progress is None for output in outputs_of(bench, request_id))
    assert bench.answers[request_id] == bench.expected(prompt_of(40), 12)


def test_progress_never_falls_below_what_was_reused() -> None:
    bench = Bench(FakeBackend(num_vocab=LARGE, num_slots=2), max_rows=8)
    bench.submit(prompt_of(40), 0)
    bench.run()
    request_id = bench.submit([*prompt_of(40), *prompt_of(30, start=9)], 1, wants_progress=True)
    bench.step()
    bench.core.scheduler.slots.wipe()
    told = [one for output in outputs_of(bench, request_id) if (one := output.progress)]
    assert all(one.cached_tokens <= one.processed_tokens <= one.total_tokens for one in told)
    assert told[-1].processed_tokens == 70


def test_progress_does_not_hide_the_time_to_the_first_token() -> None:
    bench = Bench(FakeBackend(num_vocab=LARGE), max_rows=16)
    bench.submit(prompt_of(40), 4, wants_progress=True)
    bench.run()
    histograms = bench.core.statistics.histograms()
    assert sum(histograms["time_to_first_token_seconds"].counts) == 1
    assert sum(histograms["inter_token_seconds"].counts) == 3


def test_timings_come_with_every_output_of_a_request_that_wants_them() -> None:
    bench = Bench(FakeBackend(num_vocab=LARGE))
    outputs = outputs_of(bench, bench.submit(prompt_of(10), 4, wants_timings=True))
    assert [output.timings.generated_tokens if output.timings else None for output in outputs] == [1, 2, 3, 4]
    plain = outputs_of(bench, bench.submit(prompt_of(10), 4))
    assert [output.timings is not None for output in plain] == [True, False, False, True]
    assert [output.slot is not None for output in plain] == [True, False, False, True]


# --- a least length ---------------------------------------------------------------------------------------


def ending_prompt(num_vocab: int) -> list[int]:
    """Return a prompt after which the fake model ends its answer at once."""
    for last in itertools.count(1):
        prompt = [7, 8, last]
        if next_token(prompt, num_vocab) == END:
            return prompt
    raise AssertionError


@pytest.mark.parametrize(
    "sampling",
    [GREEDY, SamplingParams(seed=3), SamplingParams(mirostat=1), SamplingParams(mirostat=2)],
    ids=["greedy", "drawn", "mirostat 1", "mirostat 2"],
)
@pytest.mark.parametrize("can_share", [True, False])
def test_no_end_token_is_sampled_before_the_least_length(sampling: SamplingParams, can_share: bool) -> None:
    prompt = ending_prompt(30)
    bench = Bench(FakeBackend(num_vocab=30, can_share=can_share))
    at_once, later = bench.submit(prompt, 60), bench.submit(prompt, 60, min_tokens=50, sampling=sampling)
    bench.run()
    assert bench.answers[at_once] == []
    assert len(bench.answers[later]) >= 50
    assert END not in bench.answers[later]


def test_guesses_ahead_do_not_end_an_answer_before_its_least_length() -> None:
    for drafts in (1, 6):
        bench = Bench(
            FakeBackend(num_vocab=12), OftenRight(drafts, num_vocab=12), max_drafted_each=drafts, max_drafted=64
        )
        request_id = bench.submit(prompt_of(9), 60, min_tokens=50)
        bench.run()
        assert bench.core.statistics.accepted > 0
        assert bench.answers[request_id] == bench.expected(prompt_of(9), 60, min_tokens=50)


def test_the_least_length_ends_at_the_greatest() -> None:
    bench = Bench(FakeBackend(num_vocab=30))
    request_id = bench.submit(ending_prompt(30), 5, min_tokens=50)
    bench.run()
    assert len(bench.answers[request_id]) == 5
    assert bench.ends[request_id].finish is FinishReason.LENGTH
