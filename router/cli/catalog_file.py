"""What commands share that read a configuration: its argument, the settings, and how their problems are told.

Owns the search for the file and the wording where there is none. Must not serve anything.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click

from router.cli.output import fail

if TYPE_CHECKING:
    from router.catalog import Catalog
    from router.catalog_problems import Problem
    from router.settings import RouterSettings

DEFAULT_FILE = "models.yaml"
FILE_VARIABLE = "CORRAL_FILE"

_FILE_FORMS = """give one of
  corral {command} models.yaml      models with options
  corral {command} model.gguf       one model file
  corral {command} FOLDER           every .gguf file in a folder"""

file_argument = click.argument("file", required=False, envvar=FILE_VARIABLE, type=click.Path(path_type=Path))


def read_settings_or_fail(options: dict[str, Any]) -> RouterSettings:
    """Return the settings of the environment and of `options`; end the program with all that is wrong with them."""
    from router.settings import SettingsError, read_settings

    try:
        return read_settings(**options)
    except SettingsError as error:
        fail([f"corral: {problem}" for problem in error.problems])


def find_catalog_file(file: Path | None, command: str) -> Path:
    """Return what to read; end the program with the forms of `command` if nothing is given and nothing is here."""
    if file is not None:
        return file
    path = Path(DEFAULT_FILE)
    if not path.exists():
        if any(Path().glob("*.gguf")):
            fail(
                [
                    f"corral: there is no {DEFAULT_FILE} in this folder ({Path.cwd()}), but there are .gguf files; "
                    f"to take all of them: corral {command} ."
                ]
            )
        forms = _FILE_FORMS.format(command=command)
        fail([f"corral: there is no {DEFAULT_FILE} in this folder ({Path.cwd()}); {forms}"])
    return path


def warn_of_unknown_variables(catalog: Catalog) -> None:
    """Tell on stderr which CORRAL_* variables nobody reads."""
    from router.settings import unknown_variables

    for warning in unknown_variables(os.environ, catalog):
        click.echo(f"corral: warning: {warning}", err=True)


def fail_with_problems(problems: Sequence[Problem], path: Path) -> NoReturn:
    """End the program with every problem and their number."""
    count = "1 problem" if len(problems) == 1 else f"{len(problems)} problems"
    fail([*(problem.describe(path) for problem in problems), count])
