"""`corral serve`: serves models until it is told to stop."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from router.cli.catalog_file import (
    fail_with_problems,
    file_argument,
    find_catalog_file,
    read_settings_or_fail,
    warn_of_unknown_variables,
)
from router.cli.output import fail
from router.early_hangup import note_early_hangups

if TYPE_CHECKING:
    from router.settings import RouterSettings


@click.command()
@file_argument
@click.option("--host", help="Address to listen on (default 127.0.0.1). Others than loopback need API keys.")
@click.option("--port", type=click.IntRange(0, 65535), help="Port to listen on (default 8080); 0 = any free one.")
@click.option("--api-key-file", type=click.Path(path_type=Path), help="File with one API key per line.")
@click.option("--tls-cert", type=click.Path(path_type=Path), help="File with the server's certificate: speak HTTPS.")
@click.option("--tls-key", type=click.Path(path_type=Path), help="File with the key of the certificate.")
@click.option("--tls-client-ca", type=click.Path(path_type=Path), help="Only clients with a certificate of this CA.")
@click.option("--admin-socket", help="Answer operators only here: a Unix socket's path, or HOST:PORT.")
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
    note_early_hangups()
    settings = read_settings_or_fail(options)
    path = find_catalog_file(file, "serve")

    from router.logs import set_up_logging

    set_up_logging(settings.log_level, settings.log_format)

    from router.catalog_files import load_catalog
    from router.catalog_problems import CatalogError
    from router.serve import CannotServe, make_store, run

    try:
        catalog = load_catalog(path, make_store(settings).locate)
    except CatalogError as error:
        fail_with_problems(error.problems, path)
    warn_of_unknown_variables(catalog)
    try:
        code = run(catalog, settings)
    except CannotServe as error:
        fail([f"corral: {_who_is_there(str(error), settings)}"])
    raise SystemExit(code)


def _who_is_there(text: str, settings: RouterSettings) -> str:
    """Return the message, and that it is a Corral that has the port if it is."""
    from router.doctor.ports import corral_at

    other = "in use by another program; stop that one"
    if other not in text or (release := corral_at(settings.host, settings.port)) is None:
        return text
    return text.replace(other, f"in use: Corral {release} runs there already (`corral ps` shows it); stop that one")
