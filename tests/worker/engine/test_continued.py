"""Answers that another worker has begun: what the engine makes of them, and what it counts."""

from __future__ import annotations

import pytest

from tests.fakes.backend import FakeBackend
from tests.fakes.bench import Bench, prompt_of
from worker.engine.request import Earlier, RequestTimings

TOLD = RequestTimings(queue_s=3.0, prompt_s=2.0, prompt_tokens=20, cached_tokens=4, generated_tokens=1)
MAX_TOKENS = 20


def whole_answer() -> list[int]:
    bench = Bench(FakeBackend())
    request_id = bench.submit(prompt_of(20), MAX_TOKENS)
    bench.run()
    answer = list(bench.answers[request_id])
    assert len(answer) == MAX_TOKENS
    return answer


@pytest.mark.parametrize("num_earlier", [1, 7, 19])
@pytest.mark.parametrize("num_cells", [None, 60])
def test_an_answer_goes_on_token_for_token_also_where_it_has_to_make_room(
    num_earlier: int, num_cells: int | None
) -> None:
    answer = whole_answer()
    bench = Bench(FakeBackend(num_cells=num_cells))
    earlier = Earlier(tuple(answer[:num_earlier]), TOLD)
    request_id = bench.submit(prompt_of(20), MAX_TOKENS, earlier=earlier)
    other = bench.submit(prompt_of(21), MAX_TOKENS)
    bench.run()
    assert list(bench.answers[request_id]) == answer[num_earlier:]
    assert bench.answers[other]


@pytest.mark.parametrize(("num_earlier", "wants_timings"), [(7, False), (7, True), (19, False)])
def test_its_prompt_and_first_token_are_not_counted_once_more(num_earlier: int, wants_timings: bool) -> None:
    earlier = Earlier(tuple(whole_answer()[:num_earlier]), TOLD)
    bench = Bench(FakeBackend())
    bench.submit(prompt_of(20), MAX_TOKENS, earlier=earlier, wants_timings=wants_timings)
    bench.run()
    statistics = bench.core.statistics
    assert sum(statistics.histograms()["time_to_first_token_seconds"].counts) == 0
    assert statistics.counters().prompt_tokens_cached == 0
    assert statistics.counters().generated_tokens == MAX_TOKENS - num_earlier


def test_no_more_of_the_prompt_shows_as_cached_than_it_has() -> None:
    bench = Bench(FakeBackend())
    first = bench.submit(prompt_of(20), MAX_TOKENS)
    bench.run()
    earlier = Earlier(tuple(bench.answers[first][:15]), TOLD)
    bench.submit(prompt_of(20), MAX_TOKENS, earlier=earlier)
    bench.step()
    (shown,) = [report for report in bench.core.scheduler.reports() if report.prompt_total]
    assert shown.prompt_cached == shown.prompt_total == 20


def test_an_answer_that_is_as_long_as_it_may_be_is_refused() -> None:
    earlier = Earlier(tuple(whole_answer()), TOLD)
    with pytest.raises(ValueError, match="as long as it may be"):
        Bench(FakeBackend()).submit(prompt_of(20), MAX_TOKENS, earlier=earlier)
