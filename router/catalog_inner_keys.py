"""The tables of what is inside some keys of a model: aliases, adapters, hooks, request rules.

Plain data as in `catalog_keys.py`, for the same readers.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from router.catalog import MAX_LORA_SCALE, Hooks, LoraSpec
from router.catalog_keys import SECONDS, Key, table
from router.catalog_kinds import Command, Flag, Json, LoraChoice, Number, Rules, Text, Texts

_LORA = {f.name: f.default for f in dataclasses.fields(LoraSpec)}
_HOOKS = {f.name: f.default for f in dataclasses.fields(Hooks)}

ALIAS_KEYS: Mapping[str, Key] = table(
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
LORA_KEYS: Mapping[str, Key] = table(
    Key("model", Text(), "The adapter's GGUF file, a reference as in a model's `model`.", is_reference=True),
    Key(
        "scale",
        LORA_SCALE,
        "How strongly it is applied where neither the alias nor the request says so.",
        _LORA["scale"],
    ),
)

HOOK_KEYS: Mapping[str, Key] = table(
    Key("before_load", Command(), "Run before a worker starts; if it fails, so does the load.", ()),
    Key("after_load", Command(), "Run when a worker is ready.", ()),
    Key("after_unload", Command(), "Run when a worker is gone, whatever the reason.", ()),
    Key(
        "timeout_s",
        Number(0, 86_400, is_open=True, hint=SECONDS),
        "Seconds after which a command is killed and has failed.",
        _HOOKS["timeout_s"],
    ),
)

RULE_KEYS: Mapping[str, Key] = table(
    Key("defaults", Json(), "Set where the request has no such key.", {}),
    Key("force", Json(), "Set whatever the request says.", {}),
    Key("drop", Texts(), "Keys that are removed from the request first.", ()),
)

ROUTER_OWNED = ("model", "stream", "keep_alive", "priority", "cache_salt", "previous_response_id")
"""Keys of a request that the router reads before any rule applies, so that no rule may name them."""
