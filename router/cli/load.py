"""`corral load`, `unload`, `pin` and `unpin`: what is to be in memory."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import click

from router.cli.completing import complete_models
from router.cli.model_wait import Ended, Entry, listed_models, load_ended, shown_progress, unload_ended, wait_for
from router.cli.output import CommandFailed, ExitCode, fail, json_option, print_json, say
from router.cli.server import Refused, Server, open_server, server_option
from router.cli.shapes import ASKED, PINNED, expect

_no_wait_option = click.option("--no-wait", is_flag=True, help="Ask for it, and do not wait until it is so.")


@click.command()
@click.argument("models", metavar="MODEL...", nargs=-1, required=True, shell_complete=complete_models)
@_no_wait_option
@json_option
@server_option
def load(models: tuple[str, ...], no_wait: bool, as_json: bool, url: str | None) -> None:
    """Load each MODEL and wait until it is ready, with the progress of its download and load.

    Loads that have begun go on when this command is interrupted. Exits with 1 if one of them fails.
    """
    with open_server(url) as server:
        asked, refused = _ask(server, "/models/load", models)
        if no_wait:
            _report(asked, refused, _as_told(asked), as_json)
            return
        _report(asked, refused, _wait(server, asked, load_ended, "loads"), as_json)


@click.command()
@click.argument("models", metavar="[MODEL...]", nargs=-1, shell_complete=complete_models)
@click.option("--all", "all_models", is_flag=True, help="Unload every model that is loaded or about to be.")
@_no_wait_option
@json_option
@server_option
def unload(models: tuple[str, ...], all_models: bool, no_wait: bool, as_json: bool, url: str | None) -> None:
    """Unload each MODEL and wait until it is gone.

    Requests that run may end first, for as long as the configuration lets them.
    """
    if bool(models) == all_models:
        raise click.UsageError("name the models, or give --all")
    with open_server(url) as server:
        names = models or _loaded(server)
        if not names:
            if as_json:
                print_json([])
            else:
                say("no model is loaded")
            return
        asked, refused = _ask(server, "/models/unload", names)
        if no_wait:
            _report(asked, refused, _as_told(asked), as_json)
            return
        ends = _wait(server, asked, lambda entry, _waiting_for, _elapsed_s: unload_ended(entry), "unloads")
        _report(asked, refused, ends, as_json)


@click.command()
@click.argument("model", shell_complete=complete_models)
@json_option
@server_option
def pin(model: str, as_json: bool, url: str | None) -> None:
    """Keep MODEL loaded once it is: neither idleness nor another model unloads it, until the server stops."""
    _pin(model, True, as_json, url)


@click.command()
@click.argument("model", shell_complete=complete_models)
@click.option("--as-configured", is_flag=True, help="Follow `pin` in the configuration again, whatever that says.")
@json_option
@server_option
def unpin(model: str, as_configured: bool, as_json: bool, url: str | None) -> None:
    """Let MODEL be unloaded when it is idle, or when another model needs its place."""
    _pin(model, None if as_configured else False, as_json, url)


def _pin(model: str, wanted: bool | None, as_json: bool, url: str | None) -> None:
    with open_server(url) as server:
        try:
            answer = server.post("/admin/pin", {"model": model, "pin": wanted})
        except Refused as refusal:
            if refusal.is_unknown_route or refusal.status == 501:
                raise CommandFailed(f"{server.url} is older than this command: it cannot pin models") from None
            raise
    expect(answer, PINNED, server.url, "whether the model is pinned")
    if as_json:
        print_json(answer)
        return
    name = answer["model"]
    since = "as its configuration says" if wanted is None else "until the server stops"
    if answer["is_pinned"]:
        say(f"{name}: pinned {since}; it stays loaded once it is (`corral load {name}`)")
    else:
        say(f"{name}: not pinned, {since}; it may be unloaded when it is idle")


def _ask(server: Server, path: str, names: Sequence[str]) -> tuple[dict[str, Any], dict[str, Refused]]:
    """Return the answers and the refusals, by name. Raises: CommandFailed for what concerns all of them."""
    answers: dict[str, Any] = {}
    refusals: dict[str, Refused] = {}
    for name in dict.fromkeys(names):
        at_s = time.monotonic()
        try:
            found = server.post(path, {"model": name})
            expect(found, ASKED, server.url, "what it does now")
            answers[name] = {**found, "at_s": at_s}
        except Refused as refusal:
            if refusal.exit_code == ExitCode.REFUSED:
                raise
            refusals[name] = refusal
    return answers, refusals


def _as_told(asked: Mapping[str, Any]) -> dict[str, Ended]:
    """Return what the server has said at once; one that tells no state has at least taken the order."""
    return {name: Ended(True, str(found.get("state") or "asked for")) for name, found in asked.items()}


def _wait(
    server: Server, asked: Mapping[str, Any], ended: Callable[[Entry, str | None, float], Ended | None], verb: str
) -> dict[str, Ended]:
    ends: dict[str, Ended] = {}
    since = {name: found["at_s"] for name, found in asked.items()}
    try:
        with shown_progress() as show:
            for name, what in wait_for(server, since, ended):
                show(name, what)
                if isinstance(what, Ended):
                    took_s = time.monotonic() - since[name]
                    is_old = asked[name].get("state") == what.text
                    how = "already" if is_old else f"after {took_s:.1f} s"
                    ends[name] = Ended(True, f"{what.text} {how}") if what.is_ok else what
    except KeyboardInterrupt:
        left = ", ".join(name for name in asked if name not in ends)
        fail([f"corral: interrupted; the server still {verb} {left} (`corral ps` shows how far it is)"],
             ExitCode.INTERRUPTED)  # fmt: skip
    return ends


def _report(asked: Mapping[str, Any], refused: Mapping[str, Refused], ends: Mapping[str, Ended], as_json: bool) -> None:
    """What became of each model is told; the command ends with the code that this means."""
    told = {name: ends[name] for name in asked} | {name: Ended(False, why.message) for name, why in refused.items()}
    if as_json:
        print_json(
            [
                {"model": asked.get(name, {}).get("model", name), "success": end.is_ok, "result": end.text}
                for name, end in told.items()
            ]
        )
    else:
        for name, end in told.items():
            if end.is_ok:
                say(f"{name}: {end.text}")
    failed = [name for name, end in told.items() if not end.is_ok]
    if failed:
        refusals = {why.exit_code for why in refused.values()}
        code = refusals.pop() if len(refusals) == 1 and len(failed) == len(refused) else ExitCode.FAILED
        lines = [f"corral: {name}: {told[name].text}" for name in failed]
        more = [
            f"corral: `corral logs {name}` shows what its worker has printed" for name in failed if told[name].has_log
        ]
        fail(lines + more[:1], ExitCode(code))


def _loaded(server: Server) -> list[str]:
    return [one["id"] for one in listed_models(server) if one.get("workers") or one.get("progress")]
