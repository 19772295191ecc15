"""The picture of a server on a terminal: its tables below each other, no wider and no higher than there is room.

Owns what is left out where there is little room, and says that something is. Must not ask a server.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from router.cli import ps_rows
from router.cli.formats import clean, counted
from router.cli.output import make_table
from router.cli.picture import Picture
from router.cli.ps_rows import Table

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

_HEAD_LINES = 2
"""Of a table: the names of its columns and the line below them."""
_MAX_WARNING_LINES = 6


def compose(
    picture: Picture,
    console: Console,
    *,
    url: str,
    now: float,
    all_models: bool,
    height: int | None = None,
    notice: str | None = None,
) -> RenderableType:
    """Return everything below each other in at most `height` lines (None = any number), `notice` at its head."""
    from rich.console import Group
    from rich.text import Text

    width = console.width
    models = ps_rows.shown_models(picture, all_models=all_models)
    head = [Text(clean(ps_rows.heading(picture, url, now)), style="bold")]
    if notice is not None:
        head.append(Text(clean(notice), style="bold red"))
    head += [Text(clean(line), style="red") for line in ps_rows.warnings(picture, models, now)]
    parts = _parts(picture, models)
    num_head = sum(_height(console, line) for line in head)
    if height is not None:
        while len(head) > 1 and num_head > max(_MAX_WARNING_LINES, height // 4):
            num_head -= _height(console, head.pop())
    rest = len(picture.models) - len(models)
    if height is not None:
        room = height - num_head - bool(rest)
        while len(parts) > 1 and sum(_HEAD_LINES + 2 + (len(part.rows) > 1) for part in parts) > room:
            parts.pop()
    limits = None if height is None else _limits([len(part.rows) for part in parts], height - num_head - bool(rest))
    shown: list[RenderableType] = list(head)
    for at, part in enumerate(parts):
        shown += [Text(""), *_limited(part, width, None if limits is None else limits[at])]
        if at == 0 and rest:
            shown.append(Text(_resting(rest), style="dim"))
    return Group(*shown)


def plain_lines(picture: Picture, *, url: str, now: float, all_models: bool) -> list[str]:
    """Return the same for a file or a pipe."""
    from router.cli.output import plain_table

    models = ps_rows.shown_models(picture, all_models=all_models)
    lines = [clean(line) for line in (ps_rows.heading(picture, url, now), *ps_rows.warnings(picture, models, now))]
    for at, part in enumerate(_parts(picture, models, has_bars=False)):
        lines += ["", *plain_table(part.columns, part.rows, numbers=part.numbers)]
        if at == 0 and (rest := len(picture.models) - len(models)):
            lines.append(_resting(rest))
    return lines


def _parts(picture: Picture, models: Sequence[Mapping[str, Any]], *, has_bars: bool = True) -> list[Table]:
    """Return the tables that have something to show, those of the models first."""
    parts = [ps_rows.model_table(picture, models)]
    more = [ps_rows.slot_table(picture), ps_rows.queue_table(picture), ps_rows.device_table(picture, has_bars=has_bars)]
    return parts + [table for table in more if table.rows]


def _resting(num: int) -> str:
    return f"and {counted(num, 'model')} at rest: --all shows them"


def _limits(counts: Sequence[int], height: int) -> list[int]:
    """Return how many rows each table may have so that all fit: the longest gives way, and keeps one."""
    limits = list(counts)

    def lines() -> int:
        cut = sum(limit < count for limit, count in zip(limits, counts, strict=True))
        return sum(limits) + cut + len(counts) * (_HEAD_LINES + 1)

    while lines() > height and max(limits) > 1:
        limits[limits.index(max(limits))] -= 1
    return limits


def _limited(table: Table, width: int, limit: int | None) -> list[RenderableType]:
    from rich.text import Text

    num_left = 0 if limit is None else max(0, len(table.rows) - limit)
    kept = replace(table, rows=table.rows[: len(table.rows) - num_left])
    shown: list[RenderableType] = [
        make_table(kept.columns, kept.rows, width, numbers=kept.numbers, droppable=kept.droppable)
    ]
    if num_left:
        shown.append(Text(f"… {num_left} more", style="dim"))
    return shown


def _height(console: Console, text: Any) -> int:
    return len(console.render_lines(text, pad=False))
