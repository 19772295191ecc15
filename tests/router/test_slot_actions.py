"""`POST /slots/{id}?action=…` of the router: what goes to a worker and for whom, and what is told without one."""

from __future__ import annotations

from typing import Any

import pytest

from tests.router.test_llama_routes import facts_with
from tests.router.test_ops import given_ready
from tests.support.http_side import HttpSide, http_side, make_catalog, make_spec
from worker.contract import Header

KEPT = {"prompt_cache_disk_bytes": 10**6}
ACTIONS = ("save", "restore", "erase")


def catalog(**options: Any) -> Any:
    return make_catalog(make_spec("kept", engine=KEPT, **options), make_spec("plain"), make_spec("far", remote=None))


async def ask(side: HttpSide, path: str, body: Any = None, **headers: str) -> tuple[int, dict[str, Any]]:
    async with side.client.post(path, json=body, headers=headers) as reply:
        return reply.status, await reply.json()


@pytest.mark.parametrize("action", ACTIONS)
async def test_the_worker_is_asked_for_the_action_alone(action: str) -> None:
    body = {"model": "kept", "filename": "x.bin", "action": "dance", "id_slot": 7, "prompt": "p", "cache_salt": "s"}
    async with http_side(catalog()) as side:
        given_ready(side, "kept", facts=facts_with())
        status, _ = await ask(side, f"/slots/3?action={action}", body)
        assert status == 200
        (received,) = side.worker.received
    assert received.path == "/slots"
    assert received.body == {"id_slot": 3, "action": action, "filename": "x.bin"}
    assert received.headers[Header.CACHE_SALT] not in ("", "s")
    assert Header.OWNER not in received.headers, "there are no keys"
    assert side.num_requests(route="/slots", outcome="ok") == 1


async def test_the_model_may_stand_in_the_query_and_an_erase_needs_no_body() -> None:
    async with http_side(catalog()) as side:
        given_ready(side, "kept", facts=facts_with())
        address, skipped = "/slots/0?action=erase&model=kept", ["Content-Type"]
        async with side.client.post(address, skip_auto_headers=skipped) as reply:
            assert reply.status == 200
        assert side.worker.received[0].body == {"id_slot": 0, "action": "erase", "filename": None}
        assert (await ask(side, "/slots/0?action=erase", {}))[0] == 200, "it is the only loaded one"


async def test_each_key_is_somebody_else_and_workers_do_not_learn_it() -> None:
    keys = {"api_keys": ["one", "two"]}
    async with http_side(catalog(), keys=keys) as side:
        given_ready(side, "kept", facts=facts_with())
        for key in ("one", "two", "one"):
            await ask(side, "/slots/0?action=erase&model=kept", {}, Authorization=f"Bearer {key}")
        assert (await ask(side, "/slots/0?action=erase&model=kept", {}))[0] == 401
        owners = [received.headers[Header.OWNER] for received in side.worker.received]
        await ask(side, "/v1/completions", {"model": "kept", "prompt": "x"}, Authorization="Bearer one")
        assert side.worker.received[-1].headers[Header.OWNER] == owners[0], "what generates has the same owner"
    assert owners[0] == owners[2] != owners[1]
    assert all(len(owner) == 32 and "one" not in owner for owner in owners)


@pytest.mark.parametrize("action", ["save", "restore"])
async def test_without_room_on_the_disk_the_key_is_named_and_nothing_is_loaded(action: str) -> None:
    async with http_side(catalog()) as side:
        status, body = await ask(side, f"/slots/0?action={action}", {"model": "plain", "filename": "x"})
        assert (status, body["error"]["type"]) == (501, "not_supported_error")
        assert "`prompt_cache_disk_bytes`" in body["error"]["message"]
        assert side.supervisor.granted == []


@pytest.mark.parametrize(("action", "status"), [("save", 400), ("erase", 400), ("restore", 200)])
async def test_only_a_restore_loads_the_model(action: str, status: int) -> None:
    async with http_side(catalog()) as side:
        got, body = await ask(side, f"/slots/0?action={action}", {"model": "kept", "filename": "x"})
        assert got == status
        assert [name for name, _, _ in side.supervisor.granted] == (["kept"] if status == 200 else [])
        if status == 400:
            assert "not loaded" in body["error"]["message"]


async def test_several_workers_of_a_model_have_no_slots_that_a_number_could_mean() -> None:
    async with http_side(catalog(replicas=2)) as side:
        given_ready(side, "kept", facts=facts_with())
        for action in ACTIONS:
            status, body = await ask(side, f"/slots/0?action={action}", {"model": "kept", "filename": "x"})
            assert status == 400
            assert "`replicas`" in body["error"]["message"]


@pytest.mark.parametrize(
    ("path", "param"),
    [
        ("/slots/0?action=dance", "action"),
        ("/slots/0", "action"),
        (f"/slots/{10**30}?action=erase", "id_slot"),
        ("/slots/0?action=save&model=none", None),
    ],
)
async def test_what_is_wrong_with_the_address_is_named(path: str, param: str | None) -> None:
    async with http_side(catalog()) as side:
        status, body = await ask(side, path, {"model": "kept"} if param else {})
        assert (status, body["error"].get("param")) == (400, param) if param else status == 404
        assert side.worker.received == []


async def test_a_page_or_a_body_that_is_no_json_is_refused() -> None:
    async with http_side(catalog()) as side:
        given_ready(side, "kept", facts=facts_with())
        for data, kind, status in ((b"[1]", "application/json", 400), (b"x", "text/plain", 415)):
            headers = {"Content-Type": kind}
            async with side.client.post("/slots/0?action=erase&model=kept", data=data, headers=headers) as reply:
                assert reply.status == status
        assert side.worker.received == []


async def test_a_body_longer_than_any_order_is_refused_unread() -> None:
    async with http_side(catalog()) as side:
        status, answer = await ask(side, "/slots/0?action=restore", {"model": "kept", "filename": "x" * 70_000})
        assert status == 413, answer
        assert not side.worker.received
