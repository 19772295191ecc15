"""Options of llama-server that need more than another name: each with a function that takes it over.

Owns these functions, and the words for values that several of them share. Pure.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import PurePosixPath
from typing import Final

from router.importing.imported import ImportedModel

ON: Final = frozenset({"1", "true", "on", "yes", "enabled"})
OFF: Final = frozenset({"0", "false", "off", "no", "disabled", "never"})
NUMBER = re.compile(r"-?\d{1,18}(?:\.\d{1,18})?")
SECRETIVE = re.compile("TOKEN|KEY|SECRET|PASSW|CREDENTIAL|AUTH", re.IGNORECASE)
"""Names of what may hold a secret."""
USER = re.compile(r"^(\w+://)[^/@]*@")
"""Of an address."""
_MAX_DRAFTS: Final = 32
"""Of `draft_max`."""

Special = Callable[[ImportedModel, str, list[str]], None]


def _gpu_layers(model: ImportedModel, value: str, _: list[str]) -> None:
    word = value.lower()
    if word in ("all", "auto"):
        model.options["gpu_layers"] = word
    elif NUMBER.fullmatch(value):
        # Large numbers are the usual way to say "all of them".
        number = int(float(value))
        model.options["gpu_layers"] = "all" if number < 0 or number >= 99 else number
    else:
        model.note(f"{shown('gpu_layers', value)}: must be a number, `all` or `auto`")


def _aliases(model: ImportedModel, value: str, _: list[str]) -> None:
    model.add_aliases({re.sub(r"\s+", "-", name.strip()): None for name in value.split(",") if name.strip()})


def _predict(model: ImportedModel, value: str, _: list[str]) -> None:
    if NUMBER.fullmatch(value) and int(float(value)) > 0:
        model.options["max_tokens"] = int(float(value))


def _device(model: ImportedModel, value: str, _: list[str]) -> None:
    names = [name.strip() for name in value.split(",") if name.strip()]
    if names == ["none"]:
        model.options["device"] = "cpu"
    elif names:
        model.options["device"] = names[0] if len(names) == 1 else names


def _template(model: ImportedModel, value: str, _: list[str]) -> None:
    if "{" in value:
        model.options["chat_template"] = value
    else:
        model.note(
            f"{shown('chat_template', value)}: built-in templates are not known by name; without it the model's own "
            "template is used, which is right nearly always"
        )


def _template_file(model: ImportedModel, value: str, _: list[str]) -> None:
    model.options["chat_template"] = value


def _template_arguments(model: ImportedModel, value: str, _: list[str]) -> None:
    try:
        arguments = json.loads(value)
    except (ValueError, RecursionError):
        arguments = None
    if isinstance(arguments, dict):
        model.options["chat_template_kwargs"] = arguments
    else:
        model.note(f"{shown('chat_template_kwargs', value)}: is not a JSON object")


def _reasoning_format(model: ImportedModel, value: str, _: list[str]) -> None:
    known = {"none": "none", "deepseek": "deepseek", "auto": "auto", "deepseek-legacy": "deepseek"}
    if value in known:
        model.set_request("defaults", "reasoning_format", known[value])
    else:
        model.note(f"{shown('reasoning_format', value)}: not known here")


def _reasoning(model: ImportedModel, value: str, _: list[str]) -> None:
    word = value.lower()
    if word in ON | OFF:
        model.options.setdefault("chat_template_kwargs", {})["enable_thinking"] = word in ON


def _samplers(model: ImportedModel, value: str, _: list[str]) -> None:
    names = {"temp": "temperature", "typical_p": "typ_p", "typical": "typ_p", "nsigma": "top_n_sigma"}
    listed = [names.get(name.strip(), name.strip()) for name in value.split(";") if name.strip()]
    model.set_request("defaults", "samplers", listed)


def _sampling_letters(model: ImportedModel, value: str, _: list[str]) -> None:
    model.set_request("defaults", "samplers", value)


def _breakers(model: ImportedModel, _: str, values: list[str]) -> None:
    if values != ["none"]:
        model.set_request("defaults", "dry_sequence_breakers", values)


def _ignore_eos(model: ImportedModel, _: str, __: list[str]) -> None:
    model.set_request("defaults", "ignore_eos", True)


def _stop(model: ImportedModel, _: str, values: list[str]) -> None:
    model.set_request("defaults", "stop", values)


def _cache_ram(model: ImportedModel, value: str, _: list[str]) -> None:
    if NUMBER.fullmatch(value) and (size := int(float(value))) >= 0:
        model.options["prompt_cache_bytes"] = f"{size}MiB" if size else 0


def _drafts(model: ImportedModel, value: str, _: list[str]) -> None:
    if NUMBER.fullmatch(value):
        model.options["draft_max"] = min(max(0, int(float(value))), _MAX_DRAFTS)


def _draft_model(model: ImportedModel, value: str, _: list[str]) -> None:
    if value:
        model.options["draft_model"] = value


def _draft_repo(model: ImportedModel, value: str, _: list[str]) -> None:
    if "/" in value:
        model.options["draft_model"] = hub_reference(value, None)


def _loras(model: ImportedModel, _: str, values: list[str]) -> None:
    for path in _listed(values):
        _add_lora(model, path, None)


def _scaled_loras(model: ImportedModel, _: str, values: list[str]) -> None:
    for entry in _listed(values):
        path, colon, scale = entry.rpartition(":")
        if colon and NUMBER.fullmatch(scale):
            _add_lora(model, path, float(scale))
        else:
            _add_lora(model, entry, None)


def _listed(values: Iterable[str]) -> list[str]:
    return [part.strip() for value in values for part in value.split(",") if part.strip()]


def _add_lora(model: ImportedModel, path: str, scale: float | None) -> None:
    name = re.sub(r"\s+", "-", PurePosixPath(path).stem) or "adapter"
    model.options.setdefault("loras", {})[name] = path if scale is None else {"model": path, "scale": scale}
    model.note(
        f"the adapter {name} is applied where a request or an alias asks for it (an alias with `lora: {name}`), not to "
        "every request"
    )


def _idle(model: ImportedModel, value: str, _: list[str]) -> None:
    if NUMBER.fullmatch(value):
        model.options["idle_unload_s"] = max(0, int(float(value)))


def _preload(model: ImportedModel, value: str, _: list[str]) -> None:
    if value.lower() in ON or not value:
        model.options["preload"] = True


def _tags(model: ImportedModel, value: str, _: list[str]) -> None:
    model.options["tags"] = [tag.strip() for tag in value.split(",") if tag.strip()]


def _api_key(model: ImportedModel, _: str, __: list[str]) -> None:
    model.note("--api-key: not copied, because it is a secret; keys stand in CORRAL_API_KEYS or in `keys:`")


def _hf_token(model: ImportedModel, _: str, __: list[str]) -> None:
    model.note("--hf-token: not copied, because it is a secret; set HF_TOKEN for the server")


def _timeout(model: ImportedModel, _: str, __: list[str]) -> None:
    """A timeout of sockets; streams that stall are cut off by the server's own setting."""


def shown(name: str, value: str | None) -> str:
    """Return an option with its value as it stood on a command line, short enough for a note, and without a secret."""
    flag = f"--{name.replace('_', '-')}"
    if value is None or SECRETIVE.search(name):
        return flag
    value = USER.sub(r"\1…@", value)
    return f"{flag} {value if len(value) <= 60 else value[:60] + '…'}"


def hub_reference(repo: str, file: str | None) -> str:
    """Return how a repository of the Hub is written here, in llama-server's form `OWNER/REPO[:QUANT]`."""
    name, _, quant = repo.partition(":")
    if file:
        return f"hf:{name}/{file}"
    # llama-server takes Q4_K_M where nothing is said.
    return f"hf:{name}:{quant or 'Q4_K_M'}"


SPECIAL: Final[Mapping[str, Special]] = {
    "gpu_layers": _gpu_layers,
    "alias": _aliases,
    "predict": _predict,
    "device": _device,
    "chat_template": _template,
    "chat_template_file": _template_file,
    "chat_template_kwargs": _template_arguments,
    "reasoning_format": _reasoning_format,
    "reasoning": _reasoning,
    "samplers": _samplers,
    "sampling_seq": _sampling_letters,
    "dry_sequence_breaker": _breakers,
    "ignore_eos": _ignore_eos,
    "reverse_prompt": _stop,
    "cache_ram": _cache_ram,
    "draft_n": _drafts,
    "model_draft": _draft_model,
    "hf_repo_draft": _draft_repo,
    "lora": _loras,
    "lora_scaled": _scaled_loras,
    "sleep_idle_seconds": _idle,
    "load_on_startup": _preload,
    "tags": _tags,
    "api_key": _api_key,
    "api_key_file": _api_key,
    "hf_token": _hf_token,
    "timeout": _timeout,
}
"""By canonical name."""
