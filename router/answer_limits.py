"""The names under which requests limit their answer, so that rules about one of them hold for all.

Owns the list. Must not know whose rules they are.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

ANSWER_LIMITS = frozenset({"max_tokens", "max_completion_tokens", "max_output_tokens", "n_predict", "num_predict"})
"""In all dialects; `request_rules.py` knows whose they are."""


def unsaid(defaults: Mapping[str, Any], said: Mapping[str, Any]) -> dict[str, Any]:
    """Return `defaults` without a limit of the answer if `said` has one, whatever it calls it."""
    if all(said.get(name) is None for name in ANSWER_LIMITS):
        return dict(defaults)
    return {name: value for name, value in defaults.items() if name not in ANSWER_LIMITS}


def unforced(said: Mapping[str, Any], force: Mapping[str, Any]) -> dict[str, Any]:
    """Return `said` without its own limits of the answer if `force` has one, which would contradict them."""
    if ANSWER_LIMITS.isdisjoint(force):
        return dict(said)
    return {name: value for name, value in said.items() if name not in ANSWER_LIMITS}
