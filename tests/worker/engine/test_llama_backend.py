"""The door to llama.cpp, on tiny models in the real library: what it loads, refuses, computes and keeps."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.plain_llama import plain_greedy
from tests.support.tiny_gguf import TinyModel, write_not_gguf, write_tiny_gemma, write_tiny_llama, write_truncated
from worker.contract import EngineOptions
from worker.engine.batch import Chunk, Clear, Forget, Restore, Save, Share, Trim
from worker.engine.errors import BadModel, ForwardAborted, InvalidBatch, KvCacheFull, OutOfMemory
from worker.engine.llama import LlamaBackend
from worker.engine.llama_batch import LlamaBatch
from worker.engine.request import RequestId

CONTEXT = 64
SLOTS = 3
PROMPT = list(range(300, 324))

BASE: dict[str, Any] = {"context": CONTEXT, "slots": SLOTS, "draft_max": 0}
Open = Callable[..., LlamaBackend]


@pytest.fixture
def opened() -> Iterator[Open]:
    """Load a backend that is closed after the test."""
    backends: list[LlamaBackend] = []

    def load(path: Path, **options: Any) -> LlamaBackend:
        backend = LlamaBackend.load(str(path), EngineOptions(**(BASE | options)))
        backends.append(backend)
        return backend

    yield load
    for backend in backends:
        backend.close()


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> TinyModel:
    return write_tiny_llama(tmp_path_factory.mktemp("tiny") / "tiny.gguf")


@pytest.fixture
def backend(opened: Open, model: TinyModel) -> LlamaBackend:
    return opened(model.path)


def chunk(tokens: list[int], *, seq_id: int = 0, start: int = 0, logits: bool = True) -> Chunk:
    return Chunk(seq_id, RequestId(1), np.array(tokens, dtype=np.int32), start, num_outputs=int(logits))


def logits_after(backend: LlamaBackend, tokens: list[int], *, seq_id: int = 0, start: int = 0) -> np.ndarray:
    """Return the logits after `tokens`, computed in one pass, and leave the sequence in the cache."""
    return backend.forward([chunk(tokens, seq_id=seq_id, start=start)])[0].copy()


# --- loading ----------------------------------------------------------------------------------------------


def test_facts_are_those_of_the_file_and_of_the_options(backend: LlamaBackend, model: TinyModel) -> None:
    facts = backend.facts
    assert (facts.context, facts.slots, facts.kv_cells) == (CONTEXT, SLOTS, SLOTS * CONTEXT)
    assert (facts.trained_context, facts.num_vocab) == (model.trained_context, model.num_vocab)
    assert (facts.device, facts.gpu_layers, facts.total_layers) == ("cpu", 0, model.num_layers + 1)
    assert (facts.num_params > 10_000, facts.size_bytes > 40_000, facts.has_chat_template) == (True, True, False)
    assert "llama" in facts.description


def test_nothing_is_in_the_cache_after_loading(backend: LlamaBackend) -> None:
    assert [backend.num_cached(seq_id) for seq_id in range(SLOTS + 2)] == [0] * (SLOTS + 2)


def test_progress_of_loading_is_told(model: TinyModel) -> None:
    fractions: list[float] = []

    def note(fraction: float) -> bool:
        fractions.append(fraction)
        return True

    LlamaBackend.load(str(model.path), EngineOptions(context=32), on_progress=note).close()
    assert fractions == sorted(fractions)
    assert fractions[-1] == 1.0


def test_loading_can_be_given_up(model: TinyModel) -> None:
    with pytest.raises(BadModel):
        LlamaBackend.load(str(model.path), EngineOptions(context=32), on_progress=lambda fraction: False)


@pytest.mark.parametrize(
    ("write", "reason"),
    [
        (lambda path: write_truncated(path, keep=0.01), "failed to"),
        (lambda path: write_truncated(path, keep=0.6), "not within the file bounds"),
        (lambda path: write_truncated(path, keep=0.99), "not within the file bounds"),
        (write_not_gguf, "invalid magic"),
        (lambda path: path.write_bytes(b""), "failed to"),
        (lambda path: path.mkdir(), "failed to"),
        (lambda path: None, "failed to open"),
    ],
)
def test_file_that_is_no_model_is_refused_with_llama_cpps_reason(
    tmp_path: Path, write: Callable[[Path], object], reason: str
) -> None:
    path = tmp_path / "bad.gguf"
    write(path)
    with pytest.raises(BadModel, match=r"llama\.cpp could not load the file: .*") as caught:
        LlamaBackend.load(str(path), EngineOptions(context=32))
    assert reason in str(caught.value)


def test_reason_is_that_of_this_load_and_not_of_an_earlier_one(tmp_path: Path, model: TinyModel) -> None:
    write_not_gguf(tmp_path / "page.gguf")
    with pytest.raises(BadModel):
        LlamaBackend.load(str(tmp_path / "page.gguf"), EngineOptions(context=32))
    LlamaBackend.load(str(model.path), EngineOptions(context=32)).close()
    with pytest.raises(BadModel) as caught:
        LlamaBackend.load(str(tmp_path / "absent.gguf"), EngineOptions(context=32))
    assert "magic" not in str(caught.value)


def test_context_that_no_machine_has_memory_for_is_refused_at_once(tmp_path: Path) -> None:
    """In a process of its own whose address space is bounded: some systems would promise any amount of memory."""
    write_tiny_llama(tmp_path / "wide.gguf", embedding=512, heads=4, kv_heads=4)
    code = f"""
import resource
resource.setrlimit(resource.RLIMIT_AS, (8 << 30, 8 << 30))
from worker.contract import EngineOptions
from worker.engine.errors import LoadFailed
from worker.engine.llama import LlamaBackend
from worker.engine.llama_batch import LlamaBatch
try:
    LlamaBackend.load({str(tmp_path / "wide.gguf")!r}, EngineOptions(context=1_000_000, slots=4))
except LoadFailed as error:
    print(type(error).__name__, error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.startswith(OutOfMemory.__name__), done.stdout + done.stderr
    assert "could not make a context" in done.stdout


@pytest.mark.parametrize("device", ["cuda7", "Vulkan0", ""])
def test_unknown_device_is_refused_with_a_list_of_those_that_are_there(model: TinyModel, device: str) -> None:
    with pytest.raises(BadModel, match=rf"device '{device}' is not there; llama\.cpp sees: cpu"):
        LlamaBackend.load(str(model.path), EngineOptions(context=32, device=device))


@pytest.mark.parametrize("device", ["cpu", "CPU", None])
def test_cpu_is_always_there(opened: Open, model: TinyModel, device: str | None) -> None:
    assert np.isfinite(logits_after(opened(model.path, device=device, gpu_layers=0), PROMPT)).all()


# --- passes -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("vocab", ["spm", "bpe"])
def test_greedy_tokens_are_those_of_llama_cpps_plain_loop(opened: Open, tmp_path: Path, vocab: Any) -> None:
    path = write_tiny_llama(tmp_path / "tiny.gguf", vocab=vocab).path
    backend = opened(path)
    row = logits_after(backend, PROMPT)
    answer = [int(row.argmax())]
    for position in range(len(PROMPT), len(PROMPT) + 11):
        row = logits_after(backend, answer[-1:], start=position)
        answer.append(int(row.argmax()))
    assert answer == plain_greedy(path, PROMPT, 12)


def test_rows_of_logits_come_in_the_order_of_the_chunks_that_want_them(backend: LlamaBackend) -> None:
    prompts = [[300 + i, 310 + i, 320 + i] for i in range(SLOTS)]
    alone = [logits_after(backend, prompt, seq_id=i) for i, prompt in enumerate(prompts)]
    for seq_id in range(SLOTS):
        backend.apply(Clear(seq_id))
    chunks = [chunk(prompts[2], seq_id=2), chunk(prompts[0], seq_id=0, logits=False), chunk(prompts[1], seq_id=1)]
    together = backend.forward(chunks)
    assert together.shape == (2, backend.vocabulary.num_vocab)
    np.testing.assert_allclose(together[0], alone[2], atol=1e-3)
    np.testing.assert_allclose(together[1], alone[1], atol=1e-3)
    assert np.abs(together[0] - together[1]).max() > 0.1


def test_a_pass_without_wanted_logits_has_none(backend: LlamaBackend) -> None:
    assert backend.forward([chunk(PROMPT, logits=False)]).shape == (0, backend.vocabulary.num_vocab)
    assert backend.num_cached(0) == len(PROMPT)


def test_prompt_in_chunks_gives_what_it_gives_in_one(backend: LlamaBackend) -> None:
    whole = logits_after(backend, PROMPT, seq_id=0)
    backend.forward([chunk(PROMPT[:10], seq_id=1, logits=False)])
    parts = logits_after(backend, PROMPT[10:], seq_id=1, start=10)
    np.testing.assert_allclose(parts, whole, atol=1e-3)


@pytest.mark.parametrize("num_threads", [1, 2, 4])
def test_number_of_threads_changes_no_result(backend: LlamaBackend, num_threads: int) -> None:
    before = logits_after(backend, PROMPT, seq_id=0)
    backend.set_threads(num_threads)
    backend.apply(Clear(0))
    np.testing.assert_allclose(logits_after(backend, PROMPT, seq_id=0), before, atol=1e-4)


# --- what is refused --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("chunks", "words"),
    [
        ([], "0 rows"),
        ([chunk([1, -1])], "not in the vocabulary"),
        ([chunk([1, 10**6])], "not in the vocabulary"),
        ([chunk([1], seq_id=SLOTS)], f"sequence id {SLOTS} is not a slot"),
        ([chunk([1], seq_id=-1)], "sequence id -1 is not a slot"),
        ([chunk([1], seq_id=300)], "sequence id 300 is not a slot"),
        ([chunk([1] * 513)], "513 rows, the limit is 512"),
        ([chunk([1, 2], start=SLOTS * 256)], "beyond the context"),
        ([chunk([1], seq_id=i % SLOTS, start=i // SLOTS) for i in range(SLOTS + 1)], f"{SLOTS + 1} outputs"),
    ],
)
def test_batch_that_would_end_the_process_is_refused_before_llama_cpp_sees_it(
    backend: LlamaBackend, chunks: list[Chunk], words: str
) -> None:
    before = logits_after(backend, PROMPT, seq_id=1)
    with pytest.raises(InvalidBatch, match=words):
        backend.forward(chunks)
    assert backend.num_cached(1) == len(PROMPT)
    backend.apply(Clear(1))
    np.testing.assert_allclose(logits_after(backend, PROMPT, seq_id=1), before, atol=1e-4)


def test_interrupted_pass_is_rolled_back_and_the_next_one_goes_through(
    backend: LlamaBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    logits_after(backend, [1, 2, 3])
    fill = LlamaBatch.fill

    def interrupt_meanwhile(batch: LlamaBatch, chunks: Sequence[Chunk]) -> int:
        backend.interrupt()
        return fill(batch, chunks)

    with monkeypatch.context() as patch:
        patch.setattr(LlamaBatch, "fill", interrupt_meanwhile)
        with pytest.raises(ForwardAborted):
            backend.forward([chunk([4, 5], start=3), chunk([7, 8], seq_id=1)])
    assert (backend.num_cached(0), backend.num_cached(1)) == (3, 0)
    assert np.isfinite(logits_after(backend, [4, 5], start=3)).all()


def test_gap_in_a_sequence_is_refused_and_changes_nothing(backend: LlamaBackend) -> None:
    backend.forward([chunk(PROMPT)])
    with pytest.raises(InvalidBatch):
        backend.forward([chunk([301], start=len(PROMPT) + 3)])
    assert backend.num_cached(0) == len(PROMPT)


@pytest.mark.parametrize("seq_id", [-1, 256, 1000])
def test_sequence_id_out_of_range_is_refused_in_every_operation(backend: LlamaBackend, seq_id: int) -> None:
    for operation in (Clear(seq_id), Trim(seq_id, 1), Share(0, seq_id, 1), Share(seq_id, 0, 1), Save(seq_id, 1)):
        with pytest.raises(ValueError, match="outside 0"):
            backend.apply(operation)
    with pytest.raises(ValueError, match="outside 0"):
        backend.num_cached(seq_id)


def test_full_cache_is_told_and_changes_nothing(opened: Open, model: TinyModel) -> None:
    backend = opened(model.path, context=256, slots=2, kv_tokens=256)
    backend.forward([chunk(list(range(200, 400)), seq_id=0)])
    with pytest.raises(KvCacheFull):
        backend.forward([chunk(list(range(300, 400)), seq_id=1)])
    assert (backend.num_cached(0), backend.num_cached(1)) == (200, 0)
    backend.apply(Clear(0))
    backend.forward([chunk(list(range(300, 400)), seq_id=1)])
    assert backend.num_cached(1) == 100


# --- the cache --------------------------------------------------------------------------------------------


def test_shared_prefix_gives_what_its_own_computation_would(backend: LlamaBackend) -> None:
    alone = logits_after(backend, [*PROMPT, 350, 351], seq_id=0)
    backend.apply(Clear(0))
    backend.forward([chunk(PROMPT, seq_id=1, logits=False)])
    assert backend.apply(Share(1, 200, len(PROMPT)))
    assert backend.apply(Clear(1))
    assert backend.apply(Share(200, 2, len(PROMPT)))
    assert [backend.num_cached(seq_id) for seq_id in (1, 200, 2)] == [0, len(PROMPT), len(PROMPT)]
    np.testing.assert_allclose(logits_after(backend, [350, 351], seq_id=2, start=len(PROMPT)), alone, atol=1e-3)
    assert backend.num_cached(200) == len(PROMPT), "its holder has not grown"


def test_part_of_a_prefix_can_be_shared_and_its_source_goes_on_alone(backend: LlamaBackend) -> None:
    alone = logits_after(backend, [*PROMPT[:10], 340], seq_id=0)
    backend.apply(Clear(0))
    backend.forward([chunk(PROMPT, seq_id=1, logits=False)])
    backend.apply(Share(1, 2, 10))
    assert backend.num_cached(2) == 10
    first = logits_after(backend, [355], seq_id=1, start=len(PROMPT))
    np.testing.assert_allclose(logits_after(backend, [340], seq_id=2, start=10), alone, atol=1e-2)
    backend.apply(Clear(2))
    backend.apply(Trim(1, len(PROMPT)))
    np.testing.assert_allclose(logits_after(backend, [355], seq_id=1, start=len(PROMPT)), first, atol=1e-3)


def test_trimmed_sequence_goes_on_as_if_the_rest_had_never_been(backend: LlamaBackend) -> None:
    alone = logits_after(backend, [*PROMPT[:5], 333], seq_id=0)
    backend.forward([chunk(PROMPT, seq_id=1)])
    assert backend.apply(Trim(1, 5))
    assert backend.num_cached(1) == 5
    np.testing.assert_allclose(logits_after(backend, [333], seq_id=1, start=5), alone, atol=1e-3)


@pytest.mark.parametrize("options", [{}, {"cache_type_k": "q8_0", "cache_type_v": "q8_0"}], ids=str)
def test_saved_sequence_can_be_restored_whole_or_in_part(opened: Open, tmp_path: Path, options: dict[str, Any]) -> None:
    backend = opened(write_tiny_llama(tmp_path / "t.gguf", embedding=128, heads=4).path, **options)
    backend.forward([chunk(PROMPT, seq_id=0, logits=False)])
    next_row = logits_after(backend, [333], seq_id=0, start=len(PROMPT))
    backend.apply(Trim(0, len(PROMPT)))
    assert backend.apply(Save(0, 7))
    backend.apply(Clear(0))
    for length in (len(PROMPT), 10):
        assert backend.apply(Restore(7, 2, length))
        assert backend.num_cached(2) == length
        row = logits_after(backend, [333], seq_id=2, start=length)
        assert np.allclose(row, next_row, atol=1e-3) == (length == len(PROMPT))
        backend.apply(Clear(2))
    backend.apply(Forget(7))
    assert not backend.apply(Restore(7, 2, 10))
    assert backend.num_cached(2) == 0


@pytest.mark.parametrize("swa_full", [True, False])
def test_sliding_window_can_be_shared_only_in_full_size(opened: Open, tmp_path: Path, swa_full: bool) -> None:
    path = write_tiny_gemma(tmp_path / "gemma.gguf", sliding_window=16).path
    backend = opened(path, swa_full=swa_full)
    assert backend.can_share is swa_full
    assert np.isfinite(logits_after(backend, PROMPT, seq_id=0)).all()


def test_prefix_beyond_the_window_gives_what_a_cold_run_gives(opened: Open, tmp_path: Path) -> None:
    backend = opened(write_tiny_gemma(tmp_path / "gemma.gguf", sliding_window=8).path)
    cold = logits_after(backend, [*PROMPT[:12], 340], seq_id=0)
    backend.forward([chunk(PROMPT, seq_id=1, logits=False)])
    backend.apply(Share(1, 2, 12))
    np.testing.assert_allclose(logits_after(backend, [340], seq_id=2, start=12), cold, atol=1e-3)


KV_TYPES = ["f32", "f16", "bf16", "q8_0", "q4_0", "q4_1", "iq4_nl", "q5_0", "q5_1"]


@pytest.mark.parametrize("kind", KV_TYPES)
def test_cache_of_every_type_computes_about_the_same(opened: Open, tmp_path: Path, kind: str) -> None:
    path = write_tiny_llama(tmp_path / "tiny.gguf", embedding=128, heads=4).path
    exact = logits_after(opened(path, cache_type_k="f32", cache_type_v="f32"), PROMPT)
    row = logits_after(opened(path, cache_type_k=kind, cache_type_v=kind), PROMPT)
    assert np.corrcoef(exact, row)[0, 1] > 0.9
