"""What `corral check` looks at beyond the catalogue's text: keys, model files, and the list it prints.

Owns these looks and their wording. Must not start, fetch or bind anything.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from router.api_keys import KeySpec
from router.auth import KeyProblem, key_problem, load_key_ring
from router.catalog import Catalog, LoraSpec, ModelSpec
from router.catalog_parser import CatalogReading
from router.catalog_problems import Problem
from router.catalog_view import unmatched
from router.fetch.protocol import SourceError
from router.gguf_header import GgufError, read_gguf_header
from router.launch import effective_context
from router.lora_files import check_lora, locate_lora
from router.reasons import gigabytes
from router.references import parse_reference
from router.rule_values import wrong_rules
from router.settings import RouterSettings
from router.sources import ModelStore

_NOT_READ = CatalogReading(Catalog({}), ())


def key_problems(
    settings: RouterSettings, catalog: Catalog, environ: Mapping[str, str], reading: CatalogReading
) -> list[Problem]:
    """Return why API keys cannot be read, and what they allow in vain, each at its place; [] = nothing is wrong."""
    problems: list[Problem] = []
    try:
        load_key_ring(settings, (), environ)
    except KeyProblem as problem:
        problems.append(Problem("", str(problem)))
    for key in catalog.keys:
        place = reading.keys.get(key.id)
        line, column = (place.line, place.column) if place is not None else (None, None)
        if (message := key_problem(key, environ)) is not None:
            problems.append(Problem(f"keys.{key.id}", message, line, column))
        problems += [Problem(where, message, line, column) for where, message in vain_names(catalog, [key])]
    return problems


def vain_names(catalog: Catalog, keys: Sequence[KeySpec]) -> list[tuple[str, str]]:
    """Return what the `models` of `keys` allow in vain: the place of each, and what is wrong with it."""
    message = "fits no model and no alias, so that it allows nothing"
    return [
        (f"keys.{key.id}.models[{number}]", message) for key in keys for number in unmatched(catalog, key.limits.models)
    ]


def file_problems(
    catalog: Catalog, store: ModelStore, *, must_be_here: bool, reading: CatalogReading = _NOT_READ
) -> list[Problem]:
    """Return what is wrong with the files of models that are on this machine, or lacks if all `must_be_here`.

    `reading` tells where in the text each file is named.
    """
    problems: list[Problem] = []
    for spec in catalog.models.values():
        if spec.problem is not None:  # it is told already
            continue
        problems += _hook_problems(spec, reading)
        if spec.remote is not None:
            continue
        found = _model_problem(spec, store, must_be_here=must_be_here)
        if found is not None:
            problems.append(_placed(reading, spec, "model", found))
            continue
        found = _draft_problem(spec, store, must_be_here=must_be_here)
        problems += [] if found is None else [_placed(reading, spec, "draft_model", found)]
        for lora in spec.loras:
            found = _lora_problem(spec, lora, store, must_be_here=must_be_here)
            problems += [] if found is None else [_placed(reading, spec, f"loras.{lora.name}", found)]
    return problems


def rule_problems(catalog: Catalog, reading: CatalogReading = _NOT_READ) -> list[Problem]:
    """Return which request rules no route would take, each at its place. What other servers take is not known."""
    problems: list[Problem] = []
    for spec in catalog.models.values():
        if spec.remote is not None:
            continue
        for name, message in wrong_rules(spec.request):
            problems.append(_ruled(reading, spec, "request", name, message))
        for alias in spec.aliases.values():
            for name, message in wrong_rules(alias.request):
                problems.append(_ruled(reading, spec, "aliases", f"{alias.name}.request.{name}", message))
    return list(dict.fromkeys(problems))


def _ruled(reading: CatalogReading, spec: ModelSpec, key: str, place: str, message: str) -> Problem:
    """Return a problem inside an option, at the option's line."""
    found = reading.options.get(spec.name, {}).get(key)
    if found is None:
        return Problem(f"models.{spec.name}.{key}.{place}", message)
    return Problem(f"{found.where}.{place}", message, found.place.line, found.place.column)


def _placed(reading: CatalogReading, spec: ModelSpec, key: str, message: str) -> Problem:
    """Return the problem at the place of a model's option; `loras.NAME` is one of its adapters."""
    option, _, part = key.partition(".")
    found = reading.options.get(spec.name, {}).get(option)
    if found is not None and option == "loras":
        found = next((one for one in found.value if one.value.name == part), found)
    if found is None:
        return Problem(f"models.{spec.name}.{key}", message)
    where = f"{found.where}.{part}" if option == "hooks" else found.where
    return Problem(where, message, found.place.line, found.place.column)


def _hook_problems(spec: ModelSpec, reading: CatalogReading) -> Iterator[Problem]:
    for field in fields(spec.hooks):
        command = getattr(spec.hooks, field.name)
        if isinstance(command, tuple) and command and (message := _program_problem(command[0], spec.base_dir)):
            yield _placed(reading, spec, f"hooks.{field.name}", message)


def _program_problem(program: str, folder: Path) -> str | None:
    """Return why a hook's program cannot be run."""
    if "/" not in program:
        return None if shutil.which(program) else f"there is no program `{program}` on the PATH of this server"
    path = folder / program
    if not path.is_file():
        return f"there is no file {path}"
    return None if os.access(path, os.X_OK) else f"{path} is not executable: chmod +x"


def problem_of(spec: ModelSpec, store: ModelStore, *, must_be_here: bool) -> str | None:
    """Return why a model cannot be served, as far as a look at its files tells; None = nothing is known against it."""
    if spec.problem is not None or spec.remote is not None:
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
        known = model_facts(spec, store)
        if spec.remote is not None:
            file = "on another server"
        elif known["path"] is None:
            file = "fetched at the first request"
        else:
            file = f"{known['architecture']}, {gigabytes(known['bytes'])}"
        context = known["context"]
        tokens = f"{context} tokens a request, " if context is not None else ""
        names = f"also called {', '.join(spec.aliases)}" if spec.aliases else ""
        adapters = f"LoRA adapters {', '.join(lora.name for lora in spec.loras)}" if spec.loras else ""
        slots = "1 slot" if spec.slots == 1 else f"{spec.slots} slots"
        slots += f" in each of {spec.replicas} workers" if spec.replicas > 1 else ""
        if spec.remote is not None:
            source, room = f"{spec.remote.model} at {spec.remote.url}", tokens.removesuffix(", ")
        else:
            source, room = parse_reference(spec.source).short(), f"{tokens}{slots}"
        rows.append((spec.name, file, room, source, names, adapters))
    count = "1 model" if len(rows) == 1 else f"{len(rows)} models"
    return [*_aligned(rows), f"{count}, no problems"]


def model_facts(spec: ModelSpec, store: ModelStore) -> dict[str, Any]:
    """Return what programs are told about a model without problems; None = not known before it is fetched."""
    path = _file_of(spec, store) if spec.remote is None else None
    header = None if path is None else read_gguf_header(path)
    trained = None if header is None else header.trained_context
    return {
        "name": spec.name,
        "aliases": list(spec.aliases),
        "loras": [lora.name for lora in spec.loras],
        "model": spec.source or None,
        "url": None if spec.remote is None else spec.remote.url,
        "path": None if path is None else str(path),
        "architecture": None if header is None else header.architecture,
        "bytes": None if header is None else header.size_bytes,
        "context": spec.context if spec.remote is not None else effective_context(spec, trained),
        "slots": None if spec.remote is not None else spec.slots,
        "replicas": None if spec.remote is not None else spec.replicas,
    }


def _aligned(rows: Sequence[tuple[str, ...]]) -> list[str]:
    """Return each row as a line in which columns begin at the same place."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def _file_of(spec: ModelSpec, store: ModelStore) -> Path | None:
    return store.locate(parse_reference(spec.source), spec.base_dir)
