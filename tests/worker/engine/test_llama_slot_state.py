"""A slot's prompt out of the real library and back into another context of it, as a holder and as an answer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.tiny_gguf import TinyModel, write_tiny_llama
from tests.worker.engine.test_llama_prompts import PROMPT, life
from worker.engine.occupants import Client
from worker.engine.slot_state import NotTaken, SlotCopy, SlotStates

NOBODY = Client()


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> TinyModel:
    return write_tiny_llama(tmp_path_factory.mktemp("tiny") / "tiny.gguf", embedding=128)


@pytest.mark.parametrize(
    "changes",
    [{}, {"cache_type_k": "q8_0", "cache_type_v": "q8_0", "flash_attn": "on"}, {"slots": 1, "kv_tokens": 256}],
    ids=["plain", "quantised", "one slot"],
)
def test_another_context_goes_on_from_a_copied_slot(model: TinyModel, tmp_path: Path, changes: dict[str, Any]) -> None:
    with life(model.path, tmp_path / "one", **changes) as one:
        first, _ = one.answer(PROMPT, slot=0)
        copy = SlotStates(one.core, lambda: 0.0).copy(0, NOBODY)
        one.core.check_cells()
        longer = [*PROMPT, *first, 300, 301, 302]
        uninterrupted = one.answer(longer)
    assert len(copy.tokens) == len(PROMPT) + len(first) - 1
    with life(model.path, tmp_path / "two", **changes) as two:
        states = SlotStates(two.core, lambda: 0.0)
        states.insert(0, NOBODY, copy)
        two.core.check_cells()
        again = states.copy(0, NOBODY)
        assert np.array_equal(again.kv, copy.kv), "bit for bit"
        assert two.answer(longer) == uninterrupted
        assert states.erase(0, NOBODY) >= len(copy.tokens)
        two.core.check_cells()
        assert two.answer(longer)[1] == 0


def test_bytes_that_are_no_state_are_not_taken_and_harm_nothing(model: TinyModel, tmp_path: Path) -> None:
    with life(model.path, tmp_path / "one") as one:
        states = SlotStates(one.core, lambda: 0.0)
        expected = one.answer(PROMPT, slot=0)[0]
        copy = states.copy(0, NOBODY)
        states.erase(0, NOBODY)
        for kv in (copy.kv[: len(copy.kv) // 2], np.zeros(1000, dtype=np.uint8), copy.kv[::-1].copy()):
            with pytest.raises(NotTaken):
                states.insert(1, NOBODY, SlotCopy(copy.tokens, copy.cache_key, kv))
            one.core.check_cells()
        assert one.answer(PROMPT) == (expected, 0)
