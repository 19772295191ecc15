"""`corral reload`: the running server reads its configuration again."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import click

from router.cli.formats import counted
from router.cli.output import CommandFailed, ExitCode, fail, json_option, print_json, say
from router.cli.server import Refused, Server, open_server, server_option
from router.cli.shapes import RELOADED, expect


@click.command()
@json_option
@server_option
def reload(as_json: bool, url: str | None) -> None:
    """Let the server read its configuration again, and print what that has changed.

    Where it cannot be used nothing changes, and every problem is printed with its line. Edits of the file are noticed
    by the server itself; this is for who wants to know, and for what lies outside of it, such as keys.
    """
    with open_server(url) as server:
        try:
            found = server.post("/admin/reload")
        except Refused as refusal:
            problems = _problems(refusal)
            if not problems:
                raise
            if as_json:
                print_json(refusal.body)
                raise SystemExit(ExitCode.FAILED) from None
            path = _path(server)
            count = f"{counted(len(problems), 'problem')}; nothing has changed, the server goes on as before"
            fail([*(_described(problem, path) for problem in problems), count])
    expect(found, RELOADED, server.url, "what has changed")
    if as_json:
        print_json(found)
        return
    for line in describe_changes(found):
        say(line)


def describe_changes(found: Mapping[str, Any]) -> Iterator[str]:
    """Yield what a reload has changed, a line for each model."""
    for name in found.get("added") or ():
        yield f"added    {name}"
    for name in found.get("removed") or ():
        yield f"removed  {name}"
    restarted = found.get("restarted_when_idle") or {}
    for name, keys in (found.get("changed") or {}).items():
        yield f"changed  {name}: {', '.join(keys)}"
    for name, keys in restarted.items():
        yield f"changed  {name}: {', '.join(keys)} (takes effect when it is loaded anew, which happens once it is idle)"
    if settings := found.get("settings"):
        yield f"changed  for all models: {', '.join(settings)}"
    is_empty = not any(found.get(key) for key in ("added", "removed", "changed", "restarted_when_idle", "settings"))
    models = counted(int(found.get("models") or 0), "model")
    yield f"nothing has changed; {models}" if is_empty else f"{models} now"


def _problems(refusal: Refused) -> list[Mapping[str, Any]]:
    body = refusal.body if isinstance(refusal.body, dict) else {}
    found = body.get("problems") or body.get("errors") or []
    return [one for one in found if isinstance(one, dict)]


def _path(server: Server) -> Path | None:
    """Return the file that the server reads, as far as it tells."""
    try:
        return Path(str(server.get("/admin/config")["path"]))
    except (CommandFailed, KeyError, TypeError):
        return None


def _described(problem: Mapping[str, Any], path: Path | None) -> str:
    """Return a problem as `corral check` prints it."""
    from router.catalog_problems import Problem

    told = Problem(
        str(problem.get("where") or ""), str(problem.get("message") or ""), problem.get("line"), problem.get("column")
    )
    return told.describe(path)
