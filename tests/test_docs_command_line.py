"""docs/command-line.md describes every command and every option that there is, no others, and the exit codes."""

from __future__ import annotations

import re
from collections.abc import Iterator

import click
import pytest

from router.cli import chat_commands, main
from router.cli.output import ExitCode
from router.cli.server import KEY_VARIABLE, URL_VARIABLE
from tests.test_docs import name_in, quoted, rows, section, text_of

PAGE = text_of("docs/command-line.md")
COMMON = {"--json", "--url"}


def commands() -> Iterator[tuple[str, click.Command]]:
    """Yield every command and every command below one, by its whole name."""
    context = click.Context(main)
    for name in main.list_commands(context):
        command = main.get_command(context, name)
        assert command is not None
        yield name, command
        if isinstance(command, click.Group):
            yield from ((f"{name} {below}", one) for below, one in command.commands.items())


def options(command: click.Command) -> set[tuple[str, ...]]:
    return {tuple(one.opts) for one in command.params if isinstance(one, click.Option)}


ALL = dict(commands())


def told(name: str) -> str:
    """Return what the page says of a command itself, without the commands below it."""
    return section(PAGE, f"{'####' if ' ' in name else '###'} corral {name}").partition("\n#### ")[0]


def test_the_page_has_a_section_for_every_command_and_for_nothing_else() -> None:
    assert re.findall(r"^####? corral (.+)$", PAGE, re.MULTILINE) == list(ALL)


@pytest.mark.parametrize("name", ALL)
def test_every_option_is_described_and_no_other(name: str) -> None:
    described = {
        tuple(quoted(cells[0])) for cells in rows(told(name)) if cells[0].startswith(("`-", "`--")) and len(cells) == 2
    }
    assert described == {names for names in options(ALL[name]) if not COMMON & set(names)}


def test_the_common_options_are_told_for_the_commands_that_have_them() -> None:
    common = {quoted(cells[0])[-1]: cells[1] for cells in rows(section(PAGE, "## All commands"))}
    assert common.keys() >= {*COMMON, "--help"}
    runnable = {
        name: command
        for name, command in ALL.items()
        if not isinstance(command, click.Group) or command.invoke_without_command
    }
    without_json = {name for name, command in runnable.items() if ("--json",) not in options(command)}
    assert set(quoted(common["--json"])) == without_json
    with_url = {name for name, command in runnable.items() if ("--url",) in options(command)}
    assert with_url == set(re.findall(r"^### corral (.+)$", section(PAGE, "## A running server"), re.MULTILINE))


def test_every_exit_code_is_told() -> None:
    assert [int(cells[0]) for cells in rows(section(PAGE, "## Exit codes"))] == list(ExitCode)


def test_the_variables_that_name_a_server_are_told() -> None:
    assert {URL_VARIABLE, KEY_VARIABLE} <= {quoted(cells[0])[0] for cells in rows(section(PAGE, "## All commands"))}


def test_every_command_of_a_conversation_is_told() -> None:
    listed = [name_in(cells[0]).split()[0] for cells in rows(told("chat")) if cells[0].startswith("`/")]
    assert listed == chat_commands.names()


def test_the_page_groups_commands_as_the_program_does() -> None:
    help_text = click.Context(main).get_help()
    listed = re.findall(r"^  ([a-z][a-z-]*)  ", help_text, re.MULTILINE)
    assert [name for name in ALL if " " not in name] == listed
