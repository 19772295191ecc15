"""One table for the whole run, and one server for all storms that do not need their own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.chaos.arena import Arena, arena
from tests.chaos.storm import IS_SHORT, SEED
from tests.chaos.table import Table

_TABLE = pytest.StashKey[Table]()


def pytest_configure(config: pytest.Config) -> None:
    config.stash[_TABLE] = Table()


@pytest.fixture(scope="session")
def table(pytestconfig: pytest.Config) -> Table:
    return pytestconfig.stash[_TABLE]


@pytest.fixture(scope="session")
def field(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Arena]:
    """The server of all storms that need no other."""
    with arena(tmp_path_factory.mktemp("chaos")) as found:
        yield found


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    left_out = [one for one in items if IS_SHORT and getattr(getattr(one, "function", None), "is_in_full_only", False)]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [one for one in items if one not in left_out]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    lines = config.stash[_TABLE].lines()
    if not lines:
        return
    form = "short" if IS_SHORT else "long"
    terminalreporter.section(f"faults ({form} form, CHAOS_SEED={SEED})")
    for line in lines:
        terminalreporter.write_line(line)
