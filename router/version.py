"""Which release of Corral this is. Owns no number: the installed distribution has it."""

from __future__ import annotations

import functools
import importlib.metadata


@functools.cache
def version() -> str:
    """Return the version of the installed distribution."""
    return importlib.metadata.version("llama-corral")
