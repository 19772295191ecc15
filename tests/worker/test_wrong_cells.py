"""A real worker that checks its cells ends loudly before wrong data is computed from them; else it is not disturbed."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.support.tiny_gguf import write_tiny_llama
from tests.worker.test_process import CHATML, start
from worker.contract import ExitCode, Phase

ONE_CELL_TOO_MANY = """
from worker.engine import kv_store, prefix_cache
right = prefix_cache.common_prefix
def common_prefix(a, b):
    found = right(a, b)
    return found + 1 if 8 <= found < min(len(a), len(b)) else found
kv_store.common_prefix = prefix_cache.common_prefix = common_prefix
"""
A_CELL_TOO_FEW = """
from worker.engine import llama_context
right = llama_context.lib.llama_memory_seq_cp
def copy(memory, src, dst, first, last):
    right(memory, src, dst, first, last - 1 if last > 8 else last)
llama_context.lib.llama_memory_seq_cp = copy
"""


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tiny") / "tiny.gguf"
    write_tiny_llama(path, chat_template=CHATML)
    return path


@pytest.mark.parametrize(
    ("broken", "told"),
    [
        (ONE_CELL_TOO_MANY, r", position \d+: token \d+ expected, \d+ found"),
        (A_CELL_TOO_FEW, r": positions 0 to \d+ expected, the cache ends at \d+"),
    ],
    ids=["another's cell", "a cell too few"],
)
async def test_a_worker_with_wrong_cells_answers_no_more_and_says_why(tiny: Path, broken: str, told: str) -> None:
    async with start(tiny, broken_by=broken) as worker:
        await worker.ready()
        text = "hello world tell story red marker " * 4
        assert (await worker.answer(text=text + "one", max_tokens=4))["choices"]
        error = await worker.refusal(text=text + "two", max_tokens=4)
        assert error.status >= 500, "its step has failed, or the one before"
        failed = await worker.until(lambda status: status.phase is Phase.FAILED)
        assert re.match(rf"the engine failed: sequence \d+ \([^)]+\){told}", failed.error or ""), failed.error
        assert await worker.exit_code() == ExitCode.ENGINE_FAILED


async def test_a_worker_that_checks_its_cells_answers_as_ever(tiny: Path) -> None:
    async with start(tiny) as worker:
        assert worker.spec.check_cells
        await worker.ready()
        for word in ("one", "two", "one"):
            assert (await worker.answer(text=f"hello world tell story red marker {word}", max_tokens=4))["choices"]
