"""YAML nodes -> checked values, one kind of the table at a time; what is wrong goes on a list.

Owns sections, lists and maps; scalars are read by `catalog_scalars.py`. Must not know which keys exist
(`catalog_keys.py`) nor how they fit together (`catalog_models.py`).
"""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, assert_never

from router.catalog import AliasSpec, LoraSpec, RequestRules
from router.catalog_inner_keys import ALIAS_KEYS, HOOK_KEYS, LORA_KEYS, LORA_SCALE, ROUTER_OWNED, RULE_KEYS
from router.catalog_keys import DIGEST_PATTERN, VARIABLE_PATTERN, Key
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
from router.catalog_refusals import explain_alias_key, explain_hook_key, explain_lora_key, explain_rule_key
from router.catalog_scalars import (
    Findings,
    Found,
    Wrong,
    hidden,
    name_problem,
    read_address,
    read_choice,
    read_number,
    read_secretive,
    read_size,
    read_string,
    read_whole,
    resolve_path,
    short_text,
    shown,
)
from router.device import CPU
from router.references import parse_reference
from router.yaml_lines import Place, YamlList, YamlMap, YamlNode, YamlScalar

_MAX_EXPLAINED = 1000
"""After so many problems the keys that do not exist are told without a guess at what was meant, which takes time."""


def read_section(
    node: YamlMap,
    where: str,
    keys: Mapping[str, Key],
    explain: Callable[[str, str | None], str],
    findings: Findings,
) -> dict[str, Found]:
    """Return the usable values by key; unknown keys, answered by `explain`, and wrong values become problems.

    Mutates: `findings`.
    """
    found: dict[str, Found] = {}
    for name, entry in node.entries.items():
        path = f"{where}.{name}"
        key = keys.get(name)
        if key is None:
            is_told = findings.count < _MAX_EXPLAINED
            message = explain(name, short_text(entry.value)) if is_told else f"unknown key `{name[:60]}`"
            findings.add(path, entry.place, message)
            continue
        value = entry.value
        if key.is_nullable and isinstance(value, YamlScalar) and value.value is None:
            found[name] = Found(None, path, value.place)
            continue
        try:
            found[name] = Found(_read(key.kind, value, path, findings), path, value.place)
        except Wrong as wrong:
            findings.add(path, value.place, wrong.message)
    return found


def _read(kind: Kind, node: YamlNode, where: str, findings: Findings) -> Any:  # noqa: PLR0911, PLR0912 - one case for each kind
    """Return the value of `node` as `kind` wants it. Raises: Wrong."""
    match kind:
        case Whole():
            return read_whole(kind, node)
        case Number():
            return read_number(kind, node)
        case Flag():
            if isinstance(node, YamlScalar) and isinstance(node.value, bool):
                return node.value
            raise Wrong(f"must be true or false, without quotes, not {shown(node)}")
        case Text():
            return read_string(kind, node)
        case Choice():
            return read_choice(kind, node)
        case Texts():
            return _texts(kind, node, where, findings)
        case Size():
            return read_size(kind, node)
        case Devices():
            return _devices(node)
        case Command():
            return _command(node)
        case HookCommands():
            return _hooks(node, where, findings)
        case Address():
            return read_address(node)
        case Proportions():
            return _proportions(node)
        case Json():
            return {name: to_json(entry.value) for name, entry in _map(node, "a map").entries.items()}
        case Environment():
            return _environment(node, where, findings)
        case Rules():
            return read_rules(node, where, findings)
        case Aliases():
            return _aliases(node, where, findings)
        case Loras():
            return _loras(node, where, findings)
        case LoraChoice():
            return _lora_choice(node, where, findings)
        case Digest():
            return read_secretive(
                node, DIGEST_PATTERN, "a SHA-256 sum: 64 hexadecimal digits, as `printf %s KEY | sha256sum` prints it"
            ).lower()
        case Variable():
            return read_secretive(
                node, VARIABLE_PATTERN, "the name of an environment variable, for example MY_APP_KEY; not a key itself"
            )
        case FilePath():
            return resolve_path(read_string(Text(4096), node), findings.base_dir)
        case _:
            assert_never(kind)


# --- lists and maps ---------------------------------------------------------------------------------------


def _map(node: YamlNode, what: str) -> YamlMap:
    if isinstance(node, YamlMap):
        return node
    raise Wrong(f"must be {what}, not {shown(node)}")


def _texts(kind: Texts, node: YamlNode, where: str, findings: Findings) -> tuple[str, ...]:
    if not isinstance(node, YamlList):
        example = f", for example [{kind.allowed[0]}]" if kind.allowed else ""
        raise Wrong(f"must be a list{example}, not {shown(node)}")
    texts: list[str] = []
    for number, item in enumerate(node.items):
        try:
            text = read_string(Text(), item)
            if kind.allowed and text not in kind.allowed:
                raise Wrong(f"must be one of {', '.join(kind.allowed)}, not {shown(item)}")
            if kind.are_models and (message := name_problem(text, may_be_pattern=True)) is not None:
                raise Wrong(message)
            texts.append(text)
        except Wrong as wrong:
            findings.add(f"{where}[{number}]", item.place, wrong.message)
    if (kind.allowed or kind.are_models) and not node.items:
        raise Wrong(f"must name at least one of {', '.join(kind.allowed) or 'the models, or be left out for all'}")
    return tuple(dict.fromkeys(texts))


def device_id(name: str) -> str:
    """Return the id of the device that `name` means; the CPU may be written in small letters."""
    return CPU if name.lower() == "cpu" else name


def _devices(node: YamlNode) -> tuple[str, ...]:
    items = node.items if isinstance(node, YamlList) else (node,)
    devices = tuple(dict.fromkeys(device_id(read_string(Text(200), item)) for item in items))
    if not devices:
        raise Wrong("must name at least one device; leave the key out for any")
    if CPU in devices and len(devices) > 1:
        raise Wrong("`cpu` means no GPU at all: name it alone, or only GPUs (`gpu_layers` says how much they take)")
    return devices


_SHELL_WORDS = frozenset({"|", "||", "&&", "&", ";", ">", ">>", "<", "2>&1"})


def _command(node: YamlNode) -> tuple[str, ...]:
    if isinstance(node, YamlList):
        words = tuple(read_string(Text(10_000, is_long=True, may_be_empty=True), item) for item in node.items)
    else:
        text = read_string(Text(10_000, is_long=True), node)
        try:
            words = tuple(shlex.split(text))
        except ValueError:
            raise Wrong("has a quote that is not closed; write the command as a list of words") from None
        if shell := next((word for word in words if word in _SHELL_WORDS or word.endswith(";")), None):
            raise Wrong(
                f"no shell reads the command, so `{shell}` means nothing: write [sh, -c, 'COMMAND'] or a script"
            )
    if words and not words[0].strip():
        raise Wrong("must begin with the program that is run")
    return words


def _hooks(node: YamlNode, where: str, findings: Findings) -> dict[str, Any]:
    section = _map(node, "a map with commands, for example {before_load: [./make-room.sh]}")
    found = read_section(section, where, HOOK_KEYS, lambda key, _: explain_hook_key(key), findings)
    return {name: part.value for name, part in found.items()}


def _proportions(node: YamlNode) -> tuple[float, ...]:
    numbers = [item.value for item in node.items if isinstance(item, YamlScalar)] if isinstance(node, YamlList) else []
    good = [float(n) for n in numbers if isinstance(n, int | float) and not isinstance(n, bool) and 0 <= n < math.inf]
    if not isinstance(node, YamlList) or len(good) != len(node.items) or sum(good) <= 0 or len(good) > 128:
        raise Wrong(f"must be a list of numbers of 0 or more, for example [3, 1], not {shown(node)}")
    return tuple(good)


def _environment(node: YamlNode, where: str, findings: Findings) -> dict[str, str]:
    env: dict[str, str] = {}
    for name, entry in _map(hidden(node), "a map from variable to value, such as {NAME: value}").entries.items():
        value = entry.value
        if re.fullmatch(VARIABLE_PATTERN, name) is None:  # with a `=` in it, what follows may be a secret
            message = "is not a name of an environment variable"
            findings.add(f"{where}.{name.partition('=')[0]}", entry.place, message)
        elif not isinstance(value, YamlScalar) or isinstance(value.value, bool | None):
            message = f"must be text or a number, not {shown(value)}; put it in quotes"
            findings.add(f"{where}.{name}", value.place, message)
        elif "\0" in value.text:
            findings.add(f"{where}.{name}", value.place, "must not contain the character U+0000")
        else:
            env[name] = value.text
    return env


def read_rules(node: YamlNode, where: str, findings: Findings) -> RequestRules:
    """Return the rules of a `request:` map. Mutates: `findings`. Raises: Wrong when it is no map at all."""

    def explain(key: str, value: str | None) -> str:
        return explain_rule_key(key, value, RULE_KEYS)

    section = _map(node, "a map with `defaults`, `force` or `drop`")
    found = read_section(section, where, RULE_KEYS, explain, findings)
    for name, part in found.items():
        for owned in ROUTER_OWNED:
            if owned in part.value:
                findings.add(
                    f"{where}.{name}",
                    part.place,
                    f"cannot change `{owned}`: the router reads it before any rule applies",
                )
    values = {name: part.value for name, part in found.items()}
    return RequestRules(values.get("defaults", {}), values.get("force", {}), values.get("drop", ()))


@dataclass(frozen=True, slots=True)
class FoundAlias:
    """An alias, where its name stands, and the adapters that it names, not looked up yet."""

    alias: AliasSpec
    where: str
    place: Place
    loras: tuple[Found, ...] = ()
    """Pairs of an adapter's name and its scale; None = the adapter's own."""


def _aliases(node: YamlNode, where: str, findings: Findings) -> tuple[FoundAlias, ...]:
    entries: list[tuple[str, str, Place, YamlNode | None]] = []
    if isinstance(node, YamlMap):
        entries = [(name, f"{where}.{name}", entry.place, entry.value) for name, entry in node.entries.items()]
    elif isinstance(node, YamlList):
        for number, item in enumerate(node.items):
            path = f"{where}[{number}]"
            if isinstance(item, YamlScalar) and isinstance(item.value, str):
                entries.append((item.value, path, item.place, None))
            else:
                findings.add(path, item.place, f"must be a name, not {shown(item)}; put it in quotes")
    else:
        raise Wrong(f"must be a list of names or a map from name to options, not {shown(node)}")
    aliases = []
    for name, path, place, options in entries:
        if (message := name_problem(name, may_be_pattern=True)) is not None:
            findings.add(path, place, message)
        else:
            aliases.append(_alias(name, path, place, options, findings))
    return tuple(aliases)


def _alias(name: str, where: str, place: Place, options: YamlNode | None, findings: Findings) -> FoundAlias:
    is_pattern = "*" in name
    plain = FoundAlias(AliasSpec(name, listed=not is_pattern), where, place)
    if options is None or (isinstance(options, YamlScalar) and options.value is None):
        return plain
    if not isinstance(options, YamlMap):
        keys = "`request`, `lora` or `listed`"
        findings.add(where, options.place, f"must be empty or a map with {keys}, not {shown(options)}")
        return plain

    def explain(key: str, value: str | None) -> str:
        return explain_alias_key(key, ALIAS_KEYS)

    found = read_section(options, where, ALIAS_KEYS, explain, findings)
    values = {key: one.value for key, one in found.items()}
    if is_pattern and values.get("listed"):
        message = "a name with `*` stands for any number of names: it cannot be listed"
        findings.add(found["listed"].where, found["listed"].place, message)
    alias = AliasSpec(name, values.get("request", RequestRules()), values.get("listed", not is_pattern))
    return FoundAlias(alias, where, place, values.get("lora") or ())


def _loras(node: YamlNode, where: str, findings: Findings) -> tuple[Found, ...]:
    """Return a `LoraSpec` for each usable adapter, with the place of its reference."""
    adapters = []
    for name, entry in _map(node, "a map from name to a file, for example {formal: ./formal.gguf}").entries.items():
        path, value = f"{where}.{name}", entry.value
        if (message := name_problem(name)) is not None:
            findings.add(path, entry.place, message)
        elif isinstance(value, YamlMap):
            found = read_section(value, path, LORA_KEYS, lambda key, _: explain_lora_key(key), findings)
            if "model" not in value.entries:
                findings.add(f"{path}.model", entry.place, "is missing: write which file it is, `model: FILE.gguf`")
            if "model" in found:
                spec = LoraSpec(name, **{"source" if key == "model" else key: one.value for key, one in found.items()})
                adapters.append(Found(spec, found["model"].where, found["model"].place))
        else:
            try:
                adapters.append(Found(LoraSpec(name, read_string(Text(), value)), path, value.place))
            except Wrong:
                message = f"must be the adapter's file or a map `{{model: FILE.gguf, scale: 1.0}}`, not {shown(value)}"
                findings.add(path, value.place, message)
    return tuple(found for found in adapters if _is_reference(found, findings))


def _is_reference(adapter: Found, findings: Findings) -> bool:
    """Whether the adapter's file is named in a form that is known. Mutates: `findings`, if it is not."""
    try:
        parse_reference(adapter.value.source)
    except ValueError as error:
        findings.add(adapter.where, adapter.place, str(error))
        return False
    return True


def _lora_choice(node: YamlNode, where: str, findings: Findings) -> tuple[Found, ...]:
    """Return pairs of a name and a scale; None = the adapter's own."""
    if isinstance(node, YamlScalar) and isinstance(node.value, str):
        return (Found((node.value, None), where, node.place),)
    chosen = []
    for name, entry in _map(node, "the name of an adapter or a map from names to scales").entries.items():
        try:
            scale = read_number(LORA_SCALE, entry.value)
        except Wrong as wrong:
            findings.add(f"{where}.{name}", entry.value.place, wrong.message)
        else:
            chosen.append(Found((name, scale), f"{where}.{name}", entry.place))
    return tuple(chosen)


# --- JSON -----------------------------------------------------------------------------------------------


def to_json(node: YamlNode) -> Any:
    """Return what `node` says as JSON would. Raises: Wrong for numbers that JSON lacks."""
    match node:
        case YamlScalar():
            if isinstance(node.value, float) and not math.isfinite(node.value):
                raise Wrong(f"{node.text} has no form in JSON; write a finite number")
            return node.value
        case YamlList():
            return [to_json(item) for item in node.items]
        case YamlMap():
            return {name: to_json(entry.value) for name, entry in node.entries.items()}
        case _:
            assert_never(node)
