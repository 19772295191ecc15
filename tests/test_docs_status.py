"""docs/status.md names every state, field, reason and limit that the code has, and no other."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

from router.account import Account, Outcome
from router.device import Footprint
from router.events import ExitReason, StopCause, WorkerExit, WorkerId
from router.exits import NO_FAILURES
from router.fetch.protocol import FetchProgress
from router.fleet_views import DeviceView, WaiterView
from router.gguf_header import read_gguf_header
from router.lifecycle import WorkerState
from router.listing import list_models, list_statuses
from router.live_streams import MAX_STREAMS
from router.liveness import PASS_FACTOR
from router.log_tail import MAX_LINES as WORKER_LINES
from router.recent_log import MAX_LINES as OWN_LINES
from router.recent_requests import MAX_KEPT, record_of
from router.shown_states import LLAMA_SERVER_STATES, STATES, llama_server_state, shown_state
from router.status_views import MAX_QUEUE
from router.topics import NUM_RECENT, Topic
from tests.fakes.supervisor import FakeSupervisor, make_resident, make_view
from tests.router.test_listing import FACTS
from tests.support.gguf_bytes import LLAMA, gguf_bytes
from tests.support.http_side import http_side, make_catalog, make_spec
from tests.test_docs import name_in, quoted, rows, section, text_of
from worker.contract import Phase, SlotReport, SlotState, WorkerStatus

STATUS = text_of("docs/status.md")


def named(part: str) -> set[str]:
    """Return every name in the first column of the tables in `part`."""
    return {name for row in rows(part) for name in quoted(row[0])}


def given_everything() -> FakeSupervisor:
    """A loaded model, one that has failed, one that downloads and one of another server."""
    specs = [make_spec(name) for name in ("smol", "bad", "coming")]
    far = make_spec("far", remote=_remote())
    supervisor = FakeSupervisor(make_catalog(*specs, far), [])
    resident = make_resident("smol")
    second = replace(make_resident("smol", WorkerState.LOADING), worker=WorkerId("smol", 1, 1), is_outdated=True)
    view = make_view("smol", WorkerState.READY, residents=(resident, second))
    supervisor.views["smol"] = replace(view, footprint=Footprint(7))
    status = WorkerStatus(Phase.READY, facts=FACTS, slots=(SlotReport(0, SlotState.IDLE),))
    supervisor.statuses[resident.worker] = status
    with tempfile.NamedTemporaryFile(suffix=".gguf") as file:
        Path(file.name).write_bytes(gguf_bytes(LLAMA))
        supervisor.headers["smol"] = read_gguf_header(Path(file.name))
    crashed = WorkerExit(ExitReason.CRASHED, "killed", -11)
    supervisor.views["bad"] = replace(make_view("bad", WorkerState.BACKOFF, last_exit=crashed), retry_in_s=3.0)
    supervisor.views["coming"] = make_view("coming", WorkerState.STARTING, queue_length=1, oldest_wait_s=1.0)
    supervisor.progress["coming"] = FetchProgress("downloading", 1, 2)
    return supervisor


def _remote() -> Any:
    from router.catalog import Remote

    return Remote("http://far/v1", "far")


def test_every_state_is_explained() -> None:
    part = section(STATUS, "### States")
    assert {name_in(row[0]) for row in rows(part)} == set(STATES)


def test_every_field_of_a_model_is_explained() -> None:
    entries = list_models(given_everything(), 1)  # type: ignore[arg-type]
    shown = {key for entry in entries for key in entry}
    part = section(STATUS, "### Fields")
    assert named(part) == shown
    told = {name_in_first(row): set(quoted(row[1])) for row in rows(part)}
    for name in ("progress", "memory", "last_exit"):
        assert {key for entry in entries for key in entry.get(name, {})} <= told[name], name
    assert {key for entry in entries for worker in entry.get("workers", ()) for key in worker} <= told["workers"]


def name_in_first(row: list[str]) -> str:
    return quoted(row[0])[0]


def test_every_reason_of_an_exit_is_explained_and_whether_it_is_a_failure() -> None:
    told = {name_in(row[0]): row[2] for row in rows(section(STATUS, "### Reasons of an exit"))}
    assert told == {reason.value: "no" if reason in NO_FAILURES else "yes" for reason in ExitReason}


def test_every_cause_of_a_stop_is_explained() -> None:
    part = section(STATUS, "### Causes of a stop")
    assert {name_in(row[0]) for row in rows(part)} == {cause.value for cause in StopCause}


def test_llama_servers_words_are_mapped_as_the_code_does() -> None:
    told = {name_in(row[0]): set(quoted(row[1])) for row in rows(section(STATUS, "## llama-server's words"))}
    expected: dict[str, set[str]] = {word: set() for word in LLAMA_SERVER_STATES}
    for spec in (make_spec("a"), make_spec("a", problem="no file"), make_spec("a", remote=_remote())):
        for state in WorkerState:
            for is_fetching in (False, True):
                view = make_view("a", state)
                word = llama_server_state(spec, view, is_fetching=is_fetching)
                expected[word].add(shown_state(spec, view, is_fetching=is_fetching))
    assert told == expected


def test_status_of_llama_servers_form_is_explained() -> None:
    part = section(STATUS, "## llama-server's words")
    for entry in list_statuses(given_everything(), 1):  # type: ignore[arg-type]
        assert {*entry} <= set(quoted(part))
        assert {f"status.{key}" for key in entry["status"]} <= set(quoted(part))


async def test_every_field_of_health_is_explained() -> None:
    async with http_side() as side:
        everything = given_everything()
        for name in ("catalog", "views", "statuses", "progress"):
            setattr(side.supervisor, name, getattr(everything, name))
        side.supervisor.hung_workers[WorkerId("smol", 0, 1)] = "silent"
        body = await (await side.client.get("/health")).json()
        part = section(STATUS, "## Health")
        assert named(part) == {*body, "configuration"}
        for name in ("smol", "bad", "coming"):
            body = await (await side.client.get(f"/health?model={name}")).json()
            assert {*body} <= set(quoted(part)), name


async def test_every_field_of_a_slot_is_explained() -> None:
    async with http_side() as side:
        everything = given_everything()
        side.supervisor.views, side.supervisor.statuses = everything.views, everything.statuses
        (slot,) = await (await side.client.get("/slots")).json()
        part = section(STATUS, "## Slots")
        assert named(part) == {*slot}
        assert {state.value for state in SlotState} <= set(quoted(part))


async def test_every_field_of_the_status_is_explained() -> None:
    async with http_side() as side:
        everything = given_everything()
        for name in ("catalog", "views", "statuses", "progress", "headers"):
            setattr(side.supervisor, name, getattr(everything, name))
        side.supervisor.queue = [WaiterView("r", "smol", 1.0, 0, None)]
        side.supervisor.devices = (DeviceView("CPU", "cpu", "", 3, 2, 1, 0),)
        for worker in side.supervisor.statuses:
            status = replace(side.supervisor.statuses[worker], device_bytes={"CPU": {}})
            side.supervisor.statuses[worker] = status
        told = await (await side.client.get("/status")).json()
        entries = await (await side.client.get("/v1/models")).json()
        assert {*told} <= set(quoted(section(STATUS, "## Everything at once")))
        assert named(section(STATUS, "### The server")) == {*told["server"]}
        assert {*told["server"]["configuration"]} <= set(quoted(section(STATUS, "### The server")))
        more = {key for model in told["models"] for key in model} - {key for one in entries["data"] for key in one}
        assert named(section(STATUS, "### A model")) == more
        assert named(section(STATUS, "### A device")) == {*told["devices"][0]}
        assert {*told["devices"][0]["workers"][0]} <= set(quoted(section(STATUS, "### A device")))
        assert named(section(STATUS, "### The queue")) == {*told["queue"]}
        assert {*told["queue"]["requests"][0]} <= set(quoted(section(STATUS, "### The queue")))


def test_every_field_of_a_request_that_has_ended_and_every_outcome_is_explained() -> None:
    part = section(STATUS, "## Recent requests")
    assert named(part) == {*record_of(Account("r", "/v1/models", 0.0), now_s=1.0, at=1.0)}
    assert {outcome.value for outcome in Outcome} <= set(quoted(part))
    assert f"the last {MAX_KEPT} requests" in part


def test_every_topic_is_listed_in_the_order_in_which_it_is_told() -> None:
    table = section(STATUS, "## Events").partition("| topic |")[2].partition("\n\n")[0]
    told = [name for row in rows(f"| topic |{table}\n") for name in quoted(row[0])]
    assert told == [*(topic.value for topic in Topic), "all"]
    assert f"the last {NUM_RECENT} [requests]" in table


async def test_every_field_of_the_configuration_is_explained() -> None:
    async with http_side() as side:
        body = await (await side.client.get("/admin/config")).json()
        part = section(STATUS, "## The configuration").partition("`POST /admin/config/check`")[0]
        assert named(part) == {*body}
        body = await (await side.client.post("/admin/config/check", json={"text": "models: {}"})).json()
        assert {*body} <= set(quoted(section(STATUS, "## The configuration")))


def test_limits_are_those_of_the_code() -> None:
    assert f"the first {MAX_QUEUE}, by priority" in STATUS
    assert f"At most {MAX_STREAMS}\nclients" in STATUS
    assert f"{WORKER_LINES} are kept of a worker, {OWN_LINES} of the router" in STATUS
    assert f"up to {PASS_FACTOR:g} times the longest one so far" in STATUS
