"""`corral doctor`: looks at everything that serving needs, and says what to do about what is wrong.

Owns the order of the looks and how they are shown. What is looked at is in `router/doctor/`; nothing that could be
broken is imported here.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import click

from router.cli.formats import clean, counted
from router.cli.output import ExitCode, console, is_terminal, json_option, print_json
from router.cli.prose import tell_advice
from router.cli.version import installed
from router.doctor.backend import Build, ask_llama, check_build, rebuild
from router.doctor.configuration import check_configuration
from router.doctor.findings import Finding, Level
from router.doctor.gpu_signs import find_gpu_signs
from router.doctor.gpus import judge_gpus
from router.doctor.installation import check_imports, check_installation
from router.doctor.machine import check_machine
from router.doctor.ports import check_addresses

_MARKS = {Level.OK: ("ok", "green"), Level.WARN: ("warn", "yellow"), Level.FAIL: ("FAIL", "bold red")}

_AREA = 15
_CLEAR = "\r\033[K"
_MARK = 6


@click.command()
@click.argument("file", required=False, type=click.Path(path_type=Path), envvar="CORRAL_FILE")
@json_option
def doctor(file: Path | None, as_json: bool) -> None:
    """Check the installation, llama.cpp, GPUs, the machine, the address and the configuration FILE.

    Says what to do about what is not right. Exits with 1 if something keeps models from being served.
    """
    write = None if as_json else _writer()
    report: list[tuple[str, Finding]] = []
    told = _Told()
    for area, findings in examine(file, told.begin):
        told.clear()
        for finding in findings:
            if write is not None:
                write("" if report and report[-1][0] == area else area, finding)
            report.append((area, finding))
    levels = [finding.level for _, finding in report]
    is_well = Level.FAIL not in levels
    if as_json:
        print_json({"ok": is_well, "findings": [_plain(area, finding) for area, finding in report]})
    else:
        click.echo()
        click.echo(summary(levels))
    if not is_well:
        raise SystemExit(ExitCode.FAILED)


class _Told:
    """A line on stderr of what is looked at just now, where somebody sits there; it goes when something is found."""

    def __init__(self) -> None:
        self._is_shown = sys.stderr is not None and sys.stderr.isatty() and os.environ.get("TERM") != "dumb"

    def begin(self, what: str) -> None:
        """It is known what is waited for."""
        if self._is_shown:
            click.echo(f"{_CLEAR}looks at {what} …", err=True, nl=False)

    def clear(self) -> None:
        """Take the line away."""
        if self._is_shown:
            click.echo(_CLEAR, err=True, nl=False)


def examine(
    file: Path | None, begin: Callable[[str], None] = lambda _what: None
) -> Iterator[tuple[str, list[Finding]]]:
    """Yield what is found, by what it is about, as soon as it is known; `begin` is told what takes its time."""
    begin("the installation")
    with ThreadPoolExecutor(max_workers=3) as pool:
        # These wait for other processes, and do so at the same time.
        imports = pool.submit(check_imports)
        asked = pool.submit(ask_llama, os.environ)
        signs = pool.submit(find_gpu_signs, os.environ)
        yield "installation", check_installation()
        begin("the libraries: each is tried out in a process of its own")
        yield "installation", imports.result()
        begin("llama.cpp: it is asked in a process of its own")
        llama = asked.result()
        if isinstance(llama, Build):
            seen = [f"{gpu.get('name')} ({gpu.get('description')})" for gpu in llama.gpus]
            yield "llama.cpp", check_build(llama)
            begin("GPUs")
            yield "GPUs", judge_gpus(signs.result(), llama.backends, seen, rebuild)
        else:
            yield "llama.cpp", [llama]
    begin("the configuration")
    configured = check_configuration(file)
    yield "machine", check_machine(os.environ, configured.cache, wants_mlock=configured.wants_mlock)
    begin("the address, and the server there")
    yield "address", check_addresses(os.environ, installed("llama-corral"))
    yield "configuration", list(configured.findings)


def _plain(area: str, finding: Finding) -> dict[str, Any]:
    return {"area": area, "level": finding.level.value, "text": finding.text, "advice": list(finding.advice)}


def summary(levels: Sequence[Level]) -> str:
    """Return the report's last line."""
    fails, warns = levels.count(Level.FAIL), levels.count(Level.WARN)
    if not fails and not warns:
        return "everything is as it should be"
    parts = [counted(fails, "problem")] if fails else []
    parts += [counted(warns, "warning")] if warns else []
    return f"{', '.join(parts)}; {'put these right, and look again' if fails else 'models can be served'}"


def _writer() -> Callable[[str, Finding], None]:
    """Return what writes one finding: with colours and wrapped on a terminal, in plain lines elsewhere."""
    if not is_terminal():
        return _write_plainly
    try:
        from rich.table import Table
        from rich.text import Text

        terminal = console()
    except ImportError:  # the report says so itself
        return _write_plainly

    def write(area: str, finding: Finding) -> None:
        mark, style = _MARKS[finding.level]
        line = Table.grid()
        line.add_column(width=_AREA)
        line.add_column(width=_MARK)
        line.add_column()
        line.add_row(Text(area, style="bold"), Text(mark, style=style), Text(clean(finding.text)))
        terminal.print(line)
        for step in finding.advice:
            tell_advice(step, indent=_AREA + _MARK)

    return write


def _write_plainly(area: str, finding: Finding) -> None:
    mark, _ = _MARKS[finding.level]
    click.echo(f"{area:<{_AREA}}{mark:<{_MARK}}{clean(finding.text)}")
    for step in finding.advice:
        click.echo(" " * (_AREA + _MARK) + clean(step))
