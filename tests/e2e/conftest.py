"""One real server for all end-to-end tests on the real model: its models differ in shape, the file is the same."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from tests.support.gguf_bytes import gguf_bytes
from tests.support.models import smollm2_path
from tests.support.real_server import Api, RealServer, api_of, real_server
from tests.support.tiny_gguf import write_not_gguf, write_truncated

ALIASES = ["gpt-4o-mini", "org/smol:latest"]


@pytest.fixture(scope="session")
def real(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealServer]:
    """A server with these models, none loaded:

    `main` four slots of 2048 tokens · `wide` eight slots of 256 · `narrow` one slot of 256 · `cold` goes after a
    second without work · `fragile` is there to be killed · `truncated`, `text` and `incomplete` cannot be loaded.
    """
    folder: Path = tmp_path_factory.mktemp("real")
    # Two threads of a CPU: on a fast machine a prompt would be read before a client can leave.
    file = {"model": str(smollm2_path()), "idle_unload_s": 0, "device": "cpu", "threads": 2}
    write_truncated(folder / "truncated.gguf")
    write_not_gguf(folder / "text.gguf")
    (folder / "incomplete.gguf").write_bytes(gguf_bytes())
    models = {
        "main": file | {"slots": 4, "context": 2048, "aliases": ALIASES},
        "wide": file | {"slots": 8, "context": 256},
        "narrow": file | {"slots": 1, "context": 256},
        "cold": file | {"slots": 2, "context": 256, "idle_unload_s": 1, "aliases": ["cool", "org/cold:latest"]},
        "fragile": file | {"slots": 2, "context": 1024},
        "truncated": {"model": "./truncated.gguf"},
        "text": {"model": "./text.gguf"},
        "incomplete": {"model": "./incomplete.gguf"},
    }
    with real_server(folder, models) as server:
        yield server


@pytest.fixture
async def api(real: RealServer) -> AsyncIterator[Api]:
    """A client of that server."""
    async with api_of(real) as client:
        yield client
