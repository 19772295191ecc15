"""The command `corral`: reads arguments, calls one function, prints what went wrong.

Owns texts and exit codes of the command line. Imports what is heavy only inside the command that needs it, so that
`corral --version` and `--help` answer at once.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click

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

_file_argument = click.argument("file", required=False, envvar=FILE_VARIABLE, type=click.Path(path_type=Path))


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(package_name="llama-corral", prog_name="corral", message="%(prog)s %(version)s")
def main() -> None:
    """Serve many GGUF models behind one URL.

    Every setting can also be given as an environment variable: --log-level is CORRAL_LOG_LEVEL.
    """


@main.command(short_help="Serve models over HTTP.")
@_file_argument
@click.option("--host", help="Address to listen on (default 127.0.0.1). Others than loopback need API keys.")
@click.option("--port", type=click.IntRange(0, 65535), help="Port to listen on (default 8080); 0 = any free one.")
@click.option("--api-key-file", type=click.Path(path_type=Path), help="File with one API key per line.")
@click.option("--cache", type=click.Path(path_type=Path), help="Folder for fetched models.")
@click.option("--offline", is_flag=True, default=None, help="Never fetch a model.")
@click.option("--log-level", type=click.Choice(["debug", "info", "warning", "error"]), help="Default: info.")
@click.option(
    "--log-format",
    type=click.Choice(["auto", "text", "json"]),
    help="Default: auto, which is text on a terminal and json elsewhere.",
)
@click.option("--allow-unauthenticated", is_flag=True, default=None, help="Let any address be used without keys.")
def serve(file: Path | None, **options: Any) -> None:
    """Serve FILE: a models.yaml (default: ./models.yaml), a .gguf file, or a folder of .gguf files.

    Keys come from CORRAL_API_KEYS and CORRAL_ADMIN_KEYS (comma-separated), never from arguments, which every user
    of the machine can read.
    """
    settings = _settings(options)
    path = _catalog_path(file, "serve")

    from router.logs import set_up_logging

    set_up_logging(settings.log_level, settings.log_format)

    from router.catalog_files import load_catalog
    from router.catalog_problems import CatalogError
    from router.serve import CannotServe, make_store, run

    try:
        catalog = load_catalog(path, make_store(settings).locate)
    except CatalogError as error:
        _fail_with(error.problems, path)
    _warn_of_unknown_variables(catalog)
    try:
        code = run(catalog, settings)
    except CannotServe as error:
        _fail([f"corral: {error}"])
    raise SystemExit(code)


@main.command(short_help="Check what would be served, without serving it.")
@_file_argument
@click.option("--cache", type=click.Path(path_type=Path), help="Folder for fetched models.")
@click.option("--offline", is_flag=True, default=None, help="Count models as missing that would have to be fetched.")
def check(file: Path | None, **options: Any) -> None:
    """Check FILE without serving it: print all problems, or the models if there is none.

    Exits with 1 when anything is wrong, a missing model file or key included.
    """
    settings = _settings(options)
    path = _catalog_path(file, "check")

    from router import catalog_files
    from router.checking import describe_models, file_problems, key_problems
    from router.serve import make_store

    store = make_store(settings)
    found = catalog_files.examine(path, store.locate)
    if not found.is_sound:  # then what it names may not be what was meant
        _fail_with(found.problems, path)
    catalog, reading = found.catalog, found.reading
    _warn_of_unknown_variables(catalog)
    more = key_problems(settings, catalog, os.environ, reading)
    more += file_problems(catalog, store, must_be_here=settings.offline, reading=reading)
    if found.problems or more:
        _fail_with(catalog_files.in_order([*found.problems, *more]), path)
    for line in describe_models(catalog, store):
        click.echo(line)


def _settings(options: dict[str, Any]) -> RouterSettings:
    from router.settings import SettingsError, read_settings

    try:
        return read_settings(**options)
    except SettingsError as error:
        _fail([f"corral: {problem}" for problem in error.problems])


def _catalog_path(file: Path | None, command: str) -> Path:
    if file is not None:
        return file
    path = Path(DEFAULT_FILE)
    if not path.exists():
        if any(Path().glob("*.gguf")):
            _fail(
                [
                    f"corral: there is no {DEFAULT_FILE} in this folder ({Path.cwd()}), but there are .gguf files; "
                    f"to take all of them: corral {command} ."
                ]
            )
        forms = _FILE_FORMS.format(command=command)
        _fail([f"corral: there is no {DEFAULT_FILE} in this folder ({Path.cwd()}); {forms}"])
    return path


def _warn_of_unknown_variables(catalog: Catalog) -> None:
    from router.settings import unknown_variables

    expected = {FILE_VARIABLE, *(key.env for key in catalog.keys if key.env is not None)}
    expected |= {spec.remote.key_env for spec in catalog.models.values() if spec.remote and spec.remote.key_env}
    for warning in unknown_variables(os.environ, expected):
        click.echo(f"corral: warning: {warning}", err=True)


def _fail_with(problems: Sequence[Problem], path: Path) -> NoReturn:
    count = "1 problem" if len(problems) == 1 else f"{len(problems)} problems"
    _fail([*(problem.describe(path) for problem in problems), count])


def _fail(lines: list[str]) -> NoReturn:
    for line in lines:
        click.echo(line, err=True)
    raise SystemExit(1)
