"""The topics of `/events`: what is, then what changes; one look for all who follow, and none while nobody does."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from router import topics as room
from router.catalog import ModelSpec
from router.fleet_views import DeviceView, WaiterView
from router.lifecycle import WorkerState
from router.live_streams import MAX_WAITING_BYTES
from router.services import SERVICES, Services
from router.status_views import Scene, view_model
from router.topics import TOPIC_HUB, Models, TopicHub
from tests.fakes.supervisor import make_resident, make_view
from tests.support.event_reader import following
from tests.support.http_side import CHAT, HttpSide, http_side, make_catalog, make_spec
from tests.support.served import until
from worker.contract import EngineCounters, Phase, SlotReport, SlotState, WorkerStatus

KEYS = {"api_keys": "user", "metrics_keys": "prom", "admin_keys": "root"}
WAITER = WaiterView("r1", "smol", 3.0, 2, "env-1")
GPU = DeviceView("GPU0", "gpu", "a card", 100 << 30, 90 << 30, 0, 5 << 30, free_bytes=85 << 30)


def hub_of(side: HttpSide) -> TopicHub:
    assert side.client.app is not None
    return side.client.app[TOPIC_HUB]


def services_of(side: HttpSide) -> Services:
    assert side.client.app is not None
    return side.client.app[SERVICES]


def given_ready(side: HttpSide, generated: int = 0, **slot: Any) -> None:
    """The model `smol` is loaded, and its worker has reported."""
    resident = make_resident("smol")
    side.supervisor.views["smol"] = make_view("smol", WorkerState.READY, residents=(resident,))
    side.supervisor.statuses[resident.worker] = WorkerStatus(
        Phase.READY,
        at_s=12.0,
        counters=EngineCounters(generated_tokens=generated),
        slots=(SlotReport(0, SlotState.IDLE, **slot),),
    )
    side.supervisor.note_change()


async def test_a_new_follower_is_told_everything_in_a_fixed_order() -> None:
    async with http_side() as side, following(side, "all") as reader:
        told = await reader.take(7)
        assert [kind for kind, _ in told] == ["server", "devices", "model", "model", "slots", "queue", "requests"]
        assert [data["id"] for kind, data in told if kind == "model"] == ["smol", "gem"]


async def test_without_topics_the_stream_is_that_of_changes() -> None:
    async with http_side() as side:
        for query in ("", "?topics=", "?topics=changes"):
            async with side.client.get(f"/events{query}") as reply:
                assert (await reply.content.readline()) == b"event: added\n"
        assert hub_of(side)._sources == {}


async def test_changes_go_together_with_topics() -> None:
    async with http_side() as side, following(side, "changes,server") as reader:
        assert [kind for kind, _ in await reader.take(3)] == ["added", "added", "server"]


async def test_unknown_topic_is_refused_with_the_known_ones() -> None:
    async with http_side() as side:
        reply = await side.client.get("/events?topics=models,slotz")
        error = (await reply.json())["error"]
        assert (reply.status, error["param"]) == (400, "topics")
        assert "`slotz`" in error["message"]
        assert "changes, server, devices, models, slots, queue, requests, all" in error["message"]


async def test_topics_may_be_named_in_several_parameters() -> None:
    async with http_side() as side, following(side, "queue&topics=slots, server") as reader:
        assert [kind for kind, _ in await reader.take(3)] == ["server", "slots", "queue"]


async def test_only_a_model_that_has_changed_is_told_again() -> None:
    async with http_side() as side, following(side, "models") as reader:
        await reader.take(2)
        given_ready(side)
        kind, model = await reader.next()
        assert (kind, model["id"], model["state"]) == ("model", "smol", "ready")
        side.supervisor.views["gem"] = make_view("gem", WorkerState.STARTING)
        side.supervisor.note_change()
        assert (await reader.next())[1]["id"] == "gem"


async def test_nothing_is_told_while_nothing_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    async with http_side() as side:
        given_ready(side)
        side.supervisor.devices = (GPU,)
        async with following(side, "all") as reader:
            await reader.take(7)
            (box,) = hub_of(side)._followers
            pushed: list[bytes] = []
            monkeypatch.setattr(box, "push", lambda piece, **_: pushed.append(piece))
            num_before = side.supervisor.num_snapshots
            await until(lambda: side.supervisor.num_snapshots > num_before + 5, what="some more looks")
            assert pushed == []


async def test_model_that_is_gone_is_told() -> None:
    async with http_side() as side, following(side, "models") as reader:
        await reader.take(2)
        side.supervisor.set_catalog(make_catalog(side.supervisor.catalog.models["gem"]))
        side.supervisor.note_change()
        assert await reader.next() == ("model_removed", {"model": "smol"})


async def test_one_look_serves_all_who_follow() -> None:
    async with http_side() as side, following(side, "models,server") as one, following(side, "models") as other:
        assert len(side.supervisor.watchers) == 1
        assert len(hub_of(side)._sources) == 2
        given_ready(side)
        assert (await one.until("model"))["id"] == "smol"
        await other.take(2)
        assert (await other.until("model"))["state"] == "ready"


async def test_one_who_comes_later_is_told_what_the_others_know() -> None:
    async with http_side() as side, following(side, "models") as one:
        await one.take(2)
        given_ready(side)
        await one.next()
        async with following(side, "models") as late:
            states = [data["state"] for _, data in await late.take(2)]
            assert states == ["ready", "unloaded"]


async def test_nobody_looks_while_nobody_follows() -> None:
    async with http_side() as side:
        async with following(side, "all") as reader:
            await reader.take(7)
        await until(lambda: not side.supervisor.watchers)
        hub = hub_of(side)
        assert (hub._sources, hub._followers, hub._looking) == ({}, {}, None)
        num = side.supervisor.num_snapshots
        side.supervisor.note_change()
        await asyncio.sleep(0)
        assert side.supervisor.num_snapshots == num


async def test_topics_that_nobody_follows_are_not_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> Any:
        raise AssertionError("nobody has asked for slots")

    monkeypatch.setattr(room, "view_slots", fail)
    async with http_side() as side, following(side, "queue") as reader:
        assert await reader.next() == ("queue", {"length": 0, "requests": []})
        side.supervisor.queue = [WAITER]
        side.supervisor.note_change()
        assert (await reader.next())[1]["length"] == 1


async def test_slots_are_told_when_they_change() -> None:
    async with http_side() as side, following(side, "slots") as reader:
        assert await reader.next() == ("slots", [])
        given_ready(side)
        assert [slot["id"] for slot in (await reader.next())[1]] == [0]
        given_ready(side, cached_tokens=7)
        assert [slot["cached_tokens"] for slot in (await reader.next())[1]] == [7]


async def test_small_changes_of_memory_are_no_event() -> None:
    async with http_side() as side, following(side, "devices,queue") as reader:
        await reader.take(2)
        side.supervisor.devices = (GPU,)
        assert (await reader.next())[1][0]["free_bytes"] == 85 << 30
        side.supervisor.devices = (replace(GPU, free_bytes=(85 << 30) + 1000),)
        side.supervisor.queue = [WAITER]
        assert (await reader.next())[0] == "queue"
        side.supervisor.devices = (replace(GPU, free_bytes=84 << 30),)
        assert await reader.until("devices")


async def test_requests_come_as_they_end() -> None:
    async with http_side() as side:
        await (await side.client.post(CHAT, json={"model": "gpt"})).read()
        async with following(side, "requests") as reader:
            kind, records = await reader.next()
            assert (kind, [one["alias"] for one in records]) == ("requests", ["gpt"])
            await (await side.client.post(CHAT, json={"model": "gem"})).read()
            kind, record = await reader.next()
            assert (kind, record["model"]) == ("request", "gem")


async def test_keys_are_told_to_administrators_alone() -> None:
    async with http_side(keys=KEYS) as side:
        side.supervisor.queue = [WAITER]
        await (await side.client.post(CHAT, json={"model": "gpt"}, headers={"x-api-key": "user"})).read()
        for key, name in (("prom", None), ("root", "env-1")):
            async with following(side, "queue,requests", {"x-api-key": key}) as reader:
                (_, queue), (_, records) = await reader.take(2)
                assert (queue["requests"][0]["key"], records[0]["key"]) == (name, name)


async def test_requests_need_the_scope_for_metrics_and_all_leaves_them_out_without_it() -> None:
    async with http_side(keys=KEYS) as side:
        user = {"x-api-key": "user"}
        reply = await side.client.get("/events?topics=requests", headers=user)
        assert reply.status == 403
        assert "`metrics`" in (await reply.json())["error"]["message"]
        async with following(side, "all", user) as reader:
            assert reader.reply.headers["X-Corral-Scopes"] == "inference"
            assert [kind for kind, _ in await reader.take(6)][-1] == "queue"
            side.supervisor.queue = [WAITER]
            assert (await reader.next())[0] == "queue", "and no requests"


async def test_a_slow_reader_is_not_cut_off_and_gets_the_newest_state() -> None:
    async with http_side() as side, following(side, "models") as reader:
        await reader.take(2)
        long = "x" * (MAX_WAITING_BYTES // 2)
        for number in range(30):
            spec = replace(side.supervisor.catalog.models["smol"], description=f"{number} {long}")
            side.supervisor.set_catalog(make_catalog(spec, side.supervisor.catalog.models["gem"]))
            hub_of(side)._look(Scene.of(services_of(side)))  # without a pause in which it could read
        (box,) = hub_of(side)._followers
        assert not box.is_closed
        last = ""
        while not last.startswith("29 "):
            last = (await reader.until("model"))["description"]


async def test_followers_are_let_go_when_looking_fails(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with http_side() as side, following(side, "queue") as reader:
        await reader.next()

        def fail(*_: Any, **__: Any) -> Any:
            raise ZeroDivisionError

        monkeypatch.setattr(side.supervisor, "waiters", fail)
        async with asyncio.timeout(10):
            while await reader.reply.content.readline():
                pass
    assert "fault of the router" in caplog.text


async def test_of_many_models_only_those_that_are_not_at_rest_are_made_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[str] = []

    def noting(scene: Scene, spec: ModelSpec) -> dict[str, Any]:
        made.append(spec.name)
        return view_model(scene, spec)

    catalog = make_catalog(*(make_spec(f"m{number}") for number in range(1000)), make_spec("smol"))
    async with http_side(catalog) as side:
        side.supervisor.views |= {name: make_view(name) for name in catalog.models}
        given_ready(side)
        monkeypatch.setattr(room, "view_model", noting)
        models = Models()
        assert len(list(models.changes(Scene.of(services_of(side))))) == len(made) == 1001
        made.clear()
        assert list(models.changes(Scene.of(services_of(side)))) == []
        assert made == ["smol"]
