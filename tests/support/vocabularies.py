"""A tiny model of which llama.cpp reads the vocabulary alone."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from llama_cpp import llama_cpp as lib

from tests.support.tiny_gguf import write_tiny_llama


@contextmanager
def vocabulary_of(kind: str, folder: Path) -> Iterator[Any]:
    """Yield the model, freed at the end; `kind` is a tokenizer of `write_tiny_llama`."""
    params = lib.llama_model_default_params()
    params.vocab_only = True
    written = write_tiny_llama(folder / "tiny.gguf", vocab=kind).path
    loaded = lib.llama_model_load_from_file(str(written).encode(), params)
    yield loaded
    lib.llama_model_free(loaded)
