"""The models of the bench: those of models.yaml, fetched as `corral serve` fetches them."""

from __future__ import annotations

import functools
from pathlib import Path

import yaml
from llama_cpp import llama_cpp as lib

from router.cache_folder import default_cache_dir
from router.references import parse_reference
from router.sources import ModelStore
from worker.engine.llama_vocabulary import LlamaVocabulary

CATALOG = Path(__file__).parents[1] / "models.yaml"

SMOLLM2, GEMMA3, QWEN = "smollm2", "gemma3", "qwen2.5-coder"


async def fetch_model(name: str) -> Path:
    """Return the file of a model of models.yaml, fetched if it is not there yet."""
    reference = yaml.safe_load(CATALOG.read_text(encoding="utf-8"))["models"][name]["model"]
    return await ModelStore(default_cache_dir()).fetch(parse_reference(reference), CATALOG.parent, lambda _: None)


@functools.cache
def tokenizer_of(path: Path) -> LlamaVocabulary:
    """Return the tokenizer of a file, without its weights. It is kept, and the model with it."""
    lib.llama_log_set(_SILENT, None)
    params = lib.llama_model_default_params()
    params.vocab_only = True
    model = lib.llama_model_load_from_file(str(path).encode(), params)
    if not model:
        raise RuntimeError(f"llama.cpp cannot read the vocabulary of {path}")
    return LlamaVocabulary(model)


def token_ids(path: Path, text: str) -> tuple[int, ...]:
    """Return the tokens of a raw prompt, as both servers make them."""
    return tuple(tokenizer_of(path).tokenize(text, add_special=True, parse_special=True))


_SILENT = lib.llama_log_callback(lambda *_: None)
