"""What following a grammar costs for each token: llguidance beside llama.cpp's own sampler, on one vocabulary.

Both follow the same answer under the same schema. xgrammar takes part where it is installed.
"""

from __future__ import annotations

import ctypes
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from llama_cpp import llama_cpp as lib
from llama_cpp.llama_grammar import json_schema_to_gbnf
from llguidance import LLMatcher

from bench.figures import Figure
from worker.engine.grammar import Grammars
from worker.engine.llama_vocabulary import LlamaVocabulary

ANSWER = json.dumps(
    [
        {
            "name": "Ada Lovelace of London",
            "age": 36,
            "colour": "green",
            "tags": ["mathematics", "machines", "poetry"],
            "address": {"street": "St James's Square", "number": 12},
        }
    ]
    * 3
)[:-1]
"""The beginning of an answer; nothing ends it."""


def measure_libraries(model_path: Path, schema: str) -> list[Figure]:
    """Return compile and token times of each library."""
    params = lib.llama_model_default_params()
    params.vocab_only = True
    model = lib.llama_model_load_from_file(str(model_path).encode(), params)
    try:
        vocabulary = LlamaVocabulary(model)
        tokens = vocabulary.tokenize(ANSWER, add_special=False, parse_special=False)
        return [
            *_figures("llguidance", *_llguidance(vocabulary, tokens, schema)),
            *_figures("llama.cpp's sampler", *_llama(vocabulary, tokens, schema)),
        ]
    finally:
        lib.llama_model_free(model)


def _figures(name: str, compile_s: float, steps_s: list[float]) -> list[Figure]:
    return [
        Figure(f"{name}, compile", 1e3 * compile_s, "ms", is_more_better=False),
        Figure(f"{name}, a token", 1e6 * statistics.mean(steps_s), "us", is_more_better=False),
        Figure(f"{name}, the dearest token", 1e6 * max(steps_s), "us", is_more_better=False),
    ]


def _llguidance(vocabulary: LlamaVocabulary, tokens: list[int], schema: str) -> tuple[float, list[float]]:
    grammars = Grammars(vocabulary, vocabulary.control_tokens)
    grammars.compile('start: "a"')  # the vocabulary's own table is made once
    begun_s = time.perf_counter()
    matcher = grammars.compile(LLMatcher.grammar_from_json_schema(schema)).start()
    compile_s = time.perf_counter() - begun_s

    def step(token: int) -> None:
        matcher.allowed(())
        matcher.accept(token)

    return compile_s, _timed(step, tokens)


def _llama(vocabulary: LlamaVocabulary, tokens: list[int], schema: str) -> tuple[float, list[float]]:
    """Its sampler looks at every token of the vocabulary; llama-server first tries the one that was sampled."""
    begun_s = time.perf_counter()
    grammar = json_schema_to_gbnf(schema).encode()
    sampler = lib.llama_sampler_init_grammar(vocabulary.native, grammar, b"root")
    compile_s = time.perf_counter() - begun_s
    if not sampler:
        raise RuntimeError("llama.cpp refuses the grammar of its own converter")
    candidates = np.zeros(vocabulary.num_vocab, dtype=[("id", "<i4"), ("logit", "<f4"), ("p", "<f4")])

    def step(token: int) -> None:
        candidates["id"] = np.arange(vocabulary.num_vocab)
        candidates["logit"] = 0.0
        array = lib.llama_token_data_array(
            ctypes.cast(candidates.ctypes.data, ctypes.POINTER(lib.llama_token_data)), len(candidates), -1, False
        )
        lib.llama_sampler_apply(sampler, ctypes.byref(array))
        if not np.isfinite(candidates["logit"][token]):
            raise RuntimeError("llama.cpp's grammar does not allow the answer")
        lib.llama_sampler_accept(sampler, token)

    try:
        return compile_s, _timed(step, tokens)
    finally:
        lib.llama_sampler_free(sampler)


def _timed(step: Callable[[int], Any], tokens: list[int]) -> list[float]:
    seconds = []
    for token in tokens:
        begun_s = time.perf_counter()
        step(token)
        seconds.append(time.perf_counter() - begun_s)
    return seconds
