"""What llama-server tells as `/props`, of a model or of the router, without asking a worker.

Owns the fields and what a request starts from where it says nothing. Must not read files.
"""

from __future__ import annotations

import importlib.metadata
import re
from collections.abc import Mapping
from pathlib import PurePath
from typing import Any

from router.catalog import Resolution
from router.dialects import Dialect
from router.gguf_header import GgufHeader, GgufTexts
from router.request_rules import apply_rules

PARAMS: Mapping[str, Any] = {
    "seed": -1,
    "temperature": 0.8,
    "dynatemp_range": 0.0,
    "dynatemp_exponent": 1.0,
    "top_k": 40,
    "top_p": 0.95,
    "min_p": 0.05,
    "top_n_sigma": -1.0,
    "xtc_probability": 0.0,
    "xtc_threshold": 0.1,
    "typical_p": 1.0,
    "repeat_last_n": 64,
    "repeat_penalty": 1.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "dry_multiplier": 0.0,
    "dry_base": 1.75,
    "dry_allowed_length": 2,
    "dry_penalty_last_n": 64,
    "dry_sequence_breakers": ["\n", ":", '"', "*"],
    "mirostat": 0,
    "mirostat_tau": 5.0,
    "mirostat_eta": 0.1,
    "adaptive_target": -1.0,
    "adaptive_decay": 0.9,
    "ignore_eos": False,
    "min_keep": 0,
    "samplers": [
        *("penalties", "dry", "top_n_sigma", "top_k", "typ_p", "top_p", "min_p", "xtc", "temperature"),
    ],
    "stop": [],
    "max_tokens": -1,
    "n_predict": -1,
    "n_keep": 0,
    "n_discard": 0,
    "n_indent": 0,
    "n_probs": 0,
    "stream": False,
    "grammar": "",
    "timings_per_token": False,
    "post_sampling_probs": False,
    "lora": [],
}
"""Where neither the model file nor models.yaml says anything."""

RECOMMENDED: Mapping[str, str] = {
    "general.sampling.temp": "temperature",
    "general.sampling.top_k": "top_k",
    "general.sampling.top_p": "top_p",
    "general.sampling.min_p": "min_p",
    "general.sampling.penalty_last_n": "repeat_last_n",
    "general.sampling.penalty_repeat": "repeat_penalty",
    "general.sampling.xtc_probability": "xtc_probability",
    "general.sampling.xtc_threshold": "xtc_threshold",
    "general.sampling.mirostat": "mirostat",
    "general.sampling.mirostat_tau": "mirostat_tau",
    "general.sampling.mirostat_eta": "mirostat_eta",
}
"""What a model file recommends, by its keys."""


_TOOLS = re.compile(r"\btools\b")
_ONE_CALL = re.compile(r"tool_calls\s*\|\s*length\s*[!=]=\s*1\b")
"""Templates that print one call alone look whether there are more."""


def build_info() -> str:
    """Return who answers."""
    return f"corral-{importlib.metadata.version('llama-corral')}"


def router_props(max_loaded: int | None) -> dict[str, Any]:
    """Return what stands for the router itself; `max_instances` 0 = as many as the memory holds."""
    return {
        "role": "router",
        "max_instances": max_loaded or 0,
        "models_autoload": True,
        "model_alias": "corral",
        "model_path": "none",
        "default_generation_settings": {"params": {}, "n_ctx": 0},
        "webui_settings": {},
        "ui_settings": {},
        "build_info": build_info(),
    }


def model_props(
    resolution: Resolution,
    *,
    header: GgufHeader | None,
    texts: GgufTexts | None,
    context: int | None,
    num_slots: int,
    is_loaded: bool,
) -> dict[str, Any]:
    """Return what is known of a model; None stands for what is not known before its file is on this machine."""
    spec = resolution.spec
    template = _chat_template(spec.chat_template, texts)
    source = spec.source if header is None else str(header.path)
    return {
        "default_generation_settings": {"params": _params(resolution, header), "n_ctx": context},
        "total_slots": num_slots,
        "model_alias": spec.name,
        "model_path": PurePath(source).name,
        "modalities": {"vision": False, "audio": False},
        "chat_template": template,
        "chat_template_caps": None if template is None else template_caps(template),
        "bos_token": None if texts is None else texts.bos or "",
        "eos_token": None if texts is None else texts.eos or "",
        "build_info": build_info(),
        "is_sleeping": not is_loaded,
    }


def template_caps(source: str) -> dict[str, bool]:
    """Return what a chat template with this source has a place for, in llama-server's words.

    What a conversation may hold whatever the template is always true: it is put into words that the template takes.
    """
    shows_calls = "tool_calls" in source
    return {
        "supports_tools": _TOOLS.search(source) is not None,
        "supports_tool_calls": shows_calls,
        "supports_parallel_tool_calls": shows_calls and _ONE_CALL.search(source) is None,
        "supports_preserve_reasoning": "reasoning_content" in source,
        "supports_reasoning_effort": "reasoning_effort" in source,
        "supports_system_role": bool(source),
        "supports_string_content": bool(source),
        "supports_typed_content": bool(source),
        "supports_object_arguments": bool(source),
    }


def _params(resolution: Resolution, header: GgufHeader | None) -> dict[str, Any]:
    metadata = {} if header is None else header.metadata
    recommended = {name: metadata[key] for key, name in RECOMMENDED.items() if key in metadata}
    ruled = {name: value for name, value in apply_rules(resolution.rules, {}, Dialect.LLAMA).items() if name in PARAMS}
    limit = resolution.spec.max_tokens
    params = {**PARAMS, **({} if limit is None else {"max_tokens": limit, "n_predict": limit}), **recommended, **ruled}
    if "n_predict" in ruled:
        params["max_tokens"] = params["n_predict"]
    elif params["max_tokens"] != PARAMS["max_tokens"]:
        params["n_predict"] = params["max_tokens"]
    return params


def _chat_template(configured: str | None, texts: GgufTexts | None) -> str | None:
    if configured is not None:
        return configured
    return None if texts is None else texts.chat_template or ""
