"""`corral keys`: makes API keys.

Owns how a new key is shown: once, with what to write where. Must not write files, nor take a key as an argument, which
every user of the machine could read.
"""

from __future__ import annotations

import hashlib
import secrets
import sys

import click
import yaml

from router.catalog_scalars import name_problem
from router.cli.output import json_option, print_json

_NUM_BYTES = 32
_PREFIX = "corral-"
"""So that whoever finds a key in the wrong place sees what it is."""


@click.group()
def keys() -> None:
    """Make API keys."""


@keys.command()
@click.option("--id", "id_", default="my-app", show_default=True, metavar="NAME", help="What the key is called.")
@json_option
def new(id_: str, as_json: bool) -> None:
    """Make a random key, and print what to write into the configuration.

    The key is printed this once and kept nowhere: the configuration gets its SHA-256 sum. The first line of the output
    is the key; where the output is no terminal, it is all of it, and the rest goes to the standard error.
    """
    if (problem := name_problem(id_)) is not None:
        raise click.BadParameter(problem, param_hint="--id")
    key = _PREFIX + secrets.token_urlsafe(_NUM_BYTES)
    digest = hashlib.sha256(key.encode()).hexdigest()
    if as_json:
        print_json({"id": id_, "key": key, "sha256": digest})
        return
    is_piped = not sys.stdout.isatty()  # then what reads it wants the key alone
    click.echo(key)
    click.echo("\nThis is the key, for its user; it is not shown again. In models.yaml:\n", err=is_piped)
    click.echo(yaml.safe_dump({"keys": {id_: {"sha256": digest}}}, width=1000, allow_unicode=True), err=is_piped)
    click.echo(f"Or as a line of a key file (--api-key-file, or `file:` of a key):\n\nsha256:{digest}", err=is_piped)
