"""The command `corral`: finds the command that was asked for, and nothing else.

Owns the list of commands. Each is a module of its own that is imported only when it is used, so that `corral --help`
and `--version` answer at once.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass

import click


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
}


class _Corral(click.Group):
    """A group whose commands are imported when they are asked for."""

    def list_commands(self, ctx: click.Context | None) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context | None, cmd_name: str) -> click.Command | None:
        entry = _COMMANDS.get(cmd_name)
        if entry is None:
            return None
        module = importlib.import_module(f"router.cli.{entry.module or cmd_name}")
        command: click.Command = getattr(module, cmd_name.replace("-", "_"))
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for section in dict.fromkeys(entry.section for entry in _COMMANDS.values()):
            rows = [(name, entry.help) for name, entry in _COMMANDS.items() if entry.section == section]
            with formatter.section(section):
                formatter.write_dl(rows)


@click.group(cls=_Corral, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(package_name="llama-corral", prog_name="corral", message="%(prog)s %(version)s")
def main() -> None:
    """Serve many GGUF models behind one URL, and look after them.

    Every setting can also be given as an environment variable: --log-level is CORRAL_LOG_LEVEL.
    """
