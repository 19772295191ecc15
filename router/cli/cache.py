"""`corral cache`: what Corral keeps on the disk, and taking some of it away.

Owns the table and the choice of what goes. What is what in the folder is `router/cache_survey.py`'s business.
"""

from __future__ import annotations

import re
import shutil
import time
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import click

from router.cache_survey import CacheEntry, CacheKind, InUse, remove, survey
from router.cli.catalog_file import read_settings_or_fail
from router.cli.formats import duration, size
from router.cli.model_files import cache_folder, cache_option, file_option, open_store, try_catalog
from router.cli.output import CommandFailed, ExitCode, is_typed, json_option, note, print_json, print_table
from router.cli.rm import ask
from router.references import parse_reference

_AGE = re.compile(r"(?P<count>\d+(?:\.\d+)?)\s*(?P<unit>[smhdw]?)")
_UNITS = {"": 86_400, "s": 1, "m": 60, "h": 3_600, "d": 86_400, "w": 7 * 86_400}


@click.group(invoke_without_command=True)
@file_option
@cache_option
@json_option
@click.pass_context
def cache(context: click.Context, /, **options: Any) -> None:
    """Show and clean what Corral keeps on the disk. Without a command: `list`."""
    if context.invoked_subcommand is None:
        context.invoke(list_, **options)


@cache.command("list")
@file_option
@cache_option
@json_option
def list_(file: Path | None, as_json: bool, **options: Any) -> None:
    """List fetched models, saved prompts and measurements, with their sizes and ages."""
    folder, entries, users = _look(file, options)
    groups = _grouped(entries)
    total = sum(entry.num_bytes for entry in entries)
    if as_json:
        listed = [_plain(entry, users) for entry in entries]
        print_json({"folder": str(folder), "bytes": total, "entries": listed})
        return
    click.echo(f"{folder}: {size(total)}{_free(folder)}")
    if not entries:
        click.echo("nothing is kept there yet")
        return
    now_s = time.time()
    rows = []
    for (kind, subject), group in groups.items():
        newest = max(entry.changed_s for entry in group)
        amount = size(sum(entry.num_bytes for entry in group))
        models = ", ".join(users.get(group[0].reference or "", ())) or ("unused" if group[0].reference else "")
        rows.append((kind.value, _short(subject), str(len(group)), amount, duration(now_s - newest), models))
    click.echo()
    columns = ("kind", "what", "files", "size", "age", "models")
    print_table(columns, rows, numbers=("files", "size", "age"), droppable=("files", "age"))


@cache.command()
@click.option(
    "--kind",
    "kinds",
    multiple=True,
    type=click.Choice([kind.value for kind in CacheKind]),
    help="Take only this kind; may be given several times. Fetched models go only where they are named.",
)
@click.option("--older-than", metavar="AGE", help="Take only what was not changed or used for so long: 12h, 30d, 2w.")
@click.option("--unused", is_flag=True, help="Of fetched models, take only those that no model of the file uses.")
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@click.option("--dry-run", is_flag=True, help="Only show what would go.")
@file_option
@cache_option
@json_option
def clean(
    kinds: tuple[str, ...],
    older_than: str | None,
    unused: bool,
    yes: bool,
    dry_run: bool,
    file: Path | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Remove some of it: unfinished downloads, saved prompts, measurements, and fetched models if they are named.

    Says what would go and asks. Where nobody can be asked nothing is removed without --yes.
    """
    if not kinds and older_than is None and not unused:
        raise CommandFailed(
            f"say what is to go: --kind KIND ({', '.join(CacheKind)}), --older-than AGE, or --unused for fetched "
            "models that the configuration does not use",
            ExitCode.USAGE,
        )
    folder, entries, users = _look(file, options)
    if unused and not users:
        raise CommandFailed(
            "--unused needs a configuration to compare with, and there is none here that can be read: name it with "
            "--file",
            ExitCode.USAGE,
        )
    least_s = 0.0 if older_than is None else _seconds(older_than)
    chosen = _choose(entries, kinds, time.time() - least_s, users if unused else None)
    if not chosen:
        if as_json:
            print_json({"folder": str(folder), "removed_bytes": 0, "removed": [], "kept": []})
        else:
            click.echo("nothing of that is there")
        return
    is_only_shown = dry_run or (not yes and not is_typed())
    if not as_json or is_only_shown or not yes:
        for (kind, subject), group in _grouped(chosen).items():
            count = "" if len(group) == 1 else f", {len(group)} files"
            amount = size(sum(entry.num_bytes for entry in group))
            note(f"{kind}: {_short(subject)}{count}: {amount}")
    total = sum(entry.num_bytes for entry in chosen)
    if is_only_shown:
        if as_json:
            plain = [_plain(entry, users) for entry in chosen]
            print_json({"folder": str(folder), "removed_bytes": 0, "removed": [], "would_remove": plain})
        else:
            click.echo(f"{size(total)} would go; nothing was removed: --yes does it")
        return
    if not yes:
        ask(f"Remove {size(total)}?")
    _remove_all(folder, chosen, users, as_json=as_json)


def _remove_all(folder: Path, chosen: Sequence[CacheEntry], users: dict[str, list[str]], *, as_json: bool) -> None:
    removed, kept = [], []
    for entry in chosen:
        try:
            remove(entry)
        except (InUse, OSError) as error:
            reason = str(error) if isinstance(error, InUse) else (error.strerror or str(error))
            note(f"corral: {_short(entry.subject)} stays: {reason}")
            kept.append(_plain(entry, users) | {"reason": reason})
        else:
            removed.append(entry)
    freed = sum(entry.num_bytes for entry in removed)
    if as_json:
        plain = [_plain(entry, users) for entry in removed]
        print_json({"folder": str(folder), "removed_bytes": freed, "removed": plain, "kept": kept})
    else:
        click.echo(f"removed {size(freed)}")
    if kept:
        raise SystemExit(ExitCode.FAILED)


def _look(file: Path | None, options: dict[str, Any]) -> tuple[Path, list[CacheEntry], dict[str, list[str]]]:
    """Return the folder, what is in it, and by reference the models of the configuration that use it."""
    settings = read_settings_or_fail(options)
    folder = cache_folder(settings)
    users: dict[str, list[str]] = defaultdict(list)
    catalog = try_catalog(file, open_store(settings))
    for spec in catalog.models.values() if catalog is not None else ():
        sources = [spec.source, spec.draft_source, *(lora.source for lora in spec.loras)]
        for source in sources if spec.remote is None else ():
            if source:
                users[str(parse_reference(source))].append(spec.name)
    return folder, survey(folder), users


def _choose(
    entries: Iterable[CacheEntry], kinds: Sequence[str], before_s: float, users: dict[str, list[str]] | None
) -> list[CacheEntry]:
    """Return what is to go; `users`: what is used, where fetched models that are unused are meant."""
    wanted = set(kinds) or ({CacheKind.DOWNLOADS} if users is not None else set(CacheKind) - {CacheKind.DOWNLOADS})
    return [
        entry
        for entry in entries
        if entry.kind in wanted
        and entry.changed_s <= before_s
        and not (users is not None and entry.kind is CacheKind.DOWNLOADS and users.get(entry.reference or ""))
    ]


def _grouped(entries: Iterable[CacheEntry]) -> dict[tuple[CacheKind, str], list[CacheEntry]]:
    groups: dict[tuple[CacheKind, str], list[CacheEntry]] = defaultdict(list)
    for entry in entries:
        groups[entry.kind, entry.subject].append(entry)
    return groups


def _plain(entry: CacheEntry, users: dict[str, list[str]]) -> dict[str, Any]:
    return {
        "kind": entry.kind.value,
        "subject": entry.subject,
        "path": str(entry.path),
        "bytes": entry.num_bytes,
        "changed_at": entry.changed_s,
        "models": users.get(entry.reference, []) if entry.reference is not None else None,
    }


def _short(subject: str) -> str:
    """Return a reference as messages name it, other subjects as they are."""
    if not subject.startswith("pkg:"):
        return subject
    try:
        return parse_reference(subject).short()
    except ValueError:
        return subject


def _seconds(text: str) -> float:
    match = _AGE.fullmatch(text.strip().lower())
    if match is None:
        raise CommandFailed(f"--older-than {text}: write a number and a unit, such as 12h, 30d or 2w", ExitCode.USAGE)
    return float(match["count"]) * _UNITS[match["unit"]]


def _free(folder: Path) -> str:
    try:
        return f", {size(shutil.disk_usage(folder).free)} free on this disk"
    except OSError:
        return ""
