"""The fields that OpenAI, llama-server, Ollama or their clients know and this release does not honour.

Owns a table for each kind of body: field -> which values promise nothing. Any other value is refused, so that a reply
never breaks a promise silently. Fields that are in no table are ignored, as clients add extras of their own.
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


def never(_: Any) -> bool:
    """Return false: no value asks for nothing."""
    return False


def among(*values: Any) -> IsHarmless:
    """Return the check that these values alone pass."""
    # 0 == False in Python, but `logprobs: 0` asks for something and `logprobs: false` does not.
    return lambda value: any(value == one and isinstance(value, bool) == isinstance(one, bool) for one in values)


def is_empty(value: Any) -> bool:
    """Return whether there is nothing in it, whatever kind of thing it is."""
    return isinstance(value, str | list | dict) and not value


def _is_plain_text(value: Any) -> bool:
    return isinstance(value, dict) and value.get("type") == "text" and len(value) == 1


BOTH: dict[str, IsHarmless] = {
    # OpenAI
    "store": among(False),
    "service_tier": among("auto", "default"),
    "audio": never,
    "moderation": never,
    "prediction": never,
    "web_search_options": never,
    "response_format": _is_plain_text,
    # llama-server: constraints
    "grammar": is_empty,
    "grammar_lazy": among(False),
    "grammar_triggers": is_empty,
    "preserved_tokens": is_empty,
    "json_schema": never,
    # llama-server: the rest
    "speculative.n_max": never,
    "speculative.n_min": never,
    "speculative.p_min": never,
    "n_cmpl": among(1),
    "backend_sampling": among(False),
    "reasoning_budget_tokens": among(-1),
    "thinking_budget_tokens": among(-1),
    "n_keep": among(0),
    "n_discard": among(0),
    "n_indent": among(0),
    "n_probs": among(0),
    "response_fields": is_empty,
    "return_tokens": among(False),
    # other servers
    "allowed_token_ids": is_empty,
    "bad_words": is_empty,
    "guided_choice": never,
    "guided_grammar": never,
    "guided_json": never,
    "guided_regex": never,
    "include_stop_str_in_output": among(False),
    "length_penalty": among(1),
    "logits_processors": is_empty,
    "prompt_logprobs": among(False),
    "skip_special_tokens": among(True),
    "stop_token_ids": is_empty,
    "structured_outputs": never,
    "truncate_prompt_tokens": never,
    "use_beam_search": among(False),
}

CHAT: Mapping[str, IsHarmless] = BOTH | {
    "best_of": among(1),
    "echo": among(False),
    "add_special_tokens": among(False),
    "return_token_ids": among(False),
    "prompt_embeds": never,
    "functions": is_empty,
    "function_call": among("none", "auto"),
    "modalities": among(["text"]),
    "verbosity": among("medium"),
    "documents": is_empty,
    "reasoning_format": among("none", "auto"),
    "reasoning_budget": among(-1),
    "thinking_forced_open": among(False),
}

COMPLETIONS: Mapping[str, IsHarmless] = BOTH | {
    "input_extra": is_empty,
}

EMBEDDINGS: Mapping[str, IsHarmless] = {
    "stream": among(False),
    "content": never,
    "embd_normalize": among(2),
    "embedding_type": among("float"),
    "embedding_types": among(["float"]),
    "input_type": never,
    "instruction": is_empty,
    "late_chunking": among(False),
    "lora": is_empty,
    "normalize": among(True),
    "output_dimension": never,
    "output_dtype": among("float"),
    "pooling": never,
    "prompt_name": never,
    "task": never,
    "task_type": never,
    "truncate": among(False, "NONE"),
    "truncate_prompt_tokens": never,
}

_HONOURED_BY_LLAMA = ("n_cmpl", "n_keep", "n_indent", "n_probs", "response_fields", "return_tokens")

LLAMA: Mapping[str, IsHarmless] = {
    **{name: is_harmless for name, is_harmless in BOTH.items() if name not in _HONOURED_BY_LLAMA},
    "n_cache_reuse": among(0),
    "image_data": is_empty,
    "sse_ping_interval": never,
    # of OpenAI's completions and chat, which are at other addresses
    "best_of": among(1),
    "echo": among(False),
    "logprobs": among(0, False),
    "max_completion_tokens": never,
    "messages": never,
    "stream_options": is_empty,
    "suffix": is_empty,
}

LLAMA_EMBEDDING: Mapping[str, IsHarmless] = {
    "stream": among(False),
    "dimensions": never,
    "encoding_format": among("float"),
    "image_data": is_empty,
    "lora": is_empty,
}

APPLY_TEMPLATE: Mapping[str, IsHarmless] = {
    "stream": among(False),
    "documents": is_empty,
    "functions": is_empty,
    "grammar": is_empty,
    "json_schema": never,
    "reasoning_format": among("none", "auto"),
    "response_format": _is_plain_text,
}

RERANK: Mapping[str, IsHarmless] = {
    "stream": among(False),
    "instruction": is_empty,
    "lora": is_empty,
    "max_chunks_per_doc": never,
    "max_tokens_per_doc": never,
    "rank_fields": among(["text"]),
    "raw_scores": among(True),
    "return_text": among(False),
    "texts": never,
    "truncate": among(False),
    "truncate_prompt_tokens": never,
}

OLLAMA: dict[str, IsHarmless] = {
    "format": is_empty,
    "template": among(""),
    "shift": among(False),
}
OLLAMA_GENERATE: Mapping[str, IsHarmless] = OLLAMA | {
    "width": among(0),
    "height": among(0),
    "steps": among(0),
}
OLLAMA_CHAT: Mapping[str, IsHarmless] = OLLAMA | {
    "tools": is_empty,
}
OLLAMA_OPTIONS: Mapping[str, IsHarmless] = {
    "n": among(1),
    "penalize_newline": among(True),
    "tfs_z": among(1),
    "embedding_only": among(False),
    "logits_all": among(False),
    "vocab_only": among(False),
    "num_gqa": among(0, 1),
    "rope_frequency_base": among(0),
    "rope_frequency_scale": among(0, 1),
    "return_progress": among(False),
    "timings_per_token": among(False),
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
    "stream_options": "The last event of each answer has the counts. OpenAI's completions are at /v1/completions.",
    "suffix": "Use POST /infill, or OpenAI's completions at /v1/completions.",
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
