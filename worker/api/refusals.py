"""The fields that OpenAI, llama-server, Ollama or their clients know and this release does not honour.

Owns one table: field -> which values promise nothing. Any other value is refused, so that a reply never breaks
a promise silently. Fields that are in no table are ignored, as clients add extras of their own.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from worker.errors import UnsupportedParameter

IsHarmless = Callable[[Any], bool]


def show(value: object) -> str:
    """Return `value` as a client would recognise it in a message: short, and never a whole prompt."""
    if isinstance(value, dict | list):
        kind = "object" if isinstance(value, dict) else "list"
        return f"an empty {kind}" if not value else f"{'an' if kind == 'object' else 'a'} {kind}"
    text = json.dumps(value[:60] if isinstance(value, str) else value, ensure_ascii=False)  # integers of any size
    return text if len(text) <= 60 else f"{text[:57]}..."


def _never(_: Any) -> bool:
    return False


def _among(*values: Any) -> IsHarmless:
    # 0 == False in Python, but `logprobs: 0` asks for something and `logprobs: false` does not.
    return lambda value: any(value == one and isinstance(value, bool) == isinstance(one, bool) for one in values)


def _is_empty(value: Any) -> bool:
    return isinstance(value, str | list | dict) and not value


def _is_plain_text(value: Any) -> bool:
    return isinstance(value, dict) and value.get("type") == "text" and len(value) == 1


BOTH: dict[str, IsHarmless] = {
    # OpenAI
    "store": _among(False),
    "service_tier": _among("auto", "default"),
    "audio": _never,
    "moderation": _never,
    "prediction": _never,
    "web_search_options": _never,
    "response_format": _is_plain_text,
    # llama-server: constraints
    "grammar": _is_empty,
    "grammar_lazy": _among(False),
    "grammar_triggers": _is_empty,
    "preserved_tokens": _is_empty,
    "json_schema": _never,
    # llama-server: the rest
    "speculative.n_max": _never,
    "speculative.n_min": _never,
    "speculative.p_min": _never,
    "n_cmpl": _among(1),
    "backend_sampling": _among(False),
    "reasoning_budget_tokens": _among(-1),
    "thinking_budget_tokens": _among(-1),
    "n_keep": _among(0),
    "n_discard": _among(0),
    "n_indent": _among(0),
    "n_probs": _among(0),
    "response_fields": _is_empty,
    "return_tokens": _among(False),
    # other servers
    "allowed_token_ids": _is_empty,
    "bad_words": _is_empty,
    "guided_choice": _never,
    "guided_grammar": _never,
    "guided_json": _never,
    "guided_regex": _never,
    "include_stop_str_in_output": _among(False),
    "length_penalty": _among(1),
    "logits_processors": _is_empty,
    "prompt_logprobs": _among(False),
    "skip_special_tokens": _among(True),
    "stop_token_ids": _is_empty,
    "structured_outputs": _never,
    "truncate_prompt_tokens": _never,
    "use_beam_search": _among(False),
}

CHAT: Mapping[str, IsHarmless] = BOTH | {
    "best_of": _among(1),
    "echo": _among(False),
    "add_special_tokens": _among(False),
    "return_token_ids": _among(False),
    "prompt_embeds": _never,
    "functions": _is_empty,
    "function_call": _among("none", "auto"),
    "modalities": _among(["text"]),
    "verbosity": _among("medium"),
    "documents": _is_empty,
    "reasoning_format": _among("none", "auto"),
    "reasoning_budget": _among(-1),
    "thinking_forced_open": _among(False),
}

COMPLETIONS: Mapping[str, IsHarmless] = BOTH | {
    "input_extra": _is_empty,
}

EMBEDDINGS: Mapping[str, IsHarmless] = {
    "stream": _among(False),
    "content": _never,
    "embd_normalize": _among(2),
    "embedding_type": _among("float"),
    "embedding_types": _among(["float"]),
    "input_type": _never,
    "instruction": _is_empty,
    "late_chunking": _among(False),
    "lora": _is_empty,
    "normalize": _among(True),
    "output_dimension": _never,
    "output_dtype": _among("float"),
    "pooling": _never,
    "prompt_name": _never,
    "task": _never,
    "task_type": _never,
    "truncate": _among(False, "NONE"),
    "truncate_prompt_tokens": _never,
}

LLAMA: Mapping[str, IsHarmless] = {
    "grammar": _is_empty,
    "grammar_lazy": _among(False),
    "grammar_triggers": _is_empty,
    "preserved_tokens": _is_empty,
    "json_schema": _never,
    "response_format": _is_plain_text,
    "speculative.n_max": _never,
    "speculative.n_min": _never,
    "speculative.p_min": _never,
    "backend_sampling": _among(False),
    "max_completion_tokens": _never,
    "n_cache_reuse": _among(0),
    "n_discard": _among(0),
    "image_data": _is_empty,
    "logprobs": _among(0, False),
    "messages": _never,
    "sse_ping_interval": _never,
}

LLAMA_EMBEDDING: Mapping[str, IsHarmless] = {
    "stream": _among(False),
    "dimensions": _never,
    "encoding_format": _among("float"),
    "image_data": _is_empty,
    "lora": _is_empty,
}

APPLY_TEMPLATE: Mapping[str, IsHarmless] = {
    "stream": _among(False),
    "documents": _is_empty,
    "functions": _is_empty,
    "grammar": _is_empty,
    "json_schema": _never,
    "reasoning_format": _among("none", "auto"),
    "response_format": _is_plain_text,
}

RERANK: Mapping[str, IsHarmless] = {
    "stream": _among(False),
    "instruction": _is_empty,
    "lora": _is_empty,
    "max_chunks_per_doc": _never,
    "max_tokens_per_doc": _never,
    "rank_fields": _among(["text"]),
    "raw_scores": _among(True),
    "return_text": _among(False),
    "texts": _never,
    "truncate": _among(False),
    "truncate_prompt_tokens": _never,
}

OLLAMA: dict[str, IsHarmless] = {
    "format": _is_empty,
    "template": _among(""),
    "shift": _among(False),
}
OLLAMA_GENERATE: Mapping[str, IsHarmless] = OLLAMA | {
    "width": _among(0),
    "height": _among(0),
    "steps": _among(0),
}
OLLAMA_CHAT: Mapping[str, IsHarmless] = OLLAMA | {
    "tools": _is_empty,
}
OLLAMA_OPTIONS: Mapping[str, IsHarmless] = {
    "n": _among(1),
    "penalize_newline": _among(True),
    "tfs_z": _among(1),
    "embedding_only": _among(False),
    "logits_all": _among(False),
    "vocab_only": _among(False),
    "num_gqa": _among(0, 1),
    "rope_frequency_base": _among(0),
    "rope_frequency_scale": _among(0, 1),
    "return_progress": _among(False),
    "timings_per_token": _among(False),
}
OLLAMA_HINTS: Mapping[str, str] = {
    "template": "Ollama's templates are written for another program: set `chat_template` of this model in models.yaml, "
    "or send a prompt that you have formatted yourself with 'raw'.",
    "shift": 'An answer ends with `done_reason` "length" when the context is full: shorten the conversation then.',
    "rope_frequency_base": "Set `rope_freq_base` of this model in models.yaml instead.",
    "rope_frequency_scale": "Set `rope_scale` of this model in models.yaml instead.",
}

HINTS: Mapping[str, str] = {
    "speculative.n_max": "Set `draft_max` of this model in models.yaml instead.",
    "n_cmpl": "Use 'n' instead.",
    "n_probs": "Use 'logprobs' instead.",
    "stop_token_ids": "Use 'stop' instead.",
    "content": "Use 'input' instead.",
    "max_completion_tokens": "Use 'n_predict' instead.",
    "logprobs": "Use 'n_probs' instead.",
    "messages": "Use POST /v1/chat/completions, or POST /apply-template to make a prompt of them.",
    "n_cache_reuse": "Beginnings that prompts share are used again without it.",
    "sse_ping_interval": "Set CORRAL_PING_INTERVAL_S of the server instead.",
    "output_dimension": "Use 'dimensions' instead.",
    "prompt_name": "Write the prompt in front of each text.",
    "instruction": "Write it in front of each text.",
    "texts": "Use 'documents' instead.",
    "return_text": "Use 'return_documents' instead.",
    "truncate": "Shorten the texts, or leave the field out: longer ones are refused.",
}


def refuse_unsupported(
    body: Mapping[str, Any], table: Mapping[str, IsHarmless], hints: Mapping[str, str] = HINTS
) -> None:
    """Return when no field of `body` asks for something that this release lacks.

    Raises: UnsupportedParameter for the first field that does. Null never does.
    """
    for name, value in body.items():
        is_harmless = table.get(name)
        if is_harmless is None or value is None or is_harmless(value):
            continue
        hint = hints.get(name, "Leave the field out.")
        raise UnsupportedParameter(
            f"'{name}' is {show(value)}, which is not available in this release. {hint}", param=name
        )
