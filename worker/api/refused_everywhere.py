"""The fields that no dialect honours, and what others call the fields that all dialects have.

Must not know any dialect's own fields: their rooms add to these tables.
"""

from __future__ import annotations

from collections.abc import Mapping

from worker.api.refusals import (
    IsHarmless,
    Refused,
    among,
    is_empty,
    is_plain_text,
    misplaced,
    never,
    renamed,
    structured,
)

EVERYWHERE: Mapping[str, Refused] = {
    # OpenAI
    "store": Refused(among(False)),
    "service_tier": Refused(among("auto", "default")),
    "audio": Refused(never),
    "moderation": Refused(never),
    "prediction": Refused(never),
    "web_search_options": Refused(never),
    # llama-server: constraints
    "grammar_lazy": Refused(among(False)),
    "grammar_triggers": Refused(is_empty),
    "preserved_tokens": Refused(is_empty),
    # llama-server: the rest
    "speculative.n_max": Refused(never, "Set `draft_max` of this model in models.yaml instead."),
    "speculative.n_min": Refused(never),
    "speculative.p_min": Refused(never),
    "n_cmpl": Refused(among(1), "Use 'n' instead."),
    "backend_sampling": Refused(among(False)),
    "n_keep": Refused(among(0)),
    "n_discard": Refused(among(0)),
    "n_indent": Refused(among(0)),
    "n_probs": Refused(among(0), "Use 'logprobs' instead.", twins=("logprobs", "top_logprobs")),
    "response_fields": Refused(is_empty),
    "return_tokens": Refused(among(False)),
    # other servers: the form of the answer
    "guided_whitespace_pattern": Refused(never),
    "structural_tag": Refused(never),
    # other servers: sampling
    "allowed_token_ids": Refused(is_empty),
    "bad_words": Refused(is_empty),
    "banned_strings": Refused(is_empty),
    "custom_token_bans": Refused(is_empty, "Use 'logit_bias' instead."),
    "do_sample": Refused(among(True), "Set 'temperature' to 0 instead."),
    "dynamic_temperature": Refused(among(False), "Use 'dynatemp_range' instead."),
    "encoder_repetition_penalty": Refused(among(1)),
    "epsilon_cutoff": Refused(among(0)),
    "eta_cutoff": Refused(among(0)),
    "guidance_scale": Refused(among(1)),
    "include_stop_str_in_output": Refused(among(False)),
    "length_penalty": Refused(among(1)),
    "logits_processors": Refused(is_empty),
    "negative_prompt": Refused(is_empty),
    "no_repeat_ngram_size": Refused(among(0)),
    "num_beams": Refused(among(1)),
    "penalty_alpha": Refused(among(0)),
    "prompt_logprobs": Refused(among(False)),
    "skip_special_tokens": Refused(among(True)),
    "smoothing_factor": Refused(among(0)),
    "stop_token_ids": Refused(is_empty, "Use 'stop' instead."),
    "tfs": Refused(among(1)),
    "tfs_z": Refused(among(1)),
    "top_a": Refused(among(0)),
    "truncate_prompt_tokens": Refused(never),
    "use_beam_search": Refused(among(False)),
}

FORMATS: Mapping[str, Refused] = {
    "response_format": structured("response_format", is_plain_text),
    "grammar": structured("grammar", is_empty),
    "json_schema": structured("json_schema", never),
    "guided_choice": structured("guided_choice", never),
    "guided_grammar": structured("guided_grammar", never),
    "guided_json": structured("guided_json", never),
    "guided_regex": structured("guided_regex", never),
    "structured_outputs": structured("structured_outputs", never),
    "regex": structured("regex", is_empty),
    "choice": structured("choice", is_empty),
    "lark": structured("lark", is_empty),
    "ebnf": structured("ebnf", is_empty),
    "grammar_string": structured("grammar_string", is_empty),
}
"""The form of the answer, for routes that do not read it under these names."""
BUDGETS: Mapping[str, Refused] = {
    "reasoning_budget_tokens": Refused(among(-1)),
    "thinking_budget_tokens": Refused(among(-1)),
}
"""Limits of thoughts, for routes that do not read them under these names."""
BOTH: Mapping[str, Refused] = {**EVERYWHERE, **FORMATS, **BUDGETS}

MAXIMUM: Mapping[str, IsHarmless] = {
    "max_tokens": never,
    "max_completion_tokens": never,
    "max_output_tokens": never,
    "max_tokens_to_sample": never,
    "max_new_tokens": never,
    "max_length": never,
    "n_predict": among(-1),
    "num_predict": among(-1, -2),
}
"""What the most tokens of an answer are called, and which values set no limit."""
STOP: Mapping[str, IsHarmless] = {"stop": is_empty, "stop_sequences": is_empty, "stopping_strings": is_empty}
"""What the texts are called at which an answer ends."""
SAMPLING: Mapping[str, tuple[str, IsHarmless]] = {
    "temp": ("temperature", never),
    "typical": ("typical_p", among(1)),
    "nsigma": ("top_n_sigma", among(0, -1)),
    "rep_pen": ("repeat_penalty", among(1)),
    "rep_pen_range": ("repeat_last_n", among(0)),
    "mirostat_mode": ("mirostat", among(0)),
    "sampler_seed": ("seed", among(-1)),
    "random_seed": ("seed", among(-1)),
    "min_length": ("min_tokens", among(0)),
    "min_new_tokens": ("min_tokens", among(0)),
    "ban_eos_token": ("ignore_eos", among(False)),
}
"""What others call fields of sampling: name -> ours, and which values ask for nothing."""

_CONTEXT = "An answer has the room of the model's `context` in models.yaml; 'max_tokens' makes it shorter."

OF_OLLAMA: Mapping[str, Refused] = {
    "options": misplaced("Put its fields at the top of the body, or use Ollama's own route POST /api/chat."),
    "num_ctx": misplaced(_CONTEXT, among(0)),
    "n_ctx": misplaced(_CONTEXT, among(0)),
    "format": structured("format", is_empty),
}
"""What Ollama's clients send, and other routes do not read."""


def other_names(maximum: tuple[str, ...], stop: tuple[str, ...] = ("stop",)) -> dict[str, Refused]:
    """Return an entry for each name that another dialect has for a field; `maximum` and `stop` are one's own names."""
    named = {name: renamed(passes, *maximum) for name, passes in MAXIMUM.items() if name not in maximum}
    named |= {name: renamed(passes, *stop) for name, passes in STOP.items() if name not in stop}
    return named | {name: renamed(passes, *ours_and_alike(ours)) for name, (ours, passes) in SAMPLING.items()}


def ours_and_alike(name: str) -> tuple[str, ...]:
    """Return the field of sampling and the other names that all routes have for it."""
    return (name, *_ALIKE.get(name, ()))


_ALIKE: Mapping[str, tuple[str, ...]] = {"typical_p": ("typ_p",), "repeat_penalty": ("repetition_penalty",)}
