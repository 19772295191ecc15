"""The files of a model's LoRA adapters: where they are, and whether they are adapters of that model.

Owns what is wrong with an adapter, in words that name it. Must not fetch anything (`worker_run.py` does) nor load it:
llama.cpp has the last word about shapes.
"""

from __future__ import annotations

from pathlib import Path

from router.catalog import LoraSpec
from router.fetch.protocol import SourceError
from router.gguf_header import GgufError, GgufHeader, read_gguf_header
from router.model_headers import Locator
from router.references import Reference, parse_reference


def lora_reference(lora: LoraSpec) -> Reference:
    """Return where the adapter comes from. Raises: SourceError that names it."""
    try:
        return parse_reference(lora.source)
    except ValueError as error:
        raise lora_error(lora, SourceError(str(error), is_permanent=True)) from None


def locate_lora(store: Locator, lora: LoraSpec, base_dir: Path) -> Path | None:
    """Return the adapter's file if it is on this machine; None = it must be fetched. Raises: SourceError."""
    try:
        return store.locate(lora_reference(lora), base_dir)
    except SourceError as error:
        raise lora_error(lora, error) from None


def lora_error(lora: LoraSpec, error: SourceError) -> SourceError:
    """Return the error with the adapter's name in front, once."""
    name = f"LoRA adapter `{lora.name}`: "
    if error.message.startswith(name):
        return error
    return SourceError(name + error.message, is_permanent=error.is_permanent, details=error.details)


def check_lora(lora: LoraSpec, path: Path, base: GgufHeader) -> None:
    """Return if `path` may be an adapter of the model whose header is `base`, as far as its header tells.

    llama.cpp asserts the types of these keys and of the tensors: a wrong one would end the worker without a word.
    Raises: SourceError that names the adapter and its file.
    """
    try:
        header = read_gguf_header(path)
    except GgufError as error:
        raise _unfit(lora, path, str(error)) from None
    said = header.metadata
    if (kind := said.get("general.type")) != "adapter":
        is_model = kind in (None, "model")
        what = "it is a model, not an adapter" if is_model else f"it is no adapter but of the type {kind!r}"
        raise _unfit(lora, path, what)
    if (kind := said.get("adapter.type")) != "lora":
        raise _unfit(lora, path, f"it is an adapter of the type {kind!r}, and only LoRA adapters can be used")
    if not isinstance(said.get("adapter.lora.alpha", 0.0), float):
        raise _unfit(lora, path, "its adapter.lora.alpha is not a floating-point number; convert it again")
    if header.odd_tensor is not None:
        raise _unfit(lora, path, f"its tensor {header.odd_tensor} is no matrix of a type that can be multiplied with")
    if header.architecture != base.architecture:
        what = f"it was made for the architecture {header.architecture}, the model is of {base.architecture}"
        raise _unfit(lora, path, what)


def _unfit(lora: LoraSpec, path: Path, why: str) -> SourceError:
    return lora_error(lora, SourceError(f"{path}: {why}", is_permanent=True))
