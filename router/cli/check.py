"""`corral check`: tells everything that is wrong with a configuration."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import click

from router.cli.catalog_file import (
    fail_with_problems,
    file_argument,
    find_catalog_file,
    read_settings_or_fail,
    warn_of_unknown_variables,
)


@click.command()
@file_argument
@click.option("--cache", type=click.Path(path_type=Path), help="Folder for fetched models.")
@click.option("--offline", is_flag=True, default=None, help="Count models as missing that would have to be fetched.")
def check(file: Path | None, **options: Any) -> None:
    """Check FILE without serving it: print all problems, or the models if there is none.

    Exits with 1 when anything is wrong, a missing model file or key included.
    """
    settings = read_settings_or_fail(options)
    path = find_catalog_file(file, "check")

    from router import catalog_files
    from router.checking import describe_models, file_problems, key_problems
    from router.serve import make_store

    store = make_store(settings)
    found = catalog_files.examine(path, store.locate)
    if not found.is_sound:  # then what it names may not be what was meant
        fail_with_problems(found.problems, path)
    catalog, reading = found.catalog, found.reading
    warn_of_unknown_variables(catalog)
    more = key_problems(settings, catalog, os.environ, reading)
    more += file_problems(catalog, store, must_be_here=settings.offline, reading=reading)
    if found.problems or more:
        fail_with_problems(catalog_files.in_order([*found.problems, *more]), path)
    for line in describe_models(catalog, store):
        click.echo(line)
