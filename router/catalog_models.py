"""One model's options, its own over `defaults:` -> a `ModelSpec`, with the checks that need more than one key.

Owns how defaults merge and what options require of each other. Must not read files: a template file becomes a path.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from router.catalog import AliasSpec, Hooks, Limits, ModelSpec, Remote, RequestRules
from router.catalog_keys import MERGED_KEYS, MODEL_KEYS, ONLY_REMOTE_KEYS, PLAIN_CACHE_TYPES, REMOTE_KEYS
from router.catalog_refusals import explain_local_key
from router.catalog_scalars import Findings, Found, resolve_path

TEMPLATE_MARKS = ("\n", "{{", "{%", "{#")
"""A chat template that contains one of these is the text itself, not the path of a file."""


def canonical(section: Mapping[str, Found], findings: Findings) -> dict[str, Found]:
    """Return the section with `no_mmap: true` as `mmap: false` and so on. Mutates: `findings`."""
    result: dict[str, Found] = {}
    for name, found in section.items():
        positive = MODEL_KEYS[name].negates
        if positive is None:
            result[name] = found
        elif positive in section:
            findings.add(found.where, found.place, f"`{name}` and `{positive}` say the same thing: keep one of them")
        else:
            result[positive] = Found(not found.value, found.where, found.place)
    return result


def merge(defaults: Mapping[str, Found], own: Mapping[str, Found]) -> dict[str, Found]:
    """Return the model's own values over the defaults; the maps of `MERGED_KEYS` key by key.

    Of the defaults, a model of another server takes those that concern its requests.
    """
    if "url" in own:
        of_requests = REMOTE_KEYS - {"context"}
        defaults = {name: found for name, found in defaults.items() if name in of_requests}
    merged = {**defaults, **own}
    for name in MERGED_KEYS:
        if name in defaults and name in own:
            base, found = defaults[name].value, own[name]
            value = found.value.over(base) if isinstance(base, RequestRules) else {**base, **found.value}
            merged[name] = Found(value, found.where, found.place)
    return merged


def build_spec(
    name: str,
    source: str,
    options: Mapping[str, Found],
    aliases: Mapping[str, AliasSpec],
    *,
    limits: Limits,
    findings: Findings,
) -> ModelSpec:
    """Return the model with all defaults filled in. Mutates: `findings`, if options contradict each other."""
    engine = _engine(options, findings) if "url" not in options else {}
    template, template_file = _template(options.get("chat_template"), findings.base_dir)

    def value(key: str, otherwise: Any = None) -> Any:
        found = options.get(key)
        return otherwise if found is None or found.value is None else found.value

    _check_pool(options, findings)
    return ModelSpec(
        name=name,
        source=source,
        base_dir=findings.base_dir,
        aliases=aliases,
        loras=tuple(found.value for found in value("loras", ())),
        draft_source=value("draft_model"),
        context=value("context"),
        slots=value("slots", MODEL_KEYS["slots"].default),
        kv_tokens=value("kv_tokens"),
        engine=engine,
        idle_unload_s=value("idle_unload_s", MODEL_KEYS["idle_unload_s"].default),
        load_timeout_s=value("load_timeout_s", MODEL_KEYS["load_timeout_s"].default),
        request_timeout_s=value("request_timeout_s", MODEL_KEYS["request_timeout_s"].default),
        queue_timeout_s=value("queue_timeout_s", limits.queue_timeout_s),
        max_queue=value("max_queue", limits.max_queue),
        preload=value("preload", False),
        pin=value("pin", False),
        priority=value("priority", 0),
        max_tokens=value("max_tokens"),
        chat_template=template,
        chat_template_file=template_file,
        chat_template_kwargs=value("chat_template_kwargs", {}),
        allow_request_templates=value("allow_request_templates", False),
        drop_billing_header=value("drop_billing_header", MODEL_KEYS["drop_billing_header"].default),
        request=value("request", RequestRules()),
        env=value("env", {}),
        description=value("description", ""),
        tags=value("tags", ()),
        calibrate=value("calibrate", MODEL_KEYS["calibrate"].default),
        replicas=value("replicas", 1),
        home=value("home", False),
        max_wait_s=value("max_wait_s", limits.max_wait_s),
        hang_timeout_s=value("hang_timeout_s", MODEL_KEYS["hang_timeout_s"].default),
        devices=value("device", ()),
        is_partial_allowed="gpu_layers" in options and options["gpu_layers"].value is None,
        hooks=Hooks(**value("hooks", {})),
        remote=_remote(name, options),
    )


def check_remote(own: Mapping[str, Found], findings: Findings) -> None:
    """Refuse what a model of another server cannot have, and what only such a model can. Mutates: `findings`."""
    for key, found in own.items():
        if "url" not in own and key in ONLY_REMOTE_KEYS:
            findings.add(found.where, found.place, f"`{key}` belongs to a model with a `url`, which this one lacks")
        elif "url" in own and key not in REMOTE_KEYS:
            findings.add(found.where, found.place, explain_local_key(key))


def _remote(name: str, options: Mapping[str, Found]) -> Remote | None:
    if "url" not in options:
        return None
    return Remote(options["url"].value, _value(options, "url_model", name), _value(options, "url_key_env", None))


def _engine(options: Mapping[str, Found], findings: Findings) -> dict[str, Any]:
    """Return the keyword arguments for `EngineOptions` that the catalogue sets. Mutates: `findings`."""
    engine: dict[str, Any] = {}
    for name, found in options.items():
        field = MODEL_KEYS[name].engine
        if field is not None and found.value is not None:
            engine[field] = found.value
    batch = engine.get("batch_size", MODEL_KEYS["batch_size"].default)
    slots = _value(options, "slots", MODEL_KEYS["slots"].default)
    if batch < slots:
        _complain(
            options,
            ("batch_size", "slots"),
            f"`batch_size` ({batch}) must be at least `slots` ({slots}), so that every slot can advance in one pass",
            findings,
        )
    if "batch_size" in engine and "ubatch_size" not in engine:
        engine["ubatch_size"] = batch  # a larger pass would only be cut up again
    elif (ubatch := engine.get("ubatch_size", 0)) > batch:
        default = "" if "batch_size" in engine else ", its default"
        _complain(
            options,
            ("ubatch_size",),
            f"`ubatch_size` ({ubatch}) must be at most `batch_size` ({batch}{default})",
            findings,
        )
    if "rope_scale" in engine and "rope_freq_scale" in engine:
        _complain(
            options,
            ("rope_freq_scale", "rope_scale"),
            "`rope_freq_scale` is 1 / `rope_scale`: set only one of the two",
            findings,
        )
    if engine.get("cache_type_v", "f16") not in PLAIN_CACHE_TYPES:
        match engine.get("flash_attn", "auto"):
            case "off":
                _complain(
                    options,
                    ("cache_type_v", "flash_attn"),
                    f"the quantised type {engine['cache_type_v']} needs flash attention: remove `flash_attn: off`,"
                    f" or write one of {', '.join(PLAIN_CACHE_TYPES)}",
                    findings,
                )
            case _:  # `auto` would be off on a CPU, and llama.cpp then refuses the cache
                engine["flash_attn"] = "on"
    return engine


def _check_pool(options: Mapping[str, Found], findings: Findings) -> None:
    context, pool = _value(options, "context", None), _value(options, "kv_tokens", None)
    if context is not None and pool is not None and pool < context:
        _complain(
            options,
            ("kv_tokens", "context"),
            f"`kv_tokens` ({pool}) must be at least `context` ({context}): one request may fill the context",
            findings,
        )


def _template(found: Found | None, base_dir: Path) -> tuple[str | None, Path | None]:
    """Return the template's text, or the file it must be read from."""
    if found is None or found.value is None:
        return None, None
    text: str = found.value
    if any(mark in text for mark in TEMPLATE_MARKS):
        return text, None
    return None, resolve_path(text, base_dir)


def _value(options: Mapping[str, Found], key: str, otherwise: Any) -> Any:
    found = options.get(key)
    return otherwise if found is None or found.value is None else found.value


def _complain(options: Mapping[str, Found], keys: tuple[str, ...], message: str, findings: Findings) -> None:
    """Record `message` at the first of `keys` that is written, so that it points at a line that can be changed."""
    found = next(options[key] for key in keys if key in options)
    findings.add(found.where, found.place, message)
