"""Samplers in the real engine: all of them at work in one batch, and drafts change nothing that they remember."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.tiny_gguf import TinyModel, write_tiny_llama
from tests.worker.engine.test_llama_engine import EIGHT, Driver, prompt_of
from worker.engine.request import DEFAULT_SAMPLERS, SamplerKind, SamplingParams

FEW = tuple((token, 15.0) for token in (300, 310, 320))
"""Few tokens that come again and again, so that drafts are often right."""
HOT = SamplingParams(temperature=1.2, top_k=0, top_p=1.0, min_p=0.0, ignore_eos=True, seed=5, logit_bias=FEW)
ALL = [
    replace(HOT, typical_p=0.7),
    replace(HOT, top_n_sigma=2.0),
    replace(HOT, xtc_probability=0.5, xtc_threshold=0.01),
    replace(HOT, dry_multiplier=2.0, dry_allowed_length=1, dry_penalty_last_n=-1),
    replace(HOT, dynatemp_range=1.0),
    replace(HOT, mirostat=1, mirostat_tau=3.0),
    replace(HOT, mirostat=2, mirostat_tau=3.0),
    replace(HOT, adaptive_target=0.1, samplers=(*DEFAULT_SAMPLERS, SamplerKind.ADAPTIVE_P)),
]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> TinyModel:
    return write_tiny_llama(tmp_path_factory.mktemp("tiny") / "tiny.gguf")


def answers(path: Path, *, draft_max: int, num_tokens: int = 40) -> tuple[list[list[int]], int]:
    """Return the answers of all samplers in one batch, and how many drafted tokens were right."""
    driver = Driver(path, replace(EIGHT, draft_max=draft_max))
    prompt = [*prompt_of(6, 1), *[300, 310, 320] * 6]
    ids = [driver.submit(prompt, num_tokens, sampling=params) for params in ALL]
    driver.run()
    return [driver.answers[one] for one in ids], driver.core.statistics.accepted


def test_every_sampler_answers_in_one_batch_and_drafts_change_nothing(model: TinyModel) -> None:
    plain, _ = answers(model.path, draft_max=0)
    assert [len(answer) for answer in plain] == [40] * len(ALL)
    assert len({tuple(answer) for answer in plain}) == len(ALL), "each sampler changes what is drawn"
    drafted, num_right = answers(model.path, draft_max=8)
    assert drafted == plain
    assert num_right > 0
