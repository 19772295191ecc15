"""`corral ps`: what is loaded, what it does, and who waits."""

from __future__ import annotations

import sys
import time
from datetime import datetime

import click

from router.cli import ps_view
from router.cli.formats import percent
from router.cli.live import follow, read_status
from router.cli.output import CommandFailed, ExitCode, console, is_terminal, json_line, json_option, print_json, say
from router.cli.picture import Picture, share_of
from router.cli.server import Event, Server, open_server, server_option


@click.command()
@click.option("-a", "--all", "all_models", is_flag=True, help="Show every model, however many there are.")
@click.option("-w", "--watch", is_flag=True, help="Keep on showing: the whole screen, or lines where none is.")
@json_option
@server_option
def ps(all_models: bool, watch: bool, as_json: bool, url: str | None) -> None:
    """Show the models of the server with their slots, speeds and memory, its devices, and what waits for what.

    A dash is a value that is not known. With --watch the screen follows the server until q or Ctrl-C. Where the output
    is no terminal, --watch prints a line for each change of a model, and with --json every event as a line of its own.
    """
    with open_server(url) as server:
        if watch and as_json:
            _print_events(server)
        elif watch and is_terminal() and not console().is_dumb_terminal:
            from router.cli.watch import Watch

            Watch(server, console(), all_models=all_models).run(sys.stdin)
        elif watch:
            _print_changes(server)
        else:
            status = read_status(server)
            if as_json:
                print_json(status)
            else:
                _print_picture(Picture.of(status), server, all_models=all_models)


def change_line(before: str | None, event: Event, at: datetime) -> str | None:
    """Return the line for a model's change; None if nothing of it has changed since the line `before`."""
    model = event.data
    parts = [str(model.get("id")), str(model.get("state"))]
    if isinstance(progress := model.get("progress"), dict):
        parts = [parts[0], str(progress.get("phase") or parts[1])]
        if (share := percent(share_of(progress))) is not None:
            parts.append(share)
    if model.get("reason"):
        parts.append(str(model["reason"]))
    line = " ".join(parts)
    return None if line == before else f"{at.isoformat(timespec='seconds')} {line}"


def _print_picture(picture: Picture, server: Server, *, all_models: bool) -> None:
    now = time.time()
    if is_terminal():
        terminal = console()
        terminal.print(ps_view.compose(picture, terminal, url=server.url, now=now, all_models=all_models))
        return
    for line in ps_view.plain_lines(picture, url=server.url, now=now, all_models=all_models):
        say(line)


def _print_events(server: Server) -> None:
    for event in follow(server):
        json_line({"event": event.name, "data": event.data})
    raise _ended(server)


def _print_changes(server: Server) -> None:
    told: dict[str, str] = {}
    for event in follow(server):
        now = datetime.now().astimezone()
        if event.name == "model":
            name = str(event.data.get("id"))
            line = change_line(told.get(name), event, now)
            if line is not None:
                told[name] = line.partition(" ")[2]
                say(line)
        elif event.name == "model_removed":
            say(f"{now.isoformat(timespec='seconds')} {event.data.get('model')} removed")
    raise _ended(server)


def _ended(server: Server) -> CommandFailed:
    return CommandFailed(
        f"the server at {server.url} has ended the stream: it stops, or takes the key no longer", ExitCode.NO_SERVER
    )
