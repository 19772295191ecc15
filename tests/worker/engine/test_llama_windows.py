"""Models with a sliding window, in the real library: what lies before the window is reused only while it is there."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.support.tiny_gguf import write_tiny_gemma
from worker.contract import EngineOptions
from worker.engine.batch import Chunk, Clear, Restore, Save, Share
from worker.engine.core import EngineCore
from worker.engine.engine_limits import scheduler_options
from worker.engine.errors import InvalidBatch
from worker.engine.llama import LlamaBackend
from worker.engine.request import GenerationRequest, RequestId, SamplingParams

WINDOW = 16
PROMPT = [270 + (i * 7) % 140 for i in range(100)]
OPTIONS = EngineOptions(context=128, slots=2, kv_tokens=256, device="cpu", draft_max=0, prompt_cache_bytes=2**24)


@pytest.fixture
def backend(tmp_path: Path) -> Iterator[LlamaBackend]:
    path = tmp_path / "gemma.gguf"
    write_tiny_gemma(path, sliding_window=WINDOW)
    backend = LlamaBackend.load(str(path), OPTIONS)
    assert (backend.can_share, backend.window) == (True, WINDOW)
    yield backend
    backend.close()


def compute(backend: LlamaBackend, tokens: list[int], *, seq_id: int = 0, start: int = 0) -> np.ndarray:
    chunk = Chunk(seq_id, RequestId(1), np.array(tokens, dtype=np.int32), start, num_outputs=1)
    return backend.forward([chunk])[0].copy()


def test_part_of_a_saved_sequence_is_not_restored_and_all_of_it_is(backend: LlamaBackend) -> None:
    compute(backend, PROMPT)
    assert backend.apply(Save(0, 1))
    right = compute(backend, [300], start=len(PROMPT))
    assert not backend.apply(Restore(1, 1, 60)), "the blob holds the last window alone"
    assert backend.num_cached(1) == 0
    assert backend.apply(Restore(1, 1, len(PROMPT)))
    np.testing.assert_allclose(compute(backend, [300], seq_id=1, start=len(PROMPT)), right, atol=1e-3)


def test_cells_before_the_window_that_are_gone_are_not_shared(backend: LlamaBackend) -> None:
    compute(backend, PROMPT)
    assert backend.apply(Share(0, 1, 60)), "nothing is gone yet"
    backend.apply(Clear(1))
    assert backend.apply(Save(0, 1))
    backend.apply(Clear(0))
    assert backend.apply(Restore(1, 0, len(PROMPT)))
    assert not backend.apply(Share(0, 1, 60))
    assert backend.apply(Share(0, 1, len(PROMPT)))


def test_cells_before_the_window_stay_while_others_come_and_go(backend: LlamaBackend) -> None:
    compute(backend, PROMPT)
    assert backend.apply(Share(0, 100, len(PROMPT)))
    backend.apply(Clear(0))
    for start in range(6):  # more rows than there are cells
        compute(backend, [290 + start + i for i in range(100)])
        backend.apply(Clear(0))
    assert backend.first_cached(100) == 0
    assert backend.apply(Share(100, 1, 60))
    shared = compute(backend, [333, 334], seq_id=1, start=60)
    np.testing.assert_allclose(shared, compute(backend, [*PROMPT[:60], 333, 334]), atol=0.02)
    for seq_id in (0, 1, 100):
        backend.apply(Clear(seq_id))
    compute(backend, [5] * 120)
    compute(backend, [6] * 120, seq_id=1)  # every cell is free again


def test_rows_that_do_not_follow_what_the_sequence_holds_are_refused(backend: LlamaBackend) -> None:
    compute(backend, PROMPT)
    for start in (0, 50, len(PROMPT) + 1):
        with pytest.raises(InvalidBatch, match="cannot go on"):
            compute(backend, [300], start=start)
    with pytest.raises(InvalidBatch, match="cannot go on at position 7"):
        compute(backend, [300], seq_id=1, start=7)  # llama.cpp would begin an empty sequence anywhere


def test_a_prompt_that_leaves_a_saved_one_early_is_answered_as_alone(backend: LlamaBackend) -> None:
    ticks = itertools.count()
    options = scheduler_options(backend, OPTIONS)
    core = EngineCore(backend, options, clock=lambda: float(next(ticks)), check_cells=True)
    ids = itertools.count(1)

    def answer(prompt: list[int], *, cache_prompt: bool = True) -> list[int]:
        greedy = SamplingParams(temperature=0.0, ignore_eos=True)
        request = GenerationRequest(tuple(prompt), 8, greedy, cache_prompt=cache_prompt)
        core.submit(RequestId(next(ids)), request)
        return [token for _ in iter(lambda: core.has_work, False) for output in core.step() for token in output.tokens]

    other = [*PROMPT[:60], 333, 334]
    alone = answer(other, cache_prompt=False)
    answer(PROMPT)
    while core.scheduler.kv.demote_one(0.0):  # to host memory
        pass
    answer([*PROMPT, *answer([9, 8, 7])])  # all of it comes back
    assert answer(other) == alone
    assert core.statistics.failed_steps <= 1, "at most the one step that found the cells gone"
