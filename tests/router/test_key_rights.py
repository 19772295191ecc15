"""What a key with `models` and `max_priority` may do over HTTP, and what it is shown of the rest: nothing."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import aiohttp
import pytest

from router.api_keys import KeyLimits
from router.auth import Grant, KeyRing, Scope
from router.catalog import AliasSpec, Catalog
from router.device import Placement
from router.errors import QueueTimeout
from router.events import ExitReason, WorkerExit, WorkerId
from router.fleet_views import DeviceView, WaiterView
from router.lifecycle import WorkerState
from router.services import SERVICES
from router.topics import TOPIC_HUB
from tests.fakes.supervisor import make_resident, make_view
from tests.support.http_side import CHAT, HttpSide, http_side, make_catalog, make_spec
from worker.contract import Phase, SlotReport, SlotState, WorkerStatus

HIDDEN = "zebra"
"""In every name that the restricted key must not see."""
CATALOG = make_catalog(
    make_spec("small", aliases={"gpt": AliasSpec("gpt"), "fast-*": AliasSpec("fast-*", listed=False)}),
    make_spec("zebra-big", aliases={"zebra-alias": AliasSpec("zebra-alias"), "shared": AliasSpec("shared")}),
    make_spec("zebra-other", aliases={}),
    default_model="zebra-big",
)

STATUS = WorkerStatus(Phase.READY, 1.0, slots=(SlotReport(0, SlotState.GENERATING),))


def ring_of(**limits: Any) -> KeyRing:
    """Return a ring with a restricted key `user`, one that sees metrics too, and an administrator's."""
    keys = KeyLimits(**{"models": ("small", "no-such-*")} | limits)
    return KeyRing(
        [
            (digest("user"), Grant("user", frozenset({Scope.INFERENCE}), limits=keys)),
            (digest("watcher"), Grant("watcher", frozenset({Scope.INFERENCE, Scope.METRICS}), limits=keys)),
            (digest("root"), Grant("root", frozenset({Scope.ADMIN}))),
        ]
    )


def digest(key: str) -> bytes:
    return hashlib.sha256(key.encode()).digest()


def as_(key: str) -> dict[str, str]:
    return {"x-api-key": key}


@asynccontextmanager
async def side_of(catalog: Catalog = CATALOG, **limits: Any) -> AsyncIterator[HttpSide]:
    async with http_side(catalog, ring=ring_of(**limits)) as side:
        given_traffic(side)
        yield side


def given_traffic(side: HttpSide) -> None:
    """Every model is loaded, busy and waited for, and waits for the others."""
    side.supervisor.devices = (DeviceView("GPU0", "gpu", "a card", 100, 90, 0, 5, free_bytes=85),)
    for name in CATALOG.models:
        worker = WorkerId(name, 0, 1)
        resident = replace(make_resident(name), placement=Placement({"GPU0": 10}, {}))
        view = make_view(name, WorkerState.READY, queue_length=2, oldest_wait_s=1.0, residents=(resident,))
        side.supervisor.views[name] = replace(view, blocked_by=f"'zebra-big' is busy, '{name}' is idle")
        side.supervisor.statuses[worker] = STATUS
        side.supervisor.queue.append(WaiterView(f"r-{name}", name, 3.0, 0, "other"))


SHOWN = (
    *("/v1/models", "/models", "/api/tags", "/api/ps", "/slots", "/status", "/props", "/lora-adapters"),
    *("/v1/models/none", "/v1/models/zebra-bug", "/slots?model=zebr", "/props?model=zebr"),
)


@pytest.mark.parametrize("path", SHOWN)
async def test_restricted_key_is_shown_nothing_of_other_models(path: str) -> None:
    async with side_of() as side:
        reply = await side.client.get(path, headers=as_("user"))
        text = (await reply.text()).replace(path.rpartition("/")[2].rpartition("=")[2], "")
        assert HIDDEN not in text
        assert "small" in text or path == "/lora-adapters"


@pytest.mark.parametrize("path", list(SHOWN[:6]))
async def test_administrator_is_shown_everything(path: str) -> None:
    async with side_of() as side:
        assert "zebra-big" in await (await side.client.get(path, headers=as_("root"))).text()


@pytest.mark.parametrize(("path", "is_shown"), [("/slots", True), ("/status", True), ("/v1/models", False)])
async def test_key_that_sees_the_metrics_watches_all_models_and_lists_those_it_may_use(
    path: str, is_shown: bool
) -> None:
    async with side_of() as side:
        text = await (await side.client.get(path, headers=as_("watcher"))).text()
        assert (HIDDEN in text) is is_shown


@pytest.mark.parametrize(
    "path", ["/events", "/events?topics=all", "/events?topics=changes,models,slots", "/models/sse"]
)
async def test_events_tell_a_restricted_key_of_its_models_alone(path: str) -> None:
    async with side_of() as side:
        side.client.app[TOPIC_HUB].every_s = 0.01
        async with side.client.get(path, headers=as_("user")) as reply:
            assert reply.status == 200
            told = await read_until(reply, "small")
            crash = WorkerExit(ExitReason.CRASHED, "'zebra-other' was in the way", -11)
            for name in CATALOG.models:
                side.supervisor.views[name] = make_view(name, WorkerState.BACKOFF, last_exit=crash)
            side.supervisor.note_change()
            told += await read_until(reply, "in the way")
            assert HIDDEN not in told
            others = {name: spec for name, spec in CATALOG.models.items() if name != "small"}
            side.supervisor.set_catalog(Catalog(others))
            side.supervisor.note_change()
            assert HIDDEN not in await read_until(reply, "remove")


async def read_until(reply: aiohttp.ClientResponse, word: str) -> str:
    """Return what the stream has told up to `word`, and what came with it."""
    told = ""
    async with asyncio.timeout(10):
        while word not in told:
            told += (await reply.content.readany()).decode()
    return told


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (CHAT, {"messages": []}),
        ("/v1/messages", {"messages": []}),
        ("/v1/embeddings", {"input": "x"}),
        ("/api/chat", {"messages": []}),
        ("/api/show", {}),
        ("/tokenize", {"content": "x"}),
    ],
)
async def test_model_of_others_is_answered_like_one_that_does_not_exist(path: str, body: dict[str, Any]) -> None:
    async with side_of() as side:
        texts = []
        for name in ("zebra-big", "zebra-alias", "zebra-none"):
            reply = await side.client.post(path, json=body | {"model": name}, headers=as_("user"))
            assert reply.status == 404
            texts.append((await reply.text()).replace(name, "…").replace(reply.headers["X-Request-Id"], "…"))
        assert len(set(texts)) == 1
        assert HIDDEN not in texts[0]
        assert side.supervisor.granted == []


async def test_model_of_its_own_is_answered_under_all_its_names() -> None:
    async with side_of() as side:
        for name in ("small", "gpt", "fast-one"):
            reply = await side.client.post(CHAT, json={"model": name, "messages": []}, headers=as_("user"))
            assert reply.status == 200
        assert [name for name, *_ in side.supervisor.granted] == ["small"] * 3


async def test_request_without_a_model_goes_to_the_one_that_the_key_may_use() -> None:
    async with side_of() as side:
        for key in ("user", "root"):
            assert (await side.client.post(CHAT, json={"messages": []}, headers=as_(key))).status == 200
        assert [name for name, *_ in side.supervisor.granted] == ["small", "zebra-big"]


async def test_right_to_an_alias_shows_and_opens_that_alias_alone() -> None:
    async with side_of(models=("shared",)) as side:
        listed = (await (await side.client.get("/v1/models", headers=as_("user"))).json())["data"]
        assert [(one["id"], one["aliases"]) for one in listed] == [("shared", ["shared"])]
        tags = (await (await side.client.get("/api/tags", headers=as_("user"))).json())["models"]
        assert [one["name"] for one in tags] == ["shared:latest"]
        for name, status in (("shared", 200), ("shared:latest", 404), ("zebra-big", 404), ("zebra-alias", 404)):
            reply = await side.client.post(CHAT, json={"model": name, "messages": []}, headers=as_("user"))
            assert (name, reply.status) == (name, status)
        reply = await side.client.post(
            "/api/chat", json={"model": "shared:latest", "messages": []}, headers=as_("user")
        )
        assert reply.status == 200


async def test_refusals_do_not_name_models_of_others() -> None:
    async with side_of() as side:
        side.supervisor.refusal = QueueTimeout("It was waiting for room: 'zebra-big' is busy, 'small' is idle.")
        for key, word in (("user", "another model is busy"), ("root", "'zebra-big' is busy")):
            reply = await side.client.post(CHAT, json={"model": "small", "messages": []}, headers=as_(key))
            assert word in await reply.text()


@pytest.mark.parametrize("path", ["/health", "/health?model=zebr", "/health?model=small"])
async def test_health_names_no_models_to_those_without_a_key(path: str) -> None:
    async with side_of() as side:
        side.supervisor.hung_workers[WorkerId("zebra-big", 0, 1)] = "it has not reported for 60 s"
        body = await (await side.client.get(path)).text()
        assert HIDDEN not in body
        assert (await side.client.get("/health?model=small")).status == 200


@pytest.mark.parametrize(
    ("max_priority", "priority", "status"), [(5, 5, 200), (5, 6, 403), (0, 1, 403), (None, 0, 200), (None, 1, 403)]
)
async def test_max_priority_is_the_most_that_requests_of_a_key_may_ask_for(
    max_priority: int | None, priority: int, status: int
) -> None:
    async with side_of(max_priority=max_priority) as side:
        body = {"model": "small", "messages": [], "priority": priority}
        reply = await side.client.post(CHAT, json=body, headers=as_("user"))
        assert reply.status == status
        if status == 403:
            assert (await reply.json())["error"]["param"] == "priority"
        else:
            assert side.supervisor.granted == [("small", priority, "user")]


async def test_withdrawn_right_holds_for_the_next_request_and_ends_streams() -> None:
    async with side_of() as side:
        services = side.client.app[SERVICES]
        body = {"model": "small", "messages": []}
        assert (await side.client.post(CHAT, json=body, headers=as_("user"))).status == 200
        before = services.keys.find(as_("user"))
        assert before is not None
        services.keys.adopt(ring_of(models=("zebra-big",)))
        assert (await side.client.post(CHAT, json=body, headers=as_("user"))).status == 404
        assert not services.keys.still_grants(before), "what it follows tells of `small`"
        services.keys.adopt(ring_of(models=()))
        assert services.keys.still_grants(before), "it may see more than before"
        services.keys.adopt(ring_of(max_concurrent=1))
        assert services.keys.still_grants(before), "limits are no matter of streams"
