"""`corral rm`: removes fetched models from Corral's cache, after asking.

Owns which files it takes: what Corral has fetched into its own cache, never a file given by its path, never one of an
installed package; of the Hub's cache, which other programs share, nothing either.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from router.cache_survey import CacheEntry, CacheKind, InUse, remove, survey
from router.cli.catalog_file import read_settings_or_fail
from router.cli.completing import complete_local_models
from router.cli.formats import size
from router.cli.model_files import NamedFile, cache_folder, cache_option, file_option, find_files, plain
from router.cli.output import CommandFailed, ExitCode, is_typed, json_option, note, print_json
from router.hub_source import hub_cache_dir, locate_hub, repo_folder
from router.package_source import find_installed, package_folder
from router.references import HubReference, PackageReference, PathReference


@click.command()
@click.argument("names", metavar="REF|MODEL…", nargs=-1, required=True, shell_complete=complete_local_models)
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@file_option
@cache_option
@json_option
def rm(names: tuple[str, ...], yes: bool, file: Path | None, as_json: bool, **options: Any) -> None:
    """Remove fetched models from Corral's cache; the next request fetches them again.

    REF is a reference as in models.yaml, MODEL a name of the configuration: then its draft model and its adapters go
    as well. A server that has the model loaded keeps it until it unloads it.
    """
    settings = read_settings_or_fail(options)
    folder = cache_folder(settings)
    files = find_files(names, file, settings)
    entries = survey(folder)
    found: dict[Path, tuple[NamedFile, CacheEntry]] = {}
    kept: list[tuple[NamedFile, str]] = []
    for named in files:
        mine = _entries_of(named, folder, entries)
        found |= {entry.path: (named, entry) for entry in mine}
        if not mine:
            kept.append((named, _why_not(named)))
    if not found:
        raise CommandFailed("; ".join(reason for _, reason in kept))
    for _, reason in kept:
        note(f"corral: {reason}")
    if not as_json or not yes:
        for named, entry in found.values():
            note(f"{named.label}: {size(entry.num_bytes)} in {entry.path}")
    total = sum(entry.num_bytes for _, entry in found.values())
    if not yes:
        ask(f"Remove {size(total)}?")
    results = [_remove(named, entry) for named, entry in found.values()]
    freed = sum(result["bytes"] for result in results if result["removed"])
    if as_json:
        print_json({"removed_bytes": freed, "files": results})
    else:
        click.echo(f"removed {size(freed)}")
    if kept or not all(result["removed"] for result in results):
        raise SystemExit(ExitCode.FAILED)


def ask(question: str) -> None:
    """Somebody has said yes, else the program ends. Raises: CommandFailed where nobody is there to answer."""
    if not is_typed():
        raise CommandFailed("nobody is there to be asked: add --yes to do it", ExitCode.USAGE)
    if not click.confirm(question, default=False, err=True):
        note("nothing was removed")
        raise SystemExit(ExitCode.OK)


def _entries_of(named: NamedFile, cache_dir: Path, entries: list[CacheEntry]) -> list[CacheEntry]:
    """Return what there is of the file in the cache, unfinished parts included."""
    if not isinstance(named.reference, PackageReference):
        return []
    folder = package_folder(cache_dir, named.reference)
    return [entry for entry in entries if entry.path in (folder, folder / ".partial")]


def _why_not(named: NamedFile) -> str:
    """Return why there is nothing to remove of a file."""
    match named.reference:
        case PathReference() as reference:
            return f"{named.label}: {reference} is a file of yours, not a download; Corral removes only what it fetched"
        case HubReference() as reference:
            if (path := locate_hub(reference, hub_cache_dir())) is None:
                return f"{named.label}: {reference.short()} is not on this machine"
            repo = repo_folder(hub_cache_dir(), reference)
            return (
                f"{named.label}: {path.name} lies in the Hub's cache, which other programs share, so it stays: "
                f"`hf cache rm model/{reference.repo_id}` removes the whole repository, {repo}"
            )
        case PackageReference() as reference:
            installed = next((one for one in reference.packages if find_installed(one) is not None), None)
            if installed is not None:
                return (
                    f"{named.label}: {installed.name} is an installed package, which Corral did not fetch: "
                    f"`{sys.executable} -m pip uninstall {installed.name}` removes it"
                )
            return f"{named.label}: {reference.short()} is not in the cache"


def _remove(named: NamedFile, entry: CacheEntry) -> dict[str, Any]:
    result = plain(named) | {"path": str(entry.path), "bytes": entry.num_bytes, "removed": True, "error": None}
    try:
        remove(entry)
    except (InUse, OSError) as error:
        reason = str(error) if isinstance(error, InUse) else (error.strerror or str(error))
        what = "the unfinished download" if entry.kind is CacheKind.UNFINISHED else "the download"
        note(f"corral: {named.label}: {what} stays: {reason}")
        return result | {"removed": False, "error": reason}
    return result
