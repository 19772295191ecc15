"""What `corral check` looks at beyond the catalogue's text: keys, model files, and the list it prints.

Owns these looks and their wording. Must not start, fetch or bind anything.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from router.auth import KeyProblem, load_key_ring
from router.catalog import Catalog, ModelSpec, Problem
from router.gguf_header import GgufError, read_gguf_header
from router.launch import effective_context
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
        if spec.problem is not None:
            continue  # told already
        where = f"models.{spec.name}.model"
        path = _file_of(spec, store)
        if path is None:
            if must_be_here:
                problems.append(Problem(where, f"{spec.source} is not in the cache, and --offline forbids fetching it"))
            continue
        try:
            read_gguf_header(path)
        except (GgufError, OSError) as error:
            problems.append(Problem(where, f"{path}: {error}"))
    return problems


def describe_models(catalog: Catalog, store: ModelStore) -> list[str]:
    """Return a line about each model, for people. Only for a catalogue without problems."""
    lines = []
    for spec in catalog.models.values():
        path = _file_of(spec, store)
        if path is None:
            file = "will be fetched at the first request"
            context = effective_context(spec, None)
        else:
            header = read_gguf_header(path)
            file = f"{header.architecture}, {header.size_bytes / 1e6:.0f} MB"
            context = effective_context(spec, header.trained_context)
        names = f" ({', '.join(spec.aliases)})" if spec.aliases else ""
        tokens = f", {context} tokens a request" if context is not None else ""
        lines.append(f"{spec.name}{names}: {spec.source}: {file}{tokens}, {spec.slots} slots")
    return lines


def _file_of(spec: ModelSpec, store: ModelStore) -> Path | None:
    return store.locate(parse_reference(spec.source), spec.base_dir)
