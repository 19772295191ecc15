"""The topics of `/events`: what is, then what changes; one look for all who follow, and none while nobody does."""

from __future__ import annotations

import asyncio
import socket
from asyncio import Event
from dataclasses import replace
from typing import Any

import pytest

from router import topics as room
from router.auth import Grant, load_key_ring
from router.catalog import ModelSpec
from router.events import ExitReason, WorkerExit
from router.fleet_views import DeviceView, WaiterView
from router.gguf_header import GgufHeader
from router.lifecycle import WorkerState
from router.live_streams import MAX_WAITING_BYTES, Outbox
from router.recent_requests import RecentRequests
from router.services import SERVICES, Services
from router.settings import RouterSettings
from router.status_views import Scene, view_model
from router.topics import TOPIC_HUB, Models, Requests, Topic, TopicHub
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


def given_exit(side: HttpSide, *, retry_in_s: float) -> None:
    """The model `smol` has failed, and is tried again after a while."""
    failed = make_view("smol", WorkerState.BACKOFF, last_exit=WorkerExit(ExitReason.CRASHED, "a fault"))
    side.supervisor.views["smol"] = replace(failed, retry_in_s=retry_in_s)
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


async def test_one_who_comes_later_is_told_how_long_things_take_by_now() -> None:
    async with http_side() as side, following(side, "models") as one:
        await one.take(2)
        given_exit(side, retry_in_s=60.0)
        assert (await one.next())[1]["retry_in_s"] == 60.0
        given_exit(side, retry_in_s=20.0)
        async with following(side, "models") as late:
            assert (await late.next())[1]["retry_in_s"] == 20.0


async def test_a_model_at_rest_is_told_again_when_its_pin_or_what_is_known_of_its_file_changes() -> None:
    async with http_side() as side:
        models = Models()

        def told() -> list[str | None]:
            return [piece.state_of for piece in models.changes(Scene.of(services_of(side)))]

        assert told() == ["model smol", "model gem"]
        side.supervisor.pin("gem", True)
        assert told() == ["model gem"]
        side.supervisor.pin("gem", None)
        assert told() == ["model gem"]
        side.supervisor.contexts["smol"] = 77
        assert told() == ["model smol"]
        side.supervisor.headers["gem"] = GgufHeader("llama", None, 100, 1, 1, None, False, 1, {}, 1, 1)
        assert told() == ["model gem"]
        assert told() == []


async def test_time_that_passes_is_no_change_of_a_model() -> None:
    async with http_side() as side:
        models, resident = Models(), replace(make_resident("gem"), idle_unload_at_s=1e9)
        failed = make_view("smol", WorkerState.BACKOFF, queue_length=1, last_exit=WorkerExit(ExitReason.CRASHED, "x"))
        side.supervisor.views["gem"] = make_view("gem", WorkerState.READY, residents=(resident,))
        for number in range(2):
            view = replace(failed, retry_in_s=50.0 - number, last_exit_ago_s=3.0 + number)
            side.supervisor.views["smol"] = view
            scene = replace(Scene.of(services_of(side)), now_s=100.0 + number)
            assert len(list(models.changes(scene))) == (2 if number == 0 else 0)
        resident = replace(resident, idle_unload_at_s=2e9)
        side.supervisor.views["gem"] = make_view("gem", WorkerState.READY, residents=(resident,))
        assert len(list(models.changes(Scene.of(services_of(side))))) == 1, "it has been used meanwhile"


async def test_of_more_new_requests_than_are_kept_a_late_follower_is_told_none_twice() -> None:
    recent, news = RecentRequests(max_kept=3), Event()
    async with http_side() as side:
        scene = Scene.of(services_of(side))
        source = Requests(recent, news.set, with_keys=False)
        list(source.changes(scene))
        for number in range(5):
            recent.note({"key": None, "request_id": str(number)})
        assert news.is_set()
        (piece,) = source.now(scene)
        assert piece.event == b"event: requests\ndata: []\n\n"


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


async def test_words_about_the_file_are_told_to_administrators_alone() -> None:
    async with http_side(keys=KEYS) as side:
        (side.folder / "models.yaml").write_text("models:\n  a: {model: a.gguf, slotz: 1}\n")
        await side.reloader.take_edits()
        for key, num_words in (("user", 0), ("prom", 0), ("root", 2)):
            async with following(side, "server", {"x-api-key": key}) as reader:
                assert str(await reader.take(1)).count("did you mean") == num_words


async def test_keys_are_told_to_administrators_alone() -> None:
    async with http_side(keys=KEYS) as side:
        side.supervisor.queue = [WAITER]
        await (await side.client.post(CHAT, json={"model": "gpt"}, headers={"x-api-key": "user"})).read()
        for key, name in (("prom", None), ("root", "env-1")):
            async with following(side, "queue,requests", {"x-api-key": key}) as reader:
                (_, queue), (_, records) = await reader.take(2)
                assert (queue["requests"][0]["key"], records[0]["key"]) == (name, name)
        root, user = {"x-api-key": "root"}, {"x-api-key": "user"}
        async with following(side, "devices,queue", root) as one, following(side, "devices,queue", user) as other:
            await one.take(2)
            await other.take(2)
            assert len(hub_of(side)._sources) == 3, "the devices are the same for both"


async def test_follower_whose_key_is_taken_away_is_told_nothing_more() -> None:
    async with http_side(keys=KEYS) as side, following(side, "queue", {"x-api-key": "root"}) as reader:
        await reader.next()
        services_of(side).keys.adopt(load_key_ring(RouterSettings(api_keys="user"), (), {}))  # type: ignore[arg-type]
        side.supervisor.queue = [WAITER]
        side.supervisor.note_change()
        async with asyncio.timeout(10):
            assert await reader.reply.content.read() == b""


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


async def test_a_reader_that_reads_nothing_does_not_keep_its_place() -> None:
    catalog = make_catalog(make_spec("smol", description="x" * 20_000_000))  # more than every buffer takes
    async with http_side(catalog, max_client_stall_s=0.2) as side:
        assert side.client.host is not None
        with socket.create_connection((side.client.host, side.client.port or 0)) as deaf:
            deaf.send(b"GET /events?topics=models HTTP/1.1\r\nHost: localhost\r\n\r\n")
            await until(lambda: bool(hub_of(side)._followers), what="it follows")
            await until(lambda: not hub_of(side)._followers, what="it is cut off")


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
        monkeypatch.undo()
        async with following(side, "queue") as late:
            await late.next()
            side.supervisor.queue = [WAITER]
            side.supervisor.note_change()
            assert (await late.next())[1]["length"] == 1


async def test_who_comes_while_looking_has_failed_is_looked_for_again() -> None:
    async with http_side() as side:
        hub, services = hub_of(side), services_of(side)
        first, second = Outbox(left_out=None), Outbox(left_out=None)
        with hub.followed(services, first, [Topic.QUEUE], Grant(None, frozenset())):
            assert hub._looking is not None
            fails = hub._looking
            hub._look = _fail  # type: ignore[method-assign]
            hub._news.set()
            hub.every_s = 0.01
            await asyncio.wait({fails})
            await asyncio.sleep(0)
            assert first.is_closed
            with hub.followed(services, second, [Topic.QUEUE], Grant(None, frozenset())):
                assert hub._looking not in (None, fails)
                assert len(side.supervisor.watchers) == 1


def _fail(_: Scene) -> bool:
    raise ZeroDivisionError


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
