"""`keep_alive` in requests of every dialect: what leases are asked for, and who may prolong a stay."""

from __future__ import annotations

from typing import Any

import pytest

from router.auth import KeyRing, load_key_ring
from router.settings import RouterSettings
from tests.support.http_side import HttpSide, http_side, make_catalog, make_spec

KEYS = {"api_keys": ["ordinary"], "admin_keys": ["mighty"]}


async def post(side: HttpSide, path: str, key: str | None = None, **fields: Any) -> tuple[int, Any]:
    headers = {} if key is None else {"Authorization": f"Bearer {key}"}
    async with side.client.post(path, json=fields, headers=headers) as reply:
        return reply.status, await reply.json(content_type=None)


BODIES = {
    "/v1/chat/completions": {"messages": []},
    "/v1/completions": {"prompt": "x"},
    "/v1/messages": {"messages": []},
    "/v1/embeddings": {"input": "x"},
    "/completion": {"prompt": "x"},
    "/api/generate": {"prompt": "x", "stream": False},
}


@pytest.mark.parametrize("path", BODIES)
async def test_every_dialect_may_say_how_long_its_model_stays(path: str) -> None:
    async with http_side() as side:
        await post(side, path, model="smol", keep_alive="1m", **BODIES[path])
        await post(side, path, model="smol", keep_alive=-1, **BODIES[path])
        await post(side, path, model="smol", **BODIES[path])
        assert side.supervisor.keep_alives == [60.0, -1.0, None]


def ring() -> KeyRing:
    return load_key_ring(RouterSettings(**KEYS), (), {})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("key", "idle_unload_s", "wanted", "granted"),
    [
        ("ordinary", 900.0, 60, 60.0),
        ("ordinary", 900.0, 0, 0.0),
        ("ordinary", 900.0, 1800, 900.0),
        ("ordinary", 0.0, 1800, 1800.0),
        ("ordinary", 0.0, -1, -1.0),
        ("ordinary", 900.0, -1, 900.0),
        ("ordinary", 0.5, 1800, 0.5),
        ("mighty", 900.0, 1800, 1800.0),
        ("mighty", 900.0, -1, -1.0),
    ],
)
async def test_keys_may_shorten_a_stay_but_only_an_admins_prolongs_it(
    key: str, idle_unload_s: float, wanted: float, granted: float
) -> None:
    catalog = make_catalog(make_spec("smol", idle_unload_s=idle_unload_s))
    async with http_side(catalog, ring=ring()) as side:
        headers, fields = {"Authorization": f"Bearer {key}"}, {"model": "smol", "keep_alive": wanted, "stream": False}
        for text in ("x", ""):  # with something to answer and with nothing
            async with side.client.post("/api/generate", json=fields | {"prompt": text}, headers=headers) as reply:
                assert reply.status == 200
                told = reply.headers.get("X-Corral-Keep-Alive")
                assert told == (None if granted == wanted else f"{granted:g}"), "what is not as it was asked is told"
        unloads = granted == 0  # where there is nothing to answer, no lease is needed for that
        assert side.supervisor.keep_alives == ([granted] if unloads else [granted, granted])
        assert side.supervisor.kept_alive == ([("smol", 0.0)] if unloads else [])


@pytest.mark.parametrize("kept", [{"pin": True}, {"home": True}])
async def test_of_a_model_that_stays_in_any_case_no_shorter_time_is_told_to_whoever_wants_it_for_good(
    kept: dict[str, bool],
) -> None:
    async with http_side(make_catalog(make_spec("smol", **kept)), ring=ring()) as side:
        headers = {"Authorization": "Bearer ordinary"}
        body = {"model": "smol", "messages": [], "keep_alive": -1}
        async with side.client.post("/v1/chat/completions", json=body, headers=headers) as reply:
            assert (reply.status, reply.headers.get("X-Corral-Keep-Alive")) == (200, None)


@pytest.mark.parametrize("is_asked_before", [True, False])
async def test_an_unpinned_model_is_not_held_for_good_by_an_ordinary_key(is_asked_before: bool) -> None:
    async with http_side(make_catalog(make_spec("smol", pin=True)), ring=ring()) as side:
        if not is_asked_before:
            side.supervisor.pin("smol", False)
        await post(side, "/v1/chat/completions", "ordinary", model="smol", messages=[], keep_alive=-1)
        assert side.supervisor.keep_alives == [900.0], "it counts as soon as the model is not pinned any more"


async def test_whether_a_model_may_go_is_known_without_a_look_at_all_models() -> None:
    async with http_side() as side:
        before = side.supervisor.num_snapshots
        await post(side, "/v1/chat/completions", model="smol", messages=[], keep_alive=0)
        assert (side.supervisor.num_snapshots, side.supervisor.keep_alives) == (before, [0.0])


@pytest.mark.parametrize("kept", [{"pin": True}, {"home": True}])
@pytest.mark.parametrize("path", [*BODIES, "/api/chat"])
async def test_a_model_that_stays_cannot_be_asked_to_go_whether_there_is_something_to_answer_or_not(
    path: str, kept: dict[str, bool]
) -> None:
    async with http_side(make_catalog(make_spec("smol", **kept))) as side:
        for fields in (BODIES.get(path, {}), {}):
            status, body = await post(side, path, model="smol", keep_alive=0, **fields)
            told = body["error"] if isinstance(body["error"], str) else body["error"]["message"]
            assert (status, f"`{next(iter(kept))}` in models.yaml" in told) == (400, True)
        assert (side.supervisor.granted, side.supervisor.kept_alive) == ([], [])


async def test_a_keep_alive_that_is_none_is_named() -> None:
    async with http_side() as side:
        status, body = await post(side, "/api/generate", model="smol", prompt="x", keep_alive="soon")
        assert (status, "must be" in body["error"]) == (400, True)
