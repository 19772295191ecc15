"""The table of `models.yaml`: every key, what it may hold, what it means, and what holds without it.

The one source of truth for the parser, the editor's JSON Schema and the documentation. Must not read a catalogue:
`catalog_kinds.py` has the kinds of values, `catalog_refusals.py` answers for keys that are not here.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from router.catalog import MAX_LORA_SCALE, SCOPES, Limits, LoraSpec, ModelSpec
from router.catalog_kinds import (
    Aliases,
    Choice,
    Digest,
    Environment,
    FilePath,
    Flag,
    Json,
    Kind,
    LoraChoice,
    Loras,
    Number,
    Proportions,
    Rules,
    Text,
    Texts,
    Variable,
    Whole,
)
from worker.contract import EngineOptions

VARIABLE_PATTERN = "^[A-Za-z_][A-Za-z0-9_]*$"
DIGEST_PATTERN = "^[0-9a-fA-F]{64}$"
SECONDS = "a number of seconds, for example 300"
_MAX_SECONDS = 365 * 86_400
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


def _table(*keys: Key) -> dict[str, Key]:
    return {key.name: key for key in keys}


# --- a model ----------------------------------------------------------------------------------------------

_SPEC = {f.name: f.default for f in dataclasses.fields(ModelSpec)}
_ENGINE = {f.name: f.default for f in dataclasses.fields(EngineOptions)}
_LORA = {f.name: f.default for f in dataclasses.fields(LoraSpec)}


def _engine(name: str, kind: Kind, meaning: str) -> Key:
    return Key(name, kind, meaning, () if name == "tensor_split" else _ENGINE[name], engine=name)


def _opposite(name: str, of: str, field: str) -> Key:
    return Key(name, Flag(), f"The opposite of `{of}`.", not _ENGINE[of], engine=field, negates=of)


MODEL_KEYS: Mapping[str, Key] = _table(
    Key(
        "model",
        Text(),
        "The GGUF file: a path relative to this file, `pkg:PACKAGE/FILE.gguf`, `pkg:PART1+PART2+…/GLOB`,"
        " `hf:OWNER/REPO/FILE.gguf` or `hf:OWNER/REPO:QUANT`.",
        is_reference=True,
    ),
    Key(
        "aliases",
        Aliases(),
        "Further names: a list, or a map from name to `{request, lora, listed}`.",
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
        Whole(-1, 100_000, {"all": -1}),
        "Layers that are computed on the GPU: a number, or `all`.",
        "all",
        engine="gpu_layers",
    ),
    _engine("device", Text(200), "Device by llama.cpp's name (`CUDA0`, `Metal`, …), `cpu` for none."),
    Key(
        "idle_unload_s",
        Number(0, _MAX_SECONDS, hint=SECONDS),
        "Seconds after its last request at which the model is unloaded; 0 = never.",
        _SPEC["idle_unload_s"],
    ),
    Key("preload", Flag(), "Load the model when the server starts.", False),
    Key("pin", Flag(), "Never unload the model for idleness or for another model.", False),
    Key("priority", Whole(-100, 100), "Requests for models of higher priority go first.", 0),
    Key(
        "replicas",
        Whole(1, 1, beyond="`replicas` above 1 is not available in this release yet"),
        "Workers of this model; only 1 in this release.",
        1,
    ),
    Key(
        "load_timeout_s",
        Number(0, _MAX_SECONDS, hint=SECONDS),
        "Seconds without any progress after which loading has failed; 0 = no limit.",
        _SPEC["load_timeout_s"],
    ),
    Key(
        "request_timeout_s",
        Number(0, _MAX_SECONDS, hint=SECONDS),
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
        Number(0, _MAX_SECONDS, hint=SECONDS),
        "Seconds that a request for this model may wait, 0 = no limit; overrides `limits.queue_timeout_s`.",
        _SPEC["queue_timeout_s"],
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
        Whole(0, 2**50),
        "Host memory for finished prompts that had to leave the KV cache and may come back. Without it: a sixteenth of"
        " the machine's memory, at most 4 GiB; 0 keeps none.",
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

NOT_IN_DEFAULTS = ("model", "aliases", "loras")
"""Keys of a model that `defaults:` may not hold, because no two models can share them."""

MERGED_KEYS = ("chat_template_kwargs", "request", "env")
"""Keys whose maps are merged with `defaults:` key by key; of all others the model's own value replaces it."""

ALIAS_KEYS: Mapping[str, Key] = _table(
    Key("request", Rules(), "Rules for requests that use this name; they win over the model's.", {}),
    Key(
        "lora",
        LoraChoice(),
        "Adapters that requests with this name get: the name of one of `loras`, or a map from names to scales."
        " A request's own `lora` replaces them.",
    ),
    Key("listed", Flag(), "Shown by GET /v1/models.", True),
)

LORA_SCALE = Number(-MAX_LORA_SCALE, MAX_LORA_SCALE)
LORA_KEYS: Mapping[str, Key] = _table(
    Key("model", Text(), "The adapter's GGUF file, a reference as in a model's `model`.", is_reference=True),
    Key(
        "scale",
        LORA_SCALE,
        "How strongly it is applied where neither the alias nor the request says so.",
        _LORA["scale"],
    ),
)

RULE_KEYS: Mapping[str, Key] = _table(
    Key("defaults", Json(), "Set where the request has no such key.", {}),
    Key("force", Json(), "Set whatever the request says.", {}),
    Key("drop", Texts(), "Keys that are removed from the request first.", ()),
)

ROUTER_OWNED = ("model", "stream", "keep_alive", "priority", "cache_salt", "previous_response_id")
"""Keys of a request that the router reads before any rule applies, so that no rule may name them."""

# --- the file as a whole ----------------------------------------------------------------------------------

_LIMITS = {f.name: f.default for f in dataclasses.fields(Limits)}
LIMIT_KEYS: Mapping[str, Key] = _table(
    Key("max_loaded", Whole(1, 10_000), "Models in memory at the same time. Without it: no limit."),
    Key("max_queue", Whole(1, 100_000), "Requests that may wait for one model.", _LIMITS["max_queue"]),
    Key(
        "queue_timeout_s",
        Number(0, _MAX_SECONDS, hint=SECONDS),
        "Seconds that a request may wait for a place; 0 = no limit.",
        _LIMITS["queue_timeout_s"],
    ),
    Key(
        "max_wait_s",
        Number(0, _MAX_SECONDS, hint=SECONDS),
        "Seconds that a busy model may keep another one from loading before it takes no new requests.",
        _LIMITS["max_wait_s"],
    ),
    Key(
        "max_body_bytes",
        Whole(1024, 2**32, hint="a number of bytes, for example 67108864 for 64 MiB"),
        "Largest request body in bytes.",
        _LIMITS["max_body_bytes"],
    ),
)

API_KEY_KEYS: Mapping[str, Key] = _table(
    Key("env", Variable(), "Environment variable of the server that holds the key.", is_reference=True),
    Key("file", FilePath(), "File that holds the key, relative to this file.", is_reference=True),
    Key("sha256", Digest(), "SHA-256 sum of the key in hexadecimal.", is_reference=True),
    Key("scopes", Texts(SCOPES), "What the key may do.", ("inference",)),
)

TOP_KEYS: Mapping[str, str] = {
    "models": "What is served: a map from name to options, or from name to just a reference.",
    "defaults": "Options for every model that does not set them itself.",
    "limits": "Bounds that hold for all models together.",
    "keys": "API keys: a map from id to where the key is found and what it may do.",
    "default_model": "Model or alias for requests that name none.",
}
