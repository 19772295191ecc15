"""What commands print, and with which code they end.

Owns the exit codes, the choice between a terminal, plain text and JSON, and how failures look. Must not know commands.
"""

from __future__ import annotations

import functools
import json
import sys
from collections.abc import Callable, Iterable, Sequence
from enum import IntEnum
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

import click

if TYPE_CHECKING:
    from rich.console import Console

Command = TypeVar("Command", bound=Callable[..., Any])


class ExitCode(IntEnum):
    """How a command ended; docs/command-line.md has the same list."""

    OK = 0
    FAILED = 1
    """The thing itself failed, or problems were found."""
    USAGE = 2
    """Wrong arguments. Source: click's own code for them."""
    NO_SERVER = 3
    """Nothing answers at the address."""
    REFUSED = 4
    """The API key is missing, wrong, or lacks a scope."""
    NO_SUCH_MODEL = 5
    INTERRUPTED = 130
    """By Ctrl-C. Source: shells, which add the number of a signal to 128."""


class CommandFailed(click.ClickException):
    """A command ends with a message on stderr and a code."""

    def __init__(self, message: str, code: ExitCode = ExitCode.FAILED) -> None:
        super().__init__(message)
        self.exit_code = int(code)  # type: ignore[misc]  # click reads it of the instance

    def show(self, file: Any = None) -> None:
        """The message is on stderr."""
        click.echo(f"corral: {self.message}", err=True)


def fail(lines: Iterable[str], code: ExitCode = ExitCode.FAILED) -> NoReturn:
    """End the program with `lines` on stderr."""
    for line in lines:
        click.echo(line, err=True)
    raise SystemExit(code)


def json_option(command: Command) -> Command:
    """The command has an option `--json`, which it gets as `as_json`."""
    option = click.option("--json", "as_json", is_flag=True, help="Print JSON, for programs.")
    return option(command)


def print_json(value: Any) -> None:
    """One JSON value is on stdout: over several lines for people, in one line for programs that read lines."""
    indent = 2 if sys.stdout.isatty() else None
    click.echo(json.dumps(value, indent=indent, ensure_ascii=False))


@functools.cache
def console() -> Console:
    """Return the terminal, or the plain file, that stdout is. Honours NO_COLOR, FORCE_COLOR and COLUMNS."""
    from rich.console import Console

    return Console(highlight=False, soft_wrap=not sys.stdout.isatty())


def is_terminal() -> bool:
    """Return whether somebody looks at stdout."""
    return sys.stdout.isatty()


def print_table(columns: Sequence[str], rows: Sequence[Sequence[str | None]], *, numbers: Iterable[str] = ()) -> None:
    """A table is on stdout; a value that is not known (None) shows as a dash. `numbers` are columns aligned right.

    In a file or a pipe: the same columns set with blanks, one row a line however long, no colours, nothing cut off.
    """
    if is_terminal():
        console().print(_rich_table(columns, rows, frozenset(numbers)))
        return
    lines = [tuple(columns), *(tuple("-" if value is None else value for value in row) for row in rows)]
    widths = [max(len(line[index]) for line in lines) for index in range(len(columns))]
    right = frozenset(numbers)
    for line in lines:
        cells = (
            value.rjust(width) if name in right else value.ljust(width)
            for name, value, width in zip(columns, line, widths, strict=True)
        )
        click.echo("  ".join(cells).rstrip())


def _rich_table(columns: Sequence[str], rows: Sequence[Sequence[str | None]], numbers: frozenset[str]) -> Any:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, header_style="bold")
    for name in columns:
        table.add_column(name, justify="right" if name in numbers else "left", overflow="fold")
    for row in rows:
        table.add_row(*(Text("–", style="dim") if value is None else Text(value) for value in row))
    return table
