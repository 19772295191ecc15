"""Real clients, unmodified and of the newest releases, against a real server: every check of every program."""

from __future__ import annotations

import pytest

from tests.clients.running import Outcomes, Program, programs

CHECKS = [
    pytest.param(program, check, id=f"{program.path.stem}-{check.removeprefix('check_')}")
    for program in programs()
    for check in program.checks
]


@pytest.mark.clients
@pytest.mark.parametrize(("program", "check"), CHECKS)
def test_client_finds(program: Program, check: str, outcomes: Outcomes) -> None:
    fault = outcomes(program)[check]["fault"]
    assert fault is None, fault
