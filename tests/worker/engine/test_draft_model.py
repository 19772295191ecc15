"""A draft model drafts for all slots at once; what it drafts changes the number of passes and nothing else."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.plain_llama import plain_greedy
from tests.support.tiny_gguf import TinyModel, write_tiny_llama
from worker.contract import EngineOptions
from worker.engine.core import EngineCore
from worker.engine.draft_model import MAX_FAILURES, LlamaDraftModel
from worker.engine.engine_limits import scheduler_options
from worker.engine.errors import BackendFailed, BadModel
from worker.engine.llama import LlamaBackend
from worker.engine.llama_context import LlamaContext
from worker.engine.request import GenerationRequest, RequestId, SamplingParams

OPTIONS = EngineOptions(context=256, slots=3, prompt_cache_bytes=0, flash_attn="off")
"""Without flash attention, passes of any size agree closely enough for greedy answers to be compared."""
GREEDY = SamplingParams(temperature=0.0, ignore_eos=True)
PROMPTS = [[270 + (start * 31 + i * 7) % 140 for i in range(length)] for start, length in ((1, 12), (2, 20), (3, 5))]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> TinyModel:
    return write_tiny_llama(tmp_path_factory.mktemp("tiny") / "tiny.gguf")


class Run:
    """A core with a draft model; the clock makes passes of any size cost the same."""

    def __init__(self, path: Path, draft_path: Path, options: EngineOptions = OPTIONS) -> None:
        self.backend = LlamaBackend.load(str(path), options)
        self.draft = LlamaDraftModel.load(str(draft_path), options, self.backend.vocabulary)
        ticks = itertools.count()
        scheduling = replace(scheduler_options(self.backend, options), target_gap_s=100.0)
        self.core = EngineCore(
            self.backend, scheduling, clock=lambda: float(next(ticks)), check_cells=True, draft_model=self.draft
        )
        self.answers: dict[RequestId, list[int]] = {}

    def submit(self, number: int, prompt: list[int], max_tokens: int = 24) -> None:
        self.core.submit(RequestId(number), GenerationRequest(tuple(prompt), max_tokens, GREEDY))

    def finish(self) -> None:
        while self.core.has_work:
            for output in self.core.step():
                self.answers.setdefault(output.request_id, []).extend(output.tokens)

    def close(self) -> None:
        self.draft.close()
        self.backend.close()


Start = Callable[..., Run]


@pytest.fixture
def start(model: TinyModel) -> Iterator[Start]:
    runs: list[Run] = []

    def begin(draft_path: Path | None = None, options: EngineOptions = OPTIONS) -> Run:
        runs.append(Run(model.path, draft_path or model.path, options))
        return runs[-1]

    yield begin
    for run in runs:
        run.close()


def test_draft_model_that_is_always_right_saves_most_passes(start: Start, model: TinyModel) -> None:
    run = start()
    for number, prompt in enumerate(PROMPTS):
        run.submit(number, prompt)
    run.finish()
    assert run.answers == {
        i: plain_greedy(model.path, prompt, 24, has_flash_attn=False) for i, prompt in enumerate(PROMPTS)
    }
    counters = run.core.statistics.counters()
    assert counters.accepted_tokens >= 40
    assert counters.forwards < 20


def test_draft_model_that_is_mostly_wrong_changes_no_answer(start: Start, model: TinyModel, tmp_path: Path) -> None:
    other = write_tiny_llama(tmp_path / "other.gguf", seed=5)
    run = start(other.path)
    for number, prompt in enumerate(PROMPTS):
        run.submit(number, prompt)
    run.finish()
    assert run.answers == {
        i: plain_greedy(model.path, prompt, 24, has_flash_attn=False) for i, prompt in enumerate(PROMPTS)
    }


def test_slot_that_is_used_again_starts_afresh(start: Start, model: TinyModel) -> None:
    run = start(options=replace(OPTIONS, slots=1))
    for number, prompt in enumerate(PROMPTS):
        run.submit(number, prompt)
    run.finish()
    assert run.answers == {
        i: plain_greedy(model.path, prompt, 24, has_flash_attn=False) for i, prompt in enumerate(PROMPTS)
    }
    assert run.core.statistics.counters().accepted_tokens >= 40


def test_long_prompt_is_taken_in_piece_by_piece(
    start: Start, model: TinyModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("worker.engine.draft_model.MAX_ROWS", 8)
    run = start()
    prompt = [270 + i % 140 for i in range(100)]
    run.submit(0, prompt)
    run.finish()
    assert run.answers[RequestId(0)] == plain_greedy(model.path, prompt, 24, has_flash_attn=False)
    assert run.core.statistics.counters().accepted_tokens > 0


def test_draft_model_that_fails_is_left_alone_after_a_while(
    start: Start, model: TinyModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = start()
    num_failed = 0
    forward = LlamaContext.forward

    def fail(context: LlamaContext, chunks: object) -> object:
        nonlocal num_failed
        if context is run.backend.context:
            return forward(context, chunks)  # type: ignore[arg-type]
        num_failed += 1
        raise BackendFailed(-3)

    monkeypatch.setattr(LlamaContext, "forward", fail)
    run.submit(0, PROMPTS[0])
    run.finish()
    assert run.answers[RequestId(0)] == plain_greedy(model.path, PROMPTS[0], 24, has_flash_attn=False)
    assert num_failed == MAX_FAILURES


def test_draft_model_of_another_vocabulary_is_refused(model: TinyModel, tmp_path: Path) -> None:
    other = write_tiny_llama(tmp_path / "bpe.gguf", vocab="bpe")
    backend = LlamaBackend.load(str(model.path), OPTIONS)
    with pytest.raises(BadModel, match=r"another vocabulary.*same family"):
        LlamaDraftModel.load(str(other.path), OPTIONS, backend.vocabulary)
    backend.close()
