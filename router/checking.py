"""What `corral check` looks at beyond the catalogue's text: keys, model files, and the list it prints.

Owns these looks and their wording. Must not start, fetch or bind anything.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from router.auth import KeyProblem, load_key_ring
from router.catalog import Catalog, LoraSpec, ModelSpec, Problem
from router.fetch.protocol import SourceError
from router.gguf_header import GgufError, read_gguf_header
from router.launch import effective_context
from router.lora_files import check_lora, locate_lora
from router.references import parse_reference
from router.settings import RouterSettings
from router.sources import ModelStore


def key_problems(settings: RouterSettings, catalog: Catalog, environ: Mapping[str, str]) -> list[Problem]:
    """Return why the API keys cannot be read; [] = they can."""
    try:
        load_key_ring(settings, catalog.keys, environ)
    except KeyProblem as problem:
        return [Problem("", str(problem))]
    return []


def file_problems(catalog: Catalog, store: ModelStore, *, must_be_here: bool) -> list[Problem]:
    """Return what is wrong with the model files that are on this machine, or lacks if all `must_be_here`."""
    problems = []
    for spec in catalog.models.values():
        if spec.problem is not None:  # it is told already
            continue
        found = _model_problem(spec, store, must_be_here=must_be_here)
        if found is not None:
            problems.append(Problem(f"models.{spec.name}.model", found))
            continue
        found = _draft_problem(spec, store, must_be_here=must_be_here)
        problems += [] if found is None else [Problem(f"models.{spec.name}.draft_model", found)]
        for lora in spec.loras:
            found = _lora_problem(spec, lora, store, must_be_here=must_be_here)
            problems += [] if found is None else [Problem(f"models.{spec.name}.loras.{lora.name}", found)]
    return problems


def problem_of(spec: ModelSpec, store: ModelStore, *, must_be_here: bool) -> str | None:
    """Return why a model cannot be served, as far as a look at its files tells; None = nothing is known against it."""
    if spec.problem is not None:
        return spec.problem
    looks = (_lora_problem(spec, lora, store, must_be_here=must_be_here) for lora in spec.loras)
    return (
        _model_problem(spec, store, must_be_here=must_be_here)
        or _draft_problem(spec, store, must_be_here=must_be_here)
        or next((one for one in looks if one), None)
    )


def _model_problem(spec: ModelSpec, store: ModelStore, *, must_be_here: bool) -> str | None:
    return _file_problem(spec.source, spec, store, must_be_here=must_be_here)


def _draft_problem(spec: ModelSpec, store: ModelStore, *, must_be_here: bool) -> str | None:
    if spec.draft_source is None:
        return None
    problem = _file_problem(spec.draft_source, spec, store, must_be_here=must_be_here)
    return None if problem is None else f"draft model: {problem}"


def _file_problem(source: str, spec: ModelSpec, store: ModelStore, *, must_be_here: bool) -> str | None:
    """Return why the GGUF file that `source` names cannot be used."""
    try:
        path = store.locate(parse_reference(source), spec.base_dir)
    except (SourceError, ValueError) as error:
        return str(error)
    if path is None:
        name = parse_reference(source).short()
        return f"{name} is not in the cache, and --offline forbids fetching it" if must_be_here else None
    try:
        header = read_gguf_header(path)
    except (GgufError, OSError) as error:
        return f"{path}: {error}"
    if header.metadata.get("general.type") == "adapter":
        return f"{path}: it is an adapter, not a model; name it under `loras` of the model it was made for"
    return None


def _lora_problem(spec: ModelSpec, lora: LoraSpec, store: ModelStore, *, must_be_here: bool) -> str | None:
    """Return what is wrong with an adapter of a model that has no problem itself."""
    try:
        path = locate_lora(store, lora, spec.base_dir)
        base = _file_of(spec, store)
        if path is not None and base is not None:
            check_lora(lora, path, read_gguf_header(base))
    except (SourceError, OSError) as error:
        return str(error)
    if path is None and must_be_here:
        name = parse_reference(lora.source).short()
        return f"LoRA adapter `{lora.name}`: {name} is not in the cache, and --offline forbids fetching it"
    return None


def describe_models(catalog: Catalog, store: ModelStore) -> list[str]:
    """Return a line about each model in aligned columns, and one that counts them. For a catalogue without problems."""
    rows = []
    for spec in catalog.models.values():
        path = _file_of(spec, store)
        if path is None:
            file = "fetched at the first request"
            context = effective_context(spec, None)
        else:
            header = read_gguf_header(path)
            file = f"{header.architecture}, {header.size_bytes / 1e6:.0f} MB"
            context = effective_context(spec, header.trained_context)
        tokens = f"{context} tokens a request, " if context is not None else ""
        names = f"also called {', '.join(spec.aliases)}" if spec.aliases else ""
        adapters = f"LoRA adapters {', '.join(lora.name for lora in spec.loras)}" if spec.loras else ""
        slots = "1 slot" if spec.slots == 1 else f"{spec.slots} slots"
        rows.append((spec.name, file, f"{tokens}{slots}", parse_reference(spec.source).short(), names, adapters))
    count = "1 model" if len(rows) == 1 else f"{len(rows)} models"
    return [*_aligned(rows), f"{count}, no problems"]


def _aligned(rows: Sequence[tuple[str, ...]]) -> list[str]:
    """Return each row as a line in which columns begin at the same place."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def _file_of(spec: ModelSpec, store: ModelStore) -> Path | None:
    return store.locate(parse_reference(spec.source), spec.base_dir)
