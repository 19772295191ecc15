"""Rules about requests, applied to a body in the words of the dialect that it came in.

Owns by which names each dialect limits an answer, so that a rule about one of them holds wherever it is asked. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from router import ollama_rules
from router.answer_limits import ANSWER_LIMITS
from router.catalog import RequestRules
from router.dialects import Dialect

LIMIT_NAMES: Mapping[Dialect, tuple[str, ...]] = {
    Dialect.OPENAI: ("max_tokens", "max_completion_tokens", "n_predict"),
    Dialect.RESPONSES: ("max_output_tokens",),
    Dialect.ANTHROPIC: ("max_tokens",),
    Dialect.OLLAMA: ("num_predict",),
    Dialect.LLAMA: ("n_predict", "max_tokens"),
}
"""A rule keeps the name it is written with where that is one of these; else it gets the first of them."""


def apply_rules(rules: RequestRules, fields: Mapping[str, Any], dialect: Dialect) -> dict[str, Any]:
    """Return a new body with the rules applied as the dialect calls what they are about."""
    named = in_words_of(dialect, rules)
    return ollama_rules.apply_rules(named, fields) if dialect is Dialect.OLLAMA else named.apply(fields)


def in_words_of(dialect: Dialect, rules: RequestRules) -> RequestRules:
    """Return the rules with those about the answer's limit under a name that the dialect has for it."""
    names = LIMIT_NAMES[dialect]
    own = [names[0]] if any(_is_foreign(name, names) for name in rules.drop) else []
    return RequestRules(_named(rules.defaults, names), _named(rules.force, names), (*rules.drop, *own))


def _named(values: Mapping[str, Any], names: tuple[str, ...]) -> dict[str, Any]:
    own = names[0]
    if own in values:
        return {name: value for name, value in values.items() if not _is_foreign(name, names)}
    return {own if _is_foreign(name, names) else name: value for name, value in values.items()}


def _is_foreign(name: str, names: tuple[str, ...]) -> bool:
    return name in ANSWER_LIMITS and name not in names
