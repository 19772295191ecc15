"""The sampler for filling in the middle leaves the tokens that llama.cpp's leaves."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from llama_cpp import llama_cpp as lib

from tests.support.llama_chain import Chain
from tests.support.vocabularies import vocabulary_of
from worker.engine.llama_vocabulary import LlamaVocabulary
from worker.engine.request import GenerationRequest, SamplerKind, SamplingParams
from worker.engine.sampler import Sampler
from worker.engine.sampling_candidates import Candidates
from worker.engine.sampling_infill import Infill
from worker.engine.sampling_steps import chain

EDITOR = SamplingParams(
    top_k=40, top_p=0.9, samplers=(SamplerKind.TOP_K, SamplerKind.TOP_P, SamplerKind.INFILL), seed=1
)
NO_TOKENS = np.empty(0, dtype=np.int32)


@pytest.fixture(scope="module", params=["spm", "bpe"])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with vocabulary_of(request.param, tmp_path_factory.mktemp("infill")) as loaded:
        yield loaded


@pytest.fixture
def words(model: Any) -> LlamaVocabulary:
    return LlamaVocabulary(model)


def families(words: LlamaVocabulary) -> list[list[int]]:
    """Return groups of tokens of which one begins all others."""
    pieces = {token: words.piece(token) for token in range(words.num_vocab)}
    found = [
        [token for token, other in pieces.items() if other.startswith(piece)] for piece in pieces.values() if piece
    ]
    return [family for family in found if len(family) > 1]


def test_what_is_left_is_what_llama_cpp_leaves(model: Any, words: LlamaVocabulary) -> None:
    chance = np.random.default_rng(5)
    kin, ends = families(words), sorted(words.eog)
    outcomes: Counter[str] = Counter()
    for trial in range(400):
        row = chance.normal(0.0, 1.0, words.num_vocab).astype(np.float32)
        for family in chance.choice(len(kin), 3):
            row[kin[family]] += chance.normal(4.0, 2.0)
        row[ends] = chance.choice([-4.0, 0.0, 4.0], len(ends))
        params = replace(EDITOR, top_k=int(chance.choice([5, 40])), top_p=float(chance.choice([0.9, 1.0])))
        with Chain(params, words.num_vocab, vocab=lib.llama_model_get_vocab(model)) as theirs:
            expected = set(np.flatnonzero(theirs.distribution(row.copy())[0]).tolist())
        candidates = Candidates(row)
        for step in chain(params, Infill(words.eog, words.piece)):
            step(candidates, NO_TOKENS, 0)
        left = set(candidates.ids.tolist())
        if expected <= words.eog:
            assert left <= words.eog, trial
            outcomes["the end"] += 1
        else:
            assert left == expected, trial
            outcomes["one text" if len(left) == 1 else "several"] += 1
    assert min(outcomes.values()) > 10
    assert len(outcomes) == 3, "all ways out were taken"


@pytest.mark.parametrize(("fields", "may_end"), [({}, True), ({"min_tokens": 2}, False)])
def test_end_is_taken_where_no_text_is_likely_unless_it_may_not(
    words: LlamaVocabulary, fields: dict[str, Any], may_end: bool
) -> None:
    row = np.zeros(words.num_vocab, dtype=np.float32)
    row[sorted(words.eog)] = -np.inf
    sampler = Sampler(GenerationRequest((1,), 1, EDITOR, **fields), words.num_vocab, words.eog, words.piece)
    assert (sampler.sample(row, NO_TOKENS, 0).token in words.eog) is may_end


def test_end_is_never_taken_when_it_is_to_be_ignored(words: LlamaVocabulary) -> None:
    params = replace(EDITOR, ignore_eos=True)
    sampler = Sampler(GenerationRequest((1,), 1, params), words.num_vocab, words.eog, words.piece)
    row = np.zeros(words.num_vocab, dtype=np.float32)
    assert sampler.sample(row, NO_TOKENS, 0).token not in words.eog
