"""What a worker is started with: from a model's options to its launch spec, command and environment.

Owns which of the router's environment variables a worker or a hook may see, and how `context: auto` becomes a number.
Must not start anything (`process.py` does) nor read files or the environment: all of it is passed in.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

from router.catalog import ModelSpec
from router.device import NOWHERE, Device, Placement
from router.events import WorkerId
from router.worker_devices import device_options, device_variables
from worker.contract import WRITES_ARGUMENT, EngineOptions, LaunchSpec, LoraFile

AUTO_CONTEXT = 8192
"""`context: auto` takes what the model was trained with, at most this much: a pool for 128k tokens a slot would
fill the memory for requests that nobody sends."""

ALLOWED = frozenset(
    {"PATH", "HOME", "LANG", "LC_ALL", "LC_CTYPE", "TZ", "TMPDIR", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH"}
    | {"LLAMA_CPP_LIB_PATH"}
)
"""Variables that a worker inherits. TZ and the locale, because chat templates print dates."""

ALLOWED_PREFIXES = ("CUDA_", "HIP_", "ROCR_", "HSA_", "VK_", "GGML_", "ONEAPI_", "OMP_", "GOMP_", "HF_")

SECRETS = frozenset({"HF_TOKEN"})
"""Match a prefix and are not inherited all the same: the router downloads, workers have no use for them."""

FIXED = {
    "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
    "GGML_NO_BACKTRACE": "1",
    "GOMP_SPINCOUNT": "10000",
    "PYTHONUNBUFFERED": "1",
    "SSL_CERT_FILE": "/dev/null",
    "SSL_CERT_DIR": "/dev/null",
}
"""Set unless the user sets them. Numbers of cards mean the same in every process. Backtraces would start a debugger on
the dying worker; idle threads that spin for long starve the other workers on the same cores, and threads that hardly
spin lose some 5 % at barriers. aiohttp reads all certificates of the machine when it is imported, which takes as long
as loading a small model: a worker, which has a Unix socket and no network, needs none."""

KEPT_BY_WORKERS = ("calibration", "prompts")
"""Folders in the cache."""

NO_DEVICES: Mapping[str, Device] = MappingProxyType({})
"""Nothing is known of devices: the worker sees all, and llama.cpp chooses."""


def worker_command(override: Sequence[str] | None = None, *, writes: Sequence[Path] = ()) -> list[str]:
    """Return the command of a worker process; `-P` keeps a user's own `worker/` folder from being imported.

    `writes`: the folders to which it confines itself where the system can see to it; () = it is not confined.
    """
    if override is not None:
        return list(override)
    return [sys.executable, "-P", "-m", "worker", *(f"{WRITES_ARGUMENT}{folder}" for folder in writes)]


def worker_folders(runtime_dir: Path, cache_dir: Path | None) -> list[Path]:
    """Return the folders in which workers have something to write."""
    return [runtime_dir] if cache_dir is None else [runtime_dir, *(cache_dir / name for name in KEPT_BY_WORKERS)]


def worker_environment(
    inherited: Mapping[str, str],
    model_env: Mapping[str, str],
    placement: Placement = NOWHERE,
    devices: Mapping[str, Device] = NO_DEVICES,
) -> dict[str, str]:
    """Return the environment of a worker: allowed variables, what every worker gets, its devices, the model's `env:`.

    Of several that set the same variable the last wins. `devices`: all of the machine, by id.
    """
    return FIXED | _allowed(inherited) | device_variables(placement, devices) | dict(model_env)


def hook_environment(inherited: Mapping[str, str], *, event: str, model: str, model_path: Path) -> dict[str, str]:
    """Return the environment of a model's hook: what a worker may see, and what has happened to which model."""
    told = {"CORRAL_EVENT": event, "CORRAL_MODEL": model, "CORRAL_MODEL_PATH": str(model_path)}
    return _allowed(inherited) | told


def _allowed(inherited: Mapping[str, str]) -> dict[str, str]:
    return {
        name: value
        for name, value in inherited.items()
        if name not in SECRETS and (name in ALLOWED or name.startswith(ALLOWED_PREFIXES))
    }


def effective_context(spec: ModelSpec, trained_context: int | None) -> int | None:
    """Return the tokens that one request may use; None when the file must be seen first and was not.

    Never more than the pool of cells holds: no request could use them.
    """
    if spec.context is not None:
        return _within_pool(spec, spec.context)
    return None if trained_context is None else _within_pool(spec, min(trained_context, AUTO_CONTEXT))


def capped_context(trained_context: int | None, cap: int | None) -> int | None:
    """Return the trained context, or the `cap` that memory sets to an automatic one if that is less."""
    return cap if trained_context is None or (cap is not None and cap < trained_context) else trained_context


def _within_pool(spec: ModelSpec, context: int) -> int:
    return context if spec.kv_tokens is None else min(context, spec.kv_tokens)


def build_launch_spec(
    spec: ModelSpec,
    worker: WorkerId,
    *,
    model_path: Path,
    lora_paths: Sequence[Path] = (),
    draft_path: Path | None = None,
    socket_path: Path,
    trained_context: int | None,
    num_threads: int,
    placement: Placement = NOWHERE,
    devices: Mapping[str, Device] = NO_DEVICES,
    calibration_dir: Path | None = None,
    prompts_dir: Path | None = None,
    check_cells: bool = False,
    log_level: str = "INFO",
) -> LaunchSpec:
    """Return what goes to the worker's stdin; `status_fd` is filled in when the pipe exists.

    `lora_paths`: the files of the model's adapters, in its order. `devices`: all of the machine, by id.
    """
    context = effective_context(spec, trained_context)
    return LaunchSpec(
        model=spec.name,
        model_path=str(model_path),
        draft_model_path=None if draft_path is None else str(draft_path),
        socket_path=str(socket_path),
        status_fd=-1,
        engine=EngineOptions(
            **(dict(spec.engine) | device_options(spec.devices, spec.engine, placement, devices)),
            context=_within_pool(spec, AUTO_CONTEXT) if context is None else context,
            slots=spec.slots,
            kv_tokens=spec.kv_tokens,
            loras=tuple(
                LoraFile(lora.name, str(path), lora.scale) for lora, path in zip(spec.loras, lora_paths, strict=True)
            ),
        ),
        replica=worker.replica,
        incarnation=worker.incarnation,
        num_threads=capped_threads(spec, num_threads),
        max_tokens=spec.max_tokens,
        chat_template=spec.chat_template,
        chat_template_kwargs=dict(spec.chat_template_kwargs),
        allow_request_templates=spec.allow_request_templates,
        drop_billing_header=spec.drop_billing_header,
        calibration_dir=str(calibration_dir) if calibration_dir is not None and spec.calibrate else None,
        prompts_dir=None if prompts_dir is None else str(prompts_dir),
        check_cells=check_cells,
        log_level=log_level,
    )


def capped_threads(spec: ModelSpec, num_threads: int) -> int:
    """Return the share of threads, at most what the model's own `threads` allows."""
    limit = spec.engine.get("threads")
    return min(num_threads, int(limit)) if limit else num_threads
