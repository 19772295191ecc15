"""The fields that Ollama's routes refuse: what they lack, and what stands at another place there.

Owns these tables alone; how they are applied is in `refusals.py`.
"""

from __future__ import annotations

from dataclasses import replace

from worker.api.refusals import (
    Refused,
    Table,
    among,
    is_empty,
    misplaced,
    never,
    renamed,
    with_hints,
)
from worker.api.refused_everywhere import BOTH, FORMATS, MAXIMUM, SAMPLING, STOP, other_names
from worker.api.sampling_fields import SamplingFields

_PASSING = {
    "stop": is_empty,
    "logit_bias": is_empty,
    "seed": among(-1),
    "id_slot": among(-1),
    "cache_prompt": among(True),
    "min_tokens": among(0),
    "t_max_predict_ms": among(0, -1),
    **dict.fromkeys(
        ("ignore_eos", "post_sampling_probs", "reproducible", "return_progress", "timings_per_token"), among(False)
    ),
}
"""Options that ask for nothing at the top either. Others do, unless `options` says the same."""

MISPLACED: Table = {
    **{name: renamed(_PASSING.get(name, never), f"options.{name}") for name in SamplingFields.model_fields},
    **{name: renamed(passes, "options.num_predict") for name, passes in MAXIMUM.items()},
    **{name: renamed(passes, "options.stop") for name, passes in STOP.items()},
    **{name: renamed(passes, f"options.{ours}") for name, (ours, passes) in SAMPLING.items()},
    "num_ctx": renamed(never, "options.num_ctx"),
    "n_ctx": renamed(never, "options.num_ctx"),
}
"""What is an option with Ollama, or the same as one, and was put beside `options`."""

_FORMAT = "Use 'format' beside 'options' for JSON, and POST /v1/chat/completions for other forms."
_OTHER_FORMATS: Table = {name: replace(one, instead=_FORMAT, why="is not read here.") for name, one in FORMATS.items()}
_TOOLS = "Tools are for conversations: POST /api/chat."
_THINK = "Use 'think' instead."
_TURNS = "An answer goes on with the last message if that is the assistant's, and begins a new one otherwise."

OLLAMA: Table = {
    **with_hints(BOTH, {"n_cmpl": "Send the request several times.", "stop_token_ids": "Use 'options.stop' instead."}),
    **_OTHER_FORMATS,
    **MISPLACED,
    "template": Refused(
        among(""),
        "Ollama's templates are written for another program: set `chat_template` of this model in models.yaml, "
        "or send a prompt that you have formatted yourself with 'raw'.",
    ),
    "shift": Refused(
        among(False),
        'An answer ends with `done_reason` "length" when the context is full: shorten the conversation then.',
    ),
    "n": misplaced("Send the request several times.", among(1)),
    "chat_template": misplaced("Set `chat_template` of this model in models.yaml, or use POST /v1/chat/completions."),
    "reasoning_effort": misplaced(_THINK),
    "enable_thinking": misplaced(_THINK),
    "reasoning_format": Refused(among("auto", "deepseek")),
    "instructions": misplaced("Use a system message, or 'system' of POST /api/generate."),
}
OLLAMA_GENERATE: Table = {
    **OLLAMA,
    "width": Refused(among(0)),
    "height": Refused(among(0)),
    "steps": Refused(among(0)),
    "messages": misplaced("This route takes 'prompt'; POST /api/chat answers conversations."),
    "input": misplaced("This route takes 'prompt'."),
    "tools": misplaced(_TOOLS),
    "tool_choice": misplaced(_TOOLS, among("auto", "none")),
    "functions": misplaced(_TOOLS),
}
OLLAMA_CHAT: Table = {
    **OLLAMA,
    "prompt": misplaced("This route takes 'messages'; POST /api/generate continues a prompt."),
    "input": misplaced("This route takes 'messages'."),
    "add_generation_prompt": misplaced(_TURNS, among(True)),
    "continue_final_message": misplaced(_TURNS, among(False)),
    "system": misplaced("Send a message with the role 'system' in 'messages' instead.", twins=("messages.0.content",)),
    "suffix": misplaced("POST /api/generate fills gaps."),
    "raw": misplaced("POST /api/generate takes prompts that you have formatted yourself.", among(False)),
    "context": misplaced("Send the conversation so far in 'messages'."),
}

_AT_THE_TOP = "Put it at the top of the body, beside 'options'."

OLLAMA_OPTIONS: Table = {
    "n": Refused(among(1), "Send the request several times."),
    "penalize_newline": Refused(among(True)),
    "embedding_only": Refused(among(False)),
    "logits_all": Refused(among(False)),
    "vocab_only": Refused(among(False)),
    "num_gqa": Refused(among(0, 1)),
    "rope_frequency_base": Refused(among(0), "Set `rope_freq_base` of this model in models.yaml instead."),
    "rope_frequency_scale": Refused(among(0, 1), "Set `rope_scale` of this model in models.yaml instead."),
    "return_progress": Refused(among(False)),
    "timings_per_token": Refused(among(False)),
    "n_ctx": renamed(never, "num_ctx"),
    "think": misplaced(_AT_THE_TOP),
    "system": misplaced(_AT_THE_TOP),
    "logprobs": misplaced(_AT_THE_TOP, among(False)),
    "top_logprobs": misplaced(_AT_THE_TOP, among(0)),
    "format": misplaced(_AT_THE_TOP),
}
ALL_OPTIONS: Table = {
    **with_hints(BOTH, {"n_cmpl": "Send the request several times."}),
    "n_probs": replace(BOTH["n_probs"], instead="Use 'logprobs' and 'top_logprobs' beside 'options'.", twins=()),
    **_OTHER_FORMATS,
    **other_names(("num_predict",)),
    **OLLAMA_OPTIONS,
}
"""Everything that is refused in `options`."""

_EMBEDDED: Table = {
    "num_ctx": renamed(never, "options.num_ctx"),
    "encoding_format": misplaced("POST /v1/embeddings has this field.", among("float")),
    "content": misplaced("POST /embedding takes 'content', and POST /api/embed takes 'input'."),
    "texts": misplaced("POST /api/embed takes 'input'."),
    "messages": misplaced("This route takes texts; POST /api/chat answers conversations."),
    "documents": misplaced("POST /v1/rerank ranks documents, and POST /api/embed takes 'input'."),
}
OLLAMA_EMBED: Table = {
    **_EMBEDDED,
    "prompt": misplaced("This route takes 'input'; POST /api/embeddings, the older one, 'prompt'.", twins=("input",)),
}
OLLAMA_EMBEDDINGS: Table = {
    **_EMBEDDED,
    "input": misplaced("This route takes 'prompt'; POST /api/embed takes 'input'.", twins=("prompt",)),
    "dimensions": misplaced("POST /api/embed has this field.", among(0)),
}
