"""The engine's step on a fake backend whose output depends on what is really in the KV cells."""

from __future__ import annotations

from typing import Any

import pytest

from tests.fakes.backend import FakeBackend
from tests.fakes.bench import Bench, prompt_of
from worker.contract import EngineOptions, SlotState
from worker.engine.engine_limits import scheduler_options
from worker.engine.errors import BackendFailed, ForwardAborted
from worker.engine.request import FinishReason
from worker.engine.sampler import Sampler


def test_eight_different_requests_give_what_each_gives_alone() -> None:
    bench = Bench(FakeBackend(num_slots=8))
    prompts = [prompt_of(5 + 3 * i, start=i) for i in range(8)]
    ids = [bench.submit(prompt, 20) for prompt in prompts]
    bench.run()
    for request_id, prompt in zip(ids, prompts, strict=True):
        assert bench.answers[request_id] == bench.expected(prompt, 20)


def test_eight_requests_of_32_tokens_take_at_most_50_passes() -> None:
    bench = Bench(
        FakeBackend(num_slots=8, num_vocab=100_000, context=512), max_rows=128, rows_alone=128, rows_beside=32
    )
    for i in range(8):
        bench.submit([1000 * i + k for k in range(1, 40)], 32)
    bench.run()
    assert len(bench.backend.passes) <= 50
    assert any(passed == (1,) * 8 for passed in bench.backend.passes)


def test_a_common_prefix_of_simultaneous_requests_is_computed_once() -> None:
    bench = Bench(FakeBackend(num_slots=4))
    common = prompt_of(60)
    ids = [bench.submit([*common, 50 + i], 4) for i in range(4)]
    bench.run()
    computed = sum(sum(rows for rows in passed if rows > 1) for passed in bench.backend.passes)
    assert computed <= 60 + 4
    for i, request_id in enumerate(ids):
        assert bench.answers[request_id] == bench.expected([*common, 50 + i], 4)


def test_a_prefix_is_reused_while_its_first_user_still_generates() -> None:
    bench = Bench(FakeBackend(num_slots=2, num_vocab=100_000))
    common = prompt_of(40)
    bench.submit(common, 60)
    while SlotState.GENERATING not in bench.states():
        bench.step()
    second = bench.submit([*common, 9, 9], 4)
    bench.run()
    assert bench.ends[second].timings is not None
    assert bench.ends[second].timings.cached_tokens == 40


def test_the_next_turn_of_a_conversation_computes_only_what_is_new() -> None:
    bench = Bench(FakeBackend(num_slots=2, num_vocab=100_000))
    first = bench.submit(prompt_of(30), 10)
    bench.run()
    history = [*prompt_of(30), *bench.answers[first]]
    second = bench.submit([*history, 5, 6, 7], 4)
    bench.run()
    assert bench.ends[second].timings is not None
    assert bench.ends[second].timings.cached_tokens >= len(history) - 1


def test_another_salt_shares_nothing() -> None:
    bench = Bench(FakeBackend())
    bench.submit(prompt_of(40), 2, cache_salt="a")
    bench.run()
    second = bench.submit(prompt_of(40), 2, cache_salt="b")
    bench.run()
    assert bench.ends[second].timings is not None
    assert bench.ends[second].timings.cached_tokens == 0


def test_a_request_that_declines_the_cache_neither_reads_nor_leaves_anything() -> None:
    bench = Bench(FakeBackend())
    bench.submit(prompt_of(40), 2)
    bench.run()
    used = bench.backend.num_used()
    second = bench.submit(prompt_of(40), 2, cache_prompt=False)
    bench.run()
    assert bench.ends[second].timings is not None
    assert bench.ends[second].timings.cached_tokens == 0
    assert bench.backend.num_used() == used


def test_requests_beyond_the_slots_wait_and_are_served() -> None:
    bench = Bench(FakeBackend(num_slots=2))
    ids = [bench.submit(prompt_of(6, start=i), 6) for i in range(9)]
    bench.run()
    assert sorted(bench.ends) == ids


def test_a_generating_slot_rides_in_every_pass_beside_a_long_prompt() -> None:
    bench = Bench(FakeBackend(num_slots=2, num_vocab=100_000, context=256))
    short = bench.submit(prompt_of(4), 100)
    while SlotState.GENERATING not in bench.states():
        bench.step()
    bench.submit(prompt_of(200, start=3), 2)
    before = len(bench.answers[short])
    for _ in range(10):
        bench.step()
    assert len(bench.answers[short]) == before + 10
    assert all(max(passed) <= 8 for passed in bench.backend.passes[-10:])


def test_a_short_prompt_passes_a_long_one() -> None:
    bench = Bench(FakeBackend(num_slots=2, num_vocab=100_000, context=512), max_rows=8)
    long = bench.submit(prompt_of(400), 1)
    bench.step()
    short = bench.submit(prompt_of(6, start=5), 1)
    bench.run()
    assert list(bench.ends) == [short, long]


def test_an_aborted_request_frees_its_slot_before_the_next_pass() -> None:
    bench = Bench(FakeBackend(num_slots=1, num_vocab=100_000))
    first = bench.submit(prompt_of(60), 50)
    second = bench.submit(prompt_of(5, start=9), 3)
    bench.step()
    bench.core.abort(first)
    assert bench.states() == [SlotState.IDLE]
    bench.run()
    assert list(bench.ends) == [second]
    bench.core.abort(first)


def test_a_waiting_request_can_be_aborted() -> None:
    bench = Bench(FakeBackend(num_slots=1))
    first = bench.submit(prompt_of(6), 4)
    second = bench.submit(prompt_of(6, start=4), 4)
    bench.step()
    bench.core.abort(second)
    bench.run()
    assert list(bench.ends) == [first]


def test_when_the_leader_leaves_a_follower_takes_its_place() -> None:
    bench = Bench(FakeBackend(num_slots=4, num_vocab=100_000), max_rows=8)
    leader = bench.submit(prompt_of(60), 2)
    follower = bench.submit([*prompt_of(60), 5], 2)
    bench.step()
    assert bench.core.scheduler.num_waiting == 1
    bench.core.abort(leader)
    bench.run()
    assert bench.answers[follower] == bench.expected([*prompt_of(60), 5], 2)


def test_a_stop_found_by_the_text_side_ends_the_request_with_fewer_tokens() -> None:
    bench = Bench(FakeBackend(num_slots=1, num_vocab=100_000))
    request_id = bench.submit(prompt_of(6), 50)
    while len(bench.answers[request_id]) < 5:
        bench.step()
    output = bench.core.finish(request_id, 3)
    assert output is not None
    assert (output.finish, output.num_generated) == (FinishReason.STOP, 3)
    assert bench.states() == [SlotState.IDLE]
    assert bench.core.finish(request_id, 3) is None


def test_an_answer_ends_with_length_when_the_context_is_full() -> None:
    bench = Bench(FakeBackend(num_slots=1, num_vocab=100_000, context=32))
    request_id = bench.submit(prompt_of(30), 2)
    bench.run()
    assert bench.ends[request_id].finish is FinishReason.LENGTH
    assert len(bench.answers[request_id]) == 2


@pytest.mark.parametrize("length", [31, 32])
def test_a_prompt_that_leaves_no_room_is_refused(length: int) -> None:
    bench = Bench(FakeBackend(num_slots=1, context=32))
    if length == 31:
        bench.submit(prompt_of(length), 1)
        bench.run()
        return
    with pytest.raises(ValueError, match="32 tokens"):
        bench.submit(prompt_of(length), 1)


def test_admission_goes_by_cells_so_that_nobody_fails_when_the_pool_is_small() -> None:
    bench = Bench(FakeBackend(num_slots=4, num_vocab=100_000, context=128, num_cells=160))
    prompts = [prompt_of(40, start=i) for i in range(4)]
    ids = [bench.submit(prompt, 60) for prompt in prompts]
    bench.run()
    for request_id, prompt in zip(ids, prompts, strict=True):
        assert bench.answers[request_id] == bench.expected(prompt, 60)


def test_a_sequence_that_must_make_room_goes_on_with_the_same_tokens() -> None:
    backend = FakeBackend(num_slots=3, num_vocab=100_000, context=400, num_cells=700)
    bench = Bench(backend)
    prompts = [prompt_of(20, start=i) for i in range(3)]
    ids = [bench.submit(prompt, 370) for prompt in prompts]
    bench.run(max_steps=5000)
    assert bench.core.scheduler.num_parked > 0
    for request_id, prompt in zip(ids, prompts, strict=True):
        assert bench.answers[request_id] == bench.expected(prompt, 370)


def test_finished_prefixes_give_way_to_new_requests() -> None:
    bench = Bench(FakeBackend(num_slots=2, num_vocab=100_000, context=128, num_cells=200))
    for i in range(6):
        bench.submit([1000 * i + k for k in range(100)], 2)
        bench.run()
    assert len(bench.ends) == 6


@pytest.mark.parametrize("code", [1, -1, 2, -2])
def test_a_single_failed_pass_costs_nobody_anything(code: int) -> None:
    bench = Bench(FakeBackend(num_slots=3, num_vocab=100_000))
    prompts = [prompt_of(10, start=i) for i in range(3)]
    ids = [bench.submit(prompt, 12) for prompt in prompts]
    for _ in range(4):
        bench.step()
    bench.backend.failures = [code]
    bench.run()
    for request_id, prompt in zip(ids, prompts, strict=True):
        assert bench.answers[request_id] == bench.expected(prompt, 12)


def test_a_request_that_the_backend_refuses_fails_alone() -> None:
    bench = Bench(FakeBackend(num_slots=3, num_vocab=100_000))
    bench.backend.poisoned_token = 77_777
    good = [bench.submit(prompt_of(10, start=i), 12) for i in range(2)]
    bad = bench.submit([5, 77_777, 6], 12)
    bench.run()
    assert bench.ends[bad].finish is FinishReason.ERROR
    assert bench.ends[bad].error
    for i, request_id in enumerate(good):
        assert bench.answers[request_id] == bench.expected(prompt_of(10, start=i), 12)


@pytest.mark.parametrize(("code", "error"), [(2, ForwardAborted), (-3, BackendFailed)])
def test_a_backend_that_keeps_failing_is_given_up(code: int, error: type[Exception]) -> None:
    bench = Bench(FakeBackend(num_slots=1))
    bench.submit(prompt_of(10), 12)
    bench.backend.failures = [code] * 9
    with pytest.raises(error):
        bench.run()


def test_a_memory_that_cannot_share_still_continues_a_conversation_in_its_slot() -> None:
    bench = Bench(FakeBackend(num_slots=2, num_vocab=100_000, can_share=False))
    first = bench.submit(prompt_of(30), 6)
    bench.run()
    history = [*prompt_of(30), *bench.answers[first]]
    second = bench.submit([*history, 5, 6], 4)
    other = bench.submit(prompt_of(30, start=4), 4)
    bench.run()
    assert bench.ends[second].timings is not None
    assert bench.ends[second].timings.cached_tokens == len(history) - 1
    assert bench.answers[second] == bench.expected([*history, 5, 6], 4)
    assert bench.answers[other] == bench.expected(prompt_of(30, start=4), 4)


def test_options_for_the_scheduler_bound_the_rows_of_a_pass_on_a_cpu() -> None:
    backend = FakeBackend(num_slots=4)
    options = scheduler_options(backend, EngineOptions(context=128, slots=4))
    assert (options.max_rows, options.rows_alone, options.rows_beside) == (512, 128, 32)


def test_idle_prefixes_go_to_host_memory_while_others_run_and_come_back() -> None:
    backend = FakeBackend(num_slots=2, num_vocab=100_000, context=256)
    bench = Bench(backend, host_tokens=1000, max_idle_cells=10)
    first = bench.submit(prompt_of(60), 4)
    bench.run()
    other = bench.submit([5000 + k for k in range(20)], 6)
    bench.run()
    assert backend.blobs, "the idle prefix has left the cells"
    history = [*prompt_of(60), *bench.answers[first]]
    second = bench.submit([*history, 7, 8], 4)
    bench.run()
    assert backend.num_restored == 1
    assert bench.ends[second].timings is not None
    assert bench.ends[second].timings.cached_tokens == len(history) - 1
    assert bench.answers[second] == bench.expected([*history, 7, 8], 4)
    assert bench.ends[other].finish is FinishReason.LENGTH


def test_a_blob_serves_any_number_of_requests() -> None:
    backend = FakeBackend(num_slots=1, num_vocab=100_000, context=256)
    bench = Bench(backend, host_tokens=1000, max_idle_cells=0)
    bench.submit(prompt_of(80), 2)
    bench.run()
    for i in range(3):
        bench.submit([9000 + 100 * i + k for k in range(20)], 3)
        bench.run()
        request_id = bench.submit([*prompt_of(80), 3000 + i], 3)
        bench.run()
        assert bench.ends[request_id].timings is not None
        assert bench.ends[request_id].timings.cached_tokens >= 80


def test_a_parked_sequence_comes_back_from_host_memory_without_computing_again() -> None:
    backend = FakeBackend(num_slots=3, num_vocab=100_000, context=400, num_cells=700)
    bench = Bench(backend, host_tokens=2000)
    prompts = [prompt_of(20, start=i) for i in range(3)]
    ids = [bench.submit(prompt, 370) for prompt in prompts]
    bench.run(max_steps=5000)
    assert bench.core.scheduler.num_parked > 0
    assert backend.num_restored > 0
    for request_id, prompt in zip(ids, prompts, strict=True):
        assert bench.answers[request_id] == bench.expected(prompt, 370)


def test_a_blob_that_cannot_be_restored_costs_only_time() -> None:
    backend = FakeBackend(num_slots=1, num_vocab=100_000, context=256)
    bench = Bench(backend, host_tokens=1000, max_idle_cells=0)
    bench.submit(prompt_of(60), 2)
    bench.run()
    bench.submit([5000 + k for k in range(20)], 3)
    bench.run()
    backend.fails_to_restore = True
    request_id = bench.submit([*prompt_of(60), 9], 3)
    bench.run()
    assert bench.answers[request_id] == bench.expected([*prompt_of(60), 9], 3)
    assert not any(holder.blob_id for holder in bench.core.scheduler.kv.cache if len(holder.tokens) > 50)


def test_a_request_with_many_choices_lets_others_in_between() -> None:
    bench = Bench(FakeBackend(num_slots=2, num_vocab=100_000))
    many = [bench.submit(prompt_of(4, start=i), 4, choice=i) for i in range(12)]
    bench.step()
    other = bench.submit(prompt_of(5, start=40), 2)
    bench.run()
    assert list(bench.ends).index(other) < 6
    assert set(many) < set(bench.ends)


def test_request_that_no_sampler_can_serve_ends_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(FakeBackend())
    good = bench.submit(prompt_of(10), 8)
    bad = bench.submit(prompt_of(10, start=2), 8)
    sample = Sampler.sample

    def break_down(sampler: Sampler, row: Any, tokens: Any, index: int) -> Any:
        if index == 2 and len(tokens) and tokens[0] == prompt_of(10, start=2)[0]:
            raise OverflowError("beyond all sense")
        return sample(sampler, row, tokens, index)

    monkeypatch.setattr(Sampler, "sample", break_down)
    bench.run()
    assert bench.answers[good] == bench.expected(prompt_of(10))
    assert bench.ends[bad].finish is FinishReason.ERROR
    assert "sampling parameters" in str(bench.ends[bad].error)
    assert bench.answers[bad] == bench.expected(prompt_of(10, start=2))[:2]


@pytest.mark.parametrize("rows", [4, 32])
def test_numbers_that_are_not_finite_end_their_own_request_and_no_other(rows: int) -> None:
    backend = FakeBackend(context=64, num_vocab=100_000)
    backend.foul_token = 99_999
    bench = Bench(backend, max_rows=rows, rows_alone=rows, rows_beside=max(1, rows // 2))
    good = [bench.submit(prompt_of(12, start=start), 16) for start in (1, 2)]
    for _ in range(6):
        bench.step()
    bad = bench.submit([*prompt_of(8, start=3), 99_999, *prompt_of(10, start=4)], 16)
    late = bench.submit(prompt_of(12), 8)
    bench.run()
    for request_id, start, max_tokens in (*zip(good, (1, 2), (16, 16), strict=True), (late, 1, 8)):
        assert bench.answers[request_id] == bench.expected(prompt_of(12, start=start), max_tokens)
    assert bench.ends[bad].finish is FinishReason.ERROR
    assert "not finite" in str(bench.ends[bad].error)
    assert not bench.answers[bad]


def test_numbers_that_are_not_finite_do_not_outlive_the_client_that_brought_them() -> None:
    backend = FakeBackend()
    backend.foul_token = 63
    bench = Bench(backend, max_rows=4, rows_alone=4, rows_beside=2)
    bad = bench.submit([63, *prompt_of(40, start=4)], 16)
    bench.step()
    bench.core.abort(bad)
    good = bench.submit(prompt_of(12), 8)
    bench.run()
    assert bench.answers[good] == bench.expected(prompt_of(12))
