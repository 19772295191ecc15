"""`GET /status` tells everything at once, from snapshots alone; what nobody knows is null and never 0."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import pytest

from router.catalog import Remote
from router.device import Placement
from router.events import WorkerId
from router.fleet_views import DeviceView, WaiterView
from router.lifecycle import WorkerState
from router.services import SERVICES
from tests.fakes.supervisor import make_resident, make_view
from tests.support.http_side import HttpSide, http_side, make_catalog, make_spec
from worker.contract import EngineCounters, Phase, SlotReport, SlotState, WorkerStatus

CPU = DeviceView("CPU", "cpu", "a processor", 8000, 6000, 3000, 500, budget_bytes=7000, free_bytes=2500)
KEYS = {"api_keys": "user", "metrics_keys": "prom", "admin_keys": "root"}


async def status_of(side: HttpSide, **headers: str) -> Any:
    reply = await side.client.get("/status", headers=headers)
    assert reply.status == 200, await reply.text()
    return await reply.json()


def given_ready(side: HttpSide, **status: Any) -> None:
    resident = replace(make_resident("smol"), placement=Placement({"CPU": 3000}), num_leases=2)
    side.supervisor.views["smol"] = make_view("smol", WorkerState.READY, residents=(resident,))
    side.supervisor.statuses[resident.worker] = WorkerStatus(Phase.READY, at_s=12.0, **status)


async def test_status_has_the_server_models_devices_slots_and_queue() -> None:
    async with http_side() as side:
        given_ready(side, slots=(SlotReport(0, SlotState.IDLE),))
        side.supervisor.devices = (CPU,)
        told = await status_of(side)
        assert told.keys() == {"server", "models", "devices", "slots", "queue"}
        assert [model["id"] for model in told["models"]] == ["smol", "gem"], "aliases are no entries"
        assert told["slots"] == await (await side.client.get("/slots")).json()
        assert told["queue"] == {"length": 0, "requests": []}
        server = told["server"]
        assert (server["status"], server["models"], server["loaded"]) == ("ok", 2, 1)
        assert (server["is_open"], server["allow_config_edits"]) == (True, False)


async def test_a_model_is_its_entry_of_the_list_and_more() -> None:
    async with http_side() as side:
        given_ready(side)
        model = (await status_of(side))["models"][0]
        entry = await (await side.client.get("/v1/models/smol")).json()
        assert entry.items() <= model.items()
        assert model["running_requests"] == 2


async def test_speed_is_what_was_counted_between_two_reports() -> None:
    async with http_side() as side:
        given_ready(side, counters=EngineCounters(generated_tokens=150, prompt_tokens_computed=1000))
        (worker,) = side.supervisor.statuses
        before = EngineCounters(generated_tokens=50, prompt_tokens_computed=1000)
        side.supervisor.earlier_statuses[worker] = WorkerStatus(Phase.READY, at_s=10.0, counters=before)
        model = (await status_of(side))["models"][0]
        assert model["tokens_per_second"] == {"prompt": 0.0, "generated": 50.0}


async def test_speeds_of_workers_are_added_and_those_that_stop_do_not_count() -> None:
    async with http_side() as side:
        states = (WorkerState.READY, WorkerState.DRAINING, WorkerState.STOPPING)
        residents = [
            replace(make_resident("smol", state), worker=WorkerId("smol", number, 1))
            for number, state in enumerate(states)
        ]
        side.supervisor.views["smol"] = make_view("smol", WorkerState.READY, residents=tuple(residents))
        for resident, generated in zip(residents, (100, 40, 7), strict=True):
            counters = EngineCounters(generated_tokens=generated)
            side.supervisor.statuses[resident.worker] = WorkerStatus(Phase.READY, at_s=12.0, counters=counters)
            side.supervisor.earlier_statuses[resident.worker] = WorkerStatus(Phase.READY, at_s=11.0)
        model = (await status_of(side))["models"][0]
        assert model["tokens_per_second"]["generated"] == 140.0


async def test_slot_tells_how_fast_it_has_been_since_its_first_token_while_it_works() -> None:
    async with http_side() as side:
        times = {"generated": 21, "first_token_at_s": time.monotonic() - 10.0, "started_at_s": time.monotonic() - 20.0}
        given_ready(side, slots=(SlotReport(0, SlotState.GENERATING, **times), SlotReport(1, SlotState.IDLE, **times)))
        busy, idle = (await status_of(side))["slots"]
        assert busy["tokens_per_second"] == pytest.approx(2.0, rel=0.2)
        assert busy["age_s"] == pytest.approx(20.0, rel=0.2)
        assert (idle["tokens_per_second"], idle["age_s"]) == (None, None)


async def test_what_is_not_known_is_null() -> None:
    async with http_side() as side:
        given_ready(side)
        side.supervisor.devices = (replace(CPU, free_bytes=None, used_by_others_bytes=None, budget_bytes=None),)
        told = await status_of(side)
        smol, gem = told["models"]
        for model in (smol, gem):
            assert model["tokens_per_second"] == {"prompt": None, "generated": None}
            assert (model["idle_unload_in_s"], model["oldest_wait_s"], model["waiting_for"]) == (None, None, None)
        (device,) = told["devices"]
        assert (device["free_bytes"], device["used_by_others_bytes"], device["budget_bytes"]) == (None, None, None)
        (share,) = device["workers"]
        assert share == {
            "model": "smol",
            "replica": 0,
            "weights_bytes": None,
            "kv_bytes": None,
            "compute_bytes": None,
            "other_bytes": None,
            "reserved_bytes": 3000,
        }


async def test_devices_tell_what_each_worker_has_of_them() -> None:
    async with http_side() as side:
        given_ready(
            side,
            device_bytes={"CPU": {"weights": 10, "kv": 20, "compute": 30}, "GPU0": {"weights": 1}},
            memory_bytes={"process": 40},
        )
        side.supervisor.devices = (CPU, DeviceView("GPU0", "gpu", "", 10, 10, 0, 0, free_bytes=10))
        cpu, gpu = (await status_of(side))["devices"]
        assert (cpu["usable_bytes"], cpu["budget_bytes"], cpu["free_bytes"]) == (6000, 7000, 2500)
        assert (
            cpu["workers"][0] | {"weights_bytes": 10, "kv_bytes": 20, "compute_bytes": 30, "other_bytes": 40}
            == (cpu["workers"][0])
        )
        (share,) = gpu["workers"]
        assert (share["weights_bytes"], share["kv_bytes"], share["other_bytes"]) == (1, None, None)
        assert share["reserved_bytes"] is None


async def test_time_until_idleness_unloads_is_that_of_the_first_worker() -> None:
    async with http_side() as side:
        now_s = time.monotonic()
        deadlines = (None, now_s + 500.0, now_s + 50.0)
        residents = tuple(replace(make_resident("smol"), idle_unload_at_s=at_s) for at_s in deadlines)
        side.supervisor.views["smol"] = make_view("smol", WorkerState.READY, residents=residents)
        model = (await status_of(side))["models"][0]
        assert 45.0 < model["idle_unload_in_s"] <= 50.0


async def test_queue_tells_who_waits_for_what_and_keys_to_administrators_alone() -> None:
    async with http_side(keys=KEYS) as side:
        side.supervisor.views["smol"] = replace(make_view("smol", queue_length=101), blocked_by="'smol' to load")
        side.supervisor.queue = [WaiterView(f"r{number}", "smol", 1.25, 3, "env-1") for number in range(101)]
        queue = (await status_of(side, Authorization="Bearer root"))["queue"]
        assert (queue["length"], len(queue["requests"])) == (101, 100)
        first = {"request_id": "r0", "model": "smol", "waits_s": 1.2, "priority": 3, "key": "env-1"}
        assert queue["requests"][0] == first | {"waiting_for": "'smol' to load"}
        for key in ("user", "prom"):
            queue = (await status_of(side, Authorization=f"Bearer {key}"))["queue"]
            assert {request["key"] for request in queue["requests"]} == {None}


async def test_model_of_another_server_tells_how_many_requests_it_has() -> None:
    async with http_side(make_catalog(make_spec("far", remote=Remote("http://far/v1", "far")))) as side:
        assert side.client.app is not None
        remotes, spec = side.client.app[SERVICES].remotes, side.supervisor.catalog.models["far"]
        (model,) = (await status_of(side))["models"]
        assert (model["state"], model["running_requests"], model["is_pinned"]) == ("remote", 0, False)
        with remotes.place(spec):
            assert (await status_of(side))["models"][0]["running_requests"] == 1


async def test_server_tells_what_is_wrong_with_its_file_and_where() -> None:
    async with http_side() as side:
        loaded_at = (await status_of(side))["server"]["configuration"]["loaded_at"]
        (side.folder / "models.yaml").write_text("models:\n  a: {model: a.gguf, slotz: 1}\n")
        await side.client.post("/admin/reload")
        configuration = (await status_of(side))["server"]["configuration"]
        assert (configuration["path"], configuration["status"]) == ("models.yaml", "invalid")
        (problem,) = configuration["problems"]
        assert (problem["where"], problem["line"], problem["column"]) == ("models.a.slotz", 2, 22)
        assert configuration["since"] >= loaded_at == configuration["loaded_at"]
        assert str(side.folder) not in str(configuration)


async def test_words_about_the_file_are_for_administrators_and_others_learn_the_place() -> None:
    async with http_side(keys={"api_keys": "user", "metrics_keys": "prom", "admin_keys": "root"}) as side:
        (side.folder / "models.yaml").write_text("models:\n  a: {model: a.gguf, slotz: 1}\n")
        await side.reloader.take_edits()
        told = {}
        for key in ("user", "prom", "root"):
            configuration = (await status_of(side, Authorization=f"Bearer {key}"))["server"]["configuration"]
            (problem,) = configuration["problems"]
            assert (problem["where"], problem["line"], problem["column"]) == ("models.a.slotz", 2, 22)
            assert "line 2, column 22: models.a.slotz" in configuration["error"]
            told[key] = problem["message"] + configuration["error"]
        assert "did you mean `slots`" in told["root"]
        assert told["user"] == told["prom"]
        assert "did you mean" not in told["user"]
        assert "`corral check`" in told["user"]


async def test_server_that_stops_is_draining() -> None:
    async with http_side() as side:
        side.supervisor.is_shutting_down = True
        assert (await status_of(side))["server"]["status"] == "draining"


@pytest.mark.parametrize(("key", "status"), [(None, 401), ("user", 200), ("prom", 200), ("root", 200)])
async def test_keys_for_inference_or_metrics_may_look(key: str | None, status: int) -> None:
    async with http_side(keys=KEYS) as side:
        headers = {} if key is None else {"x-api-key": key}
        assert (await side.client.get("/status", headers=headers)).status == status


async def test_looking_wakes_nothing() -> None:
    async with http_side() as side:
        await status_of(side)
        assert (side.supervisor.loaded, side.supervisor.granted, side.worker.received) == ([], [], [])
