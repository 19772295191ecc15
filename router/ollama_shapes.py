"""How models look to Ollama's clients: lists, one model's details, what is loaded.

Owns these shapes alone: everything that is shown is passed in. Must not read files, ask anybody or look at a clock.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from router.capabilities import ollama_capabilities
from router.catalog import ModelSpec, Resolution
from router.dialects import Dialect
from router.fleet_views import ResidentView
from router.gguf_header import GgufHeader
from router.ollama_names import tagged
from router.request_rules import in_words_of
from worker.contract import WorkerStatus

FOR_GOOD = "2300-01-01T00:00:00Z"
"""When a model goes that idleness does not unload: far enough for clients to show it as forever."""
_CPU = "cpu"
_PARAMETERS = (
    *("temperature", "top_k", "top_p", "min_p", "typical_p", "repeat_last_n", "repeat_penalty", "seed", "stop"),
    *("presence_penalty", "frequency_penalty", "mirostat", "mirostat_tau", "mirostat_eta", "num_predict"),
)
"""Fields of `request:` rules, in Ollama's words, that are shown."""

# Source: llama.h, enum llama_ftype.
_FILE_TYPES = {
    **{0: "F32", 1: "F16", 2: "Q4_0", 3: "Q4_1", 7: "Q8_0", 8: "Q5_0", 9: "Q5_1"},
    **{10: "Q2_K", 11: "Q3_K_S", 12: "Q3_K_M", 13: "Q3_K_L", 14: "Q4_K_S", 15: "Q4_K_M", 16: "Q5_K_S", 17: "Q5_K_M"},
    **{18: "Q6_K", 19: "IQ2_XXS", 20: "IQ2_XS", 21: "Q2_K_S", 22: "IQ3_XS", 23: "IQ3_XXS", 24: "IQ1_S", 25: "IQ4_NL"},
    **{26: "IQ3_S", 27: "IQ3_M", 28: "IQ2_S", 29: "IQ2_M", 30: "IQ4_XS", 31: "IQ1_M", 32: "BF16"},
    **{36: "TQ1_0", 37: "TQ2_0", 38: "MXFP4"},
}


def rfc3339(unix_s: float) -> str:
    """Return a time as Ollama writes it."""
    return datetime.fromtimestamp(unix_s, UTC).strftime("%Y-%m-%dT%H:%M:%S.%f000Z")


def tag_entry(name: str, spec: ModelSpec, header: GgufHeader | None, modified_s: float) -> dict[str, Any]:
    """Return one entry of `/api/tags`. A file that is not on this machine yet has size 0."""
    return {
        "name": tagged(name),
        "model": tagged(name),
        "modified_at": rfc3339(modified_s),
        "size": 0 if header is None else header.size_bytes,
        "digest": digest(spec, header),
        "details": details(header),
    }


def digest(spec: ModelSpec, header: GgufHeader | None) -> str:
    """Return what is equal for the same file of the same origin: a digest of these, not of the file's bytes."""
    told = [] if header is None else [header.architecture, header.size_bytes, header.num_params]
    identity = json.dumps([spec.source, str(spec.base_dir), list(spec.file_marks), told])
    return hashlib.sha256(identity.encode()).hexdigest()


def details(header: GgufHeader | None) -> dict[str, Any]:
    """Return `details`; texts are empty while the file is not known."""
    family = "" if header is None else header.architecture
    return {
        "parent_model": "",
        "format": "gguf",
        "family": family,
        "families": [family] if family else [],
        "parameter_size": "" if header is None else _parameter_size(header),
        "quantization_level": "" if header is None else _quantization(header.file_type),
    }


def _quantization(file_type: int | None) -> str:
    return "unknown" if file_type is None else _FILE_TYPES.get(file_type, "unknown")


def _parameter_size(header: GgufHeader) -> str:
    if header.split_count > 1:  # only the first file has been read
        label = header.metadata.get("general.size_label")
        return label if isinstance(label, str) else ""
    num = header.num_params
    for unit, letter, digits in ((1e9, "B", 1), (1e6, "M", 2), (1e3, "K", 0)):
        if num >= unit:
            return f"{num / unit:.{digits}f}".removesuffix(".00").removesuffix(".0") + letter
    return str(num)


def show(
    resolution: Resolution,
    header: GgufHeader | None,
    *,
    template: str | None,
    context: int | None,
    modified_s: float,
) -> dict[str, Any]:
    """Return the reply of `/api/show`. `parameters` tells the context that requests really have."""
    spec = resolution.spec
    license_ = None if header is None else header.metadata.get("general.license")
    parameters = _parameters(resolution, context)
    shown: dict[str, Any] = {
        "license": license_ if isinstance(license_, str) else "",
        "modelfile": "".join([f"FROM {spec.name}\n", *(f"PARAMETER {line}\n" for line in parameters.splitlines())]),
        "parameters": parameters,
        "template": template or "",
        "details": details(header),
        "model_info": {} if header is None else _model_info(header),
        "modified_at": rfc3339(modified_s),
    }
    return shown if header is None else shown | {"capabilities": ollama_capabilities(header, template)}


def _parameters(resolution: Resolution, context: int | None) -> str:
    told: list[tuple[str, Any]] = [] if context is None else [("num_ctx", context)]
    for name, value in in_words_of(Dialect.OLLAMA, resolution.rules).apply({}).items():
        if name in _PARAMETERS:
            told += [(name, one) for one in (value if isinstance(value, list) else [value])]
    return "\n".join(
        f"{name:<30} {json.dumps(value, ensure_ascii=False) if isinstance(value, str) else value}"
        for name, value in told
    )


def _model_info(header: GgufHeader) -> dict[str, Any]:
    counted = {"general.parameter_count": header.num_params} if header.split_count == 1 else {}
    return dict(header.metadata) | counted


@dataclass(frozen=True, slots=True)
class Loaded:
    """A worker that is ready, and what it has said last."""

    resident: ResidentView
    status: WorkerStatus | None


def running_entry(
    name: str,
    spec: ModelSpec,
    header: GgufHeader | None,
    loaded: Iterable[Loaded],
    *,
    now_s: float,
    unix_s: float,
) -> dict[str, Any]:
    """Return one entry of `/api/ps`: all workers of a model together. `now_s` is the monotonic clock's."""
    workers = list(loaded)
    sizes = [_sizes(one.status) for one in workers]
    ends = [_idle_end(one.resident, now_s) for one in workers]
    facts = next((one.status.facts for one in workers if one.status and one.status.facts), None)
    is_for_good = any(end is None for end in ends)
    last_s = max((end for end in ends if end is not None), default=now_s)
    return {
        "name": tagged(name),
        "model": tagged(name),
        "size": sum(size for size, _ in sizes),
        "digest": digest(spec, header),
        "details": details(header),
        "expires_at": FOR_GOOD if is_for_good else rfc3339(unix_s + last_s - now_s),
        "size_vram": sum(vram for _, vram in sizes),
        "context_length": 0 if facts is None else facts.context,
    }


def _idle_end(resident: ResidentView, now_s: float) -> float | None:
    """Return when the worker goes if nobody asks it anything any more; None = it stays."""
    if resident.idle_limit_s is None:
        return None
    return resident.idle_unload_at_s if resident.idle_unload_at_s is not None else now_s + resident.idle_limit_s


def _sizes(status: WorkerStatus | None) -> tuple[int, int]:
    """Return what a worker has allocated, and how much of it on GPUs."""
    if status is None:
        return 0, 0
    by_device = {name: sum(sizes.values()) for name, sizes in status.device_bytes.items()}
    elsewhere = sum(size for name, size in by_device.items() if not name.lower().startswith(_CPU))
    told = sum(by_device.values())
    return told or (status.facts.size_bytes if status.facts is not None else 0), elsewhere


def load_line(fields: Mapping[str, Any], model: str, unix_s: float, reason: str) -> dict[str, Any]:
    """Return the reply to a request that wants a model loaded or unloaded and nothing else."""
    head = {"model": model, "created_at": rfc3339(unix_s)}
    return head | dict(fields) | {"done": True, "done_reason": reason}
