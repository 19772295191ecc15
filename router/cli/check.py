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
from router.cli.output import ExitCode, json_option, print_json


@click.command()
@file_argument
@click.option("--cache", type=click.Path(path_type=Path), help="Folder for fetched models.")
@click.option("--offline", is_flag=True, default=None, help="Count models as missing that would have to be fetched.")
@json_option
def check(file: Path | None, as_json: bool, **options: Any) -> None:
    """Check FILE without serving it: print all problems, or the models if there is none.

    Exits with 1 when anything is wrong, a missing model file or key included. As JSON: `ok`, `problems` with their
    lines, `models`.
    """
    settings = read_settings_or_fail(options)
    path = find_catalog_file(file, "check")

    from router import catalog_files
    from router.checking import describe_models, file_problems, key_problems, model_facts, rule_problems
    from router.cli.model_files import open_store

    store = open_store(settings)
    found = catalog_files.examine(path, store.locate)
    catalog, reading = found.catalog, found.reading
    problems = found.problems
    if found.is_sound:  # else what it names may not be what was meant
        warn_of_unknown_variables(catalog)
        more = key_problems(settings, catalog, os.environ, reading)
        more += file_problems(catalog, store, must_be_here=settings.offline, reading=reading)
        more += rule_problems(catalog, reading)
        problems = catalog_files.in_order([*problems, *more])
    if as_json:
        models = [] if problems else [model_facts(spec, store) for spec in catalog.models.values()]
        told = [problem.to_json() for problem in problems]
        print_json({"ok": not problems, "path": str(path), "problems": told, "models": models})
        raise SystemExit(ExitCode.FAILED if problems else ExitCode.OK)
    if problems:
        fail_with_problems(problems, path)
    for line in describe_models(catalog, store):
        click.echo(line)
