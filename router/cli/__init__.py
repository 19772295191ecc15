"""The command `corral`: finds the command that was asked for, and nothing else.

Owns the list of commands. Each is a module of its own that is imported only when it is used, so that `corral --help`
and `--version` answer at once.
"""

from __future__ import annotations

import contextlib
import difflib
import errno
import importlib
import keyword
import os
import sys
from dataclasses import dataclass
from typing import Any

import click
from click.shell_completion import CompletionItem


@dataclass(frozen=True, slots=True)
class _Entry:
    """Where a command is, and how the list of all commands shows it."""

    section: str
    help: str
    module: str = ""
    """In this package; empty = the command's own name."""


_SERVING = "Serving"
_SERVER = "A running server (CORRAL_URL, CORRAL_API_KEY)"
_FILES = "Model files"
_HERE = "This installation"

_COMMANDS = {
    "serve": _Entry(_SERVING, "Serve models over HTTP."),
    "check": _Entry(_SERVING, "Check what would be served, without serving it."),
    "ps": _Entry(_SERVER, "Show models, slots and memory; --watch keeps on showing them."),
    "load": _Entry(_SERVER, "Load models and wait until they are ready."),
    "unload": _Entry(_SERVER, "Unload models and wait until they are gone.", "load"),
    "pin": _Entry(_SERVER, "Keep a model loaded.", "load"),
    "unpin": _Entry(_SERVER, "Let a model go again when it is idle.", "load"),
    "reload": _Entry(_SERVER, "Read the configuration again."),
    "logs": _Entry(_SERVER, "Print the log of the server, or of a model."),
    "chat": _Entry(_SERVER, "Talk with a model."),
    "bench": _Entry(_SERVER, "Measure a model with more and more requests at once."),
    "pull": _Entry(_FILES, "Fetch models ahead of their first request."),
    "rm": _Entry(_FILES, "Remove fetched models from the disk."),
    "cache": _Entry(_FILES, "Show and clean what Corral keeps on the disk."),
    "fit": _Entry(_FILES, "Tell what a model needs, and with which context it fits where."),
    "devices": _Entry(_HERE, "Show the devices that models can be placed on."),
    "doctor": _Entry(_HERE, "Check the installation, and say what to do."),
    "config": _Entry(_HERE, "Show the configuration's schema, or what it comes to."),
    "import": _Entry(_HERE, "Make a models.yaml of another server's configuration.", "import_"),
    "keys": _Entry(_HERE, "Make API keys."),
    "completion": _Entry(_HERE, "Print a script that completes commands and models in a shell."),
    "version": _Entry(_HERE, "Show the versions of everything that matters."),
}


_MEANT = {"list": "ps", "ls": "ps", "status": "ps", "top": "ps", "run": "chat", "stop": "unload", "start": "serve"}
"""What others call them."""


_UNPRINTABLE = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EBADF})
"""Why a file or a terminal takes no more of what is printed."""


class _Corral(click.Group):
    """A group whose commands are imported when they are asked for."""

    def list_commands(self, ctx: click.Context | None) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context | None, cmd_name: str) -> click.Command | None:
        entry = _COMMANDS.get(cmd_name)
        if entry is None:
            return None
        module = importlib.import_module(f"router.cli.{entry.module or cmd_name}")
        name = cmd_name.replace("-", "_")
        command: click.Command = getattr(module, f"{name}_" if keyword.iskeyword(name) else name)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = str(args[0])
        if name not in _COMMANDS and not name.startswith("-") and not ctx.resilient_parsing:
            near = [_MEANT[name]] if name in _MEANT else difflib.get_close_matches(name, _COMMANDS, n=2)
            hint = f"did you mean {' or '.join(near)}?" if near else "`corral --help` lists them all"
            ctx.fail(f"there is no command {name!r}; {hint}")
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except (KeyboardInterrupt, click.Abort):  # click would say "Aborted!" and end with 1
            raise SystemExit(130) from None
        except OSError as error:
            if error.filename is not None or (text := _broken_surroundings(error)) is None:
                raise
            with contextlib.suppress(OSError):
                click.echo(f"corral: {text}", err=True)
            raise SystemExit(1) from None

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Return what may come next, from the list alone: no command is imported while somebody types."""
        names = [
            CompletionItem(name, help=entry.help) for name, entry in _COMMANDS.items() if name.startswith(incomplete)
        ]
        return [*names, *click.Command.shell_complete(self, ctx, incomplete)]

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for section in dict.fromkeys(entry.section for entry in _COMMANDS.values()):
            rows = [(name, entry.help) for name, entry in _COMMANDS.items() if entry.section == section]
            with formatter.section(section):
                formatter.write_dl(rows)


def _broken_surroundings(error: OSError) -> str | None:
    """Return what is wrong with where the program runs or prints; None = it is something else that has failed."""
    try:
        os.getcwd()
    except FileNotFoundError:
        return "the folder in which this was started is gone: change into another one"
    if error.errno not in _UNPRINTABLE:
        return None
    with contextlib.suppress(OSError, ValueError, AttributeError):  # else the end of the program would try again
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return f"what is to be printed cannot be written: {error.strerror}"


@click.group(cls=_Corral, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(package_name="llama-corral", prog_name="corral", message="%(prog)s %(version)s")
def main() -> None:
    """Serve many GGUF models behind one URL, and look after them.

    Every setting can also be given as an environment variable: --log-level is CORRAL_LOG_LEVEL.
    """
