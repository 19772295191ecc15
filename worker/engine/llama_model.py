"""A GGUF file in memory: weights and vocabulary, on which contexts are made.

One of the `llama*` modules that may import llama_cpp. Must not know contexts.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Sequence
from typing import Any

from llama_cpp import llama_cpp as lib

from worker.contract import EngineOptions, LoraFile
from worker.engine.errors import BadModel
from worker.engine.llama_log import capture_log, load_error
from worker.engine.llama_memory import CPU, BufferBytes, by_device, private_bytes, read_breakdown
from worker.engine.llama_params import DeviceChoice, choose_devices, model_params
from worker.engine.llama_vocabulary import LlamaVocabulary


class LlamaModel:
    """Weights and vocabulary."""

    def __init__(self, handle: Any, options: EngineOptions, choice: DeviceChoice, keep: Sequence[Any]) -> None:
        self.handle = handle
        self.options = options
        self.choice = choice
        self._keep = keep
        self._contexts: dict[int, tuple[BufferBytes, ...]] = {}
        self.adapters: tuple[Any, ...] = ()
        """Handles of the LoRA adapters, in the order of the options; none before `load_adapters`."""
        self.vocabulary = LlamaVocabulary(handle)
        self.num_vocab = self.vocabulary.num_vocab
        architecture = self.metadata("general.architecture") or ""
        self.declared_pooling = self.metadata(f"{architecture}.pooling_type")
        """How the file wants rows of a text to be pooled: a number of llama.h, "0" = not at all; None = unsaid."""
        self.is_encoder = self.metadata(
            f"{architecture}.attention.causal"
        ) == "false" or not lib.llama_model_has_decoder(handle)
        """Whether every row sees the whole text: such a model embeds texts and generates none."""

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
        model = cls(handle, options, choice, keep)
        if model.vocabulary.lacks_bytes:
            model.close()
            raise BadModel("its vocabulary has no tokens for single bytes: llama.cpp would end on some texts")
        return model

    def load_adapters(self) -> None:
        """The LoRA adapters of the options are in memory.

        Called before a context is made, which reserves nodes of its graphs for them. Raises: BadModel, OutOfMemory.
        Source: llama-context.cpp, graph_max_nodes.
        """
        self.adapters = tuple(self._load_adapter(lora) for lora in self.options.loras)

    def _load_adapter(self, lora: LoraFile) -> Any:
        lines = capture_log()
        adapter = lib.llama_adapter_lora_init(self.handle, os.fsencode(lora.path))
        what = f"LoRA adapter `{lora.name}` ({lora.path})"
        if not adapter:
            raise load_error(lines, f"{what} cannot be used with this model")
        if lib.llama_adapter_get_alora_n_invocation_tokens(adapter):
            raise BadModel(f"{what} is an activated LoRA (aLoRA), which is not supported yet")
        return adapter

    # --- memory -----------------------------------------------------------------------------------------

    def note_context(self, context: Any) -> None:
        """Know what a new context has allocated; called by its thread, before or after a pass."""
        self._contexts[_address(context)] = read_breakdown(context)

    def forget_context(self, context: Any) -> None:
        """A context is about to be freed."""
        self._contexts.pop(_address(context), None)

    @property
    def device_bytes(self) -> dict[str, dict[str, int]]:
        """Bytes by device and kind, of the weights and all contexts on them; empty where the library does not tell.

        From any thread: nothing is asked of llama.cpp.
        """
        return by_device(list(self._contexts.values()), is_mapped=self.options.mmap)

    @property
    def private_bytes(self) -> int:
        """Bytes of main memory that are no pages of a mapped file; 0 where the library does not tell."""
        return private_bytes(list(self._contexts.values()))

    @property
    def used_devices(self) -> str:
        """Names of the devices that hold weights or cells, `cpu` if there are none; what was chosen where unknown."""
        found = self.device_bytes
        if not found:
            return self.choice.label
        used = [name for name, kinds in found.items() if name != CPU and (kinds["weights"] or kinds["kv"])]
        return ", ".join(sorted(used, key=lambda name: (len(name), name))) or "cpu"

    # --- what the file says -----------------------------------------------------------------------------

    @property
    def can_generate(self) -> bool:
        """Whether it is a decoder without an encoder in front."""
        return bool(lib.llama_model_has_decoder(self.handle)) and not lib.llama_model_has_encoder(self.handle)

    def metadata(self, key: str) -> str | None:
        """Return the value of a key of the file as text; None if it has none."""
        buffer = ctypes.create_string_buffer(256)
        length = lib.llama_model_meta_val_str(self.handle, key.encode(), buffer, len(buffer))
        return buffer.value.decode("utf-8", "replace") if length >= 0 else None

    @property
    def description(self) -> str:
        """llama.cpp's own words: architecture, size, type."""
        buffer = ctypes.create_string_buffer(256)
        lib.llama_model_desc(self.handle, buffer, len(buffer))
        return buffer.value.decode("utf-8", "replace")

    def close(self) -> None:
        """Free the weights and with them the adapters; all contexts on them are closed before.

        Source: llama-model.cpp, ~llama_model.
        """
        lib.llama_model_free(self.handle)


def _address(context: Any) -> int:
    return int(ctypes.cast(context, ctypes.c_void_p).value or 0)
