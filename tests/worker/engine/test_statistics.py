"""What the engine counts is what it has done, to the last token and pass."""

from __future__ import annotations

import dataclasses

from tests.fakes.backend import FakeBackend
from tests.fakes.bench import Bench, prompt_of
from worker.contract import EngineCounters
from worker.engine.statistics import FIRST_TOKEN_BOUNDS_S, INTER_TOKEN_BOUNDS_S, Statistics, merged, total

LARGE = 100_000
"""So many tokens of a vocabulary hardly ever end an answer."""


def bench_of(**options: int) -> Bench:
    changes = {name: options.pop(name) for name in ("host_tokens",) if name in options}
    return Bench(FakeBackend(num_vocab=LARGE, **options), **changes)


def counters(bench: Bench) -> EngineCounters:
    return bench.core.statistics.counters()


def test_requests_hit_the_prefix_cache_or_miss_it() -> None:
    bench = bench_of(num_slots=2)
    bench.submit(prompt_of(40), 3)
    bench.run()
    assert (counters(bench).prefix_hits, counters(bench).prefix_misses) == (0, 1)
    bench.submit([*prompt_of(40), 5], 3)
    bench.submit(prompt_of(40, start=9), 3)
    bench.run()
    assert (counters(bench).prefix_hits, counters(bench).prefix_misses) == (1, 2)
    assert counters(bench).prompt_tokens_cached == 40
    assert counters(bench).prompt_tokens_computed == 40 + 1 + 40


def test_prefixes_that_had_to_make_room_are_counted() -> None:
    bench = bench_of(num_slots=1, num_cells=64, host_tokens=0)
    for start in (1, 9, 17):
        bench.submit(prompt_of(40, start=start), 3)
        bench.run()
    assert (counters(bench).prefixes_demoted, counters(bench).prefixes_dropped) == (2, 0), "the last one stays"


def test_prefixes_that_had_to_leave_host_memory_are_counted_apart() -> None:
    bench = bench_of(num_slots=1, num_cells=64, host_tokens=60)
    for start in (1, 9, 17):
        bench.submit(prompt_of(40, start=start), 3)
        bench.run()
    assert (counters(bench).prefixes_demoted, counters(bench).prefixes_dropped) == (2, 1)


def test_busy_slots_of_each_pass_are_counted() -> None:
    bench = bench_of(num_slots=3)
    for start in (1, 9):
        bench.submit(prompt_of(10, start=start), 5)
    bench.run()
    slots = bench.core.statistics.histograms()["batch_busy_slots"]
    assert sum(slots.counts) == counters(bench).forwards
    assert slots.counts[slots.bounds.index(2.0)] >= 4, "both answers grow in the same passes"
    assert slots.counts[-1] == 0


def test_sums_of_rows_are_all_tokens_that_were_computed() -> None:
    bench = bench_of(num_slots=3)
    for start in (1, 9, 17):
        bench.submit(prompt_of(20, start=start), 5)
    bench.run()
    rows = bench.core.statistics.histograms()["batch_rows"]
    assert rows.total == counters(bench).rows
    assert counters(bench).prompt_tokens_computed == 60
    assert counters(bench).generated_tokens == 15


def test_counters_of_several_cores_add_up_and_none_is_forgotten() -> None:
    ones = Statistics()
    for name in ("finished", "aborted", "failed_steps", "parked", "drafted", "accepted", "demoted", "dropped"):
        setattr(ones, name, 1)
    ones.observe_pooled(3, 0.5)
    together = total([ones, ones])
    for field in dataclasses.fields(EngineCounters):
        assert getattr(together, field.name) == 2 * getattr(ones.counters(), field.name)
    assert (together.prefixes_demoted, together.prefixes_dropped) == (2, 2)
    assert merged([ones, ones])["batch_rows"].total == 6
    assert sum(merged([ones, ones])["batch_busy_slots"].counts) == 0, "embeddings have no slots"


def test_bounds_rise() -> None:
    for bounds in (FIRST_TOKEN_BOUNDS_S, INTER_TOKEN_BOUNDS_S):
        assert list(bounds) == sorted(set(bounds))
