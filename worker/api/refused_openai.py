"""The fields that OpenAI's chat and completions, and the routes of embedding and ranking, refuse.

Owns these tables alone; how they are applied is in `refusals.py`.
"""

from __future__ import annotations

from collections.abc import Mapping

from worker.api.refusals import Refused, Table, among, is_empty, misplaced, never, renamed, with_hints
from worker.api.refused_everywhere import BUDGETS, EVERYWHERE, OF_OLLAMA, other_names

_FORM = "Use 'response_format' instead."
_NAMES: Mapping[str, Refused] = {
    **other_names(("max_tokens", "max_completion_tokens", "n_predict")),
    **with_hints(OF_OLLAMA, {"format": "Use 'response_format' instead."}),
    "grammar_string": renamed(is_empty, "grammar"),
    "extra_body": misplaced("Put its fields at the top of the body; OpenAI's own client does so by itself."),
    "output_config": misplaced(_FORM),
    "output_format": misplaced(_FORM),
    "response_schema": misplaced("Use 'json_schema' instead.", twins=("json_schema",)),
    "text": misplaced(_FORM),
}

_SYSTEM = "Send a message with the role 'system' in 'messages' instead."

CHAT: Table = {
    **EVERYWHERE,
    **_NAMES,
    "best_of": Refused(among(1), "Use 'n' instead."),
    "echo": Refused(among(False)),
    "add_special_tokens": Refused(among(False)),
    "return_token_ids": Refused(among(False)),
    "prompt_embeds": Refused(never),
    "modalities": Refused(among(["text"])),
    "verbosity": Refused(among("medium")),
    "documents": Refused(is_empty),
    "reasoning_budget": Refused(among(-1), "Use 'thinking_budget_tokens' instead."),
    "thinking_forced_open": Refused(among(False)),
    # of other routes and dialects
    "reasoning": Refused(is_empty, "Use 'reasoning_effort' instead."),
    "think": misplaced("Use 'enable_thinking' instead."),
    "thinking": misplaced("Use 'enable_thinking' and 'thinking_budget_tokens' instead."),
    "suffix": misplaced("POST /v1/completions fills gaps."),
    "system": misplaced(_SYSTEM, twins=("messages.0.content",)),
    "instructions": misplaced(_SYSTEM, twins=("messages.0.content",)),
    "prompt": misplaced("This route takes 'messages'; POST /v1/completions continues a prompt."),
    "input": misplaced("This route takes 'messages'; POST /v1/responses takes 'input'."),
}

COMPLETIONS: Table = {
    **EVERYWHERE,
    **BUDGETS,
    **_NAMES,
    "options": misplaced("Put its fields at the top of the body, or use Ollama's own route POST /api/generate."),
    "input_extra": misplaced("POST /infill takes other files."),
    "tools": misplaced("Tools are for conversations: POST /v1/chat/completions."),
    "functions": misplaced("Tools are for conversations: POST /v1/chat/completions."),
    "reasoning_effort": misplaced("A prompt is continued as it is: write into it what the model shall think.", never),
    "top_logprobs": Refused(among(0), "Use 'logprobs' instead.", twins=("logprobs",)),
    "messages": misplaced("This route takes 'prompt'; POST /v1/chat/completions answers conversations."),
    "input": misplaced("This route takes 'prompt'; POST /v1/responses takes 'input'."),
    "system": misplaced("Write it into 'prompt', or send 'messages' to POST /v1/chat/completions."),
    "instructions": misplaced("Write them into 'prompt', or send 'messages' to POST /v1/chat/completions."),
}

_INPUT = "Use 'input' instead."
_IN_FRONT = "Write it in front of each text."
_SHORTEN = "Shorten the texts, or leave the field out: longer ones are refused."

EMBEDDINGS: Table = {
    "stream": Refused(among(False)),
    "content": misplaced(_INPUT, never, ("input",)),
    "prompt": misplaced(_INPUT, twins=("input",)),
    "texts": misplaced(_INPUT, twins=("input",)),
    "documents": misplaced("Use 'input' instead, or POST /v1/rerank to rank documents."),
    "query": misplaced("Use 'input' instead, or POST /v1/rerank to rank documents."),
    "messages": misplaced("This route takes texts in 'input'; POST /v1/chat/completions answers conversations."),
    "options": misplaced("This route has no options; Ollama's own is POST /api/embed."),
    "embd_normalize": Refused(among(2), "POST /embedding has this field."),
    "embedding_type": Refused(among("float"), "Use 'encoding_format' instead."),
    "embedding_types": Refused(among(["float"]), "Use 'encoding_format' instead."),
    "input_type": Refused(never),
    "instruction": Refused(is_empty, _IN_FRONT),
    "late_chunking": Refused(among(False)),
    "lora": Refused(is_empty),
    "normalize": Refused(among(True)),
    "output_dimension": Refused(never, "Use 'dimensions' instead.", twins=("dimensions",)),
    "output_dtype": Refused(among("float")),
    "pooling": Refused(never, "Set `pooling` of this model in models.yaml instead."),
    "prompt_name": Refused(never, "Write the prompt in front of each text."),
    "task": Refused(never),
    "task_type": Refused(never),
    "truncate": Refused(among(False, "NONE"), _SHORTEN),
    "truncate_prompt_tokens": Refused(never, _SHORTEN),
}

RERANK: Table = {
    "stream": Refused(among(False)),
    "input": misplaced("This route takes 'query' and 'documents'; POST /v1/embeddings takes 'input'."),
    "prompt": misplaced("This route takes 'query' and 'documents'."),
    "messages": misplaced("This route takes 'query' and 'documents'."),
    "options": misplaced("This route has no options."),
    "passages": misplaced("Use 'documents' instead.", twins=("documents",)),
    "top_k": Refused(never, "Use 'top_n' instead.", "is not read here.", ("top_n",)),
    "instruction": Refused(is_empty, "Write it in front of the query."),
    "lora": Refused(is_empty),
    "max_chunks_per_doc": Refused(never),
    "max_tokens_per_doc": Refused(never),
    "rank_fields": Refused(among(["text"])),
    "raw_scores": Refused(among(True)),
    "return_text": Refused(among(False), "Use 'return_documents' instead.", twins=("return_documents",)),
    "texts": misplaced("Use 'documents' instead.", never, ("documents",)),
    "truncate": Refused(among(False), _SHORTEN),
    "truncate_prompt_tokens": Refused(never, _SHORTEN),
}
