"""Prompts on the disk with the real library and tiny models: the answer goes on as if nothing had been unloaded."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.tiny_gguf import TinyModel, write_tiny_gemma, write_tiny_llama
from worker.contract import EngineOptions
from worker.engine.batch import Restore, Save
from worker.engine.core import EngineCore
from worker.engine.engine_limits import scheduler_options
from worker.engine.llama import LlamaBackend
from worker.engine.prompt_files import PromptFolder
from worker.engine.request import GenerationRequest, Output, RequestId, SamplingParams

GREEDY = SamplingParams(temperature=0.0, ignore_eos=True)
OPTIONS: dict[str, Any] = {"context": 256, "slots": 2, "prompt_cache_bytes": 2**24, "device": "cpu"}
PROMPT = [270 + (i * 7) % 140 for i in range(120)]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> TinyModel:
    return write_tiny_llama(tmp_path_factory.mktemp("tiny") / "tiny.gguf", embedding=128)


class Life:
    """One loaded model with prompts on the disk."""

    def __init__(self, path: Path, folder: Path, subject: str, **changes: Any) -> None:
        options = EngineOptions(**OPTIONS | changes)
        self.backend = LlamaBackend.load(str(path), options)
        ticks = itertools.count()
        self.core = EngineCore(
            self.backend,
            scheduler_options(self.backend, options),
            clock=lambda: float(next(ticks)),
            check_cells=True,
            prompts=PromptFolder.open(folder, "m", subject, 10**9),
        )
        self._ids = itertools.count(1)

    def answer(self, prompt: list[int], **fields: Any) -> tuple[list[int], int]:
        """Return the greedy answer and how many tokens of the prompt were reused."""
        request_id = RequestId(next(self._ids))
        self.core.submit(request_id, GenerationRequest(tuple(prompt), 12, GREEDY, **fields))
        answer: list[int] = []
        end: Output | None = None
        while self.core.has_work:
            for output in self.core.step():
                answer += output.tokens
                end = output if output.finish else end
        self.core.check_cells()
        assert end is not None
        assert end.timings is not None
        return answer, end.timings.cached_tokens


@contextmanager
def life(path: Path, folder: Path, subject: str = "same", **changes: Any) -> Iterator[Life]:
    one = Life(path, folder, subject, **changes)
    yield one
    one.core.save_prompts(float("inf"))
    one.backend.close()


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"flash_attn": "off"},
        {"cache_type_k": "q8_0", "cache_type_v": "q8_0", "flash_attn": "on"},
        {"slots": 1, "kv_tokens": 256},
    ],
    ids=["plain", "no flash attention", "quantised", "one slot"],
)
def test_a_reloaded_model_answers_as_one_that_was_never_unloaded(
    model: TinyModel, tmp_path: Path, changes: dict[str, Any]
) -> None:
    with life(model.path, tmp_path / "one", **changes) as one:
        first, _ = one.answer(PROMPT)
        longer = [*PROMPT, *first, 300, 301, 302]
        uninterrupted = one.answer(longer)
    with life(model.path, tmp_path / "two", **changes) as two:
        two.answer(PROMPT)
    with life(model.path, tmp_path / "two", **changes) as again:
        assert again.answer(longer) == uninterrupted
        assert uninterrupted[1] == len(PROMPT) + len(first) - 1


@pytest.mark.parametrize("changes", [{}, {"flash_attn": "off"}, {"cache_type_k": "q8_0"}])
def test_the_cells_after_a_restore_are_bit_for_bit_those_before(
    model: TinyModel, tmp_path: Path, changes: dict[str, Any]
) -> None:
    with life(model.path, tmp_path, **changes) as one:
        one.answer(PROMPT)
    (file,) = PromptFolder.open(tmp_path, "m", "same", 10**9).files
    data = PromptFolder.open(tmp_path, "m", "same", 10**9).read(file)
    assert data is not None
    backend = LlamaBackend.load(str(model.path), EngineOptions(**OPTIONS | changes))
    backend.put_blob(1, data)
    assert backend.apply(Restore(1, 1, len(file.tokens)))
    assert backend.apply(Save(1, 2))
    again = backend.blob(2)
    backend.close()
    assert again is not None
    assert np.array_equal(again, data)


def test_a_full_size_sliding_window_comes_back_too(tmp_path: Path) -> None:
    path = tmp_path / "gemma.gguf"
    write_tiny_gemma(path, sliding_window=16)
    with life(path, tmp_path / "kept") as one:
        first, _ = one.answer(PROMPT)
        longer = [*PROMPT, *first, 300]
        uninterrupted = one.answer(longer)
    (tmp_path / "kept").rename(tmp_path / "moved")
    with life(path, tmp_path / "two") as two:
        two.answer(PROMPT)
    with life(path, tmp_path / "two") as again:
        assert again.answer(longer) == uninterrupted


def test_a_memory_that_cannot_be_cut_writes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "gemma.gguf"
    write_tiny_gemma(path, sliding_window=16)
    with life(path, tmp_path / "kept", swa_full=False) as one:
        one.answer(PROMPT)
    assert not list(tmp_path.rglob("*.kv"))


@pytest.mark.parametrize("what", ["noise", "zeros", "of another shape", "of other cells"])
def test_bytes_that_are_no_cells_of_this_model_are_refused_and_harm_nobody(
    model: TinyModel, tmp_path: Path, what: str
) -> None:
    """Nothing like this passes the checks of a file; here it is written as if it had."""
    folder = tmp_path / "kept"
    with life(model.path, folder) as one:
        expected, _ = one.answer(PROMPT)
    (path,) = folder.rglob("*.kv")
    (file,) = PromptFolder.open(folder, "m", "same", 10**9).files
    size, tokens = file.kv_bytes, file.tokens
    path.unlink()
    if what == "of another shape":
        other = tmp_path / "other.gguf"
        write_tiny_llama(other, num_layers=3)
        with life(other, folder) as stranger:
            stranger.answer(PROMPT)
    elif what == "of other cells":
        with life(model.path, folder, cache_type_k="f32") as stranger:
            stranger.answer(PROMPT)
    else:
        data = np.zeros(size, dtype=np.uint8)
        if what == "noise":
            data = np.random.default_rng(3).integers(0, 256, size, dtype=np.uint8)
        writer = PromptFolder.open(folder, "m", "same", 10**9)
        writer.prepare()
        assert writer.write(tokens, "", data, used_at=time.time(), until_s=float("inf"))
    with life(model.path, folder) as one:
        assert one.answer(PROMPT) == (expected, 0)
        assert one.answer([*PROMPT, 299])[1] >= len(PROMPT) - 1
