"""The names of llama-server's options: short and older forms, and how each is written without its dashes.

Owns those names alone; what an option means here `flags.py` says. Pure.

Source: llama.cpp, common/arg.cpp and tools/server/README.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

SHORT: Final[Mapping[str, str]] = {
    "m": "model",
    "mu": "model_url",
    "hf": "hf_repo",
    "hfr": "hf_repo",
    "hff": "hf_file",
    "hft": "hf_token",
    "a": "alias",
    "c": "ctx_size",
    "np": "parallel",
    "n": "predict",
    "b": "batch_size",
    "ub": "ubatch_size",
    "t": "threads",
    "tb": "threads_batch",
    "fa": "flash_attn",
    "ctk": "cache_type_k",
    "ctv": "cache_type_v",
    "ngl": "gpu_layers",
    "dev": "device",
    "sm": "split_mode",
    "mg": "main_gpu",
    "ts": "tensor_split",
    "nkvo": "no_kv_offload",
    "kvo": "kv_offload",
    "ot": "override_tensor",
    "cmoe": "cpu_moe",
    "ncmoe": "n_cpu_moe",
    "md": "model_draft",
    "hfd": "hf_repo_draft",
    "hfrd": "hf_repo_draft",
    "cd": "ctx_size_draft",
    "devd": "device_draft",
    "ngld": "gpu_layers_draft",
    "ctkd": "cache_type_k_draft",
    "ctvd": "cache_type_v_draft",
    "mm": "mmproj",
    "mmu": "mmproj_url",
    "s": "seed",
    "l": "logit_bias",
    "e": "escape",
    "j": "json_schema",
    "jf": "json_schema_file",
    "r": "reverse_prompt",
    "sp": "special",
    "to": "timeout",
    "v": "verbose",
    "lv": "verbosity",
    "cb": "cont_batching",
    "nocb": "no_cont_batching",
    "kvu": "kv_unified",
    "no_kvu": "no_kv_unified",
    "cram": "cache_ram",
    "ctxcp": "ctx_checkpoints",
    "sps": "slot_prompt_similarity",
    "rea": "reasoning",
    "dt": "defrag_thold",
    "dio": "direct_io",
    "ndio": "no_direct_io",
    "nr": "no_repack",
    "dr": "docker_repo",
    "C": "cpu_mask",
    "Cr": "cpu_range",
}
"""By the short form without its dash."""

SYNONYMS: Final[Mapping[str, str]] = {
    "n_gpu_layers": "gpu_layers",
    "n_gpu_layers_draft": "gpu_layers_draft",
    "spec_draft_ngl": "gpu_layers_draft",
    "n_predict": "predict",
    "n_parallel": "parallel",
    "hf": "hf_repo",
    "temperature": "temp",
    "typical_p": "typical",
    "top_n_sigma": "top_nsigma",
    "dynatemp_exponent": "dynatemp_exp",
    "draft_max": "draft_n",
    "draft": "draft_n",
    "spec_draft_n_max": "draft_n",
    "draft_n_min": "draft_min",
    "spec_draft_n_min": "draft_min",
    "spec_draft_p_min": "draft_p_min",
    "spec_draft_model": "model_draft",
    "spec_draft_hf": "hf_repo_draft",
    "embeddings": "embedding",
    "rerank": "reranking",
    "mirostat_lr": "mirostat_eta",
    "mirostat_ent": "mirostat_tau",
    "sampler_seq": "sampling_seq",
    "verbosity": "log_verbosity",
    "ctx": "ctx_size",
    "webui": "ui",
    "no_webui": "no_ui",
    "webui_config": "ui_config",
    "webui_config_file": "ui_config_file",
}
"""By a long form: the name that is used here."""

_BOOLEAN_TEXT = """
adaptive_sampling cache_prompt no_cache_prompt check_tensors completion_bash cont_batching no_cont_batching
context_shift no_context_shift cpu_moe cpu_moe_draft direct_io no_direct_io embedding escape no_escape
ignore_eos jinja no_jinja kv_offload no_kv_offload kv_unified no_kv_unified log_disable log_prefix no_log_prefix
log_timestamps no_log_timestamps lora_init_without_apply metrics mlock mmap no_mmap mmproj_auto no_mmproj
no_mmproj_auto mmproj_offload no_mmproj_offload models_autoload no_models_autoload no_host no_repack repack
offline op_offload no_op_offload perf no_perf prefill_assistant no_prefill_assistant props reranking
skip_chat_parsing no_skip_chat_parsing slots no_slots special spm_infill swa_full ui no_ui verbose
verbose_prompt warmup no_warmup cache_idle_slots no_cache_idle_slots reuse_port backend_sampling cache_list
fit_print tools_all
"""
BOOLEAN: Final = frozenset(_BOOLEAN_TEXT.split())
"""Options that no value follows on a command line."""

_IGNORED_TEXT = """
host port path api_prefix ui no_ui ui_config ui_config_file no_slots slots metrics props jinja no_jinja
cont_batching no_cont_batching embedding reranking escape no_escape log_disable log_file log_colors log_prefix
no_log_prefix log_timestamps no_log_timestamps log_verbosity verbose verbose_prompt warmup no_warmup perf
no_perf threads_http threads_batch no_kv_unified reuse_port offline models_autoload no_models_autoload prio
prio_batch poll poll_batch cache_prompt cache_reuse no_context_shift slot_prompt_similarity defrag_thold
stop_timeout version cache_idle_slots no_cache_idle_slots ctx_checkpoints swa_checkpoints checkpoint_min_step
fit fit_target fit_ctx repack skip_chat_parsing no_skip_chat_parsing prefill_assistant spm_infill no_mmproj
no_mmproj_auto mmproj_auto mmproj_offload no_mmproj_offload
"""
IGNORED: Final = frozenset(_IGNORED_TEXT.split())
"""Options that change nothing that a client sees, or that Corral decides by itself: nothing is lost without them."""

REQUEST_FLOATS: Final[Mapping[str, str]] = {
    "temp": "temperature",
    "top_p": "top_p",
    "min_p": "min_p",
    "repeat_penalty": "repeat_penalty",
    "presence_penalty": "presence_penalty",
    "frequency_penalty": "frequency_penalty",
    "typical": "typical_p",
    "top_nsigma": "top_n_sigma",
    "xtc_probability": "xtc_probability",
    "xtc_threshold": "xtc_threshold",
    "dry_multiplier": "dry_multiplier",
    "dry_base": "dry_base",
    "dynatemp_range": "dynatemp_range",
    "dynatemp_exp": "dynatemp_exponent",
    "mirostat_tau": "mirostat_tau",
    "mirostat_eta": "mirostat_eta",
    "adaptive_target": "adaptive_target",
    "adaptive_decay": "adaptive_decay",
}
REQUEST_INTEGERS: Final[Mapping[str, str]] = {
    "top_k": "top_k",
    "repeat_last_n": "repeat_last_n",
    "seed": "seed",
    "dry_allowed_length": "dry_allowed_length",
    "dry_penalty_last_n": "dry_penalty_last_n",
    "mirostat": "mirostat",
    "reasoning_budget": "reasoning_budget_tokens",
}
"""Options that requests have fields for: they become `request: {defaults: …}`."""

_REQUEST_OTHERS: Final[Mapping[str, str]] = {
    "samplers": "samplers",
    "sampling_seq": "samplers",
    "dry_sequence_breaker": "dry_sequence_breakers",
    "reverse_prompt": "stop",
    "stop": "stop",
    "logit_bias": "logit_bias",
    "ignore_eos": "ignore_eos",
    "reasoning_format": "reasoning_format",
    "reasoning_effort": "reasoning_effort",
    "grammar": "grammar",
    "grammar_file": "grammar",
    "json_schema": "json_schema",
    "json_schema_file": "json_schema",
}
REQUEST_FIELDS: Final[Mapping[str, str]] = {**REQUEST_FLOATS, **REQUEST_INTEGERS, **_REQUEST_OTHERS}
"""By an option that says what a request may say for itself: the field."""

_VARIABLE_NAMES: Final[Mapping[str, str]] = {
    "n_parallel": "parallel",
    "batch": "batch_size",
    "ubatch": "ubatch_size",
    "cpu_moe": "cpu_moe",
    "hf_repo": "hf_repo",
    "hf_file": "hf_file",
    "think": "reasoning_format",
    "think_budget": "reasoning_budget",
    "chat_template": "chat_template",
    "endpoint_metrics": "metrics",
    "endpoint_slots": "slots",
    "endpoint_props": "props",
    "static_path": "path",
}


def canonical(flag: str) -> str:
    """Return the one name of an option, however it was written: `-ngl`, `--n-gpu-layers`, `LLAMA_ARG_N_GPU_LAYERS`."""
    if flag.startswith("LLAMA_ARG_"):
        name = flag.removeprefix("LLAMA_ARG_").lower()
        name = _VARIABLE_NAMES.get(name, name)
    else:
        bare = flag.lstrip("-")
        name = bare.replace("-", "_")
        is_short = not flag.startswith("--")
        if is_short and name in SHORT:
            return SYNONYMS.get(SHORT[name], SHORT[name])
        name = name.lower()
    return SYNONYMS.get(name, name)
