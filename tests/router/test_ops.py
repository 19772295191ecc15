"""Status routes answer from snapshots, need nobody awake and show no text."""

from __future__ import annotations

import hashlib
import re
import time
import zlib
from dataclasses import replace
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from router.app import all_routes
from router.auth import Grant, KeyRing, Scope
from router.errors import ModelUnavailable
from router.events import ExitReason, WorkerExit, WorkerId
from router.fetch.protocol import FetchProgress
from router.lifecycle import WorkerState
from tests.fakes.supervisor import make_resident, make_view
from tests.support.http_side import CHAT, HttpSide, http_side, make_catalog, make_spec
from worker.contract import Phase, SlotReport, SlotState, WorkerStatus


async def get_json(side: HttpSide, path: str, status: int = 200) -> Any:
    reply = await side.client.get(path)
    assert reply.status == status
    return await reply.json()


def given_ready(side: HttpSide, model: str, **status: Any) -> None:
    resident = make_resident(model)
    side.supervisor.views[model] = make_view(model, WorkerState.READY, residents=(resident,))
    now_s = time.monotonic()
    chosen = {"phase": Phase.READY, "at_s": now_s, "step_at_s": now_s} | status
    side.supervisor.statuses[resident.worker] = WorkerStatus(**chosen)


async def test_health_counts_models_and_the_queue() -> None:
    async with http_side() as side:
        given_ready(side, "smol")
        side.supervisor.views["gem"] = make_view("gem", WorkerState.LOADING, queue_length=3, oldest_wait_s=2.04)
        assert await get_json(side, "/health") == {
            "status": "ok",
            "models": 2,
            "loaded": 1,
            "queue_length": 3,
            "oldest_wait_s": 2.0,
            "oldest_wait": {"model": "gem", "waiting_for": None},
        }


async def test_health_names_the_queue_that_has_waited_longest_and_what_for() -> None:
    async with http_side() as side:
        assert (await get_json(side, "/health"))["oldest_wait_s"] is None
        side.supervisor.views["smol"] = make_view("smol", queue_length=1, oldest_wait_s=3.0)
        stuck = make_view("gem", queue_length=1, oldest_wait_s=250.0)
        side.supervisor.views["gem"] = replace(stuck, blocked_by="a place: `smol` is pinned")
        body = await get_json(side, "/health")
        assert body["oldest_wait_s"] == 250.0
        assert body["oldest_wait"] == {"model": "gem", "waiting_for": "a place: `smol` is pinned"}


async def test_health_names_the_workers_that_hang() -> None:
    async with http_side() as side:
        assert "hung" not in await get_json(side, "/health")
        side.supervisor.hung_workers[WorkerId("smol", 1, 3)] = "it has not reported for 60 s"
        body = await get_json(side, "/health")
        assert body["status"] == "ok", "the router itself is well"
        assert body["hung"] == [{"model": "smol", "replica": 1, "reason": "it has not reported for 60 s"}]


async def test_health_is_503_while_the_router_stops() -> None:
    async with http_side() as side:
        side.supervisor.is_shutting_down = True
        assert (await get_json(side, "/health", 503))["status"] == "draining"


@pytest.mark.parametrize(
    ("state", "status"),
    [
        (WorkerState.UNLOADED, 200),
        (WorkerState.STARTING, 200),
        (WorkerState.LOADING, 200),
        (WorkerState.READY, 200),
        (WorkerState.DRAINING, 503),
        (WorkerState.STOPPING, 503),
        (WorkerState.BACKOFF, 503),
        (WorkerState.FAILED, 503),
    ],
)
async def test_health_of_a_model_follows_its_state(state: WorkerState, status: int) -> None:
    async with http_side() as side:
        side.supervisor.views["smol"] = make_view("smol", state)
        body = await get_json(side, "/health?model=gpt", status)
        assert (body["model"], body["state"]) == ("smol", state.value)
        assert side.supervisor.granted == []
        assert side.supervisor.loaded == []


async def test_health_of_a_model_tells_why_it_is_down() -> None:
    catalog = make_catalog(make_spec("lost", problem="no file"), make_spec("bad"))
    async with http_side(catalog) as side:
        exit_ = WorkerExit(ExitReason.BAD_MODEL, "not a GGUF file", 65)
        side.supervisor.views["bad"] = make_view("bad", WorkerState.FAILED, last_exit=exit_)
        assert (await get_json(side, "/health?model=lost", 503))["reason"] == "no file"
        assert (await get_json(side, "/health?model=bad", 503))["reason"] == "not a GGUF file"
        assert (await get_json(side, "/health?model=nobody", 404))["error"]["code"] == "model_not_found"


async def test_health_of_a_model_tells_how_far_its_own_download_or_load_is() -> None:
    async with http_side() as side:
        resident = make_resident("smol", WorkerState.STARTING)
        side.supervisor.views["smol"] = make_view("smol", WorkerState.STARTING, residents=(resident,))
        side.supervisor.progress["smol"] = FetchProgress("downloading", 41_000_000, 85_000_000)
        assert (await get_json(side, "/health?model=smol"))["waiting_for"] == "its download: 41 of 85 MB"
        side.supervisor.progress["smol"] = FetchProgress("joining", 3_000_000, 85_000_000, "part 2 of 6")
        told = (await get_json(side, "/health?model=smol"))["waiting_for"]
        assert told == "its download: joining part 2 of 6, 3 of 85 MB"
        side.supervisor.progress.clear()
        resident = make_resident("smol", WorkerState.LOADING)
        side.supervisor.views["smol"] = make_view("smol", WorkerState.LOADING, residents=(resident,))
        assert (await get_json(side, "/health?model=smol"))["waiting_for"] == "its load"
        side.supervisor.statuses[resident.worker] = WorkerStatus(phase=Phase.LOADING, progress=0.4)
        assert (await get_json(side, "/health?model=smol"))["waiting_for"] == "its load: 40%"


async def test_health_does_not_believe_a_worker_that_hangs() -> None:
    async with http_side() as side:
        given_ready(side, "smol")
        assert (await get_json(side, "/health?model=smol"))["status"] == "ok"
        side.supervisor.hung_workers[WorkerId("smol", 0, 1)] = "its engine has had work for 60 s"
        assert (await get_json(side, "/health?model=smol", 503))["reason"] == "its engine has had work for 60 s"


async def test_model_is_healthy_while_one_of_its_workers_does_not_hang() -> None:
    async with http_side() as side:
        residents = (make_resident("smol"), replace(make_resident("smol"), worker=WorkerId("smol", 1, 1)))
        side.supervisor.views["smol"] = make_view("smol", WorkerState.READY, residents=residents)
        side.supervisor.hung_workers[residents[0].worker] = "it has not reported for 60 s"
        assert (await get_json(side, "/health?model=smol"))["status"] == "ok"


async def test_health_of_a_model_shows_phase_and_fraction_of_its_load() -> None:
    async with http_side() as side:
        resident = make_resident("smol", WorkerState.LOADING)
        side.supervisor.views["smol"] = make_view("smol", WorkerState.LOADING, residents=(resident,))
        assert (await get_json(side, "/health?model=smol"))["progress"] == {"phase": "starting", "fraction": None}
        side.supervisor.statuses[resident.worker] = WorkerStatus(phase=Phase.LOADING, progress=0.4)
        assert (await get_json(side, "/health?model=smol"))["progress"] == {"phase": "loading", "fraction": 0.4}


async def test_slots_are_a_flat_list_without_text() -> None:
    slots = (
        SlotReport(0, SlotState.GENERATING, "r1", 10, 10, 4, 3, 13, time.monotonic() - 2, time.monotonic() - 1),
        SlotReport(1, SlotState.IDLE, cached_tokens=7),
    )
    async with http_side() as side:
        given_ready(side, "smol", slots=slots)
        first, second = await get_json(side, "/slots")
        assert first.pop("age_s") >= 2
        assert 0 < first.pop("tokens_per_second") <= 2
        assert first == {
            "model": "smol",
            "replica": 0,
            "id": 0,
            "id_task": zlib.crc32(b"r1") >> 1,
            "state": "GENERATING",
            "is_processing": True,
            "request_id": "r1",
            "n_ctx": None,
            "prompt_total": 10,
            "prompt_processed": 10,
            "prompt_cached": 4,
            "generated": 3,
            "cached_tokens": 13,
        }
        assert (second["state"], second["is_processing"], second["age_s"]) == ("IDLE", False, None)
        assert second["tokens_per_second"] is None


async def test_slots_of_one_model_are_asked_for_by_any_of_its_names() -> None:
    async with http_side() as side:
        for model in ("smol", "gem"):
            given_ready(side, model, slots=(SlotReport(0, SlotState.IDLE),))
        assert len(await get_json(side, "/slots")) == 2
        assert [slot["model"] for slot in await get_json(side, "/slots?model=gpt")] == ["smol"]
        await get_json(side, "/slots?model=nobody", 404)


async def test_slots_of_a_worker_that_has_not_reported_are_left_out() -> None:
    async with http_side() as side:
        side.supervisor.views["smol"] = make_view("smol", WorkerState.LOADING, residents=(make_resident("smol"),))
        assert side.supervisor.status(WorkerId("smol", 0, 1)) is None
        assert await get_json(side, "/slots") == []


async def test_metrics_are_valid_prometheus_text() -> None:
    async with http_side() as side:
        await side.client.post(CHAT, json={"model": "smol"})
        reply = await side.client.get("/metrics")
        assert reply.headers["Content-Type"].startswith("text/plain; version=")
        families = list(text_string_to_metric_families(await reply.text()))
        assert "corral_requests" in {family.name for family in families}


async def test_start_page_names_the_routes_and_no_model() -> None:
    async with http_side() as side:
        text = await (await side.client.get("/")).text()
        assert "POST  /v1/chat/completions" in text
        assert "GET   /v1/models/{id}" in text
        assert "\nPOST  /v1/reranking" not in text, "other forms of a route are told in short"
        shown = {re.sub(r":[^}]*\}", "}", route.path.replace("{rest:.*}", "…")) for route in all_routes()}
        shown = {path.replace("{digest}", "…") for path in shown}
        assert shown <= set(re.findall(r"/[^\s,]*", text)), "it lists all of them, as answers to wrong addresses say"
        assert "GET   /props" in text
        assert "smol" not in text


async def test_where_files_lie_is_told_to_administrators_alone_where_there_are_keys() -> None:
    catalog = make_catalog(make_spec("lost", problem="/nowhere/deep/x.gguf does not exist"))
    root, user = {"x-api-key": "root"}, {"x-api-key": "user"}
    ring = KeyRing(
        [
            (hashlib.sha256(b"root").digest(), Grant("root", frozenset({Scope.ADMIN}))),
            (hashlib.sha256(b"user").digest(), Grant("user", frozenset({Scope.INFERENCE}))),
        ]
    )
    async with http_side(catalog, ring=ring) as side:
        health = await (await side.client.get("/health?model=lost")).json()
        assert health["reason"] == "x.gguf does not exist"
        for path in ("/v1/models", "/models", "/status"):
            told = await (await side.client.get(path, headers=user)).text()
            assert ("x.gguf does not exist" in told, "nowhere" in told) == (True, False), path
            assert "/nowhere/deep/x.gguf" in await (await side.client.get(path, headers=root)).text(), path
        side.supervisor.refusal = ModelUnavailable("cannot be loaded: /nowhere/deep/x.gguf is gone.")
        refused = await side.client.post(CHAT, json={"model": "lost", "messages": []}, headers=user)
        assert (refused.status, "nowhere" in await refused.text()) == (503, False)
    async with http_side(catalog) as side:
        assert (await get_json(side, "/health?model=lost", 503))["reason"] == "/nowhere/deep/x.gguf does not exist"
