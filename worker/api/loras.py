"""The field `lora` of a request, and what it means for the engine: which adapters, at which scales.

The router asks for an alias's adapters in the same form. Owns the form and its error messages. Must not know files.
"""

from __future__ import annotations

import math
import urllib.parse
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from worker.api.refusals import show
from worker.contract import Header, LoraFile
from worker.engine.request import AdapterSet
from worker.errors import RequestError, UnsupportedParameter

MAX_SCALE = 100.0
MAX_ASKED = 256
"""Entries of the field: more adapters than any model has."""


@dataclass(frozen=True, slots=True)
class AskedLora:
    """One entry of the field: an adapter by its id or its name."""

    key: int | str
    scale: float | None = None
    """None = the adapter's own."""


def read_loras(value: Any) -> tuple[AskedLora, ...]:
    """Return the entries of `[{"id" or "name", "scale"?}, …]`.

    Raises: ValueError whose message completes the sentence "'lora' …".
    """
    if not isinstance(value, list):
        raise ValueError(f'must be a list such as [{{"id": 0, "scale": 1.0}}], but it is {show(value)}')
    if len(value) > MAX_ASKED:
        raise ValueError(f"has {len(value)} entries, but at most {MAX_ASKED} are allowed")
    return tuple(_entry(number, one) for number, one in enumerate(value))


def _entry(number: int, value: Any) -> AskedLora:
    at = f"has an entry at index {number}"
    if not isinstance(value, dict):
        raise ValueError(f'{at} that is {show(value)}, but it must be an object such as {{"id": 0, "scale": 1.0}}')
    id_, name, scale = value.get("id"), value.get("name"), value.get("scale")
    if (id_ is None) == (name is None):
        raise ValueError(f"{at} with {'neither' if id_ is None else 'both'} of 'id' and 'name': write one of them")
    if isinstance(id_, float) and id_.is_integer():
        id_ = int(id_)
    if id_ is not None and (isinstance(id_, bool) or not isinstance(id_, int)):
        raise ValueError(f"{at} whose 'id' is {show(id_)}, but it must be an integer")
    if name is not None and not isinstance(name, str):
        raise ValueError(f"{at} whose 'name' is {show(name)}, but it must be a string")
    if scale is not None and not _is_scale(scale):
        limits = f"-{MAX_SCALE:g} to {MAX_SCALE:g}"
        raise ValueError(f"{at} whose 'scale' is {show(scale)}, but it must be a number from {limits}")
    key = name if isinstance(name, str) else id_
    assert key is not None
    return AskedLora(key, None if scale is None else float(scale))


def _is_scale(value: Any) -> bool:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return is_number and math.isfinite(value) and abs(value) <= MAX_SCALE


def read_lora_header(text: str) -> tuple[AskedLora, ...]:
    """Return the alias's adapters as the router writes them. Raises: RequestError when it did not write this."""
    try:
        return read_loras(orjson.loads(urllib.parse.unquote(text)))
    except ValueError:
        raise RequestError(
            f"The header {Header.LORA} cannot be read: the router and this worker do not fit together. "
            "Are both of the same release?"
        ) from None


def choose_adapters(
    loras: Sequence[LoraFile], asked: Sequence[AskedLora] | None, of_alias: Sequence[AskedLora]
) -> AdapterSet:
    """Return what the engine applies: what the request asks for, else the alias's adapters.

    Raises: RequestError that lists the model's adapters.
    """
    scales: dict[int, float] = {}
    for one in of_alias if asked is None else asked:
        index = _index(loras, one.key)
        if index in scales:
            raise RequestError(f"'lora' names the adapter {show(loras[index].name)} twice.", param="lora")
        scales[index] = loras[index].scale if one.scale is None else one.scale
    return tuple((index, scale) for index, scale in sorted(scales.items()) if scale != 0)


def refuse_adapters(of_alias: Sequence[AskedLora]) -> None:
    """Return if the name that was asked for brings no adapters: this route generates nothing. Raises: RequestError."""
    if of_alias:
        raise UnsupportedParameter(
            "The alias in 'model' has LoRA adapters, which are applied to generated text only. Use the model's own "
            "name, or an alias without `lora`.",
            param="model",
        )


def _index(loras: Sequence[LoraFile], key: int | str) -> int:
    if isinstance(key, int):
        if 0 <= key < len(loras):
            return key
    else:
        for index, lora in enumerate(loras):
            if lora.name == key:
                return index
    what = f"the id {key}" if isinstance(key, int) else f"the adapter {show(key)}"
    if not loras:
        has = "this model has no adapters; list them under `loras` in models.yaml"
    else:
        has = "this model's adapters are " + ", ".join(f"{index}: {lora.name}" for index, lora in enumerate(loras))
    raise RequestError(f"'lora' names {what}, but {has}.", param="lora")
