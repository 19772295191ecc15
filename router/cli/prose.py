"""Sentences on stdout: wrapped at words on a terminal, one line each elsewhere.

Owns the wrapping alone. Commands and paths that are to be copied are not wrapped: `tell_whole`.
"""

from __future__ import annotations

import click

from router.cli.formats import clean
from router.cli.output import console, is_terminal


def tell(text: str, *, indent: int = 0, style: str = "") -> None:
    """A sentence is on stdout, its further lines as deep as the first."""
    if not is_terminal():
        click.echo(" " * indent + clean(text))
        return
    from rich.padding import Padding
    from rich.text import Text

    console().print(Padding(Text(clean(text), style=style), (0, 0, 0, indent)))


def tell_whole(text: str, *, indent: int = 0, style: str = "") -> None:
    """A line is on stdout that may be longer than a terminal is wide."""
    if not is_terminal():
        click.echo(" " * indent + clean(text))
        return
    from rich.text import Text

    console().print(Text(" " * indent + clean(text), style=style), soft_wrap=True)


def tell_advice(step: str, *, indent: int) -> None:
    """A step of an advice is on stdout; one that is a command (`$ …`) can be copied."""
    if step.startswith("$ "):
        tell_whole(step, indent=indent, style="cyan")
    else:
        tell(step, indent=indent, style="dim")
