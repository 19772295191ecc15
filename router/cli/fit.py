"""`corral fit`: what a model needs of memory, and with which context it fits where.

Owns finding the files, asking, and the table. The arithmetic is `router/fit.py`'s.
"""

from __future__ import annotations

import asyncio
import dataclasses
import os
import re
from pathlib import Path
from typing import Any

import click

from router.catalog import Catalog, ModelSpec
from router.catalog_keys import CACHE_TYPES
from router.catalog_scalars import SIZE_PATTERN
from router.cli.catalog_file import read_settings_or_fail
from router.cli.completing import complete_local_models
from router.cli.devices import find_devices
from router.cli.formats import size
from router.cli.model_files import (
    as_reference,
    cache_option,
    file_option,
    files_of,
    find_model,
    open_store,
    read_catalog,
    try_catalog,
)
from router.cli.output import CommandFailed, ExitCode, json_option, note, print_json, print_table
from router.cli.prose import tell
from router.device import CPU, Device, DeviceKind, Footprint
from router.device_facts import default_headroom
from router.file_names import all_parts
from router.fit import (
    Fit,
    NeedsOf,
    Room,
    Subject,
    Verdict,
    contexts_to_show,
    corrected,
    cpu_room,
    hints,
    judge,
    largest_context,
)
from router.gguf_header import GgufError, read_gguf_header, read_tensor_sums
from router.references import parse_reference
from router.sources import ModelStore, SourceError

_EXACTNESS = (
    "estimated from the file's header; usually within a tenth of what llama.cpp plans (--probe asks it, without "
    "loading the model)"
)
_PROBED = "as llama.cpp plans it; what drivers and libraries take beside is a guess"


@click.command()
@click.argument("name", metavar="FILE.gguf|REF|MODEL", shell_complete=complete_local_models)
@click.option("--slots", type=click.IntRange(1, 64), help="Requests answered at the same time.")
@click.option("--context", type=click.IntRange(16, 2**24), help="Look at this context, too.")
@click.option("--kv-tokens", type=click.IntRange(16), help="Tokens that all slots share.")
@click.option("--cache-type-k", type=click.Choice(CACHE_TYPES), help="Type of the cached keys.")
@click.option("--cache-type-v", type=click.Choice(CACHE_TYPES), help="Type of the cached values.")
@click.option("--device", "wanted", multiple=True, help="Look at this device only; may be given several times.")
@click.option("--gpu-memory", metavar="SIZE", help="Look at a GPU of this size as well: 24GiB.")
@click.option("--probe", is_flag=True, help="Have llama.cpp plan it, which takes seconds and is surer.")
@file_option
@cache_option
@json_option
def fit(
    name: str,
    wanted: tuple[str, ...],
    gpu_memory: str | None,
    probe: bool,
    file: Path | None,
    cache: Path | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Tell what a model needs of memory, and with which context it fits on which device.

    Reads headers alone, which takes a moment however large the model is. A MODEL of the configuration is taken with
    its options there; the options here go before them.
    """
    settings = read_settings_or_fail({"cache": cache})
    store = open_store(settings)
    reference = as_reference(name)
    if reference is None:
        catalog: Catalog | None = read_catalog(file, settings, name)
        assert catalog is not None
        spec = find_model(catalog, name)
        files_of(spec)  # one of another server has none
    else:
        catalog = try_catalog(file, store)
        spec = ModelSpec(name, str(reference), Path.cwd())
    subject = _read(_with_options(spec, options), store)
    rooms, problems = _rooms(catalog, wanted, gpu_memory)
    context = subject.options(None).context
    contexts = contexts_to_show(subject.largest_context, context, subject.spec.kv_tokens)
    if options["context"] is not None:
        contexts = sorted({*contexts, subject.options(options["context"]).context})
    needs_of: NeedsOf = subject.needs
    if probe:
        needs_of = corrected(subject.needs, _probed(subject, contexts, rooms))
    report = _Report(subject, context, contexts, needs_of, rooms, is_probed=probe)
    if as_json:
        print_json(report.plain())
    else:
        report.show()
    for problem in problems:
        note(f"corral: {problem}")


# --- what is asked for -------------------------------------------------------------------------------------


def _with_options(spec: ModelSpec, options: dict[str, Any]) -> ModelSpec:
    engine = dict(spec.engine)
    engine |= {key: options[key] for key in ("cache_type_k", "cache_type_v") if options[key] is not None}
    if engine.get("cache_type_v", "f16") not in ("f16", "f32", "bf16") and engine.get("flash_attn") == "off":
        raise CommandFailed("a quantised cache_type_v needs flash attention, which the model has off", ExitCode.USAGE)
    changed = {key: options[key] for key in ("slots", "kv_tokens") if options[key] is not None}
    return dataclasses.replace(spec, engine=engine, **changed)


def _read(spec: ModelSpec, store: ModelStore) -> Subject:
    """Return what the headers of a model's files say. Raises: CommandFailed."""
    try:
        path = _locate(spec.source, spec, store)
        draft = None if spec.draft_source is None else _locate(spec.draft_source, spec, store)
        loras = [_locate(lora.source, spec, store) for lora in spec.loras]
        header = read_gguf_header(path)
        tensors = header.tensors
        for part in all_parts(path.name):
            if part != path.name:
                tensors = tensors + read_tensor_sums(path.with_name(part))
        return Subject(
            spec,
            path,
            header,
            tensors,
            None if draft is None else read_gguf_header(draft),
            sum(lora.stat().st_size for lora in loras),
        )
    except (SourceError, GgufError, OSError) as error:
        raise CommandFailed(f"{spec.name}: {error}") from None


def _locate(source: str, spec: ModelSpec, store: ModelStore) -> Path:
    reference = parse_reference(source)
    path = store.locate(reference, spec.base_dir)
    if path is None:
        raise CommandFailed(f"{reference.short()} is not on this machine yet: `corral pull '{reference}'` fetches it")
    return path


def _rooms(catalog: Catalog | None, wanted: tuple[str, ...], gpu_memory: str | None) -> tuple[list[Room], list[str]]:
    """Return the devices to look at, main memory always among them, and what is wrong with asking for them."""
    found = find_devices(catalog)
    rooms = [Room(device, found.room_bytes(device)) for device in found.devices]
    if gpu_memory is not None:
        total = _bytes(gpu_memory)
        imagined = Device(f"a GPU of {gpu_memory}", DeviceKind.GPU, total, is_declared=True)
        imagined = dataclasses.replace(imagined, headroom_bytes=default_headroom(imagined))
        rooms.append(Room(imagined, imagined.usable_bytes))
    known = {room.device.id.casefold() for room in rooms}
    for name in wanted:
        if name.casefold() not in known:
            names = ", ".join(room.device.id for room in rooms)
            raise CommandFailed(f"there is no device {name}; there are: {names}", ExitCode.USAGE)
    if wanted:
        asked = {name.casefold() for name in wanted}
        rooms = [room for room in rooms if room.device.id.casefold() in asked or room.device.id == CPU]
    return rooms, list(found.problems)


def _bytes(text: str) -> int:
    match = re.fullmatch(SIZE_PATTERN, text, re.IGNORECASE)
    if match is None:
        raise CommandFailed(f"--gpu-memory {text}: write a size such as 24GiB", ExitCode.USAGE)
    number, prefix, suffix = match.groups()
    base = 1000 if (suffix or "").upper() == "B" else 1024
    return round(float(number) * (1 if prefix is None else base ** ("KMGT".index(prefix.upper()) + 1)))


def _probed(subject: Subject, contexts: list[int], rooms: list[Room]) -> dict[int, Footprint]:
    """Return llama.cpp's plans for the shortest and the longest context and one between. Raises: CommandFailed."""
    from router.footprint_parts import Knowledge, planned_on_cpu, planned_on_gpu
    from router.probe_process import ProbeFailed, ask_probe

    gpus = [room.device.id for room in rooms if room.device.is_gpu and not room.device.is_declared]
    gpu = gpus[0] if gpus else None
    draft = None if subject.draft is None else getattr(subject.draft, "path", None)

    async def ask(context: int) -> Footprint:
        question = {
            "ask": "footprint",
            "model_path": str(subject.path),
            "draft_model_path": None if draft is None else str(draft),
            "engine": dataclasses.asdict(subject.options(context)),
            "gpu": gpu,
        }
        answer = await ask_probe(question, environ=os.environ, timeout_s=120.0)
        known = Knowledge(
            estimate=subject.needs(context),
            planned_cpu=planned_on_cpu(answer.get("cpu"), subject.lora_bytes),
            planned_gpu=None if gpu is None else planned_on_gpu(answer.get("gpu"), subject.lora_bytes),
        )
        assert known.footprint is not None
        return known.footprint

    async def ask_all() -> dict[int, Footprint]:
        chosen = sorted({contexts[0], contexts[len(contexts) // 2], contexts[-1]})
        return {context: await ask(context) for context in chosen}

    try:
        return asyncio.run(ask_all())
    except (ProbeFailed, ValueError) as error:
        raise CommandFailed(f"llama.cpp does not plan this model: {error}; without --probe it is estimated") from None


# --- what is shown -----------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True, slots=True)
class _Report:
    """Everything that is known, to be printed in one form or the other."""

    subject: Subject
    context: int
    """That the model would be served with."""
    contexts: list[int]
    needs_of: NeedsOf
    rooms: list[Room]
    is_probed: bool

    def largest(self, room: Room) -> int | None:
        top = self.subject.largest_context
        if self.subject.spec.kv_tokens is not None:
            top = min(top, self.subject.spec.kv_tokens)
        return largest_context(self.needs_of, room, cpu_room(self.rooms), top)

    def show(self) -> None:
        subject, header = self.subject, self.subject.header
        parts = subject.parts(self.context)
        trained = f", trained for {header.trained_context} tokens" if header.trained_context else ""
        click.echo(f"{subject.path.name}: {header.architecture}, weights {size(parts.weights)}{trained}")
        engine = subject.options(self.context)
        per_token = subject.kv_bytes_per_token()
        kv = "no cache for tokens" if per_token is None else f"{per_token / 1000:.1f} kB a token in the cache"
        types = f" ({engine.cache_type_k}/{engine.cache_type_v})" if per_token is not None else ""
        shared = f", {engine.kv_tokens} tokens for all together" if engine.kv_tokens is not None else ""
        click.echo(f"{kv}{types}, {engine.slots} {'slot' if engine.slots == 1 else 'slots'}{shared}\n")
        cpu = cpu_room(self.rooms)
        rows = []
        for context in self.contexts:
            needs = self.needs_of(context)
            mark = f"{context}*" if context == self.context else f"{context} "
            verdicts = [_words(judge(needs, room, cpu)) for room in self.rooms]
            rows.append((mark, size(subject.parts(context).kv), size(needs.cpu_bytes), *verdicts))
        columns = ("context ", "cache", "in all", *(_title(room) for room in self.rooms))
        print_table(columns, rows, numbers=("context ", "cache", "in all"))
        click.echo()
        tell(f"* the context that it would be served with; {_PROBED if self.is_probed else _EXACTNESS}")
        for room in self.rooms:
            self._show_advice(room)

    def _show_advice(self, room: Room) -> None:
        largest, cpu, name = self.largest(room), cpu_room(self.rooms), room.device.id
        if largest is None:
            tell(f"{name}: it does not fit with any context")
        elif largest >= self.subject.largest_context:
            tell(f"{name}: it fits with all of its context, {largest}")
            return
        else:
            tell(f"{name}: it fits with a context of {largest} at most")
        for hint in hints(self.subject, room, cpu, largest):
            tell(f"with `{hint.text}`: {hint.context}", indent=2)
        if room.device.is_gpu and judge(self.needs_of(self.contexts[0]), room, cpu).fit is Fit.PARTLY:
            text = "with `gpu_layers: auto` some of its layers go there and the rest to the CPU, which is slower"
            tell(text, indent=2)

    def plain(self) -> dict[str, Any]:
        header, cpu = self.subject.header, cpu_room(self.rooms)
        engine = self.subject.options(self.context)
        rows = []
        for context in self.contexts:
            needs, parts = self.needs_of(context), self.subject.parts(context)
            rows.append(
                {
                    "context": context,
                    "weights_bytes": parts.weights,
                    "kv_bytes": parts.kv,
                    "compute_bytes": parts.compute,
                    "other_bytes": parts.other,
                    "cpu_bytes": needs.cpu_bytes,
                    "gpu_bytes": needs.gpu_bytes + needs.gpu_compute_bytes,
                    "host_bytes": needs.host_bytes,
                    "devices": {room.device.id: _plain_verdict(judge(needs, room, cpu)) for room in self.rooms},
                }
            )
        return {
            "path": str(self.subject.path),
            "architecture": header.architecture,
            "trained_context": header.trained_context,
            "served_context": self.context,
            "slots": engine.slots,
            "kv_tokens": engine.kv_tokens,
            "cache_type_k": engine.cache_type_k,
            "cache_type_v": engine.cache_type_v,
            "kv_bytes_per_token": self.subject.kv_bytes_per_token(),
            "source": "probe" if self.is_probed else "header",
            "largest_context": {room.device.id: self.largest(room) for room in self.rooms},
            "contexts": rows,
        }


def _title(room: Room) -> str:
    return f"{room.device.id} ({size(room.device.total_bytes)})"


def _words(verdict: Verdict) -> str:
    match verdict.fit:
        case Fit.NOW:
            return "fits"
        case Fit.WHEN_FREE:
            return "fits when others go"
        case Fit.PARTLY:
            return f"{verdict.layers} of {verdict.num_layers} layers"
        case Fit.NOT:
            return f"lacks {size(verdict.missing_bytes)}"


def _plain_verdict(verdict: Verdict) -> dict[str, Any]:
    return {
        "fit": verdict.fit.value,
        "needed_bytes": verdict.needed_bytes,
        "missing_bytes": verdict.missing_bytes,
        "layers": verdict.layers,
    }
