"""How a client program runs: its functions `check_...`, one after another, and what became of each as JSON.

Runs in the environments of the clients: must import nothing but the standard library. A program knows the server by
`URL`, and may use it with `KEY`.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import json
import os
import sys
import time
import traceback
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

URL = os.environ["CORRAL_URL"]
KEY = os.environ["CORRAL_KEY"]

SMOL = "smol"
"""SmolLM2, a chat model. The other names are its aliases."""
GPT, SLASHED, CLAUDE, TAGGED = "gpt-4o-mini", "org/smol:fast", "claude-haiku-4-5", "smollm2:135m"
EXACT = "smol-exact"
"""The same model, always with the same words to the same request, whatever else is computed or cached."""
CODER = "coder"
"""Qwen2.5-Coder, which has learnt to call tools; the other names are its aliases."""
CODER_OF_CLAUDE, CODER_TAGGED = "claude-coder", "qwen2.5-coder:0.5b"
CODER_EXACT = "coder-exact"
"""The same model, as `EXACT` is."""
MINI = "mini"
"""all-MiniLM-L6-v2, which embeds; it has `EMBEDDER` as an alias."""
EMBEDDER = "text-embedding-3-small"
HASTY = "hasty"
"""SmolLM2 once more; an answer that takes longer than three seconds is broken off."""
RANKER = "ranker"
"""A reranker of random weights."""
TINY = "tiny"
"""Random weights: whatever it says is nonsense, and it never ends by itself."""
COLD_S = 5.0
"""How long each of the models `cold-...` takes to load, for the first time anybody asks for it."""

QUESTION = "Name three farm animals."
NUM_DIMENSIONS = 384


def main(checks: Mapping[str, Any]) -> None:
    """Run the functions named `check_...`, or those that the command line names, and write the report.

    The first argument is the file for it. What a check returns stands in it.
    """
    report, *only = sys.argv[1:]
    told = {}
    for name, check in checks.items():
        if name.startswith("check_") and (not only or name in only):
            start_s = time.monotonic()
            fault, returned = _outcome_of(check)
            told[name] = {"fault": fault, "told": returned, "took_s": round(time.monotonic() - start_s, 3)}
    Path(report).write_text(json.dumps(told), encoding="utf-8")


def _outcome_of(check: Any) -> tuple[str | None, Any]:
    """Return what went wrong, None if nothing did; and what the check returns."""
    try:
        return None, asyncio.run(check()) if inspect.iscoroutinefunction(check) else check()
    except Exception:  # noqa: BLE001 - whatever a client raises is the outcome of the check
        return traceback.format_exc(), None


class Raised:
    """What a block has raised."""

    error: Any = None


@contextlib.contextmanager
def refusal(kind: type[Exception]) -> Iterator[Raised]:
    """Expect that the block raises an exception of this kind."""
    raised = Raised()
    try:
        yield raised
    except Exception as error:  # noqa: BLE001 - another kind than the expected one is told below
        raised.error = error
    if not isinstance(raised.error, kind):
        raise AssertionError(f"{kind.__name__} was expected, not {raised.error!r}") from raised.error
