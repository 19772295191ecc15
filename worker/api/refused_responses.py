"""The fields that OpenAI's Responses API refuses.

Owns this table alone; how it is applied is in `refusals.py`.
"""

from __future__ import annotations

from worker.api.refusals import Refused, Table, among, is_empty, misplaced, never, with_hints
from worker.api.refused_everywhere import EVERYWHERE, FORMATS, OF_OLLAMA, other_names

LOGPROBS = "message.output_text.logprobs"

_LOGPROBS = f"Use 'include': [\"{LOGPROBS}\"] and 'top_logprobs' instead."
_FORMAT = "Use 'text.format' instead."
_ONE_BY_ONE = "Send the request several times."
_TURNS = "An answer goes on with the last message if that is the assistant's and 'incomplete', else it begins one."
_THINKING = "Use 'reasoning' or 'chat_template_kwargs' instead, as far as the model's template knows them."

RESPONSES: Table = {
    **with_hints(
        {name: one for name, one in {**EVERYWHERE, **FORMATS}.items() if name != "store"},
        {"n_probs": _LOGPROBS, "n_cmpl": _ONE_BY_ONE, **dict.fromkeys(FORMATS, _FORMAT)},
    ),
    **other_names(("max_output_tokens", "max_tokens", "max_completion_tokens")),
    **with_hints(OF_OLLAMA, {"format": _FORMAT}),
    "best_of": Refused(among(1)),
    "documents": Refused(is_empty),
    "reasoning_budget": Refused(among(-1), "Use 'thinking_budget_tokens' instead."),
    "reasoning_format": Refused(among("auto", "deepseek")),
    "background": Refused(among(False), "Leave the field out: replies are made while you wait."),
    "background_options": Refused(is_empty),
    "context_management": Refused(is_empty),
    "conversation": Refused(never, "Use 'previous_response_id' instead."),
    "personality": Refused(never),
    "prompt": Refused(never, "Send the prompt itself in 'instructions' and 'input'."),
    "truncation": Refused(among("disabled"), "Leave the field out: an input that is too long is refused."),
    # of other dialects, which have them under other names
    "functions": misplaced("Use 'tools' instead."),
    "function_call": misplaced("Use 'tool_choice' instead.", among("none", "auto")),
    "logprobs": misplaced(_LOGPROBS, among(False)),
    "messages": misplaced("This route takes 'input'; POST /v1/chat/completions takes 'messages'.", never),
    "system": misplaced("Use 'instructions' instead."),
    "think": misplaced(_THINKING),
    "thinking": misplaced(_THINKING),
    "enable_thinking": misplaced(_THINKING),
    "n": misplaced(_ONE_BY_ONE, among(1)),
    "add_generation_prompt": misplaced(_TURNS, among(True)),
    "continue_final_message": misplaced(_TURNS, among(False)),
    "verbosity": Refused(never, "Use 'text.verbosity' instead."),
    # of llama-server, without a place in these replies
    "return_progress": Refused(among(False)),
    "timings_per_token": Refused(among(False)),
}
