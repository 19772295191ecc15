"""llama.cpp's own chain of samplers on one row of logits: the truth that our sampler is compared with."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from llama_cpp import llama_cpp as lib

from worker.engine.request import SamplingParams

Row = npt.NDArray[np.float32]


def chain_logits(row: Row, params: SamplingParams, history: Sequence[int]) -> Row:
    """Return the row after bias and penalties. Shape: (num_vocab,)."""
    ids, logits = _apply(row, params, history, choosing=False)
    changed = np.empty_like(row)
    changed[ids] = logits
    return changed


def chain_distribution(row: Row, params: SamplingParams, history: Sequence[int] = ()) -> npt.NDArray[np.float64]:
    """Return the probability of each token; exactly 0 for what the chain has cut off. Shape: (num_vocab,)."""
    ids, logits = _apply(row, params, history, choosing=True)
    weights = np.exp(logits.astype(np.float64) - logits.max())
    distribution = np.zeros(len(row))
    distribution[ids] = weights / weights.sum()
    return distribution


def _apply(
    row: Row, params: SamplingParams, history: Sequence[int], *, choosing: bool
) -> tuple[npt.NDArray[np.int32], Row]:
    chain = lib.llama_sampler_chain_init(lib.llama_sampler_chain_default_params())
    keep: list[Any] = []
    if params.logit_bias:
        biases = (lib.llama_logit_bias * len(params.logit_bias))(*params.logit_bias)
        keep.append(biases)
        _add(chain, lib.llama_sampler_init_logit_bias(len(row), len(biases), biases))
    last_n = len(history) if params.repeat_last_n < 0 else params.repeat_last_n
    _add(
        chain,
        lib.llama_sampler_init_penalties(
            len(row), last_n, params.repeat_penalty, params.frequency_penalty, params.presence_penalty
        ),
    )
    if choosing:
        _add(chain, lib.llama_sampler_init_top_k(params.top_k))
        _add(chain, lib.llama_sampler_init_top_p(params.top_p, 1))
        _add(chain, lib.llama_sampler_init_min_p(params.min_p, 1))
        _add(chain, lib.llama_sampler_init_temp(params.temperature))
    for token in history:
        lib.llama_sampler_accept(chain, token)
    entries = (lib.llama_token_data * len(row))()
    table = np.ctypeslib.as_array(entries)
    table["id"], table["logit"] = np.arange(len(row)), row
    array = lib.llama_token_data_array(data=entries, size=len(row), selected=-1, sorted=False)
    lib.llama_sampler_apply(chain, ctypes.byref(array))
    # A sampler may have pointed the array at a buffer of its own, which goes with the chain.
    left = np.ctypeslib.as_array(ctypes.cast(array.data, ctypes.POINTER(lib.llama_token_data)), (array.size,)).copy()
    lib.llama_sampler_free(chain)
    return left["id"], left["logit"]


def _add(chain: Any, sampler: Any) -> None:
    lib.llama_sampler_chain_add(chain, sampler)
