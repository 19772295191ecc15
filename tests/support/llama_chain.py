"""llama.cpp's own chain of samplers on rows of logits: the truth that our sampler is compared with."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import replace
from types import TracebackType
from typing import Any, Self

import numpy as np
import numpy.typing as npt
from llama_cpp import llama_cpp as lib

from worker.engine.request import SamplerKind, SamplingParams

Row = npt.NDArray[np.float32]
Distribution = npt.NDArray[np.float64]


class Chain:
    """The samplers that llama-server would set up for these parameters. A context manager.

    `vocab` is for DRY and infill: a vocabulary of llama.cpp; `breakers` are the texts that end repetitions.
    """

    def __init__(
        self,
        params: SamplingParams,
        num_vocab: int,
        history: Sequence[int] = (),
        *,
        vocab: Any = None,
        breakers: Sequence[str] = (),
        kinds: Sequence[SamplerKind] | None = None,
    ) -> None:
        self._chain = lib.llama_sampler_chain_init(lib.llama_sampler_chain_default_params())
        self._keep: list[Any] = []
        self._params, self._num_vocab, self._num_history = params, num_vocab, len(history)
        self._vocab, self._breakers = vocab, breakers
        if params.logit_bias:
            biases = (lib.llama_logit_bias * len(params.logit_bias))(*params.logit_bias)
            self._keep.append(biases)
            self._add(lib.llama_sampler_init_logit_bias(num_vocab, len(biases), biases))
        if kinds is None and params.mirostat:
            self._add(lib.llama_sampler_init_temp(params.temperature))
            tau, eta = params.mirostat_tau, params.mirostat_eta
            self._add(
                lib.llama_sampler_init_mirostat(num_vocab, 1, tau, eta, 100)
                if params.mirostat == 1
                else lib.llama_sampler_init_mirostat_v2(1, tau, eta)
            )
        else:
            self._add_samplers(params.samplers if kinds is None else kinds)
        for token in history:
            self.accept(token)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        lib.llama_sampler_free(self._chain)

    def accept(self, token: int) -> None:
        """Let the samplers know that this token was taken."""
        lib.llama_sampler_accept(self._chain, token)

    def apply(self, row: Row) -> tuple[npt.NDArray[np.int32], Row, int]:
        """Return the tokens that are left, their logits, and the one that was selected, if a sampler selects."""
        entries = (lib.llama_token_data * len(row))()
        table = np.ctypeslib.as_array(entries)
        table["id"], table["logit"] = np.arange(len(row)), row
        array = lib.llama_token_data_array(data=entries, size=len(row), selected=-1, sorted=False)
        lib.llama_sampler_apply(self._chain, ctypes.byref(array))
        # A sampler may have pointed the array at a buffer of its own, which goes with the chain.
        left = np.ctypeslib.as_array(ctypes.cast(array.data, ctypes.POINTER(lib.llama_token_data)), (array.size,))
        selected = int(left["id"][array.selected]) if array.selected >= 0 else -1
        return left["id"].copy(), left["logit"].copy(), selected

    def distribution(self, row: Row) -> tuple[Distribution, int]:
        """Return each token's probability, exactly 0 for what is cut off, and the token that was selected."""
        ids, logits, selected = self.apply(row)
        weights = np.exp(logits.astype(np.float64) - logits.max())
        distribution = np.zeros(len(row))
        distribution[ids] = weights / weights.sum()
        return distribution, selected

    def _add(self, sampler: Any) -> None:
        lib.llama_sampler_chain_add(self._chain, sampler)

    def _add_samplers(self, kinds: Sequence[SamplerKind]) -> None:
        makers = self._makers()
        for kind in kinds:
            if kind != SamplerKind.ADAPTIVE_P:
                self._add(makers[kind]())
        if SamplerKind.ADAPTIVE_P in kinds:
            self._add(lib.llama_sampler_init_adaptive_p(self._params.adaptive_target, self._params.adaptive_decay, 1))

    def _makers(self) -> dict[SamplerKind, Callable[[], Any]]:
        params = self._params
        return {
            SamplerKind.PENALTIES: lambda: lib.llama_sampler_init_penalties(
                self._num_vocab,
                self._window(params.repeat_last_n),
                params.repeat_penalty,
                params.frequency_penalty,
                params.presence_penalty,
            ),
            SamplerKind.DRY: self._dry,
            SamplerKind.TOP_N_SIGMA: lambda: lib.llama_sampler_init_top_n_sigma(params.top_n_sigma),
            SamplerKind.TOP_K: lambda: lib.llama_sampler_init_top_k(params.top_k),
            SamplerKind.TYPICAL_P: lambda: lib.llama_sampler_init_typical(params.typical_p, params.min_keep),
            SamplerKind.TOP_P: lambda: lib.llama_sampler_init_top_p(params.top_p, params.min_keep),
            SamplerKind.MIN_P: lambda: lib.llama_sampler_init_min_p(params.min_p, params.min_keep),
            SamplerKind.XTC: lambda: lib.llama_sampler_init_xtc(
                params.xtc_probability, params.xtc_threshold, params.min_keep, 1
            ),
            SamplerKind.TEMPERATURE: lambda: lib.llama_sampler_init_temp_ext(
                params.temperature, params.dynatemp_range, params.dynatemp_exponent
            ),
            SamplerKind.INFILL: lambda: lib.llama_sampler_init_infill(self._vocab),
        }

    def _window(self, last_n: int) -> int:
        return self._num_history if last_n < 0 else last_n

    def _dry(self) -> Any:
        params = self._params
        texts = (ctypes.c_char_p * len(self._breakers))(*(text.encode() for text in self._breakers))
        return lib.llama_sampler_init_dry(
            self._vocab,
            params.dry_multiplier,
            params.dry_base,
            params.dry_allowed_length,
            self._window(params.dry_penalty_last_n),
            texts,
            len(texts),
        )


def chain_logits(
    row: Row, params: SamplingParams, history: Sequence[int], *, vocab: Any = None, breakers: Sequence[str] = ()
) -> Row:
    """Return the row after bias, penalties and DRY. Shape: (num_vocab,)."""
    kinds = (SamplerKind.PENALTIES, SamplerKind.DRY)
    with Chain(params, len(row), history, vocab=vocab, breakers=breakers, kinds=kinds) as chain:
        ids, logits, _ = chain.apply(row)
    changed = np.empty_like(row)
    changed[ids] = logits
    return changed


def chain_distribution(row: Row, params: SamplingParams, history: Sequence[int] = ()) -> Distribution:
    """Return the probability of each token; exactly 0 for what the chain has cut off. Shape: (num_vocab,)."""
    share = params.xtc_probability
    if 0.0 < share < 1.0:  # XTC tosses a coin of its own
        without, always = replace(params, xtc_probability=0.0), replace(params, xtc_probability=1.0)
        parts = (1.0 - share) * chain_distribution(row, without, history)
        return parts + share * chain_distribution(row, always, history)
    with Chain(params, len(row), history) as chain:
        return chain.distribution(row)[0]
