"""The fields that Anthropic's Messages API refuses.

Owns these tables alone; how they are applied is in `refusals.py`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from worker.api.refusals import Refused, Table, among, is_empty, misplaced, never, with_hints
from worker.api.refused_everywhere import BOTH, BUDGETS, FORMATS, OF_OLLAMA, other_names


def _has_only_nulls(value: Any) -> bool:
    return isinstance(value, dict) and all(one is None for one in value.values())


def _keeps_all(value: Any) -> bool:
    """Return whether the edits of a `context_management` leave every conversation as it is."""
    if not isinstance(value, dict) or value.keys() - {"edits"}:
        return False
    edits = value.get("edits") or []
    return isinstance(edits, list) and all(
        isinstance(edit, dict) and edit.get("type") == "clear_thinking_20251015" and edit.get("keep") == "all"
        for edit in edits
    )


_LOGPROBS = "Use /v1/chat/completions for log-probabilities."
_ONE_BY_ONE = "Send the request several times."
_SYSTEM = "Use 'system' instead."
_FORMAT = "Use 'output_config.format' instead."
_BUDGET = "Use 'thinking.budget_tokens' instead."
_THINKING = "Use 'thinking' instead."
_TURNS = "An answer goes on with the last message if that is the assistant's, and begins a new one otherwise."

MESSAGES: Table = {
    **with_hints(
        BOTH, {"n_probs": _LOGPROBS, "n_cmpl": _ONE_BY_ONE, "stop_token_ids": "Use 'stop_sequences' instead."}
    ),
    **other_names(("max_tokens",), ("stop_sequences", "stop")),
    **{name: replace(one, instead=_BUDGET, why="is not read here.") for name, one in BUDGETS.items()},
    **OF_OLLAMA,
    **{
        name: replace(one, instead=_FORMAT, why="is not read here.")
        for name, one in {**FORMATS, "format": OF_OLLAMA["format"]}.items()
    },
    "service_tier": Refused(among("auto", "standard_only")),
    "container": Refused(never),
    "mcp_servers": Refused(is_empty),
    "context_management": Refused(_keeps_all),
    "inference_geo": Refused(never),
    "speed": Refused(among("standard")),
    "diagnostics": Refused(_has_only_nulls),
    "compaction": Refused(never),
    "thread": Refused(never),
    "fallbacks": Refused(is_empty),
    "fallback_credit_token": Refused(never),
    "billing_policy": Refused(never),
    # what other dialects have for the same, and a client may have mixed up
    "prompt": misplaced("This route takes 'messages'; POST /v1/completions continues a prompt.", never),
    "input": misplaced("This route takes 'messages'; POST /v1/responses takes 'input'."),
    "instructions": misplaced(_SYSTEM),
    "think": misplaced(_THINKING),
    "enable_thinking": misplaced(_THINKING),
    "n": misplaced(_ONE_BY_ONE, among(1)),
    "best_of": Refused(among(1)),
    "echo": Refused(among(False)),
    "logprobs": misplaced(_LOGPROBS, among(False)),
    "top_logprobs": misplaced(_LOGPROBS, among(0)),
    "functions": misplaced("Use 'tools' instead."),
    "function_call": misplaced("Use 'tool_choice' instead.", among("auto", "none")),
    "parallel_tool_calls": misplaced("Use 'tool_choice.disable_parallel_tool_use' instead.", among(True)),
    "reasoning_effort": misplaced("Use 'output_config.effort' instead.", never),
    "reasoning_format": Refused(among("auto", "deepseek")),
    "add_generation_prompt": misplaced(_TURNS, among(True)),
    "continue_final_message": misplaced(_TURNS, among(False)),
    "return_progress": Refused(among(False)),
    "timings_per_token": Refused(among(False)),
}

COUNTING: Table = {**MESSAGES, "stream": Refused(among(False))}
"""The same for counting tokens."""
