"""What the tests of commands share: a server that says what it is told to, and a way to run a command against it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Protocol

import pytest
from click.testing import CliRunner, Result

from router.cli import main, model_wait
from tests.fakes.corral_http import FakeCorral, fake_corral


class Corral(Protocol):
    """Runs `corral ARGUMENTS` with `typed` on its stdin."""

    def __call__(self, *arguments: str, typed: str = "") -> Result: ...


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeCorral]:
    """The server that the environment names; nothing else is set in it, and nobody waits long for a second look."""
    for name in os.environ:
        if name.startswith("CORRAL_"):
            monkeypatch.delenv(name)
    monkeypatch.setattr(model_wait, "LOOK_EVERY_S", 0.001)
    with fake_corral() as server:
        monkeypatch.setenv("CORRAL_URL", server.url)
        yield server


@pytest.fixture
def corral(fake: FakeCorral) -> Corral:
    """A command run in this process, without a terminal."""

    def run(*arguments: str, typed: str = "") -> Result:
        return CliRunner().invoke(main, arguments, input=typed)

    return run
