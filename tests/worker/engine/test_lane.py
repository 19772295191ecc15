"""Reproducible requests run one after another in a lane of their own, beside all others and never among them."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from tests.fakes.backend import FakeBackend, expected_answer
from tests.support.served import until
from worker.contract import EngineOptions, SlotState
from worker.engine.engine import Engine
from worker.engine.errors import OutOfMemory
from worker.engine.lane import CPU_ROWS, GPU_ROWS, lane_options
from worker.engine.request import FinishReason, GenerationRequest, Output, RequestId, SamplingParams
from worker.engine.scheduler import CANNOT_REPEAT

CONTEXT = 256
OPTIONS = EngineOptions(context=CONTEXT, slots=2, draft_max=0)
GREEDY = SamplingParams(temperature=0.0)


class Client:
    """Submits to an engine over a fake backend and collects what comes."""

    def __init__(self, *, can_share: bool, num_vocab: int = 5000) -> None:
        # A large vocabulary: the fake model ends an answer with one token of it.
        self.backend = FakeBackend(num_vocab=num_vocab, num_slots=2, context=CONTEXT, can_share=can_share)
        self.engine = Engine(self.backend, OPTIONS, check_cells=True)
        self.outputs: dict[RequestId, list[Output]] = {}

    def submit(
        self, prompt: list[int], max_tokens: int, *, reproducible: bool = True, min_tokens: int = 0
    ) -> RequestId:
        outputs: list[Output] = []
        request = GenerationRequest(
            tuple(prompt),
            max_tokens,
            GREEDY,
            reproducible=reproducible,
            min_tokens=min_tokens,
            slot=1,
            wants_progress=True,
        )
        request_id = self.engine.submit(request, outputs.append)
        self.outputs[request_id] = outputs
        return request_id

    async def end_of(self, request_id: RequestId) -> Output:
        outputs = self.outputs[request_id]
        await until(lambda: bool(outputs) and outputs[-1].finish is not None, what="the end of the answer")
        return outputs[-1]

    async def answer(self, request_id: RequestId) -> list[int]:
        await self.end_of(request_id)
        return [token for output in self.outputs[request_id] for token in output.tokens]


@pytest.fixture
def can_share() -> bool:
    return True


@pytest.fixture
async def client(can_share: bool) -> AsyncIterator[Client]:
    client = Client(can_share=can_share)
    client.engine.start()
    yield client
    client.engine.stop()


def prompt_of(length: int, start: int = 1) -> list[int]:
    return list(range(start, start + length))


async def test_equal_requests_are_cut_into_equal_passes_whatever_is_cached_and_whoever_else_runs(
    client: Client,
) -> None:
    prompt = prompt_of(2 * CPU_ROWS + 9)
    beside = [client.submit(prompt, 100, reproducible=False) for _ in range(2)]
    ids = [client.submit(prompt, 5) for _ in range(3)]
    answers = [await client.answer(request_id) for request_id in ids]
    for request_id in beside:
        await client.end_of(request_id)
    ids.append(client.submit(prompt, 5))
    answers.append(await client.answer(ids[-1]))
    assert answers == [expected_answer(prompt, 5, 5000, CONTEXT)] * 4
    (lone,) = client.backend.lones
    assert lone.passes == [(CPU_ROWS,), (CPU_ROWS,), (9,), *[(1,)] * 4] * 4
    assert all(output.timings.cached_tokens == 0 for i in ids if (output := client.outputs[i][-1]).timings)


async def test_there_is_no_second_context_without_a_reproducible_request(client: Client) -> None:
    await client.answer(client.submit(prompt_of(9), 3, reproducible=False))
    assert client.backend.lones == []
    assert [slot.id for slot in client.engine.snapshot().slots] == [0, 1]


async def test_lane_and_slots_take_turns(client: Client) -> None:
    order: list[RequestId] = []
    for start, is_lone in ((1, False), (50, True)):
        request = GenerationRequest(tuple(prompt_of(9, start)), 200, GREEDY, reproducible=is_lone)
        client.engine.submit(request, lambda output: order.append(output.request_id))
    await asyncio.wait_for(client.engine.drain(), 30)
    assert len(order) == 400
    both_run = order[order.index(RequestId(2)) : 200]
    assert len(both_run) > 100
    assert max(len(list(turn)) for _, turn in itertools.groupby(both_run)) == 1


async def test_slot_of_the_lane_is_shown_and_what_it_does_is_counted(client: Client) -> None:
    await client.answer(client.submit(prompt_of(9), 4, reproducible=False))
    await client.answer(client.submit(prompt_of(40), 4))
    snapshot = client.engine.snapshot()
    assert [(slot.id, slot.state) for slot in snapshot.slots] == [(i, SlotState.IDLE) for i in range(3)]
    assert snapshot.counters.prompt_tokens_computed == 49
    assert snapshot.counters.generated_tokens == 8
    assert snapshot.counters.finished == 2
    assert snapshot.counters.forwards == 1 + 3 + 2 + 3
    assert sum(snapshot.histograms["time_to_first_token_seconds"].counts) == 2
    assert sum(snapshot.histograms["batch_rows"].counts) == snapshot.counters.forwards
    assert snapshot.kv_cells["total"] == client.backend.num_cells


async def test_answers_of_the_lane_tell_its_slot_whichever_was_asked_for(client: Client) -> None:
    beside, lone = client.submit(prompt_of(9), 4, reproducible=False), client.submit(prompt_of(40), 4)
    for request_id, slot in ((beside, 1), (lone, 2)):
        await client.end_of(request_id)
        told = [output.slot for output in client.outputs[request_id] if output.timings is not None]
        assert told == [slot, slot]


async def test_lane_tells_progress_and_computes_a_prompt_without_an_answer(client: Client) -> None:
    end = await client.end_of(request_id := client.submit(prompt_of(CPU_ROWS + 5), 0))
    assert (end.finish, end.num_generated) == (FinishReason.LENGTH, 0)
    told = [output.progress.processed_tokens for output in client.outputs[request_id] if output.progress]
    assert told == [CPU_ROWS, CPU_ROWS + 5]
    assert client.backend.lones[0].passes == [(CPU_ROWS,), (5,)]


async def test_least_length_holds_in_the_lane() -> None:
    client = Client(can_share=True, num_vocab=20)
    client.engine.start()
    answer = await client.answer(client.submit(prompt_of(9), 60, min_tokens=50))
    client.engine.stop()
    assert answer == expected_answer(prompt_of(9), 60, 20, CONTEXT, min_tokens=50)
    assert len(answer) >= 50 > len(expected_answer(prompt_of(9), 60, 20, CONTEXT))


async def test_running_and_waiting_requests_of_the_lane_can_be_aborted_and_finished(client: Client) -> None:
    running, waiting, last = (client.submit(prompt_of(9, start), 240) for start in (1, 20, 40))
    await until(lambda: len(client.outputs[running]) > 2, what="an answer")
    assert client.engine.snapshot().queue_length == 2
    client.engine.abort(waiting)
    client.engine.abort(running)
    await until(lambda: len(client.outputs[last]) > 2, what="the next answer")
    client.engine.finish(last, 2)
    end = await client.end_of(last)
    assert (end.finish, end.num_generated) == (FinishReason.STOP, 2)
    assert client.outputs[waiting] == []
    assert client.engine.snapshot().counters.aborted == 2
    assert await client.answer(client.submit(prompt_of(9), 3)) == expected_answer(prompt_of(9), 3, 5000, CONTEXT)


async def test_drain_waits_for_the_lane(client: Client) -> None:
    request_id = client.submit(prompt_of(9), 100)
    await asyncio.wait_for(client.engine.drain(), 30)
    assert client.outputs[request_id][-1].finish is not None


async def test_threads_of_the_lane_follow_the_workers(client: Client) -> None:
    client.engine.set_threads(3)
    await client.answer(client.submit(prompt_of(9), 2))
    assert client.backend.lones[0].num_threads == 3
    client.engine.set_threads(5)
    await client.answer(client.submit(prompt_of(9), 2))
    assert (client.backend.num_threads, client.backend.lones[0].num_threads) == (5, 5)


async def test_without_memory_for_a_context_only_the_request_fails_and_a_later_one_may_succeed(client: Client) -> None:
    client.backend.lone_error = OutOfMemory("failed to allocate buffer of 9 GiB")
    end = await client.end_of(client.submit(prompt_of(9), 3))
    assert end.finish is FinishReason.ERROR
    assert end.error is not None
    assert "9 GiB" in end.error
    assert "without `reproducible`" in end.error
    assert len(await client.answer(client.submit(prompt_of(9), 3, reproducible=False))) == 3
    client.backend.lone_error = None
    assert len(await client.answer(client.submit(prompt_of(9), 3))) == 3


async def test_contexts_are_closed_when_the_engine_stops(client: Client) -> None:
    await client.answer(client.submit(prompt_of(9), 3))
    client.engine.stop()
    assert client.backend.lones[0].is_closed
    assert client.backend.is_closed


async def test_pass_that_was_rolled_back_is_repeated_as_it_was(client: Client) -> None:
    await client.answer(client.submit(prompt_of(9), 2))
    (lone,) = client.backend.lones
    lone.passes.clear()
    lone.failures += [0, 2, -3, 0, 2]
    prompt = prompt_of(2 * CPU_ROWS + 9)
    assert await client.answer(client.submit(prompt, 2)) == expected_answer(prompt, 2, 5000, CONTEXT)
    assert lone.passes == [(CPU_ROWS,), (CPU_ROWS,), (9,), (1,)]


@pytest.mark.parametrize("can_share", [False])
async def test_memory_that_cannot_be_cut_starts_over_in_a_prompt_but_not_in_an_answer(client: Client) -> None:
    await client.answer(client.submit(prompt_of(9), 2))
    (lone,) = client.backend.lones
    lone.passes.clear()
    lone.failures += [0, -3]  # the second pass
    prompt = prompt_of(2 * CPU_ROWS)
    assert await client.answer(client.submit(prompt, 1)) == expected_answer(prompt, 1, 5000, CONTEXT)
    assert lone.passes == [(CPU_ROWS,)] * 3
    lone.failures += [0, 0, 0, -3]  # the second token
    end = await client.end_of(client.submit(prompt, 4))
    assert (end.finish, end.error) == (FinishReason.ERROR, CANNOT_REPEAT)
    assert await client.answer(client.submit(prompt, 4)) == expected_answer(prompt, 4, 5000, CONTEXT)


async def test_full_cache_ends_the_request_instead_of_cutting_its_prompt_elsewhere(client: Client) -> None:
    await client.answer(client.submit(prompt_of(9), 2))
    (lone,) = client.backend.lones
    lone.passes.clear()
    lone.failures += [1] * 4
    end = await client.end_of(client.submit(prompt_of(2 * CPU_ROWS), 2))
    assert end.finish is FinishReason.ERROR
    assert lone.passes == []


def test_passes_are_larger_on_a_gpu_and_never_larger_than_configured() -> None:
    backend = FakeBackend(context=CONTEXT)
    assert lane_options(backend, OPTIONS).fixed_rows == CPU_ROWS
    assert lane_options(backend, replace(OPTIONS, ubatch_size=16)).fixed_rows == 16
    backend.facts = replace(backend.facts, gpu_layers=3)
    assert lane_options(backend, OPTIONS).fixed_rows == GPU_ROWS
