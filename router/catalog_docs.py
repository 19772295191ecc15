"""The table of keys as tables in Markdown, for `docs/models-yaml.md`.

Owns the form of these tables and their grouping; their content comes from `catalog_keys.py`. Must not hold the prose
around them, which is written by hand in the document. To renew the tables after a change of the keys:

    python -m router.catalog_docs docs/models-yaml.md
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, assert_never

from router.catalog_inner_keys import ALIAS_KEYS, HOOK_KEYS, LORA_KEYS, RULE_KEYS
from router.catalog_keys import MODEL_KEYS, Key
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
from router.catalog_sections import API_KEY_KEYS, DEVICE_KEYS, LIMIT_KEYS, TOP_KEYS

_GROUPS: Mapping[str, tuple[str, ...]] = {
    "what": ("model", "aliases", "loras", "description", "tags"),
    "size": ("context", "slots", "kv_tokens", "max_tokens"),
    "remote": ("url", "url_model", "url_key_env"),
    "life": (
        *("preload", "pin", "home", "idle_unload_s", "load_timeout_s", "hang_timeout_s", "replicas", "hooks"),
        "calibrate",
    ),
    "waiting": ("priority", "max_queue", "queue_timeout_s", "max_wait_s", "request_timeout_s"),
    "requests": (
        *("request", "chat_template", "chat_template_kwargs", "allow_request_templates", "drop_billing_header"),
        "env",
    ),
    "devices": (
        *("gpu_layers", "device", "split_mode", "main_gpu", "tensor_split"),
        *("no_kv_offload", "kv_offload", "no_op_offload", "op_offload"),
    ),
}
"""Keys of a model by group; those in none of them form the group `llama`."""

_UNBOUNDED = 10**6
"""A limit so far out that nobody meets it is not worth a word."""

_TABLE = re.compile(r"(?<=<!-- keys: )(?P<group>\w+)(?P<head> -->\n).*?(?=<!-- end of keys -->)", re.DOTALL)


def tables() -> dict[str, str]:
    """Return the Markdown of every table by the name that marks its place."""
    grouped = {name for names in _GROUPS.values() for name in names}
    groups: dict[str, Iterable[Key]] = {group: [MODEL_KEYS[name] for name in names] for group, names in _GROUPS.items()}
    groups["llama"] = [key for key in MODEL_KEYS.values() if key.name not in grouped]
    groups |= {
        "aliases": ALIAS_KEYS.values(),
        "loras": LORA_KEYS.values(),
        "rules": RULE_KEYS.values(),
        "hooks": HOOK_KEYS.values(),
        "bounds": DEVICE_KEYS.values(),
        "limits": LIMIT_KEYS.values(),
        "api_keys": API_KEY_KEYS.values(),
    }
    top = [f"| `{name}` | {meaning} |" for name, meaning in TOP_KEYS.items()]
    return {"top": "\n".join(("| key | meaning |", "| --- | --- |", *top)) + "\n"} | {
        group: _table(keys) for group, keys in groups.items()
    }


def with_tables(document: str) -> str:
    """Return the document with every marked table as it is now. Raises: KeyError for an unknown mark."""
    current = tables()
    return _TABLE.sub(lambda found: f"{found['group']}{found['head']}{current[found['group']]}", document)


def marked_tables(document: str) -> list[str]:
    """Return the names of the tables that the document has places for, in order."""
    return [found["group"] for found in _TABLE.finditer(document)]


def _table(keys: Iterable[Key]) -> str:
    rows = [f"| `{key.name}` | {_values(key.kind)} | {_default(key)} | {_escaped(key.meaning)} |" for key in keys]
    return "\n".join(("| key | value | default | meaning |", "| --- | --- | --- | --- |", *rows)) + "\n"


def _default(key: Key) -> str:
    if key.is_reference:
        return ""
    if key.default is None:
        return "none"
    return f"`{_written(key.default)}`" if key.default not in ((), {}, "") else "empty"


def _written(value: Any) -> str:
    """Return a default as it is written in the file."""
    match value:
        case bool():
            return "true" if value else "false"
        case float():
            return f"{value:g}"
        case tuple():
            return f"[{', '.join(map(_written, value))}]"
        case _:
            return str(value)


def _values(kind: Kind) -> str:  # noqa: PLR0911, PLR0912 - one case for each kind
    """Return what a key may hold, in a few words."""
    match kind:
        case Whole():
            words = "".join(f", or `{word}`" for word in kind.words)
            return f"whole number, {_range(kind.minimum, kind.maximum)}{words}"
        case Number():
            return f"number, {_range(kind.minimum, kind.maximum, is_open=kind.is_open)}"
        case Flag():
            return "`true` or `false`"
        case Text():
            return "text, also over several lines" if kind.is_long else "text"
        case Choice():
            flags = "".join(f", or `{_written(flag)}` for `{word}`" for flag, word in kind.flags.items())
            return ", ".join(f"`{value}`" for value in kind.values) + flags
        case Texts():
            words = ", ".join(f"`{word}`" for word in kind.allowed)
            return (
                f"list of {words}" if words else "list of names, or of patterns" if kind.are_models else "list of texts"
            )
        case Size():
            return "bytes, or a size such as `8GiB`"
        case Devices():
            return "id of a device, or list of ids"
        case Command():
            return "list of words, or text"
        case HookCommands():
            return "map from turn to command"
        case Address():
            return "address"
        case Proportions():
            return "list of numbers"
        case Json():
            return "map of JSON values"
        case Environment():
            return "map from variable to text"
        case Rules():
            return "map with `defaults`, `force`, `drop`"
        case Aliases():
            return "list of names, or map from name to options"
        case Loras():
            return "map from name to a reference, or to options"
        case LoraChoice():
            return "name, or map from names to scales"
        case Digest():
            return "64 hexadecimal digits"
        case Variable():
            return "name of a variable"
        case FilePath():
            return "path"
        case _:
            assert_never(kind)


def _range(minimum: float, maximum: float, *, is_open: bool = False) -> str:
    if minimum == maximum:
        return f"only {minimum:g}"
    if is_open:
        return f"more than {minimum:g}"
    return f"{minimum:g} or more" if maximum >= _UNBOUNDED else f"{minimum:g} to {maximum}"


def _escaped(text: str) -> str:
    return text.replace("|", "\\|")


if __name__ == "__main__":
    path = Path(sys.argv[1])
    path.write_text(with_tables(path.read_text(encoding="utf-8")), encoding="utf-8")
