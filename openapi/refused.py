"""Which fields each route knows and refuses, and with which values they pass: the worker's tables, in words.

Must not decide what is harmless: it asks.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from worker.api.refusals import IsHarmless, Table, never
from worker.api.refused_anthropic import MESSAGES
from worker.api.refused_llama import APPLY_TEMPLATE, LLAMA, LLAMA_EMBEDDING, TOKENIZE
from worker.api.refused_ollama import ALL_OPTIONS, OLLAMA_CHAT, OLLAMA_EMBED, OLLAMA_EMBEDDINGS, OLLAMA_GENERATE
from worker.api.refused_openai import CHAT, COMPLETIONS, EMBEDDINGS, RERANK
from worker.api.refused_responses import RESPONSES

SAMPLES: tuple[Any, ...] = (
    *("", [], {}, False, True, 0, 1, 2, -1),
    *("none", "auto", "default", "standard", "standard_only", "medium", "disabled", "float", "NONE"),
    *("in_memory", "in-memory", ["text"], ["float"], {"type": "text"}),
)
"""Values of which some field says that they ask for nothing."""
_EMPTY: tuple[Any, ...] = ("", [], {})

TABLES: Mapping[str, Table] = {
    "/v1/chat/completions": CHAT,
    "/v1/completions": COMPLETIONS,
    "/v1/responses": RESPONSES,
    "/v1/messages": MESSAGES,
    "/v1/embeddings": EMBEDDINGS,
    "/v1/rerank": RERANK,
    "/completion": LLAMA,
    "/infill": LLAMA,
    "/embedding": LLAMA_EMBEDDING,
    "/api/generate": OLLAMA_GENERATE,
    "/api/chat": OLLAMA_CHAT,
    "/api/embed": OLLAMA_EMBED,
    "/api/embeddings": OLLAMA_EMBEDDINGS,
    "/tokenize": TOKENIZE,
    "/detokenize": {},
    "/apply-template": APPLY_TEMPLATE,
}
"""By the path that a worker knows."""
AS_ON: Mapping[str, str] = {
    "/v1/chat/completions/input_tokens": "/v1/chat/completions",
    "/v1/responses/input_tokens": "/v1/responses",
    "/v1/messages/count_tokens": "/v1/messages",
}
"""Routes that refuse the same as others."""
WITH_OPTIONS = frozenset({"/api/generate", "/api/chat", "/api/embed", "/api/embeddings"})
"""Where `options` hold fields that are refused too."""


def refusals(path: str) -> tuple[str, ...]:
    """Return what a route to models refuses, as paragraphs."""
    found = _paragraph("Refused unless harmless", TABLES[path])
    if path in WITH_OPTIONS:
        found += _paragraph("Refused in `options` unless harmless", ALL_OPTIONS)
    return found


def harmless_values(is_harmless: IsHarmless) -> tuple[Any, ...]:
    """Return the samples that pass."""
    return () if is_harmless is never else tuple(value for value in SAMPLES if is_harmless(value))


def _paragraph(head: str, table: Table) -> tuple[str, ...]:
    by_values: dict[str, list[str]] = {}
    for name, refused in table.items():
        by_values.setdefault(_condition(harmless_values(refused.passes)), []).append(f"`{name}`")
    told = ". ".join(f"{condition}: {', '.join(sorted(names))}" for condition, names in sorted(by_values.items()))
    return (f"{head} (400 `unsupported_parameter`). {told}.",) if table else ()


def _condition(values: tuple[Any, ...]) -> str:
    if not values:
        return "Whatever they hold"
    if values == _EMPTY:
        return "Unless empty"
    return f"Unless {' or '.join(f'`{json.dumps(value)}`' for value in values)}"
