"""A GGUF file in memory: weights and vocabulary, on which contexts are made.

One of the `llama*` modules that may import llama_cpp. Must not know contexts.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import Any

from llama_cpp import llama_cpp as lib

from worker.contract import EngineOptions
from worker.engine.llama_log import capture_log, load_error
from worker.engine.llama_params import DeviceChoice, choose_devices, model_params
from worker.engine.llama_vocabulary import LlamaVocabulary


class LlamaModel:
    """Weights and vocabulary."""

    def __init__(self, handle: Any, options: EngineOptions, choice: DeviceChoice, keep: Sequence[Any]) -> None:
        self.handle = handle
        self.options = options
        self.choice = choice
        self._keep = keep
        self.vocabulary = LlamaVocabulary(handle)
        self.num_vocab = self.vocabulary.num_vocab

    @classmethod
    def load(cls, path: str, options: EngineOptions, on_progress: Callable[[float], bool] | None = None) -> LlamaModel:
        """Return the model with its weights in memory.

        `on_progress` gets the fraction read and returns False to give up. Raises: BadModel, OutOfMemory.
        """
        lines = capture_log()
        lib.llama_backend_init()
        choice = choose_devices(options)

        def report(fraction: float, _: object) -> bool:
            return on_progress is None or on_progress(fraction)

        params, keep = model_params(options, choice, lib.llama_progress_callback(report))
        handle = lib.llama_model_load_from_file(path.encode(), params)
        if not handle:
            raise load_error(lines, "llama.cpp could not load the file")
        return cls(handle, options, choice, keep)

    @property
    def can_generate(self) -> bool:
        """Whether it is a decoder without an encoder in front."""
        return bool(lib.llama_model_has_decoder(self.handle)) and not lib.llama_model_has_encoder(self.handle)

    @property
    def description(self) -> str:
        """llama.cpp's own words: architecture, size, type."""
        buffer = ctypes.create_string_buffer(256)
        lib.llama_model_desc(self.handle, buffer, len(buffer))
        return buffer.value.decode("utf-8", "replace")

    def close(self) -> None:
        """Free the weights; all contexts on them are closed before."""
        lib.llama_model_free(self.handle)
