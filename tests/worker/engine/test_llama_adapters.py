"""LoRA adapters in the real library, on a tiny model: loading, refusals, and answers beside those of other adapters."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.tiny_bert import write_tiny_bert
from tests.support.tiny_gguf import write_not_gguf, write_tiny_llama
from tests.support.tiny_lora import write_tiny_lora
from worker.contract import EngineOptions, LoraFile
from worker.engine.batch import Chunk, Clear
from worker.engine.core import EngineCore
from worker.engine.engine_limits import scheduler_options
from worker.engine.errors import BadModel, InvalidBatch
from worker.engine.llama import LlamaBackend, load_backend
from worker.engine.llama_vocabulary import LlamaVocabulary
from worker.engine.request import AdapterSet, GenerationRequest, RequestId, SamplingParams

PROMPT = list(range(300, 324))
FIRST: AdapterSet = ((0, 1.0),)
SECOND: AdapterSet = ((1, 1.0),)
BOTH: AdapterSet = ((0, 0.5), (1, 1.0))
GREEDY = SamplingParams(temperature=0.0, ignore_eos=True)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("lora")
    write_tiny_llama(folder / "base.gguf")
    write_tiny_lora(folder / "first.gguf", seed=1)
    write_tiny_lora(folder / "second.gguf", seed=2)
    return folder


def open_backend(folder: Path, *files: str, **options: Any) -> LlamaBackend:
    loras = tuple(LoraFile(name.removesuffix(".gguf"), str(folder / name)) for name in files)
    return LlamaBackend.load(
        str(folder / "base.gguf"), EngineOptions(**{"context": 96, "slots": 4, "loras": loras} | options)
    )


@pytest.fixture
def backend(folder: Path) -> Iterator[LlamaBackend]:
    backend = open_backend(folder, "first.gguf", "second.gguf")
    yield backend
    backend.close()


def logits(backend: LlamaBackend, adapters: AdapterSet) -> np.ndarray:
    backend.apply(Clear(0))
    backend.use_adapters(adapters)
    tokens = np.array(PROMPT, dtype=np.int32)
    return backend.forward([Chunk(0, RequestId(1), tokens, 0, num_outputs=1)])[0].copy()


def test_every_set_of_adapters_has_logits_of_its_own(folder: Path, backend: LlamaBackend) -> None:
    plain = open_backend(folder)
    base = logits(plain, ())
    plain.close()
    assert np.array_equal(logits(backend, ()), base), "loaded adapters that nobody asks for change nothing"
    rows = [base, *(logits(backend, adapters) for adapters in (FIRST, SECOND, BOTH, ((0, 0.5),), ((0, -1.0),)))]
    for one, other in itertools.combinations(rows, 2):
        assert np.abs(one - other).max() > 0.1


def test_change_of_adapters_is_complete_in_both_directions(backend: LlamaBackend) -> None:
    order = [FIRST, (), SECOND, FIRST, BOTH, (), BOTH, SECOND]
    seen: dict[AdapterSet, np.ndarray] = {}
    for adapters in order:
        row = logits(backend, adapters)
        assert np.array_equal(seen.setdefault(adapters, row), row)


def test_scale_of_zero_is_the_base_model(backend: LlamaBackend) -> None:
    assert np.array_equal(logits(backend, ((0, 0.0),)), logits(backend, ()))


def test_adapter_is_scaled_by_alpha_over_rank(folder: Path) -> None:
    write_tiny_lora(folder / "half.gguf", seed=1, alpha=4.0)
    backend = open_backend(folder, "first.gguf", "half.gguf")
    assert np.allclose(logits(backend, ((0, 0.5),)), logits(backend, ((1, 1.0),)), atol=1e-4)
    backend.close()


def test_adapter_that_is_not_there_is_refused_and_nothing_changes(backend: LlamaBackend) -> None:
    before = logits(backend, FIRST)
    with pytest.raises(InvalidBatch):
        backend.use_adapters(((2, 1.0),))
    with pytest.raises(InvalidBatch):
        backend.use_adapters(((-1, 1.0),))
    assert np.array_equal(logits(backend, FIRST), before)


@pytest.mark.parametrize(
    ("write", "reason"),
    [
        (lambda path: None, "failed to open"),
        (write_not_gguf, "failed to load lora adapter from file"),
        (write_tiny_llama, "expect general.type to be 'adapter'"),
        (lambda path: write_tiny_lora(path, architecture="qwen2"), "arch mismatch"),
        (lambda path: write_tiny_lora(path, adapter_type="ia3"), "expect adapter.type to be 'lora'"),
        (lambda path: write_tiny_lora(path, embedding=64), "incorrect shape"),
        (lambda path: write_tiny_lora(path, num_layers=3), "does not exist in base model"),
        (lambda path: write_tiny_lora(path, adapter__alora__invocation_tokens=[5, 6]), "activated LoRA"),
    ],
)
def test_file_that_is_no_adapter_of_the_model_is_refused_by_name(
    folder: Path, write: Callable[[Path], object], reason: str
) -> None:
    path = folder / "bad.gguf"
    path.unlink(missing_ok=True)
    write(path)
    with pytest.raises(BadModel) as caught:
        open_backend(folder, "first.gguf", "bad.gguf")
    assert f"LoRA adapter `bad` ({path})" in str(caught.value)
    assert reason in str(caught.value)


def test_encoder_takes_no_adapters(tmp_path: Path) -> None:
    write_tiny_bert(tmp_path / "bert.gguf")
    write_tiny_lora(tmp_path / "lora.gguf", architecture="bert")
    options = EngineOptions(context=64, loras=(LoraFile("lora", str(tmp_path / "lora.gguf")),))
    with pytest.raises(BadModel, match="for generated text"):
        load_backend(str(tmp_path / "bert.gguf"), options)


# --- the core ---------------------------------------------------------------------------------------------


class Driver:
    """A core on the real library whose clock is counted in passes."""

    def __init__(self, backend: LlamaBackend) -> None:
        ticks = itertools.count()
        options = scheduler_options(backend, backend.model.options)
        self.core = EngineCore(backend, options, clock=lambda: next(ticks) / 1000, check_cells=True)
        self.answers: dict[RequestId, list[int]] = {}

    def submit(self, prompt: list[int], adapters: AdapterSet, max_tokens: int = 24) -> RequestId:
        request_id = RequestId(len(self.answers) + 1)
        request = GenerationRequest(tuple(prompt), max_tokens, GREEDY, adapters=adapters)
        self.core.submit(request_id, request)
        self.answers[request_id] = []
        return request_id

    def run(self) -> None:
        while self.core.has_work:
            for output in self.core.step():
                self.answers[output.request_id] += output.tokens


SETS: tuple[AdapterSet, ...] = ((), FIRST, SECOND, BOTH)


def test_requests_with_different_adapters_at_once_each_get_their_lone_answer(folder: Path) -> None:
    lone: list[list[int]] = []
    for adapters in SETS:
        backend = open_backend(folder, "first.gguf", "second.gguf")
        driver = Driver(backend)
        driver.submit(PROMPT, adapters)
        driver.run()
        lone.append(driver.answers[RequestId(1)])
        backend.close()
    assert len({tuple(answer) for answer in lone}) == len(SETS)
    backend = open_backend(folder, "first.gguf", "second.gguf")
    driver = Driver(backend)
    for adapters in SETS:
        driver.submit(PROMPT, adapters)
    driver.run()
    assert list(driver.answers.values()) == lone
    backend.close()


def test_prompt_computed_with_one_adapter_is_not_reused_for_another(folder: Path) -> None:
    backend = open_backend(folder, "first.gguf", "second.gguf")
    driver = Driver(backend)
    counts = []
    for adapters in (FIRST, FIRST, SECOND, ()):
        before = driver.core.statistics.counters().prompt_tokens_cached
        driver.submit(PROMPT, adapters)
        driver.run()
        counts.append(driver.core.statistics.counters().prompt_tokens_cached - before)
    assert counts == [0, len(PROMPT) - 1, 0, 0]
    backend.close()


def test_a_vocabulary_is_there_until_nobody_needs_it_although_the_model_is_of_no_use(tmp_path: Path) -> None:
    """The chat template is read beside the rest: what it looks at must not be freed under its hands."""
    model = write_tiny_llama(tmp_path / "model.gguf").path
    options = EngineOptions(context=64, loras=(LoraFile("none", str(tmp_path / "none.gguf")),))
    seen: list[int] = []

    def on_vocabulary(vocabulary: LlamaVocabulary) -> Callable[[], object]:
        return lambda: seen.append(vocabulary.num_vocab if vocabulary.piece(5) is not None else 0)

    with pytest.raises(BadModel, match="none"):
        load_backend(str(model), options, on_vocabulary=on_vocabulary)
    assert len(seen) == 1
