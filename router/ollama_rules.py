"""Rules about requests, applied to bodies in Ollama's form: what others have at the top, Ollama has in `options`.

Owns which keys stay at the top, and how rules call what Ollama calls otherwise. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from router.catalog import RequestRules

OPTIONS = "options"
TOP_KEYS = frozenset(
    {
        *("model", "stream", "keep_alive", "priority", "cache_salt", "previous_response_id"),
        *("prompt", "suffix", "system", "template", "raw", "context", "images", "format", "think", "messages", "tools"),
        *("logprobs", "top_logprobs", "truncate", "shift", "input", "dimensions", "width", "height", "steps"),
        *("chat_template_kwargs", "options"),
    }
)
"""All others are options."""
_OTHER_NAMES = {
    "max_tokens": "num_predict",
    "max_completion_tokens": "num_predict",
    "n_predict": "num_predict",
    "reasoning_effort": "think",
}


def apply_rules(rules: RequestRules, fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return a new body with the rules applied, each where Ollama has what it is about."""
    top, options = _split(rules)
    body = top.apply(fields)
    said = body.get(OPTIONS)
    if options.is_empty or not (said is None or isinstance(said, dict)):  # another type is the worker's to refuse
        return body
    return body | {OPTIONS: options.apply(said or {})}


def _split(rules: RequestRules) -> tuple[RequestRules, RequestRules]:
    """Return the rules about the top and those about options."""
    top, options = (
        RequestRules(
            _part(rules.defaults, wants_top=wants_top),
            _part(rules.force, wants_top=wants_top),
            tuple(_part(dict.fromkeys(rules.drop), wants_top=wants_top)),
        )
        for wants_top in (True, False)
    )
    return top, options


def _part(values: Mapping[str, Any], *, wants_top: bool) -> dict[str, Any]:
    named = {_OTHER_NAMES.get(name, name): value for name, value in values.items()}
    return {name: value for name, value in named.items() if (name in TOP_KEYS) == wants_top}
