"""A router with a model on another server, and that server."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from router.catalog import ModelSpec, Remote
from tests.fakes.other_server import OtherServer, other_server
from tests.support.http_side import HttpSide, http_side, make_catalog, make_spec

ASK = {"model": "big", "messages": [{"role": "user", "content": "hi"}]}


def far(url: str, name: str = "big", key_env: str | None = None, **options: Any) -> ModelSpec:
    return ModelSpec(
        name=name, source="", base_dir=Path("/models"), remote=Remote(url, "other-name", key_env), **options
    )


@asynccontextmanager
async def far_side(key_env: str | None = None, **options: Any) -> AsyncIterator[tuple[HttpSide, OtherServer]]:
    async with other_server() as other:
        catalog = make_catalog(far(other.url, key_env=key_env, **options), make_spec("smol"))
        async with http_side(catalog) as side:
            yield side, other
