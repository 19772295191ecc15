"""The fields that llama-server's own routes refuse.

Owns these tables alone; how they are applied is in `refusals.py`.
"""

from __future__ import annotations

from worker.api.refusals import Refused, Table, among, is_empty, misplaced, never, renamed, with_hints
from worker.api.refused_everywhere import BUDGETS, EVERYWHERE, OF_OLLAMA, other_names

_HONOURED = ("n_cmpl", "n_keep", "n_indent", "n_probs", "response_fields", "return_tokens")
_COMPLETIONS = "OpenAI's completions are at POST /v1/completions."
_LAZY = (
    "A grammar holds from the first token of an answer. For tools that the model calls when it likes, send 'tools' to "
    "POST /v1/chat/completions."
)

LLAMA: Table = {
    **{name: one for name, one in {**EVERYWHERE, **BUDGETS}.items() if name not in _HONOURED},
    **other_names(("n_predict", "max_tokens")),
    **with_hints(
        OF_OLLAMA, {"options": "Put its fields at the top of the body.", "format": "Use 'json_schema' instead."}
    ),
    "grammar_lazy": Refused(EVERYWHERE["grammar_lazy"].passes, _LAZY),
    "grammar_triggers": Refused(EVERYWHERE["grammar_triggers"].passes, _LAZY),
    "preserved_tokens": Refused(EVERYWHERE["preserved_tokens"].passes, _LAZY),
    "grammar_string": renamed(is_empty, "grammar"),
    "n_cache_reuse": Refused(among(0), "Beginnings that prompts share are used again without it."),
    "image_data": Refused(is_empty),
    "sse_ping_interval": Refused(never, "Set CORRAL_PING_INTERVAL_S of the server instead."),
    # of OpenAI's completions and chat, which are at other addresses
    "best_of": Refused(among(1), "Use 'n_cmpl' instead."),
    "echo": Refused(among(False), _COMPLETIONS),
    "logprobs": Refused(among(0, False), "Use 'n_probs' instead.", twins=("n_probs",)),
    "messages": misplaced("Use POST /v1/chat/completions, or POST /apply-template to make a prompt of them."),
    "input": misplaced("Use 'prompt' instead.", twins=("prompt",)),
    "system": misplaced("Write it into 'prompt', or send 'messages' to POST /v1/chat/completions."),
    "system_prompt": misplaced("Write it into 'prompt', or send 'messages' to POST /v1/chat/completions."),
    "stream_options": Refused(is_empty, f"The last event of each answer has the counts. {_COMPLETIONS}"),
    "suffix": misplaced(f"{_COMPLETIONS} They fill gaps, and so does POST /infill."),
    "tools": misplaced("Tools are for conversations: POST /v1/chat/completions."),
}

LLAMA_EMBEDDING: Table = {
    "stream": Refused(among(False)),
    "dimensions": Refused(never, "POST /v1/embeddings has this field."),
    "encoding_format": Refused(among("float"), "POST /v1/embeddings has this field."),
    "image_data": Refused(is_empty),
    "lora": Refused(is_empty),
    "prompt": misplaced("Use 'content' instead.", twins=("content", "input")),
    "texts": misplaced("Use 'content' instead.", twins=("content", "input")),
    "messages": misplaced("This route takes texts in 'content'."),
    "options": misplaced("This route has no options."),
}

_CONTENT = misplaced("Use 'content' instead.", twins=("content",))

TOKENIZE: Table = {
    "prompt": _CONTENT,
    "input": _CONTENT,
    "text": _CONTENT,
    "messages": misplaced("Make a prompt of them with POST /apply-template, and send that as 'content'."),
}

APPLY_TEMPLATE: Table = {
    "stream": Refused(among(False)),
    "documents": Refused(is_empty),
    "prompt": misplaced("This route makes a prompt of 'messages'."),
    "system": misplaced("Send a message with the role 'system' in 'messages' instead."),
}
