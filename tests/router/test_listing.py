"""`/v1/models` and `/models` show what each model is, does, needs and uses, loaded or not, and quickly."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson
import pytest

from router.catalog import AliasSpec, Catalog, ModelSpec
from router.device import Footprint, FootprintSource, Placement
from router.events import Departure, ExitReason, ModelPolicy, StopCause, WorkerExit, WorkerId
from router.fleet import Fleet
from router.fleet_views import DeviceView, FleetSnapshot, ModelView, ResidentView
from router.gguf_header import read_gguf_header
from router.lifecycle import WorkerState
from router.listing import find_model, list_models, list_statuses
from router.shown_states import LLAMA_SERVER_STATES, STATES
from tests.fakes.supervisor import FakeSupervisor, make_resident, make_view
from tests.support.gguf_bytes import LLAMA, gguf_bytes
from tests.support.http_side import make_catalog, make_spec
from worker.contract import ModelFacts, Phase, WorkerStatus

FACTS = ModelFacts(
    context=2048,
    slots=4,
    kv_cells=8192,
    trained_context=8192,
    num_params=135_000_000,
    size_bytes=90_000_000,
    num_vocab=49152,
    description="llama 135M",
    has_chat_template=True,
    device="CPU",
    gpu_layers=0,
    total_layers=31,
    embedding_size=576,
)
GPU = DeviceView("CUDA0", "gpu", "a card", 80_000, 72_000, 0, 0)


class Fleetless(FakeSupervisor):
    """Shows what the test says, with devices."""

    devices: tuple[DeviceView, ...] = ()

    def snapshot(self) -> FleetSnapshot:
        return replace(super().snapshot(), devices=self.devices)


def given(*specs: ModelSpec) -> Fleetless:
    return Fleetless(make_catalog(*specs), [])


def given_ready(
    supervisor: FakeSupervisor, facts: ModelFacts = FACTS, *, placement: Placement | None = None, **status: Any
) -> ResidentView:
    resident = replace(make_resident("smol"), placement=placement or Placement())
    supervisor.views["smol"] = make_view("smol", WorkerState.READY, residents=(resident,))
    supervisor.statuses[resident.worker] = WorkerStatus(Phase.READY, facts=facts, **status)
    return resident


def entry(supervisor: FakeSupervisor, name: str = "smol") -> dict[str, Any]:
    return find_model(supervisor, 1, name)  # type: ignore[arg-type]


def set_view(supervisor: FakeSupervisor, view: ModelView) -> None:
    supervisor.views[view.name] = view


# --- what is told of a loaded model --------------------------------------------------------------------------


def test_loaded_model_shows_what_it_is() -> None:
    supervisor = given(make_spec("smol", slots=4))
    given_ready(supervisor)
    told = entry(supervisor)
    assert told["state"] == "ready"
    assert told["num_params"] == 135_000_000
    assert told["capabilities"] == ["chat", "completion", "embedding"]
    assert (told["gpu_layers"], told["total_layers"], told["devices"]) == (0, 31, ["CPU"])


def test_size_is_that_of_the_file_loaded_or_not(tmp_path: Path) -> None:
    supervisor = given(make_spec("smol"))
    (tmp_path / "smol.gguf").write_bytes(gguf_bytes(LLAMA))
    supervisor.headers["smol"] = read_gguf_header(tmp_path / "smol.gguf")
    size = (tmp_path / "smol.gguf").stat().st_size
    assert entry(supervisor)["size_bytes"] == size
    given_ready(supervisor)
    assert FACTS.size_bytes != size, "what llama.cpp counts is something else"
    assert entry(supervisor)["size_bytes"] == size


def test_names_with_a_star_are_told_apart_from_listed_aliases() -> None:
    names = {name: AliasSpec(name, listed="*" not in name) for name in ("claude-*", "mini", "*")}
    supervisor = given(make_spec("smol", aliases=names), make_spec("gem"))
    for name in ("smol", "claude-3", "mini"):
        assert entry(supervisor, name)["alias_patterns"] == ["claude-*", "*"]
        assert entry(supervisor, name)["aliases"] == ["mini"]
    assert entry(supervisor, "gem")["alias_patterns"] == []
    statuses = list_statuses(supervisor, 1)  # type: ignore[arg-type]
    assert [(one["id"], one["alias_patterns"]) for one in statuses] == [("smol", ["claude-*", "*"]), ("gem", [])]
    assert [one["id"] for one in list_models(supervisor, 1)] == ["smol", "mini", "gem"]  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("changes", "capabilities"),
    [
        ({"has_chat_template": False, "embedding_size": 0}, ["completion"]),
        ({"can_generate": False, "pooling": "mean"}, ["embedding"]),
        ({"can_generate": False, "pooling": "rank"}, ["rerank"]),
        ({"pooling": "rank"}, ["chat", "completion", "rerank"]),
    ],
)
def test_capabilities_are_those_of_the_loaded_file(changes: dict[str, Any], capabilities: list[str]) -> None:
    supervisor = given(make_spec("smol"))
    given_ready(supervisor, replace(FACTS, **changes))
    assert entry(supervisor)["capabilities"] == capabilities


def test_context_is_for_each_request_and_the_pool_for_all_together() -> None:
    supervisor = given(make_spec("smol", context=1024, slots=4))
    told = entry(supervisor)
    assert (told["context_length"], told["max_model_len"], told["slots"], told["kv_tokens"]) == (1024, 1024, 4, 4096)
    given_ready(supervisor, replace(FACTS, context=512, kv_cells=2048))
    told = entry(supervisor)
    assert (told["context_length"], told["kv_tokens"]) == (512, 2048), "what is really there counts"


def test_context_of_an_encoder_is_its_longest_text() -> None:
    supervisor = given(make_spec("smol", context=8192))
    given_ready(supervisor, replace(FACTS, can_generate=False, pooling="mean", embedding_context=512))
    assert entry(supervisor)["context_length"] == 512


def test_devices_have_the_names_that_they_have_outside_of_the_worker() -> None:
    supervisor = given(make_spec("smol"))
    on_second = Placement(reserved={"CUDA1": 5}, gpus=("CUDA1",))
    given_ready(supervisor, replace(FACTS, device="CUDA1", gpu_layers=31), placement=on_second)
    assert entry(supervisor)["devices"] == ["CUDA1"]


def test_fallback_to_the_cpu_is_shown_and_not_what_was_meant() -> None:
    supervisor = given(make_spec("smol"))
    given_ready(supervisor, FACTS, placement=Placement(reserved={"CUDA1": 5}, gpus=("CUDA1",)))
    told = entry(supervisor)
    assert (told["devices"], told["gpu_layers"], told["total_layers"]) == (["CPU"], 0, 31)


def test_memory_shows_what_is_needed_how_that_is_known_and_what_is_used() -> None:
    supervisor = given(make_spec("smol"))
    footprint = Footprint(cpu_bytes=700, gpu_bytes=500, gpu_compute_bytes=60, host_bytes=7)
    set_view(supervisor, replace(make_view("smol"), footprint=footprint))
    assert entry(supervisor)["memory"] == {"needed_bytes": 700, "source": "header", "used_bytes": None}
    supervisor.devices = (GPU,)
    assert entry(supervisor)["memory"]["needed_bytes"] == 567, "where there is a GPU"
    given_ready(supervisor, memory_bytes={"rss": 900, "pss": 650}, device_bytes={"CPU": {"kv": 1}, "CUDA0": {"kv": 80}})
    measured = replace(footprint, source=FootprintSource.MEASURED)
    set_view(supervisor, replace(supervisor.views["smol"], footprint=measured))
    assert entry(supervisor)["memory"] == {"needed_bytes": 567, "source": "measured", "used_bytes": 730}


def test_reservation_of_a_worker_is_what_it_needs() -> None:
    supervisor = given(make_spec("smol"))
    given_ready(supervisor, placement=Placement(reserved={"CUDA0": 300, "CPU": 40}, gpus=("CUDA0",)))
    assert entry(supervisor)["memory"]["needed_bytes"] == 340


def test_workers_of_a_model_are_listed_one_by_one() -> None:
    supervisor = given(make_spec("smol", replicas=2))
    first, second = (replace(make_resident("smol"), worker=WorkerId("smol", replica, 1)) for replica in (0, 1))
    second = replace(second, state=WorkerState.LOADING)
    set_view(supervisor, make_view("smol", WorkerState.READY, residents=(replace(first, num_leases=3), second)))
    supervisor.statuses[first.worker] = WorkerStatus(Phase.READY, facts=FACTS, memory_bytes={"rss": 9})
    supervisor.statuses[second.worker] = WorkerStatus(Phase.LOADING, progress=0.5)
    told = entry(supervisor)
    assert told["replicas"] == 2
    assert told["workers"] == [
        {"replica": 0, "state": "ready", "running_requests": 3, "devices": ["CPU"], "used_bytes": 9},
        {
            "replica": 1,
            "state": "loading",
            "running_requests": 0,
            "devices": [],
            "used_bytes": None,
            "progress": {"phase": "loading", "fraction": 0.5},
        },
    ]
    assert told["memory"]["used_bytes"] == 9


# --- what is told of the others ------------------------------------------------------------------------------


def test_load_shows_phase_and_fraction() -> None:
    supervisor = given(make_spec("smol"))
    resident = make_resident("smol", WorkerState.STARTING)
    set_view(supervisor, make_view("smol", WorkerState.STARTING, residents=(resident,)))
    assert entry(supervisor)["progress"] == {"phase": "starting", "fraction": None}
    supervisor.statuses[resident.worker] = WorkerStatus(Phase.LOADING, progress=0.123456)
    assert entry(supervisor)["progress"] == {"phase": "loading", "fraction": 0.123}
    (status,) = list_statuses(supervisor, 1)  # type: ignore[arg-type]
    assert status["status"] == {
        "value": "loading",
        "progress": {"stages": ["text_model"], "current": "text_model", "value": 0.123},
    }


def test_four_ways_of_not_being_loaded_are_told_apart() -> None:
    """Never used, unloaded for idleness, crashed while it served, and a bad file."""
    asked = Departure(StopCause.KEEP_ALIVE, limit_s=0.0)
    stopped = WorkerExit(ExitReason.STOPPED, "unloaded, as a request asked for (keep_alive 0 s)", 0, asked)
    crashed = WorkerExit(ExitReason.CRASHED, "killed by signal 11 (SIGSEGV)", -11)
    bad = WorkerExit(ExitReason.BAD_MODEL, "it is truncated", 65)
    supervisor = given(*map(make_spec, ("new", "idle", "crashed", "bad")))
    set_view(supervisor, make_view("idle", WorkerState.UNLOADED, last_exit=stopped))
    set_view(supervisor, make_view("crashed", WorkerState.UNLOADED, last_exit=crashed))
    set_view(supervisor, make_view("bad", WorkerState.FAILED, last_exit=bad))
    told = {name: entry(supervisor, name) for name in supervisor.catalog.models}
    assert {name: one["state"] for name, one in told.items()} == {
        "new": "unloaded",
        "idle": "unloaded",
        "crashed": "unloaded",
        "bad": "failed",
    }
    assert "last_exit" not in told["new"]
    exits = {name: one["last_exit"] for name, one in told.items() if name != "new"}
    assert [(one["reason"], one["cause"], one["code"], one["signal"]) for one in exits.values()] == [
        ("stopped", "keep_alive", 0, None),
        ("crashed", None, -11, "SIGSEGV"),
        ("bad_model", None, 65, None),
    ]
    assert "reason" not in told["crashed"], "it may be asked again at once"
    assert told["bad"]["reason"] == "it is truncated"
    assert all(abs(one["at"] + one["ago_s"] - time.time()) < 60 for one in exits.values())


def test_model_that_waits_for_its_next_try_says_how_long() -> None:
    supervisor = given(make_spec("smol"))
    crashed = WorkerExit(ExitReason.CRASHED, "killed", -9)
    set_view(supervisor, replace(make_view("smol", WorkerState.BACKOFF, last_exit=crashed), retry_in_s=12.345))
    assert entry(supervisor)["retry_in_s"] == 12.3


def test_alias_is_its_model_under_another_name() -> None:
    supervisor = given()
    given_ready(supervisor)
    model, alias = entry(supervisor, "smol"), entry(supervisor, "gpt")
    assert {key for key in model if model[key] != alias[key]} == {"id", "parent"}
    assert (alias["id"], alias["parent"], alias["root"]) == ("gpt", "smol", "smol")


@pytest.mark.parametrize("state", list(WorkerState))
def test_every_state_is_a_word_of_the_list(state: WorkerState) -> None:
    supervisor = given(make_spec("smol"))
    set_view(supervisor, make_view("smol", state))
    assert entry(supervisor)["state"] in STATES
    (told,) = list_statuses(supervisor, 1)  # type: ignore[arg-type]
    assert told["status"]["value"] in LLAMA_SERVER_STATES


def test_a_thousand_models_are_listed_within_twenty_milliseconds() -> None:
    specs = [make_spec(f"m{number}", context=4096) for number in range(1000)]
    catalog = Catalog({spec.name: spec for spec in specs})

    class Real(FakeSupervisor):
        """A real fleet behind it, and nothing loaded."""

        fleet = Fleet({name: ModelPolicy(name) for name in catalog.models}, catalog.fleet_limits())

        def snapshot(self) -> FleetSnapshot:
            return self.fleet.snapshot(1.0)

    supervisor = Real(catalog, [])

    def seconds() -> float:
        started_s = time.thread_time()
        orjson.dumps(list_models(supervisor, 1))  # type: ignore[arg-type]
        return time.thread_time() - started_s

    # The best of several, in processor time: what else runs on the machine is not this code's.
    assert min(seconds() for _ in range(20)) < 0.02
