"""A driver for the engine's core on the fake backend: a clock that ticks once a step, answers by request."""

from __future__ import annotations

import itertools
from dataclasses import replace

from tests.fakes.backend import FakeBackend, expected_answer
from worker.contract import SlotState
from worker.engine.budget import SchedulerOptions
from worker.engine.core import EngineCore
from worker.engine.drafting import Drafting
from worker.engine.prompt_files import PromptFolder
from worker.engine.request import AdapterSet, GenerationRequest, Output, PrefillProgress, RequestId, SamplingParams

GREEDY = SamplingParams(temperature=0.0)


class Bench:
    """A core, a clock that ticks once a step, and the outputs by request."""

    def __init__(
        self,
        backend: FakeBackend,
        drafting: Drafting | None = None,
        prompts: PromptFolder | None = None,
        *,
        check_cells: bool = True,
        **changes: int | None,
    ) -> None:
        self.backend = backend
        self.now_s = 0.0
        options = {
            "num_slots": backend.num_slots,
            "context": backend.facts.context,
            "num_cells": backend.num_cells,
            "max_rows": 32,
            "rows_alone": 32,
            "rows_beside": 8,
            "end_tokens": backend.vocabulary.eog,
            "can_share": backend.can_share,
            "is_windowed": backend.window > 0,
        } | changes
        self.core = EngineCore(
            backend, SchedulerOptions(**options), clock=lambda: self.now_s, check_cells=check_cells, prompts=prompts
        )
        if drafting is not None:
            self.core.drafting = drafting
        self.answers: dict[int, list[int]] = {}
        self.ends: dict[int, Output] = {}
        self.progress: dict[int, list[PrefillProgress]] = {}
        self._ids = itertools.count(1)

    def submit(
        self,
        prompt: list[int],
        max_tokens: int = 8,
        *,
        choice: int = 0,
        sampling: SamplingParams = GREEDY,
        **fields: object,
    ) -> RequestId:
        request_id = RequestId(next(self._ids))
        sampling = replace(sampling, choice=choice)
        self.core.submit(request_id, GenerationRequest(tuple(prompt), max_tokens, sampling, **fields))  # type: ignore[arg-type]
        self.answers[request_id] = []
        self.progress[request_id] = []
        return request_id

    def step(self) -> list[Output]:
        self.now_s += 1.0
        outputs = self.core.step()
        for output in outputs:
            assert (output.timings is None) == (output.slot is None)
            self.answers[output.request_id] += output.tokens
            if output.progress is not None:
                self.progress[output.request_id].append(output.progress)
            if output.finish:
                self.ends[output.request_id] = output
        return outputs

    def run(self, max_steps: int = 2000) -> None:
        for _ in range(max_steps):
            if not self.core.has_work:
                self.core.check_cells()
                return
            self.step()
        raise AssertionError("the engine did not come to an end")

    def states(self) -> list[SlotState]:
        return [slot.state for slot in self.core.scheduler.slots]

    def expected(
        self, prompt: list[int], max_tokens: int = 8, adapters: AdapterSet = (), *, min_tokens: int = 0
    ) -> list[int]:
        facts = self.backend.facts
        return expected_answer(prompt, max_tokens, facts.num_vocab, facts.context, adapters, min_tokens)


def prompt_of(length: int, start: int = 1) -> list[int]:
    return [1 + (start * 7 + i * 3) % 60 for i in range(length)]


def ended(bench: Bench, prompt: list[int], max_tokens: int = 4, **fields: object) -> RequestId:
    """Return a request that has come to its end."""
    request_id = bench.submit(prompt, max_tokens, **fields)  # type: ignore[arg-type]
    bench.run()
    return request_id


def cached(bench: Bench, request_id: RequestId) -> int:
    """Return how many tokens of its prompt were reused."""
    timings = bench.ends[request_id].timings
    assert timings is not None
    return timings.cached_tokens
