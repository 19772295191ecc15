"""`corral bench`: how a model does with more and more requests at once."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click

from router.cli.bench_figures import COLUMNS, DROPPABLE, Level, Shot, row_of, sweep
from router.cli.bench_plot import check_plot, draw
from router.cli.bench_shots import Plan, Range
from router.cli.completing import complete_models
from router.cli.formats import counted, percent
from router.cli.model_wait import entry_of
from router.cli.output import (
    CommandFailed,
    ExitCode,
    error_console,
    json_option,
    note,
    print_json,
    print_table,
    progress_bar,
    say,
)
from router.cli.server import Server, open_server, server_option

_MAX_AT_ONCE = 96
"""More would wait for a connection here instead of for the server."""


def _read_counts(_context: click.Context, _option: click.Parameter, value: str | None) -> tuple[int, ...] | None:
    """Return numbers of requests at once, which are separated by commas."""
    if value is None:
        return None
    parts = [part.strip() for part in value.split(",")]
    if not all(part.isascii() and part.isdigit() and 1 <= int(part[:9]) <= _MAX_AT_ONCE for part in parts):
        raise click.BadParameter(f"{value!r} must be numbers from 1 to {_MAX_AT_ONCE}, such as 1,2,4,8")
    return tuple(int(part) for part in parts)


@click.command()
@click.argument("model", shell_complete=complete_models)
@click.option(
    "-c",
    "--concurrency",
    metavar="N,N,…",
    callback=_read_counts,
    help="So many requests at once, one measurement each (default: 1, 2, 4 … up to twice the model's slots).",
)
@click.option("-p", "--prompt", type=click.IntRange(1), default=128, show_default=True, help="Tokens of each prompt.")
@click.option("-t", "--tokens", type=click.IntRange(2), default=64, show_default=True, help="Tokens of each answer.")
@click.option(
    "-r", "--requests", type=click.IntRange(1), help="Requests of each measurement (default: 3 for each at once)."
)
@click.option(
    "--max-time",
    type=click.FloatRange(min=1),
    default=60.0,
    show_default=True,
    help="Seconds after which a measurement begins no more requests.",
)
@click.option("--same-prompt", is_flag=True, help="Give all requests one prompt, so that it comes from the cache.")
@click.option(
    "--plot",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Draw the figures into this .png, .svg or .pdf file.",
)
@json_option
@server_option
def bench(
    model: str,
    concurrency: tuple[int, ...] | None,
    prompt: int,
    tokens: int,
    requests: int | None,
    max_time: float,
    same_prompt: bool,
    plot: Path | None,
    as_json: bool,
    url: str | None,
) -> None:
    """Measure MODEL on the running server: first token, gaps between tokens, tokens in a second.

    The model is loaded and warmed up first, which does not count. Prompts differ from their first word on, so that the
    cache does not flatter. Other clients of the server slow the measurement down, and are slowed down by it.

    FIRST is the time until the first token is there, GAP the time between two pieces of text; p50 is what half of them
    did not exceed, p95 what 95 % did not. Exits with 1 if a request failed.
    """
    if plot is not None:
        check_plot(plot)
    with open_server(url) as server:
        entry = entry_of(server, model)
        _expect_room(entry, prompt, tokens)
        steps = concurrency or _default_sweep(entry)
        aim = Range(server, Plan(model, prompt, tokens, is_same_prompt=same_prompt))
        levels: list[Level] = []
        interrupted = False
        try:
            _measure(server, aim, steps, requests, max_time, levels)
        except KeyboardInterrupt:
            interrupted = True
    settings = {"model": entry["id"], "prompt_tokens": prompt, "answer_tokens": tokens, "same_prompt": same_prompt}
    if as_json:
        print_json({"url": server.url, **settings, "levels": [level.to_json() for level in levels]})
    elif levels:
        _print_levels(levels)
    if interrupted:
        raise SystemExit(ExitCode.INTERRUPTED)
    if plot is not None and any(level.good for level in levels):
        draw(levels, f"{entry['id']}: {prompt} tokens of prompt, {tokens} of answer", plot)
        note(f"corral: drawn into {plot}")
    if any(level.failures for level in levels):
        raise CommandFailed(_failures(levels))


def _measure(
    server: Server, aim: Range, steps: Sequence[int], requests: int | None, max_s: float, levels: list[Level]
) -> None:
    """Every step is measured, until one of them fails altogether. Mutates: `levels`, which has those that ended."""
    with _progress() as begin:
        begin("loading and warming up", None)
        aim.warm_up()
        for step in steps:
            num_requests = requests or max(4, 3 * step)
            level = aim.fire(step, num_requests, max_s, begin(f"{step} at once", num_requests))
            levels.append(level)
            if not level.good:
                return


@contextmanager
def _progress() -> Iterator[Callable[[str, int | None], Callable[[Shot], None]]]:
    """Inside the block, stderr shows what is measured and how far that is."""
    terminal = error_console()
    if not terminal.is_terminal or terminal.is_dumb_terminal:

        def tell(what: str, _total: int | None) -> Callable[[Shot], None]:
            note(what)
            return lambda _shot: None

        yield tell
        return
    from rich.progress import Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), progress_bar(), TextColumn("{task.fields[done]}"), TimeElapsedColumn())
    with Progress(*columns, console=terminal, transient=True) as bars:
        task = bars.add_task("", total=None, done="")

        def begin(what: str, total: int | None) -> Callable[[Shot], None]:
            num_done = 0

            def show() -> None:
                done = "" if total is None else f"{num_done} of {counted(total, 'request')}"
                bars.update(task, description=what, total=total, completed=num_done, done=done)

            def count(_shot: Shot) -> None:
                nonlocal num_done
                num_done += 1
                show()

            show()
            return count

        yield begin


def _print_levels(levels: Sequence[Level]) -> None:
    print_table(COLUMNS, [row_of(level) for level in levels], numbers=COLUMNS, droppable=DROPPABLE)
    cached = [share for level in levels if (share := level.cached_share())]
    if cached:
        say(f"up to {percent(max(cached))} of the prompts came from the server's cache")


def _failures(levels: Sequence[Level]) -> str:
    found: dict[str, int] = {}
    for level in levels:
        for why, num in level.failures.items():
            found[why] = found.get(why, 0) + num
    told = "; ".join(f"{num} x {why}" for why, num in sorted(found.items(), key=lambda one: -one[1])[:5])
    return f"{counted(sum(found.values()), 'request')} failed: {told}"


def _default_sweep(entry: Mapping[str, Any]) -> list[int]:
    slots, workers = entry.get("slots"), len(entry.get("workers") or ()) or 1
    return [num for num in sweep(slots * workers if isinstance(slots, int) else 4) if num <= _MAX_AT_ONCE]


def _expect_room(entry: Mapping[str, Any], prompt: int, tokens: int) -> None:
    """Raises: CommandFailed for a model that makes no text, and for requests that are longer than its context."""
    able = entry.get("capabilities")
    if isinstance(able, list) and "completion" not in able:
        raise CommandFailed(f"{entry.get('id')} makes no text: it is for {', '.join(map(str, able))}")
    context = entry.get("context_length")
    if isinstance(context, int) and prompt + tokens > context:
        text = (
            f"--prompt {prompt} and --tokens {tokens} are more than the {context} tokens that one request to "
            f"{entry.get('id')} may use"
        )
        raise CommandFailed(text, ExitCode.USAGE)
