"""What all commands share: tables with and without a terminal, failures, and ends that are not failures of ours."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console

from router.cli.output import CommandFailed, ExitCode, make_table, plain_table, print_json
from tests.fakes.corral_http import FakeCorral, as_text
from tests.router.cli.conftest import Corral

ROOT = Path(__file__).resolve().parents[3]
COLUMNS = ("NAME", "SIZE", "NOTE")
ROWS = [("a", "1 MB", "plain"), ("much longer", None, "[red]markup\x1b[0m")]


def on_terminal(width: int, *, droppable: tuple[str, ...] = (), color: bool = False) -> str:
    terminal = Console(file=io.StringIO(), width=width, force_terminal=True, no_color=not color)
    terminal.print(make_table(COLUMNS, ROWS, width, numbers=["SIZE"], droppable=droppable))
    return terminal.file.getvalue()  # type: ignore[attr-defined]


def test_a_table_without_a_terminal_has_columns_set_with_blanks() -> None:
    assert plain_table(COLUMNS, ROWS, numbers=["SIZE"]) == [
        "NAME         SIZE  NOTE",
        "a            1 MB  plain",
        "much longer     -  [red]markup\\x1b[0m",
    ]


def test_a_table_on_a_terminal_shows_markup_as_it_is_and_what_is_not_known_as_a_dash() -> None:
    lines = on_terminal(60).splitlines()
    assert "–" in lines[-1]
    assert "[red]markup\\x1b[0m" in lines[-1]


def test_a_narrow_terminal_loses_columns_that_can_be_spared_before_anything_is_folded() -> None:
    head = on_terminal(25, droppable=("NOTE", "SIZE")).splitlines()[0]
    assert "NOTE" not in head
    assert "SIZE" in head
    assert "NOTE" in on_terminal(60, droppable=("NOTE", "SIZE"))


def test_failures_are_one_message_with_its_code(capsys: pytest.CaptureFixture[str]) -> None:
    failed = CommandFailed("it is\x1b[2J gone\nsay so", ExitCode.NO_SERVER)
    failed.show()
    assert capsys.readouterr().err == "corral: it is\\x1b[2J gone\nsay so\n"
    assert failed.exit_code == 3


def test_a_reader_that_has_enough_is_no_error(fake: FakeCorral) -> None:
    fake.answers("GET", "/admin/logs", as_text("a line of the log\n" * 50_000))
    read_end, write_end = os.pipe()
    os.close(read_end)
    done = subprocess.run(
        [sys.executable, "-m", "router", "logs"], cwd=ROOT, stdout=write_end, stderr=subprocess.PIPE, check=False
    )
    os.close(write_end)
    assert (done.returncode, done.stderr) == (1, b"")


@pytest.mark.parametrize(
    "arguments",
    [
        ("ps",),
        ("load", "x"),
        ("unload", "x"),
        ("pin", "x"),
        ("reload",),
        ("logs",),
        ("chat", "x", "hi"),
        ("bench", "x"),
    ],
)
def test_without_a_server_every_command_ends_with_the_same_code_and_next_step(
    corral: Corral, arguments: tuple[str, ...]
) -> None:
    done = corral(*arguments, "--url", "http://127.0.0.1:1")
    assert done.exit_code == 3
    assert "corral serve" in done.stderr
    assert done.stdout == ""


def test_ctrl_c_is_quiet_and_has_the_code_that_shells_give_it(corral: Corral, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(url: str | None) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("router.cli.reload.open_server", interrupt)
    done = corral("reload")
    assert (done.exit_code, done.output) == (130, "")


def test_json_of_a_name_that_is_no_text_can_be_read_again(capsys: pytest.CaptureFixture[str]) -> None:
    print_json({"path": "ä\udcff"})
    printed = capsys.readouterr().out
    assert printed == '{"path": "ä\\udcff"}\n'
    assert json.loads(printed) == {"path": "ä\udcff"}


@pytest.mark.parametrize("closed", ["<&-", ">&-", "<&- >&- 2>&-"])
@pytest.mark.parametrize("arguments", ["version --json", "cache", "chat x hi --url http://127.0.0.1:1"])
def test_streams_that_were_closed_before_it_began_are_no_traceback(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, closed: str, arguments: str
) -> None:
    monkeypatch.setenv("CORRAL_CACHE", str(tmp_path))
    command = f"exec {sys.executable} -m router {arguments} {closed}"
    done = subprocess.run(["sh", "-c", command], cwd=ROOT, capture_output=True, check=False)
    assert done.returncode == (3 if "chat" in arguments else 0)
    assert b"Traceback" not in done.stderr
