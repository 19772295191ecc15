"""The environments of the clients are pinned, and each has a program."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.clients.environments import CLIENTS, pins_of
from tests.clients.running import programs


@pytest.mark.parametrize("client", CLIENTS)
def test_every_package_of_a_client_is_pinned_to_one_release(client: str) -> None:
    lines = [line for line in pins_of(client).read_text(encoding="utf-8").splitlines() if not line.startswith("#")]
    pinned = [re.fullmatch(r"([A-Za-z0-9._-]+)==[0-9][\w.+!]*", line) for line in lines]
    assert all(pinned), f"not one release of a package from the index: {lines[pinned.index(None)]}"
    names = {re.sub(r"[._-]+", "-", found[1].lower()) for found in pinned if found}
    assert names >= set(CLIENTS[client])


def test_there_are_no_pins_without_a_client() -> None:
    assert {path.stem for path in pins_of("openai").parent.iterdir()} == set(CLIENTS)


def test_every_client_has_a_program_with_checks() -> None:
    assert {program.client for program in programs() if program.checks} == set(CLIENTS)


def test_every_program_in_the_folder_is_run() -> None:
    folder = Path(__file__).parent / "programs"
    shared = {"checking.py", "counting.py", "typed.py"}
    assert {path.name for path in folder.glob("*.py")} - shared == {program.path.name for program in programs()}
