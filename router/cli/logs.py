"""`corral logs`: what the server, or the worker of a model, has printed."""

from __future__ import annotations

import json
from typing import Any

import click

from router.cli.completing import complete_models
from router.cli.output import CommandFailed, ExitCode, json_line, json_option, say
from router.cli.server import Server, open_server, server_option

_FOLLOWED_FROM = 20
"""Lines that come first where new ones are followed."""


@click.command()
@click.argument("model", required=False, shell_complete=complete_models)
@click.option("-f", "--follow", is_flag=True, help="Go on with new lines, also of the model's next workers.")
@click.option(
    "-n",
    "--lines",
    type=click.IntRange(0, 10_000),
    help=f"Begin with so many of the last lines (default: all that are kept, with -f {_FOLLOWED_FROM}).",
)
@json_option
@server_option
def logs(model: str | None, follow: bool, lines: int | None, as_json: bool, url: str | None) -> None:
    """Print the last lines of MODEL's worker, or of the server itself. They hold no prompts and no answers.

    With --json each line is an object of its own: a line that the server logs as JSON is given as it is, another one
    stands under the keys `model` and `line`.
    """
    if lines is None and follow:
        lines = _FOLLOWED_FROM
    with open_server(url) as server:
        num_printed = _print(server, model, follow=follow, num_lines=lines, as_json=as_json)
        if follow:
            text = f"the server at {server.url} has ended the log: it stops, or takes the key no longer"
            raise CommandFailed(text, ExitCode.NO_SERVER)
    if not num_printed and lines != 0 and not as_json:
        click.echo(f"corral: no lines yet: {_why_empty(model)}", err=True)


def _print(server: Server, model: str | None, *, follow: bool, num_lines: int | None, as_json: bool) -> int:
    """Return how many lines have been printed."""
    query = {"model": model, "lines": num_lines, "follow": "true" if follow else None}
    num_printed = 0
    with server.lines("GET", "/admin/logs", query=query, max_silence_s=None if follow else 60.0) as found:
        for line in found:
            if as_json:
                json_line(_as_object(model, line))
            else:
                say(line)
            num_printed += 1
    return num_printed


def _as_object(model: str | None, line: str) -> dict[str, Any]:
    """Return a line that the server has written as JSON as what it says, another one as text."""
    try:
        found = json.loads(line) if line.startswith("{") else None
    except ValueError:
        found = None
    return found if isinstance(found, dict) else {"model": model, "line": line}


def _why_empty(model: str | None) -> str:
    return (
        "nothing was logged" if model is None else f"no worker of {model} has printed anything since the server began"
    )
