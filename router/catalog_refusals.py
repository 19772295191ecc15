"""What to say about a key that `catalog_keys.py` does not know: where it belongs, what it is called here, or the
nearest name.

Owns the words for options of other servers and of later releases. Must not read values beyond quoting them.
"""

from __future__ import annotations

import difflib
import functools
from collections.abc import Collection, Mapping

from router.catalog_inner_keys import HOOK_KEYS, LORA_KEYS
from router.catalog_keys import MODEL_KEYS, NOT_IN_DEFAULTS, REMOTE_KEYS
from router.catalog_sections import API_KEY_KEYS, DEVICE_KEYS, LIMIT_KEYS, TOP_KEYS
from router.importing.flag_names import IGNORED, REQUEST_FIELDS, SYNONYMS

NOT_YET = "is not available in this release yet"

LATER_MODEL_KEYS = frozenset({"projector"})

_CONTEXT = "write `context`, the tokens that one request may use (it is not divided by `slots`)"
_SLOTS = "write `slots`, the number of requests answered at the same time"
_MODEL = "write `model`"
_LISTEN = "set it for the whole server: `corral serve --host H --port P`"
_KEYS = (
    "the keys of clients stand in the top-level `keys:` map, and that of another server (`url`) in a variable of the"
    " environment which `url_key_env` names"
)
_URL = "write `url`, the address of another OpenAI-compatible server"
_REPLICAS = "write `replicas`, the number of workers of the model"
_HOOKS = "write `hooks: {before_load: COMMAND}`, or `after_load`, `after_unload`"
_RULES = "write `request: {defaults: {…}, force: {…}, drop: […]}`"
_TEMPLATE = "write `chat_template`, which takes the template's text or the path of a file"

POINTERS: Mapping[str, str] = {
    **dict.fromkeys(("ctx_size", "n_ctx", "c", "context_length", "context_size", "num_ctx", "max_model_len"), _CONTEXT),
    "n_ctx_per_slot": _CONTEXT,
    **dict.fromkeys(("parallel", "np", "n_parallel", "num_parallel"), _SLOTS),
    **dict.fromkeys(("ttl", "sleep_idle_seconds", "idle_timeout", "keep_alive"), "write `idle_unload_s`, in seconds"),
    **dict.fromkeys(("n_gpu_layers", "ngl", "num_gpu", "gpulayers"), "write `gpu_layers`"),
    **dict.fromkeys(("num_thread", "n_threads"), "write `threads`"),
    **dict.fromkeys(("api_base", "base_url", "endpoint", "remote", "peer", "upstream"), _URL),
    **dict.fromkeys(("num_replicas", "instances", "num_workers", "copies"), _REPLICAS),
    **dict.fromkeys(("pre_load", "post_load", "pre_start", "post_start", "on_load", "on_unload"), _HOOKS),
    **dict.fromkeys(("filters", "setparams", "set_params", "stripparams", "strip_params"), _RULES),
    **dict.fromkeys(("parameters", "model_params"), _RULES),
    "litellm_params": "write what it holds as `url`, `url_model` and `url_key_env`",
    **dict.fromkeys(("usemodelname", "use_model_name"), "write `url_model`, the name by which another server knows it"),
    **dict.fromkeys(("concurrencylimit", "concurrency_limit", "max_concurrency"), _SLOTS + ", or `max_queue`"),
    "unlisted": "write the name as an alias with `listed: false`",
    **dict.fromkeys(("cmdstop", "cmd_stop", "checkendpoint", "check_endpoint"), "leave it out: Corral does it itself"),
    **dict.fromkeys(("load_on_startup", "autoload", "autostart", "warmup_on_start"), "write `preload: true`"),
    **dict.fromkeys(("keep_loaded", "always_loaded", "persistent", "pinned"), "write `pin: true`"),
    **dict.fromkeys(("devices", "gpus", "gpu", "cuda_visible_devices"), "write `device`, a name or a list of names"),
    **dict.fromkeys(
        ("path", "file", "m", "model_path", "model_file", "filename", "gguf"), _MODEL + " with the path of the file"
    ),
    **dict.fromkeys(("hf_repo", "hf", "hfr", "hf_file", "hff"), _MODEL + " with `hf:OWNER/REPO/FILE.gguf`"),
    **dict.fromkeys(("cmd", "proxy"), _MODEL + " with the GGUF file; Corral starts its own workers"),
    "model_url": _MODEL + " with a path, or with `hf:OWNER/REPO/FILE.gguf`",
    "hf_token": "set the environment variable HF_TOKEN for the server",
    **dict.fromkeys(("alias", "a"), "write `aliases`, a list of names"),
    **dict.fromkeys(("n_predict", "predict", "n"), "write `max_tokens`"),
    "t": "write `threads`",
    "b": "write `batch_size`",
    "ub": "write `ubatch_size`",
    "fa": "write `flash_attn`",
    "ctk": "write `cache_type_k`",
    "ctv": "write `cache_type_v`",
    "dev": "write `device`",
    "sm": "write `split_mode`",
    "mg": "write `main_gpu`",
    "ts": "write `tensor_split`",
    "chat_template_file": _TEMPLATE,
    **dict.fromkeys(("timeout", "to"), "write `request_timeout_s`, in seconds"),
    **dict.fromkeys(("host", "port", "reuse_port", "api_prefix"), _LISTEN),
    **dict.fromkeys(("api_key", "api_key_file", "api_keys"), _KEYS),
    **dict.fromkeys(("jinja", "no_jinja"), "leave it out: chat templates are always Jinja"),
    **dict.fromkeys(("cont_batching", "no_cont_batching", "cb"), "leave it out: batching is always continuous"),
    **dict.fromkeys(("kv_unified", "no_kv_unified"), "leave it out: slots always share one cache (`kv_tokens`)"),
    **dict.fromkeys(("metrics", "no_slots"), "leave it out: the server always has this route"),
    **dict.fromkeys(("embedding", "embeddings"), "leave it out: every model can be asked for embeddings (`pooling`)"),
    **dict.fromkeys(("rerank", "reranking"), "leave it out: a model whose file is a reranker's can be asked to rank"),
    "models_max": "write `limits: {max_loaded: N}` at the top level",
    **dict.fromkeys(("models_dir", "models_preset"), "give the folder or file to `corral serve`"),
    **dict.fromkeys(("lora", "lora_scaled"), "write `loras`, a map from a name to the adapter's file"),
    "lora_init_without_apply": "leave it out: adapters are applied only where an alias or a request asks for them",
    **dict.fromkeys(("mmproj", "mm"), f"image input (`projector`): this {NOT_YET}"),
    **dict.fromkeys(("cache_ram", "cram"), "write `prompt_cache_bytes`"),
    "slot_save_path": "write `prompt_cache_disk_bytes`, the room on the disk for saved slots and finished prompts",
    **dict.fromkeys(("model_draft", "md", "spec_draft_model", "hf_repo_draft", "hfd"), "write `draft_model`"),
    "reasoning": "write `chat_template_kwargs: {enable_thinking: true}`, or `false`",
    **dict.fromkeys(("draft", "draft_n", "spec_draft_n_max"), "write `draft_max`"),
}
"""Names from other servers, and from the short forms of llama-server's flags, with the way to say it here."""

MODEL_SYNONYMS = frozenset(key for key, pointer in POINTERS.items() if pointer.startswith((_MODEL, _URL)))
"""Keys that show that a missing `model` or `url` was meant."""

_GROUPS = (
    "leave it out: models are kept and unloaded by the memory that they need; `pin`, `priority` and"
    " `limits: {max_loaded: N}` have a say in it"
)
TOP_POINTERS: Mapping[str, str] = {
    **dict.fromkeys(("groups", "matrix", "profiles", "swap", "exclusive"), _GROUPS),
    **dict.fromkeys(("macros", "anchors", "templates"), "use YAML's own `&anchor` and `*anchor`, or `defaults:`"),
    **dict.fromkeys(
        ("healthchecktimeout", "health_check_timeout"), "write `defaults: {load_timeout_s: N}`, for each model"
    ),
    **dict.fromkeys(("loglevel", "log_level", "logformat", "log_format"), "start the server with `--log-level` or so"),
    **dict.fromkeys(("startport", "start_port"), "leave it out: workers listen on no port"),
    **dict.fromkeys(("globalttl", "global_ttl", "ttl"), "write `defaults: {idle_unload_s: N}`, in seconds"),
    "hooks": "hooks belong to models: write them in a model, or in `defaults:`; `preload: true` loads one at the start",
    **dict.fromkeys(("peers", "remotes", "upstreams"), "write each model of another server in `models:`, with a `url`"),
    **dict.fromkeys(("model_list", "model", "model_config_list"), "write a map `models:` from name to options"),
    **dict.fromkeys(("includealiasesinlist", "aliases"), "aliases belong to models: write them there"),
    **dict.fromkeys(("models_max", "max_loaded_models", "max_active_models"), "write `limits: {max_loaded: N}`"),
    **dict.fromkeys(("router_settings", "general_settings", "litellm_settings", "settings", "server"), _LISTEN),
    **dict.fromkeys(("gpus", "device", "gpu"), "write `devices:`, a map from a device's id to options"),
    **dict.fromkeys(("api_keys", "apikeys", "api_key"), "write `keys:`, a map from an id to where the key is found"),
    **dict.fromkeys(("host", "port", "listen", "address"), _LISTEN),
}
"""Names of the top level from other servers, with the way to say it here."""

REQUEST_PARAMETERS: Mapping[str, str] = {**REQUEST_FIELDS, **{name: name for name in REQUEST_FIELDS.values()}}
"""What a request says for itself, by its name there and by llama-server's option."""

_OTHER_FLAGS = """
backend_sampling cache_type_k_draft cache_type_v_draft context_shift control_vector control_vector_layer_range
control_vector_scaled cpu_mask cpu_mask_batch cpu_moe cpu_moe_draft cpu_range cpu_range_batch cpu_strict
cpu_strict_batch ctx_size_draft device_draft direct_io docker_repo draft_min draft_p_min embd_normalize gpu_layers_draft
image_max_tokens image_min_tokens keep kv_unified_per_slot lazy_mode load_mode lookup_cache_dynamic lookup_cache_static
mmproj_device mmproj_url moe_cache_mib n_cpu_ffn n_cpu_moe n_cpu_moe_draft no_cache_prompt no_direct_io no_host
no_prefill_assistant no_repack numa override_kv override_tensor override_tensor_draft
reasoning_budget_message reasoning_preserve rpc special spec_type threads_draft
"""
LATER_LLAMA_FLAGS = frozenset(_OTHER_FLAGS.split())
"""Long names of llama-server's flags that nothing here stands for, so that none is called a typing mistake."""


def explain_model_key(key: str, value_text: str | None, *, section: str = "a model") -> str:  # noqa: PLR0911 - a ladder of answers
    """Return why `key` is refused in a model's options or in `defaults`; `value_text` is its value if it is short."""
    canonical = key.lstrip("-").replace("-", "_").lower()
    if canonical in NOT_IN_DEFAULTS and section == "defaults":
        return f"`{canonical}` belongs to one model; `defaults` cannot hold it"
    if canonical in MODEL_KEYS:
        return f"unknown key `{key}`: write `{canonical}`"
    if canonical in LATER_MODEL_KEYS:
        return f"`{canonical}` {NOT_YET}"
    if (pointer := POINTERS.get(canonical)) is not None:
        return f"`{key}` is not a key here: {pointer}"
    flag = SYNONYMS.get(canonical, canonical)
    if (parameter := REQUEST_PARAMETERS.get(canonical) or REQUEST_PARAMETERS.get(flag)) is not None:
        rule = f"request: {{defaults: {{{parameter}: {value_text or '…'}}}}}"
        return f"`{key}` is a parameter of requests, not of models: write `{rule}`"
    if flag in IGNORED:
        return f"`{key}` is not a key here: leave it out: Corral decides that itself, or nothing hangs on it"
    if canonical in LATER_LLAMA_FLAGS:
        return f"llama-server's option `{canonical}` {NOT_YET}"
    if canonical in LIMIT_KEYS:
        return f"`{canonical}` concerns all models together: write it in the top-level `limits:` map"
    if canonical in TOP_KEYS:
        return f"`{canonical}` is a key of the top level of the file, not of {section}"
    close = _similar(key, [name for name in (*MODEL_KEYS, *POINTERS, *REQUEST_PARAMETERS) if len(name) > 3])
    if close and close[0] not in MODEL_KEYS and difflib.SequenceMatcher(None, canonical, close[0]).ratio() > 0.8:
        # No name is proposed that is refused itself: what it is called here is said at once.
        if (parameter := REQUEST_PARAMETERS.get(close[0])) is not None:
            return (
                f"unknown key `{key}`: for requests write `request: {{defaults: {{{parameter}: {value_text or '…'}}}}}`"
            )
        return f"unknown key `{key}`: {POINTERS[close[0]]}, if you mean that"
    return _nearest(key, MODEL_KEYS)


def explain_top_key(key: str, *, looks_like_model: bool) -> str:
    """Return why `key` is refused at the top level."""
    if looks_like_model and key != "model":
        return f"`{key}` looks like a model: write it, indented, in the `models:` map"
    if key in LIMIT_KEYS:
        return f"`{key}` belongs in the top-level `limits:` map"
    canonical = key.lstrip("-").replace("-", "_").lower()
    if (pointer := TOP_POINTERS.get(canonical)) is not None:
        return f"`{key}` is not a key here: {pointer}"
    if key in MODEL_KEYS:
        return f"`{key}` is an option of models: write it in a model, or in `defaults:` for all of them"
    return _nearest(key, TOP_KEYS)


def explain_local_key(key: str) -> str:
    """Return why a model of another server cannot have `key`."""
    if key == "max_tokens":
        return "a model of another server has no such limit: write `request: {force: {max_tokens: N}}`, or `defaults`"
    allowed = ", ".join(f"`{name}`" for name in MODEL_KEYS if name in REMOTE_KEYS)
    return f"`{key}` concerns workers of this server, and the model is on another one (`url`); it may have {allowed}"


def explain_device_key(key: str) -> str:
    """Return why `key` is refused among a device's options."""
    pointers = {
        **dict.fromkeys(("total", "vram", "size", "memory_bytes", "total_bytes"), "`memory`"),
        **dict.fromkeys(("limit", "cap", "max", "budget_bytes", "max_memory"), "`budget`"),
        **dict.fromkeys(("reserve", "reserved", "margin", "overhead", "headroom_bytes"), "`headroom`"),
        **dict.fromkeys(("order", "preference", "priority", "weight"), "`prefer`"),
        "type": "`kind`",
    }
    return f"unknown key `{key}`: write {pointers[key]}" if key in pointers else _nearest(key, DEVICE_KEYS)


def explain_hook_key(key: str) -> str:
    """Return why `key` is refused among hooks."""
    pointers = {
        **dict.fromkeys(("before", "pre_load", "on_start", "before_start"), "`before_load`"),
        **dict.fromkeys(("after", "post_load", "on_load", "on_ready", "after_start"), "`after_load`"),
        **dict.fromkeys(("post_unload", "on_unload", "on_stop", "after_stop"), "`after_unload`"),
        "timeout": "`timeout_s`",
    }
    return f"unknown key `{key}`: write {pointers[key]}" if key in pointers else _nearest(key, HOOK_KEYS)


def explain_limit_key(key: str) -> str:
    """Return why `key` is refused in `limits`."""
    if key in MODEL_KEYS:
        return f"`{key}` is an option of models, not a limit: write it in a model or in `defaults:`"
    return _nearest(key, LIMIT_KEYS)


def explain_alias_key(key: str, known: Collection[str]) -> str:
    """Return why `key` is refused among an alias's options."""
    if key == "loras":
        return "an alias names adapters of its model: write `lora: NAME`, and the files in the model's `loras`"
    if key in MODEL_KEYS:
        return f"`{key}` is an option of the model; an alias may have {_names(known)}"
    return _nearest(key, known)


def explain_rule_key(key: str, value_text: str | None, known: Collection[str]) -> str:
    """Return why `key` is refused among request rules."""
    if key in REQUEST_PARAMETERS:
        rule = f"{{{REQUEST_PARAMETERS[key]}: {value_text or '…'}}}"
        return f"say when it applies: `defaults: {rule}` or `force: {rule}`"
    return _nearest(key, known)


def explain_lora_key(key: str) -> str:
    """Return why `key` is refused among an adapter's options."""
    if key in MODEL_SYNONYMS:
        return f"unknown key `{key}`: write `model`, the adapter's file"
    return _nearest(key, LORA_KEYS)


_API_KEY_POINTERS: Mapping[str, str] = {
    **dict.fromkeys(("model", "allowed_models", "allow_models", "access_groups", "aliases"), "models"),
    **dict.fromkeys(
        ("rpm", "rpm_limit", "requests_per_minute", "max_requests_per_min", "rate_limit"), "requests_per_min"
    ),
    **dict.fromkeys(("tpm", "tpm_limit", "tokens_per_minute", "max_tokens_per_min"), "tokens_per_min"),
    **dict.fromkeys(
        ("concurrency", "max_parallel", "max_parallel_requests", "parallel", "concurrent_requests"), "max_concurrent"
    ),
    **dict.fromkeys(("share", "shares"), "weight"),
}
"""What limits of keys are called elsewhere."""


def explain_api_key_key(key: str) -> str:
    """Return why `key` is refused in an API key's entry. Never quotes the value, which may be a secret."""
    if key in ("key", "value", "secret", "token", "api_key", "plain", "password"):
        return PLAIN_SECRET
    if key in ("scope", "permissions", "roles", "role"):
        return f"unknown key `{key}`: write `scopes`, a list"
    if (name := _API_KEY_POINTERS.get(key)) is not None:
        return f"unknown key `{key}`: write `{name}`"
    return _nearest(key, API_KEY_KEYS)


PLAIN_SECRET = (
    "a key itself does not belong in this file, which is copied and shown around: write `env: NAME` (a variable of"
    " the server's environment), `file: PATH`, or `sha256: HEX` (the key's SHA-256 sum, as `printf %s KEY | sha256sum`"
    " prints it)"
)


def _nearest(key: str, known: Collection[str]) -> str:
    shown = key if len(key) <= 60 else key[:60] + "…"
    if close := _similar(key, known):
        return f"unknown key `{shown}`: did you mean `{close[0]}`?"
    return f"unknown key `{shown}`; " + (
        f"known here: {_names(known)}" if len(known) < 12 else "no key has a similar name"
    )


def _similar(key: str, known: Collection[str]) -> list[str]:
    """Return the nearest of `known`, or one that `key` is the beginning of; [] if none is near."""
    folded = key.strip("-_ ").replace("-", "_").lower()
    if len(folded) > 100:  # no key is that long, and comparing takes time
        return []
    return list(_nearest_names(folded, tuple(known)))


@functools.lru_cache(maxsize=1024)  # who has a key wrong has it wrong in many models
def _nearest_names(folded: str, known: tuple[str, ...]) -> tuple[str, ...]:
    close = difflib.get_close_matches(folded, known, n=1, cutoff=0.6)
    longer = [name for name in known if len(folded) >= 3 and name.startswith(folded)]
    return tuple(close or longer[:1])


def _names(known: Collection[str]) -> str:
    return ", ".join(f"`{name}`" for name in known)
