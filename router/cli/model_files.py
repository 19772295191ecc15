"""What commands about model files are told: references, models of the configuration, files.

Owns what such a word means. Must not fetch or change anything.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from router.cache_folder import default_cache_dir
from router.cli.catalog_file import DEFAULT_FILE, FILE_VARIABLE
from router.cli.output import Command, CommandFailed, ExitCode
from router.references import HubReference, PackageReference, PathReference, Reference, parse_reference

if TYPE_CHECKING:
    from router.catalog import Catalog, ModelSpec
    from router.settings import RouterSettings
    from router.sources import ModelStore

_SCHEMES = ("pkg:", "hf:")
_MAX_NAMES = 20


@dataclass(frozen=True, slots=True)
class NamedFile:
    """One file that was asked for, alone or as a part of a model."""

    reference: Reference
    base_dir: Path
    label: str
    """What it is to whoever asked: the word itself, or `chat` or `chat, draft model`."""
    model: str | None = None
    """Of the configuration; None = it was asked for by its reference."""


def file_option(command: Command) -> Command:
    """The command has an option `--file`, which it gets as `file`: the configuration that names are looked up in."""
    option = click.option(
        "-f",
        "--file",
        envvar=FILE_VARIABLE,
        type=click.Path(path_type=Path),
        help=f"Configuration in which names of models are looked up (default: {DEFAULT_FILE}).",
    )
    return option(command)


def cache_option(command: Command) -> Command:
    """The command has an option `--cache`, as `serve` has it."""
    return click.option("--cache", type=click.Path(path_type=Path), help="Folder for fetched models.")(command)


def cache_folder(settings: RouterSettings) -> Path:
    """Return the folder in which Corral keeps what can be had again."""
    return settings.cache.expanduser() if settings.cache is not None else default_cache_dir()


def open_store(settings: RouterSettings) -> ModelStore:
    """Return the store of model files that the settings name, as the server has it."""
    from router.sources import ModelStore

    return ModelStore(cache_folder(settings), offline=settings.offline)


def find_files(words: Sequence[str], file: Path | None, settings: RouterSettings) -> list[NamedFile]:
    """Return the files that `words` stand for, each once. Raises: CommandFailed."""
    catalog: Catalog | None = None
    found: list[NamedFile] = []
    for word in words:
        reference = as_reference(word)
        if reference is not None:
            found.append(NamedFile(reference, Path.cwd(), word))
            continue
        if catalog is None:
            catalog = read_catalog(file, settings, word)
        found += files_of(find_model(catalog, word))
    unique = {(str(one.reference), one.base_dir): one for one in reversed(found)}
    return list(reversed(unique.values()))


def as_reference(word: str) -> Reference | None:
    """Return the reference that a word is by its form; None = it can only be a name. Raises: CommandFailed."""
    if not (word.startswith(_SCHEMES) or "://" in word or word.endswith(".gguf") or _is_file(word)):
        return None
    try:
        return parse_reference(word)
    except ValueError as error:
        raise CommandFailed(str(error), ExitCode.USAGE) from None


def _is_file(word: str) -> bool:
    # Not `Path`: it raises for what is no name of a file, and a folder may be called like a model.
    return os.path.isfile(os.path.expanduser(word))


def read_catalog(file: Path | None, settings: RouterSettings, word: str) -> Catalog:
    """Return the configuration in which the name `word` is looked up. Raises: CommandFailed if there is none."""
    from router.catalog_files import load_catalog
    from router.catalog_problems import CatalogError

    path = Path(DEFAULT_FILE) if file is None else file
    if not path.exists():
        where = f"there is no {path}" if file is not None else f"there is no {DEFAULT_FILE} in this folder"
        raise CommandFailed(
            f"{word!r} is no reference (pkg:…, hf:…) and no file, and {where} in which it could be the name of a "
            "model; name the configuration with --file",
            ExitCode.NO_SUCH_MODEL,
        )
    try:
        return load_catalog(path, open_store(settings).locate)
    except CatalogError as error:
        first = error.problems[0].describe(path)
        raise CommandFailed(f"{first}\ncorral: `corral check {path}` tells everything that is wrong with it") from None


def try_catalog(file: Path | None, store: ModelStore) -> Catalog | None:
    """Return the configuration that is here; None without one, or while it is wrong."""
    from router.catalog_files import load_catalog
    from router.catalog_problems import CatalogError

    try:
        return load_catalog(Path(DEFAULT_FILE) if file is None else file, store.locate)
    except CatalogError:
        return None


def find_model(catalog: Catalog, name: str) -> ModelSpec:
    """Return the model of this name or alias. Raises: CommandFailed."""
    from router.errors import ModelNotFound

    try:
        return catalog.resolve(name).spec
    except ModelNotFound:
        nearest, all_names = catalog.nearest_names(name), catalog.listed_names()
        if nearest:
            hint = f"did you mean {' or '.join(nearest)}?"
        else:
            num_more = len(all_names) - _MAX_NAMES
            more = f" and {num_more} more (`corral check` lists them)" if num_more > 0 else ""
            hint = f"it has {', '.join(all_names[:_MAX_NAMES])}{more}."
        raise CommandFailed(
            f"there is no model {name!r} in {_shown(catalog.path)}; {hint} A reference is "
            "written pkg:PACKAGE/FILE.gguf or hf:OWNER/REPO/FILE.gguf",
            ExitCode.NO_SUCH_MODEL,
        ) from None


def files_of(spec: ModelSpec) -> list[NamedFile]:
    """Return all files of a model. Raises: CommandFailed for one of another server."""
    if spec.remote is not None:
        raise CommandFailed(f"{spec.name} runs on another server ({spec.remote.url}); it has no file here")
    sources = [(spec.source, spec.name)]
    if spec.draft_source is not None:
        sources.append((spec.draft_source, f"{spec.name}, draft model"))
    sources += [(lora.source, f"{spec.name}, adapter {lora.name}") for lora in spec.loras]
    return [NamedFile(parse_reference(source), spec.base_dir, label, spec.name) for source, label in sources]


def fetchable(reference: Reference) -> bool:
    """Return whether a reference is to something that is fetched."""
    return isinstance(reference, PackageReference | HubReference) and not isinstance(reference, PathReference)


def plain(named: NamedFile) -> dict[str, Any]:
    """Return how JSON names a file."""
    return {"reference": str(named.reference), "model": named.model}


def _shown(path: Path | None) -> str:
    return "the configuration" if path is None else str(path)
