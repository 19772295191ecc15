"""What a model can do, in the words of each family of clients: by what its worker told, else by its file.

Owns these words. Must not read files nor ask anybody.
"""

from __future__ import annotations

import re

from router.gguf_header import GgufHeader
from worker.contract import ModelFacts

_RANK_TYPE = 4
"""Source: llama.h, LLAMA_POOLING_TYPE_RANK."""
_RANK = "rank"
"""The same as workers tell it."""
_FIM_KEYS = (
    ("tokenizer.ggml.fim_pre_token_id", "tokenizer.ggml.prefix_token_id"),
    ("tokenizer.ggml.fim_suf_token_id", "tokenizer.ggml.suffix_token_id"),
    ("tokenizer.ggml.fim_mid_token_id", "tokenizer.ggml.middle_token_id"),
)
"""Of each token the key, and the one that older files have."""
_THOUGHTS = re.compile(
    r"</[\w:]*think|\[/THINK\]|<\|END_THINKING\|>|<\|end_of_thought\|>|</reasoning>"
    r"|\[BEGIN FINAL RESPONSE\]|<\|inner_suffix\|>|<\|channel\|>|<channel\|>|Here is my response:|enable_thinking"
)
"""What the chat templates of models that think have in them: what ends a thought, or a switch for it."""
_TOOLS = re.compile(r"\btools\b")


def capabilities(facts: ModelFacts) -> list[str]:
    """Return what a loaded model can do."""
    if not facts.can_generate:
        return ["rerank" if facts.pooling == _RANK else "embedding"]
    found = ["completion"]
    if facts.has_chat_template:
        found.insert(0, "chat")
    if facts.pooling == _RANK:
        found.append("rerank")
    elif facts.embedding_size > 0:
        found.append("embedding")
    return found


def promised_capabilities(header: GgufHeader) -> list[str]:
    """Return what the file's header lets expect, before a worker has told what it can do."""
    pooled = "rerank" if _pooling(header) == _RANK_TYPE else "embedding"
    if _is_encoder(header):
        return [pooled]
    return [*(["chat"] if header.has_chat_template else []), "completion", pooled]


def ollama_capabilities(header: GgufHeader, template: str | None = None) -> list[str]:
    """Return what a model is for, in Ollama's words: never what none of its routes can do. `template` is its chat
    template; a model whose template does not show tools has not learnt to call any."""
    pooling = _pooling(header)
    if _is_encoder(header) or pooling:
        return [] if pooling == _RANK_TYPE else ["embedding"]
    has_fim = all(any(key in header.metadata for key in keys) for keys in _FIM_KEYS)
    source = template or ""
    able = {
        "completion": True,
        "tools": _TOOLS.search(source) is not None,
        "insert": has_fim,
        "thinking": _THOUGHTS.search(source) is not None,
    }
    return [name for name, is_able in able.items() if is_able]


def _pooling(header: GgufHeader) -> object:
    return header.metadata.get(f"{header.architecture}.pooling_type")


def _is_encoder(header: GgufHeader) -> bool:
    return header.metadata.get(f"{header.architecture}.attention.causal") is False
