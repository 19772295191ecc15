"""What llama.cpp's own calls give, without any of our batching: the truth that the engine is compared with."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from llama_cpp import llama_cpp as lib

from worker.contract import EngineOptions
from worker.engine.llama_params import choose_devices, model_params

_SILENT = lib.llama_log_callback(lambda *_: None)


def plain_greedy(path: Path, prompt: list[int], num_tokens: int, *, has_flash_attn: bool = True) -> list[int]:
    """Return the greedy answer of a model that is loaded for this alone: the whole prompt, then token by token."""
    lib.llama_backend_init()
    lib.llama_log_set(_SILENT, None)
    options = EngineOptions(context=256, slots=1)
    # Our model parameters: they leave out what the installed build of llama.cpp cannot do.
    params, keep = model_params(options, choose_devices(options), lib.llama_progress_callback(lambda *_: True))
    model = lib.llama_model_load_from_file(str(path).encode(), params)
    assert model, keep
    context_params = lib.llama_context_default_params()
    context_params.n_ctx = 256
    context_params.n_threads = context_params.n_threads_batch = 1
    if not has_flash_attn:
        context_params.flash_attn_type = lib.LLAMA_FLASH_ATTN_TYPE_DISABLED
    context = lib.llama_init_from_model(model, context_params)
    num_vocab = lib.llama_vocab_n_tokens(lib.llama_model_get_vocab(model))
    answer: list[int] = []
    pending = prompt
    while len(answer) < num_tokens:
        tokens = (lib.llama_token * len(pending))(*pending)
        assert lib.llama_decode(context, lib.llama_batch_get_one(tokens, len(pending))) == 0
        row = np.ctypeslib.as_array(lib.llama_get_logits_ith(context, -1), (num_vocab,))
        pending = [int(row.argmax())]
        answer += pending
    lib.llama_free(context)
    lib.llama_model_free(model)
    return answer
