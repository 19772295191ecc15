"""The table of `models.yaml`: every key, what it may hold, what it means, and what holds without it.

The one source of truth for the parser, the editor's JSON Schema and the documentation: what a model may have stands
here, what is inside some keys in `catalog_inner_keys.py`, the rest of the file in `catalog_sections.py`. Must not
read a catalogue: `catalog_kinds.py` has the kinds of values, `catalog_refusals.py` answers for keys that are not here.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from router.catalog import MAX_NAME_LENGTH, ModelSpec
from router.catalog_kinds import (
    Address,
    Aliases,
    Choice,
    Devices,
    Environment,
    Flag,
    HookCommands,
    Json,
    Kind,
    Loras,
    Number,
    Proportions,
    Rules,
    Size,
    Text,
    Texts,
    Variable,
    Whole,
)
from worker.contract import EngineOptions

VARIABLE_PATTERN = "^[A-Za-z_][A-Za-z0-9_]*$"
DIGEST_PATTERN = "^[0-9a-fA-F]{64}$"
SECONDS = "a number of seconds, for example 300"
MAX_SECONDS = 365 * 86_400
MAX_BYTES = 2**50
_MAX_TOKENS = 2**31 - 1
CACHE_TYPES = ("f32", "f16", "bf16", "q8_0", "q4_0", "q4_1", "iq4_nl", "q5_0", "q5_1")
PLAIN_CACHE_TYPES = ("f32", "f16", "bf16")
"""Cache types that are not quantised."""


# --- the form of a table -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Key:
    """One key of the file."""

    name: str
    kind: Kind
    meaning: str
    default: Any = None
    engine: str | None = None
    """The field of `EngineOptions` that it sets."""
    negates: str | None = None
    """The key that it says the opposite of; both set the same thing."""
    is_reference: bool = False
    """It names something, so that there is no default to go back to."""

    @property
    def is_nullable(self) -> bool:
        """True when null may be written, which undoes a value of `defaults:`."""
        return self.default is None and not self.is_reference


def table(*keys: Key) -> dict[str, Key]:
    """Return the keys by name."""
    return {key.name: key for key in keys}


# --- a model ----------------------------------------------------------------------------------------------

_SPEC = {f.name: f.default for f in dataclasses.fields(ModelSpec)}
_ENGINE = {f.name: f.default for f in dataclasses.fields(EngineOptions)}


def _engine(name: str, kind: Kind, meaning: str) -> Key:
    return Key(name, kind, meaning, () if name == "tensor_split" else _ENGINE[name], engine=name)


def _opposite(name: str, of: str, field: str) -> Key:
    return Key(name, Flag(), f"The opposite of `{of}`.", not _ENGINE[of], engine=field, negates=of)


MODEL_KEYS: Mapping[str, Key] = table(
    Key(
        "model",
        Text(),
        "The GGUF file: a path relative to this file, `pkg:PACKAGE/FILE.gguf`, `pkg:PART1+PART2+…/GLOB`,"
        " `hf:OWNER/REPO/FILE.gguf` or `hf:OWNER/REPO:QUANT`.",
        is_reference=True,
    ),
    Key(
        "url",
        Address(),
        "Instead of `model`: the address of another OpenAI-compatible server that answers, for example"
        " `https://HOST/v1`.",
        is_reference=True,
    ),
    Key(
        "url_model",
        Text(MAX_NAME_LENGTH),
        "The name by which that server knows the model. Without it: the name that it has here.",
    ),
    Key("url_key_env", Variable(), "Environment variable that holds the API key for that server."),
    Key(
        "aliases",
        Aliases(),
        "Further names: a list, or a map from name to `{request, lora, listed}`. A `*` in a name stands for any text.",
        (),
    ),
    Key(
        "loras",
        Loras(),
        "LoRA adapters: a map from a name to a GGUF file (a reference as in `model`), or to `{model, scale}`. All are"
        " loaded with the model; one is applied where an alias or a request asks for it.",
        {},
    ),
    Key(
        "context",
        Whole(16, 2**24, {"auto": None}),
        "Tokens that one request may use, prompt and answer together. `auto`: what the model was trained for,"
        " at most 8192.",
        "auto",
    ),
    Key("slots", Whole(1, 64), "Requests that are answered at the same time.", _SPEC["slots"]),
    Key(
        "kv_tokens",
        Whole(16, _MAX_TOKENS),
        "Size in tokens of the cache that all slots share, at least `context`. Without it: slots x context.",
    ),
    Key(
        "gpu_layers",
        Whole(-1, 100_000, {"all": -1, "auto": None}),
        "Layers that are computed on GPUs: a number, `all` (a model that does not fit is refused), or `auto`: as many"
        " as fit, the rest on the CPU.",
        "all",
        engine="gpu_layers",
    ),
    Key(
        "device",
        Devices(),
        "The device that the model must run on, as llama.cpp names it (`CUDA0`, `Metal`, …) or `devices` declares it; a"
        " list = split over all of them; `cpu` = no GPU. Without it: where it fits best.",
    ),
    Key(
        "idle_unload_s",
        Number(0, MAX_SECONDS, hint=SECONDS),
        "Seconds after its last request at which the model is unloaded; 0 = never.",
        _SPEC["idle_unload_s"],
    ),
    Key("preload", Flag(), "Load the model when the server starts.", False),
    Key("pin", Flag(), "Never unload the model for idleness or for another model.", False),
    Key(
        "home",
        Flag(),
        "Load the model again whenever every other model has been unloaded, and never unload it for idleness.",
        False,
    ),
    Key("priority", Whole(-100, 100), "Requests for models of higher priority go first.", 0),
    Key(
        "replicas",
        Whole(1, 64),
        "Workers that the model may have at the same time, on several devices or on one that has room for them.",
        _SPEC["replicas"],
    ),
    Key(
        "load_timeout_s",
        Number(0, MAX_SECONDS, hint=SECONDS),
        "Seconds without any progress after which loading has failed; 0 = no limit.",
        _SPEC["load_timeout_s"],
    ),
    Key(
        "hang_timeout_s",
        Number(0, MAX_SECONDS, hint=SECONDS),
        "Seconds without a sign of life after which a worker that has work is killed and replaced; 0 = never.",
        _SPEC["hang_timeout_s"],
    ),
    Key(
        "hooks",
        HookCommands(),
        "Commands to run at turns of the model's life: a map with `before_load`, `after_load`, `after_unload`,"
        " `timeout_s`. Merged key by key with `defaults`.",
        {},
    ),
    Key(
        "request_timeout_s",
        Number(0, MAX_SECONDS, hint=SECONDS),
        "Seconds that one answer may take; 0 = no limit.",
        _SPEC["request_timeout_s"],
    ),
    Key(
        "max_queue",
        Whole(1, 100_000),
        "Requests for this model that may wait; overrides `limits.max_queue`.",
        _SPEC["max_queue"],
    ),
    Key(
        "queue_timeout_s",
        Number(0, MAX_SECONDS, hint=SECONDS),
        "Seconds that a request for this model may wait, 0 = no limit; overrides `limits.queue_timeout_s`.",
        _SPEC["queue_timeout_s"],
    ),
    Key(
        "max_wait_s",
        Number(0, MAX_SECONDS, hint=SECONDS),
        "Seconds that requests for this model wait for a busy one before that one must make room; overrides"
        " `limits.max_wait_s`.",
        _SPEC["max_wait_s"],
    ),
    Key("max_tokens", Whole(1, _MAX_TOKENS), "Longest answer in tokens. Without it: the room left in `context`."),
    Key(
        "chat_template",
        Text(2**20, is_long=True),
        "Replaces the model's own chat template: the Jinja text itself, or the path of a file that holds it.",
    ),
    Key(
        "chat_template_kwargs",
        Json(),
        "Variables for the chat template. Merged key by key with `defaults`.",
        {},
    ),
    Key(
        "allow_request_templates",
        Flag(),
        "Let requests bring a chat template of their own in `chat_template`. It runs in the same sandbox, and may take"
        " some seconds of one core.",
        False,
    ),
    Key(
        "drop_billing_header",
        Flag(),
        "Take the line `x-anthropic-billing-header: …`, in which some agents send another number each time, out of the"
        " system prompt of `/v1/messages`: with it no prompt would begin as the one before.",
        _SPEC["drop_billing_header"],
    ),
    Key(
        "request",
        Rules(),
        "Changes the JSON of every request: `drop` removes keys, then `defaults` fills in absent ones, then `force`"
        " overrides. Merged key by key with `defaults`; an alias's rules win over its model's.",
        {},
    ),
    Key(
        "env",
        Environment(),
        "Environment variables of the model's worker process. Merged key by key with `defaults`.",
        {},
    ),
    Key("description", Text(10_000, is_long=True, may_be_empty=True), "Shown to clients by GET /v1/models.", ""),
    Key("tags", Texts(), "Words to group models by.", ()),
    Key(
        "calibrate",
        Flag(),
        "Measure, in the first idle seconds after loading on a CPU, how long passes take there, and keep it for later"
        " loads: chunk sizes and, where it is `auto`, flash attention follow from it. What was measured while other"
        " programs used the processor is not kept, so that the next load measures again.",
        _SPEC["calibrate"],
    ),
    # llama.cpp's own options, by llama-server's long names
    _engine("threads", Whole(1, 1024), "Most CPU threads to use. Without it: this worker's share of the cores."),
    _engine("batch_size", Whole(2, 65_536), "Most tokens in one forward pass; at least `slots`."),
    _engine(
        "ubatch_size",
        Whole(2, 65_536),
        "Tokens that are computed at once; at most `batch_size`, and equal to it where it is not set.",
    ),
    _engine(
        "itl_target_ms",
        Number(0, 60_000, is_open=True),
        "Longest gap between two tokens of an answer, in milliseconds, that the prompts of other requests may cause."
        " Without it: five usual gaps, at least 200 and at most 500 ms.",
    ),
    _engine(
        "prompt_cache_bytes",
        Size(0, MAX_BYTES),
        "Host memory for finished prompts that had to leave the KV cache and may come back. Without it: a sixteenth of"
        " the machine's memory, at most 4 GiB; 0 keeps none.",
    ),
    _engine(
        "prompt_cache_disk_bytes",
        Size(0, MAX_BYTES),
        "Disk for finished prompts, so that a model that was unloaded and is loaded again need not compute them. They"
        " are written, the latest used first, for at most 3 seconds, when a worker is told to leave (a crash keeps"
        " none), to `prompts/` in the cache folder: tokens, cached keys and values, for this user's eyes alone. They go"
        " after 7 days without use. Prompts of fewer than 64 tokens are not written. Half of it may hold slots that"
        " clients save by name. 0 writes none and removes earlier ones at the next load.",
    ),
    Key(
        "draft_model",
        Text(),
        "A small GGUF model of the same vocabulary that drafts tokens ahead for the large one to verify: a reference as"
        " in `model`. Answers stay the same; they come sooner where it is often right.",
    ),
    _engine(
        "draft_max",
        Whole(0, 32),
        "Most tokens of an answer that are drafted ahead, from the text so far or by `draft_model`, and verified in one"
        " pass. As many are taken as pay by measurement; 0 drafts none.",
    ),
    _engine("cache_type_k", Choice(CACHE_TYPES), "Type of the cached keys."),
    _engine(
        "cache_type_v",
        Choice(CACHE_TYPES),
        "Type of the cached values; a quantised one needs flash attention and turns `auto` into `on`.",
    ),
    _engine(
        "flash_attn",
        Choice(("on", "off", "auto"), {True: "on", False: "off"}),
        "Flash attention. `auto`: llama.cpp's choice, on a CPU `on` unless `calibrate` has found `off` clearly faster."
        " Try `off` where long prompts beside answers matter most: with it, small pieces deep in a prompt are slow.",
    ),
    _engine("swa_full", Flag(), "Full-size caches for sliding-window layers, so that any prefix can be reused."),
    _engine(
        "pooling",
        Choice(("mean", "cls", "last")),
        "What embeddings are made of: the mean of a text's rows, the first or the last. Without it: as the model says.",
    ),
    _engine("rope_scaling", Choice(("none", "linear", "yarn")), "RoPE scaling. Without it: as the model says."),
    _engine("rope_scale", Number(0, 1e6, is_open=True), "Context is extended by this factor."),
    _engine("rope_freq_base", Number(0, 1e12, is_open=True), "RoPE base frequency. Without it: as the model says."),
    _engine(
        "rope_freq_scale",
        Number(0, 1e6, is_open=True),
        "RoPE frequency factor: 1 / `rope_scale`, so only one of the two may be set.",
    ),
    _engine("yarn_orig_ctx", Whole(0, _MAX_TOKENS), "YaRN: context that the model was trained with."),
    _engine("yarn_ext_factor", Number(-1, 1e6), "YaRN: extrapolation mix; 0 = interpolation only."),
    _engine("yarn_attn_factor", Number(-1, 1e6), "YaRN: attention magnitude."),
    _engine("yarn_beta_slow", Number(-1, 1e6), "YaRN: high correction dimension."),
    _engine("yarn_beta_fast", Number(-1, 1e6), "YaRN: low correction dimension."),
    _engine("mmap", Flag(), "Map the file into memory instead of reading it."),
    _opposite("no_mmap", "mmap", "mmap"),
    _engine("mlock", Flag(), "Keep the weights in memory: never swapped out."),
    _engine("check_tensors", Flag(), "Look for invalid numbers in the weights while loading."),
    _engine("split_mode", Choice(("none", "layer", "row")), "How a model is split over several GPUs."),
    _engine("main_gpu", Whole(0, 255), "Number of the GPU that is used when the model is not split."),
    _engine("tensor_split", Proportions(), "Share of each GPU, for example [3, 1]."),
    _engine("no_kv_offload", Flag(), "Keep the KV cache in main memory."),
    _opposite("kv_offload", "no_kv_offload", "no_kv_offload"),
    _engine("no_op_offload", Flag(), "Do not move large operations of CPU layers to the GPU."),
    _opposite("op_offload", "no_op_offload", "no_op_offload"),
)

NOT_IN_DEFAULTS = ("model", "url", "url_model", "url_key_env", "aliases", "loras")
"""Keys of a model that `defaults:` may not hold, because no two models can share them."""

ONLY_REMOTE_KEYS = ("url", "url_model", "url_key_env")
REMOTE_KEYS = frozenset(ONLY_REMOTE_KEYS) | {
    *("aliases", "description", "tags", "request", "request_timeout_s", "max_queue", "context")
}
"""Keys that a model of another server may have, and those that no other model has."""

MERGED_KEYS = ("chat_template_kwargs", "request", "env", "hooks")
"""Keys whose maps are merged with `defaults:` key by key; of all others the model's own value replaces it."""
