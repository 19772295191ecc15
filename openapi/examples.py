"""One body for each of the main routes that works as it stands, with models of the models.yaml that is shipped.

Must not use an apostrophe: the page shows the bodies as arguments of a shell command.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_CHAT = {"model": "smollm2", "messages": [{"role": "user", "content": "Name a farm animal."}]}

EXAMPLES: Mapping[str, Mapping[str, Any]] = {
    "/v1/chat/completions": _CHAT | {"max_tokens": 50},
    "/v1/completions": {"model": "gemma3", "prompt": "The capital of France is", "max_tokens": 20},
    "/v1/embeddings": {"model": "smollm2", "input": ["A cow.", "A sheep."]},
    "/v1/rerank": {
        "model": "my-reranker",
        "query": "Which animal gives milk?",
        "documents": ["A cow gives milk.", "A cock crows."],
    },
    "/v1/responses": {"model": "smollm2", "input": "Name a farm animal.", "max_output_tokens": 50},
    "/v1/messages": _CHAT | {"max_tokens": 50},
    "/api/chat": _CHAT | {"stream": False, "options": {"num_predict": 50}},
    "/api/generate": {"model": "smollm2", "prompt": "Name a farm animal.", "stream": False},
    "/completion": {"model": "gemma3", "prompt": "The capital of France is", "n_predict": 20},
    "/infill": {
        "model": "qwen2.5-coder",
        "input_prefix": "def add(a, b):\n    return ",
        "input_suffix": "\n\nprint(add(1, 2))\n",
        "n_predict": 20,
    },
    "/tokenize": {"model": "smollm2", "content": "Hello, world."},
    "/detokenize": {"model": "smollm2", "tokens": [57, 85, 92]},
    "/apply-template": _CHAT,
}
"""By the path that a worker knows. No reranker is shipped: its example has the name of one to be added."""

NOT_SHIPPED = frozenset({"my-reranker"})
