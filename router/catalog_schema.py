"""The table of keys as a JSON Schema, so that editors complete and check `models.yaml` while it is written.

Owns the schema's form; its content comes from `catalog_keys.py`. The schema cannot say what needs two keys or another
file: `corral check` is the judge. To renew the file after a change of the table:

    python -m router.catalog_schema > router/models.schema.json
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping
from typing import Any, assert_never

from router.catalog import MAX_NAME_LENGTH
from router.catalog_inner_keys import ALIAS_KEYS, HOOK_KEYS, LORA_KEYS, LORA_SCALE, RULE_KEYS
from router.catalog_keys import (
    DIGEST_PATTERN,
    MODEL_KEYS,
    NOT_IN_DEFAULTS,
    ONLY_REMOTE_KEYS,
    REMOTE_KEYS,
    VARIABLE_PATTERN,
    Key,
)
from router.catalog_kinds import (
    Address,
    Aliases,
    Choice,
    Command,
    Devices,
    Digest,
    Environment,
    FilePath,
    Flag,
    HookCommands,
    Json,
    Kind,
    LoraChoice,
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
from router.catalog_scalars import SIZE_PATTERN
from router.catalog_sections import API_KEY_KEYS, DEVICE_KEYS, LIMIT_KEYS, SPARES, TOP_KEYS

Schema = dict[str, Any]

_NAME: Schema = {"type": "string", "minLength": 1, "maxLength": MAX_NAME_LENGTH, "pattern": r"^[^\s*]+$"}
_ALIAS: Schema = _NAME | {"pattern": r"^(?!.*\*\*)\S+$"}
_SIZE_PATTERN = "^" + re.sub("[iB](?!])", lambda found: f"[{found[0].lower()}{found[0].upper()}]", SIZE_PATTERN) + "$"
_SIZE_PATTERN = _SIZE_PATTERN.replace("[KMGT]", "[KMGTkmgt]")
"""Schemas know no flag for small letters."""


def make_schema() -> Schema:
    """Return the schema of `models.yaml` (draft 2020-12)."""
    defaults = {name: key for name, key in MODEL_KEYS.items() if name not in NOT_IN_DEFAULTS}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Corral: models.yaml",
        "type": "object",
        "required": ["models"],
        "additionalProperties": False,
        "properties": {
            "models": {
                "description": TOP_KEYS["models"],
                "type": "object",
                "minProperties": 1,
                "propertyNames": _NAME,
                "additionalProperties": {
                    "oneOf": [
                        {"type": "string", "minLength": 1, "description": MODEL_KEYS["model"].meaning},
                        _section({name: key for name, key in MODEL_KEYS.items() if name not in ONLY_REMOTE_KEYS})
                        | {"required": ["model"]},
                        _section({name: key for name, key in MODEL_KEYS.items() if name in REMOTE_KEYS})
                        | {"required": ["url"]},
                    ]
                },
            },
            "defaults": {"description": TOP_KEYS["defaults"]} | _section(defaults),
            "limits": {"description": TOP_KEYS["limits"]} | _section(LIMIT_KEYS),
            "keys": {
                "description": TOP_KEYS["keys"],
                "type": "object",
                "propertyNames": _NAME,
                "additionalProperties": _section(API_KEY_KEYS)
                | {"oneOf": [{"required": [source]} for source in ("env", "file", "sha256")]},
            },
            "devices": {
                "description": TOP_KEYS["devices"],
                "type": "object",
                "propertyNames": _NAME,
                "additionalProperties": _section(DEVICE_KEYS) | {"dependentRequired": {"kind": ["memory"]}},
            },
            "default_model": {
                "description": TOP_KEYS["default_model"],
                "type": ["string", "null"],
                "pattern": r"^[^*]*$",
            },
            "spares": {"description": TOP_KEYS["spares"]} | _of_kind(SPARES) | {"default": 0},
        },
        "$defs": {
            "rules": _section(RULE_KEYS),
            "hooks": _section(HOOK_KEYS),
            "alias": {"anyOf": [{"type": "null"}, _section(ALIAS_KEYS)]},
            "lora": {
                "anyOf": [
                    {"type": "string", "minLength": 1, "description": LORA_KEYS["model"].meaning},
                    _section(LORA_KEYS) | {"required": ["model"]},
                ]
            },
        },
    }


def schema_text() -> str:
    """Return the schema as the bytes of `models.schema.json` should read."""
    return json.dumps(make_schema(), indent=2, ensure_ascii=False) + "\n"


def _section(keys: Mapping[str, Key]) -> Schema:
    return {
        "type": "object",
        "additionalProperties": False,
        "properties": {name: _property(key) for name, key in keys.items()},
    }


def _property(key: Key) -> Schema:
    schema = _of_kind(key.kind)
    if key.is_nullable:
        schema = {"anyOf": [schema, {"type": "null"}]}
    default = list(key.default) if isinstance(key.default, tuple) else key.default
    return {"description": key.meaning} | schema | ({} if default is None else {"default": default})


def _of_kind(kind: Kind) -> Schema:  # noqa: PLR0911, PLR0912 - one case for each kind
    match kind:
        case Whole():
            number: Schema = {"type": "integer", "minimum": kind.minimum, "maximum": kind.maximum}
            return {"anyOf": [number, {"enum": list(kind.words)}]} if kind.words else number
        case Number():
            lower = "exclusiveMinimum" if kind.is_open else "minimum"
            return {"type": "number", lower: kind.minimum, "maximum": kind.maximum}
        case Flag():
            return {"type": "boolean"}
        case Text():
            return {"type": "string", "minLength": 0 if kind.may_be_empty else 1, "maxLength": kind.max_length}
        case Choice():
            return {"enum": [*kind.values, *kind.flags]}
        case Texts():
            free: Schema = _ALIAS if kind.are_models else {"type": "string", "minLength": 1}
            items: Schema = {"enum": list(kind.allowed)} if kind.allowed else free
            return {"type": "array", "items": items} | ({"minItems": 1} if kind.allowed or kind.are_models else {})
        case Size():
            number = {"type": "integer", "minimum": kind.minimum, "maximum": kind.maximum}
            return {"anyOf": [number, {"type": "string", "pattern": _SIZE_PATTERN}]}
        case Devices():
            ids: Schema = {"type": "array", "items": {"type": "string", "minLength": 1}, "minItems": 1}
            return {"anyOf": [{"type": "string", "minLength": 1}, ids]}
        case Command():
            return {"anyOf": [{"type": "string", "minLength": 1}, {"type": "array", "items": {"type": "string"}}]}
        case HookCommands():
            return {"$ref": "#/$defs/hooks"}
        case Address():
            return {"type": "string", "pattern": r"^https?://[^/@?#\s]+(/[^?#\s]*)?$"}
        case Proportions():
            return {"type": "array", "items": {"type": "number", "minimum": 0}, "minItems": 1, "maxItems": 128}
        case Json():
            return {"type": "object"}
        case Environment():
            return {
                "type": "object",
                "propertyNames": {"pattern": VARIABLE_PATTERN},
                "additionalProperties": {"type": ["string", "number"]},
            }
        case Rules():
            return {"$ref": "#/$defs/rules"}
        case Aliases():
            names: Schema = {"type": "array", "items": _ALIAS, "uniqueItems": True}
            by_name: Schema = {
                "type": "object",
                "propertyNames": _ALIAS,
                "additionalProperties": {"$ref": "#/$defs/alias"},
            }
            return {"anyOf": [names, by_name]}
        case Loras():
            return {"type": "object", "propertyNames": _NAME, "additionalProperties": {"$ref": "#/$defs/lora"}}
        case LoraChoice():
            scales: Schema = {"type": "object", "propertyNames": _NAME, "additionalProperties": _of_kind(LORA_SCALE)}
            return {"anyOf": [{"type": "string", "minLength": 1}, scales]}
        case Digest():
            return {"type": "string", "pattern": DIGEST_PATTERN}
        case Variable():
            return {"type": "string", "pattern": VARIABLE_PATTERN}
        case FilePath():
            return {"type": "string", "minLength": 1}
        case _:
            assert_never(kind)


if __name__ == "__main__":
    sys.stdout.write(schema_text())
