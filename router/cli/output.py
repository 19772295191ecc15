"""What commands print, and with which code they end.

Owns the exit codes, the choice between a terminal, plain text and JSON, and how failures look. Must not know commands.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from enum import IntEnum
from typing import TYPE_CHECKING, Any, Literal, NoReturn, TextIO, TypeVar

import click

from router.cli.formats import clean, json_text

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import BarColumn
    from rich.table import Table
    from rich.text import Text

    Cell = str | Text | None
    """What stands in a table; None is not known."""

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
        click.echo(f"corral: {clean(self.message, keep_lines=True)}", err=True)


def fail(lines: Iterable[str], code: ExitCode = ExitCode.FAILED) -> NoReturn:
    """End the program with `lines` on stderr."""
    for line in lines:
        click.echo(clean(line, keep_lines=True), err=True)
    raise SystemExit(code)


def json_option(command: Command) -> Command:
    """The command has an option `--json`, which it gets as `as_json`."""
    option = click.option("--json", "as_json", is_flag=True, help="Print JSON, for programs.")
    return option(command)


def print_json(value: Any) -> None:
    """One JSON value is on stdout: over several lines for people, in one line for programs that read lines."""
    click.echo(json_text(value, indent=2 if is_terminal() else None))


def json_line(value: Any) -> None:
    """One JSON value is on stdout, in one line."""
    click.echo(json_text(value))


def console() -> Console:
    """Return the terminal, or the plain file, that stdout is. Honours NO_COLOR, FORCE_COLOR and COLUMNS."""
    from rich.console import Console

    return Console(highlight=False, soft_wrap=not is_terminal())


def error_console() -> Console:
    """Return stderr, which is where progress goes: what a command is asked for stands alone on stdout."""
    from rich.console import Console

    return Console(stderr=True, highlight=False, soft_wrap=not _is_tty(sys.stderr))


def progress_bar(width: int = 24) -> BarColumn:
    """Return the bar of a `rich.progress.Progress`; it runs to and fro while nobody knows how much there is."""
    from rich.progress import BarColumn

    return BarColumn(width, complete_style="cyan", finished_style="green", pulse_style="cyan")


def is_terminal() -> bool:
    """Return whether somebody looks at stdout."""
    return _is_tty(sys.stdout)


def is_typed() -> bool:
    """Return whether somebody sits at stdin."""
    return _is_tty(sys.stdin)


def _is_tty(stream: TextIO | None) -> bool:
    # Python has None for a stream that was closed before it began, as services may have it.
    return stream is not None and stream.isatty()


def say(text: str) -> None:
    """A line is on stdout, with whatever a terminal would obey made visible."""
    click.echo(clean(text))


def note(text: str) -> None:
    """A line beside the matter is on stderr: a warning, what is waited for, what to do next."""
    click.echo(clean(text), err=True)


def print_table(
    columns: Sequence[str],
    rows: Sequence[Sequence[Cell]],
    *,
    numbers: Iterable[str] = (),
    droppable: Sequence[str] = (),
) -> None:
    """A table is on stdout; a value that is not known (None) shows as a dash. `numbers` are columns aligned right.

    On a terminal that is too narrow, the columns of `droppable` are left out, the first of them first. In a file or
    a pipe: all columns set with blanks, one row a line however long, no colours, nothing cut off.
    """
    if is_terminal():
        terminal = console()
        terminal.print(make_table(columns, rows, terminal.width, numbers=numbers, droppable=droppable))
        return
    for line in plain_table(columns, rows, numbers=numbers):
        click.echo(line)


def plain_table(columns: Sequence[str], rows: Sequence[Sequence[Cell]], *, numbers: Iterable[str] = ()) -> list[str]:
    """Return the lines of a table without a terminal."""
    lines = [tuple(columns), *(tuple("-" if cell is None else clean(str(cell)) for cell in row) for row in rows)]
    widths = [max(len(line[index]) for line in lines) for index in range(len(columns))]
    right = frozenset(numbers)
    shown = []
    for line in lines:
        cells = (
            value.rjust(width) if name in right else value.ljust(width)
            for name, value, width in zip(columns, line, widths, strict=True)
        )
        shown.append("  ".join(cells).rstrip())
    return shown


def make_table(
    columns: Sequence[str],
    rows: Sequence[Sequence[Cell]],
    width: int,
    *,
    numbers: Iterable[str] = (),
    droppable: Sequence[str] = (),
) -> Table:
    """Return a table for a terminal of `width` columns, as `print_table` prints it."""
    from rich import box
    from rich.table import Table

    texts = [[_cell_text(cell) for cell in row] for row in rows]
    widest = {name: max([len(name), *(row[at].cell_len for row in texts)]) for at, name in enumerate(columns)}
    kept = list(columns)
    for name in droppable:
        if sum(widest[one] + 2 for one in kept) - 2 <= width:
            break
        kept.remove(name)
    right = frozenset(numbers)
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, header_style="bold", show_edge=False, padding=(0, 1, 0, 0))
    for name in kept:
        is_first = name == kept[0]
        justify: Literal["left", "right"] = "right" if name in right else "left"
        table.add_column(name, justify=justify, overflow="fold", min_width=len(name) if is_first else None)
    places = [columns.index(name) for name in kept]
    for row in texts:
        table.add_row(*(row[at] for at in places))
    return table


def _cell_text(cell: Cell) -> Text:
    from rich.text import Text

    if cell is None:
        return Text("–", style="dim")
    return Text(clean(cell)) if isinstance(cell, str) else cell
