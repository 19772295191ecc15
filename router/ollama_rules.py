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
        *("tool_choice", "parallel_tool_calls", "functions", "function_call"),
        *("logprobs", "top_logprobs", "truncate", "shift", "input", "dimensions", "width", "height", "steps"),
        *("chat_template_kwargs", "options"),
    }
)
"""All others are options."""
_OTHER_NAMES = {"reasoning_effort": "think"}


def apply_rules(rules: RequestRules, fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return a new body with the rules, whose limits have Ollama's name, applied where Ollama has what is meant.

    What is dropped is dropped at the top and from `options`, wherever a client has put it.
    """
    top, options = _split(rules)
    body = top.apply(fields)
    said = body.get(OPTIONS)
    if options.is_empty or not (said is None or isinstance(said, dict)):  # another type is the worker's to refuse
        return body
    if said is None and not (options.defaults or options.force):  # nothing to drop from
        return body
    return body | {OPTIONS: options.apply(said or {})}


def _split(rules: RequestRules) -> tuple[RequestRules, RequestRules]:
    """Return the rules about the top and those about options."""
    dropped = (*rules.drop, *_named(dict.fromkeys(rules.drop)))  # wherever a client has put it
    top, options = (
        RequestRules(
            _part(rules.defaults, wants_top=wants_top),
            _part(rules.force, wants_top=wants_top),
            tuple(dict.fromkeys(dropped)),
        )
        for wants_top in (True, False)
    )
    return top, options


def _named(values: Mapping[str, Any]) -> dict[str, Any]:
    return {_OTHER_NAMES.get(name, name): value for name, value in values.items()}


def _part(values: Mapping[str, Any], *, wants_top: bool) -> dict[str, Any]:
    return {name: value for name, value in _named(values).items() if (name in TOP_KEYS) == wants_top}
