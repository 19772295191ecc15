"""The request field `samplers`: llama-server's names, other spellings of them, and its letters.

Must not know what a sampler does.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from worker.api.refusals import show
from worker.engine.request import SamplerKind

MAX_SAMPLERS = 32

_LETTERS: Mapping[str, SamplerKind] = {
    "e": SamplerKind.PENALTIES,
    "d": SamplerKind.DRY,
    "s": SamplerKind.TOP_N_SIGMA,
    "k": SamplerKind.TOP_K,
    "y": SamplerKind.TYPICAL_P,
    "p": SamplerKind.TOP_P,
    "m": SamplerKind.MIN_P,
    "x": SamplerKind.XTC,
    "t": SamplerKind.TEMPERATURE,
    "i": SamplerKind.INFILL,
    "a": SamplerKind.ADAPTIVE_P,
}


def _spellings() -> Iterator[tuple[str, SamplerKind]]:
    for kind in SamplerKind:
        yield from ((kind.value, kind), (kind.value.replace("_", "-"), kind), (kind.value.replace("_", ""), kind))
    yield from (("nucleus", SamplerKind.TOP_P), ("temp", SamplerKind.TEMPERATURE), ("typ", SamplerKind.TYPICAL_P))


_NAMES = dict(_spellings())
_KNOWN = ", ".join(SamplerKind)


def read_samplers(value: Any) -> tuple[SamplerKind, ...]:
    """Return the samplers in order. Raises: ValueError with the end of a sentence that begins with the field."""
    if isinstance(value, str):
        table, parts, kind = _LETTERS, list(value), "letter"
        allowed = "the letters are " + ", ".join(f"{letter} ({name})" for letter, name in _LETTERS.items())
    elif isinstance(value, list) and all(isinstance(one, str) for one in value):
        table, parts, kind = _NAMES, [one.lower() for one in value], "sampler"
        allowed = f"the samplers are {_KNOWN}"
    else:
        raise ValueError(f"must be a list of names or a string of letters, but it is {show(value)}")
    if len(parts) > MAX_SAMPLERS:
        raise ValueError(f"has {len(parts)} entries, but at most {MAX_SAMPLERS} are allowed")
    for part in parts:
        if part not in table:
            raise ValueError(f"has the {kind} {show(part)}, but {allowed}")
    return tuple(table[part] for part in parts)
