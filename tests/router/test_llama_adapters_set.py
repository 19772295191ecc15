"""Adapters that are set through the router for requests that name none."""

from __future__ import annotations

import json
import urllib.parse
from typing import Any

import pytest

from router.catalog import AliasSpec, LoraSpec
from tests.router.test_llama_routes import asked_lora, post
from tests.support.http_side import http_side, make_catalog, make_spec
from worker.contract import Header

# --- adapters ---------------------------------------------------------------------------------------------


def with_loras() -> Any:
    spec = make_spec(
        "smol",
        loras=(LoraSpec("formal", "./loras/formal.gguf"), LoraSpec("sql", "hf:owner/repo/sql.gguf", 0.5)),
        aliases={"mine": AliasSpec("mine", lora={"formal": 2.0}), "plain": AliasSpec("plain")},
    )
    return make_catalog(spec)


async def test_adapters_that_are_set_hold_for_requests_that_name_none() -> None:
    async with http_side(with_loras()) as side:
        assert await post(side, "/lora-adapters", [{"id": 1, "scale": 0.25}]) == (200, {"success": True})
        shown = await (await side.client.get("/lora-adapters?model=smol")).json()
        for model in ("smol", "plain", "mine"):
            await post(side, "/v1/completions", {"model": model, "prompt": "x"})
        told = [urllib.parse.unquote(one.headers[Header.LORA]) for one in side.worker.received]
    assert shown == [
        {"id": 0, "name": "formal", "path": "formal.gguf", "scale": 0.0},
        {"id": 1, "name": "sql", "path": "sql.gguf", "scale": 0.25},
    ]
    assert [json.loads(one) for one in told] == [
        [{"name": "sql", "scale": 0.25}],
        [{"name": "sql", "scale": 0.25}],
        [{"name": "formal", "scale": 2.0}],
    ]


async def test_adapters_are_off_until_they_are_set_and_again_by_an_empty_list() -> None:
    async with http_side(with_loras()) as side:
        for entries, told in (
            (None, None),
            ([{"id": 0, "scale": 1}], [{"name": "formal", "scale": 1.0}]),
            ([], None),
        ):
            if entries is not None:
                await post(side, "/lora-adapters", entries)
            await post(side, "/completion", {"prompt": "x"})
            assert asked_lora(side) == told


async def test_adapters_that_are_set_do_not_concern_vectors() -> None:
    async with http_side(with_loras()) as side:
        await post(side, "/lora-adapters", [{"id": 0, "scale": 1}])
        for path in ("/v1/embeddings", "/embedding", "/v1/rerank"):
            await post(side, path, {"model": "smol"})
            assert asked_lora(side) is None


async def test_adapters_of_a_model_that_lost_them_are_not_asked_for() -> None:
    async with http_side(with_loras()) as side:
        await post(side, "/lora-adapters", [{"id": 0, "scale": 1}])
        side.supervisor.set_catalog(make_catalog(make_spec("smol")))
        await post(side, "/completion", {"prompt": "x"})
        assert asked_lora(side) is None


@pytest.mark.parametrize(
    "body",
    [
        {"id": 0, "scale": 1},
        [1],
        [{"id": 2, "scale": 1}],
        [{"id": -1, "scale": 1}],
        [{"id": True, "scale": 1}],
        [{"id": "formal", "scale": 1}],
        [{"id": 0}],
        [{"id": 0, "scale": "1"}],
        [{"id": 0, "scale": 101}],
        [{"id": 0, "scale": 1}, {"id": 0, "scale": 2}],
    ],
)
async def test_wrong_adapters_are_refused_and_change_nothing(body: Any) -> None:
    async with http_side(with_loras()) as side:
        assert (await post(side, "/lora-adapters", body))[0] == 400
        await post(side, "/completion", {"prompt": "x"})
        assert asked_lora(side) is None


async def test_only_administrators_set_adapters() -> None:
    async with http_side(with_loras(), keys={"api_keys": ("user",), "admin_keys": ("boss",)}) as side:
        entries = [{"id": 0, "scale": 1}]
        assert (await post(side, "/lora-adapters", entries, Authorization="Bearer user"))[0] == 403
        assert (await post(side, "/lora-adapters", entries, Authorization="Bearer boss"))[0] == 200
        reply = await side.client.get("/lora-adapters", headers={"Authorization": "Bearer user"})
        assert reply.status == 200
