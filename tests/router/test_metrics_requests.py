"""What requests leave on the metrics page of a server: nothing that a client wrote, and exactly what was done."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Any

import orjson
import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics

from router.account import Outcome
from router.app import all_routes
from router.catalog import AliasSpec
from router.metrics import RouterMetrics
from router.metrics.clients import HeldForClients, client_families
from tests.fakes.supervisor import EVENTS, Received, Sender
from tests.support.busy_metrics import CHAT, samples, value
from tests.support.http_side import HttpSide, http_side, make_catalog, make_spec
from tests.support.stub_world import ask, eventually, open_world
from worker.contract import Header

OPENMETRICS = {"Accept": "application/openmetrics-text; version=1.0.0"}
ODD = "zz-Never-Seen-4711"


async def every_form(side: HttpSide) -> str:
    """Return the page in all of its forms."""
    texts = [await (await side.client.get(path)).text() for path in ("/metrics", "/metrics.json")]
    return "".join([*texts, await (await side.client.get("/metrics", headers=OPENMETRICS)).text()])


# --- closed sets ------------------------------------------------------------------------------------------


async def test_nothing_that_a_client_wrote_is_on_the_page() -> None:
    async with http_side() as side:
        headers = {"X-Request-Id": ODD, "User-Agent": ODD, "X-Corral-Request-Id": ODD}
        await side.client.post(CHAT, json={"model": ODD, "user": ODD}, headers=headers)
        await side.client.post(CHAT, json={"model": "smol", "messages": [{"role": "user", "content": ODD}]})
        await side.client.post(CHAT, data=f"not json {ODD}", headers=headers)
        for method, path in (("GET", f"/{ODD}"), ("POST", f"/v1/{ODD}?model={ODD}"), ("PATCH", "/v1/models")):
            await side.client.request(method, path, headers=headers)
        await side.client.get(f"/v1/models/{ODD}")
        await side.client.get(f"/health?model={ODD}")
        assert ODD.lower() not in (await every_form(side)).lower()
        assert side.num_requests(route=CHAT, model="", outcome="rejected") == 2
        assert side.num_requests(route=CHAT, model="smol", outcome="ok") == 1


async def test_an_alias_counts_for_its_model() -> None:
    async with http_side() as side:
        await side.client.post(CHAT, json={"model": "org/smol:fast"})
        assert side.num_requests(model="smol", outcome="ok") == 1
        assert "org/smol:fast" not in await every_form(side)


async def test_a_name_that_fits_a_pattern_counts_for_its_model() -> None:
    spec = make_spec("smol", aliases={"zz-*": AliasSpec("zz-*")})
    async with http_side(make_catalog(spec)) as side:
        assert (await side.client.post(CHAT, json={"model": ODD.lower()})).status == 200
        assert side.num_requests(model="smol", outcome="ok") == 1
        assert ODD.lower() not in (await every_form(side)).lower()


async def test_labels_of_requests_are_of_closed_sets() -> None:
    async with http_side() as side:
        for path in (CHAT, "/v1/nowhere", "/v1/completions", "/api/chat", "/v1/messages", "/v1/models/smol"):
            for model in ("smol", "gpt", ODD):
                await side.client.post(path, json={"model": model})
        routes = {route.label for route in all_routes()} | {"other"}
        labels = [dict(pairs) for name, pairs in samples(side.metrics) if name == "corral_requests_total"]
        assert len(labels) > 6
        for each in labels:
            assert each["route"] in routes
            assert each["model"] in {"", "smol", "gem"}
            assert Outcome(each["outcome"])


# --- exemplars, streams -----------------------------------------------------------------------------------


async def test_the_id_of_a_request_is_the_exemplar_of_its_time() -> None:
    async with http_side() as side:
        reply = await side.client.post(CHAT, json={"model": "smol", "stream": True})
        await reply.read()
        await eventually(lambda: side.num_requests(model="smol"))
        page = await (await side.client.get("/metrics", headers=OPENMETRICS)).text()
        found = {
            family.name: sample.exemplar.labels["request_id"]
            for family in parse_openmetrics(page)  # type: ignore[no-untyped-call]
            for sample in family.samples
            if sample.exemplar is not None and sample.labels["model"] == "smol"
        }
        expected = reply.headers["X-Request-Id"]
        assert found["corral_request_seconds"] == expected
        assert found["corral_time_to_first_byte_seconds"] == expected


async def test_a_stream_is_open_until_its_end() -> None:
    async with http_side() as side:
        go_on = asyncio.Event()

        async def speak(received: Received, sender: Sender) -> None:
            sender.headers[Header.CONTENT_TYPE] = EVENTS
            await sender.data(b'data: {"n":1}\n\n')
            await go_on.wait()
            await sender.data(b"data: [DONE]\n\n")
            await sender.end()

        side.worker.script = speak
        assert value(side.metrics, "corral_open_streams", kind="answers") == 0
        reply = await side.client.post(CHAT, json={"model": "smol", "stream": True})
        await reply.content.readany()
        assert value(side.metrics, "corral_open_streams", kind="answers") == 1
        go_on.set()
        await reply.read()
        await eventually(lambda: value(side.metrics, "corral_open_streams", kind="answers") == 0)
        assert not side.metrics.replies


async def test_clients_that_follow_events_are_counted() -> None:
    async with http_side() as side:
        reply = await side.client.get("/events")
        assert value(side.metrics, "corral_open_streams", kind="events") == 1
        assert value(side.metrics, "corral_open_streams", kind="logs") == 0
        reply.close()


def test_what_is_held_for_clients_is_shown() -> None:
    metrics = RouterMetrics()
    metrics.watch_clients(lambda: HeldForClients({"events": 3, "logs": 1}, 5, 700, 90, {"detached": 2}, 40))
    assert value(metrics, "corral_open_streams", kind="events") == 3
    assert value(metrics, "corral_kept_responses") == 5
    assert value(metrics, "corral_kept_responses_bytes") == 700
    assert value(metrics, "corral_request_body_bytes") == 90
    assert value(metrics, "corral_kept_streams", state="detached") == 2
    assert value(metrics, "corral_kept_streams_bytes") == 40
    assert len(list(client_families(set(), HeldForClients({}, 0, 0, 0, {}, 0)))) == 6


async def test_a_request_that_has_got_nothing_yet_is_no_open_stream() -> None:
    async with http_side() as side:
        assert 'corral_open_streams{kind="answers"} 0.0' in await (await side.client.get("/metrics")).text()


# --- the routes -------------------------------------------------------------------------------------------


async def test_json_is_the_twin_of_the_page() -> None:
    async with http_side() as side:
        await side.client.post(CHAT, json={"model": "smol"})
        reply = await side.client.get("/metrics.json")
        assert reply.content_type == "application/json"
        assert reply.headers["Cache-Control"] == "no-store"
        families = orjson.loads(await reply.read())
        page = await (await side.client.get("/metrics")).text()
        assert {one["name"] for one in families} == set(re.findall(r"^# TYPE (\S+)", page, re.MULTILINE))
        (requests,) = [one for one in families if one["name"] == "corral_requests_total"]
        labels = {"model": "smol", "outcome": "ok", "route": CHAT}
        assert {"name": "corral_requests_total", "labels": labels, "value": 1.0} in requests["samples"]
        assert sum(sample["value"] for sample in requests["samples"]) == 1


async def test_scraping_asks_no_worker_and_wakes_none() -> None:
    async with http_side() as side:
        for _ in range(3):
            await every_form(side)
        assert side.supervisor.num_leases == 0
        assert not side.supervisor.granted
        assert not side.supervisor.loaded
        assert not side.worker.received
        assert side.num_requests() == 0, "nor does it count as a request"


# --- what was done ----------------------------------------------------------------------------------------


async def test_sums_over_models_are_what_a_run_has_done(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers in processes of their own that pretend; prompts and answers have known numbers of tokens."""
    async with open_world(tmp_path, monkeypatch) as world:
        supervisor = await world.serve(world.model("a"), world.model("b"))
        asked = [("a", 3), ("b", 5), ("a", 7), ("b", 1), ("a", 2), ("a", 4)]

        async def one(name: str, num_tokens: int) -> dict[str, Any]:
            async with supervisor.lease(supervisor.catalog.models[name], request_id=f"{name}-{num_tokens}") as lease:
                frames = await ask(lease, fake={"tokens": num_tokens})
            usage: dict[str, Any] = orjson.loads(frames[-1][1])["usage"]
            return usage

        usages = await asyncio.gather(*(one(*each) for each in asked))

        def total(name: str, **labels: str) -> float:
            return sum(
                number
                for (sample, pairs), number in samples(world.metrics).items()
                if sample == name and labels.items() <= dict(pairs).items()
            )

        def is_counted() -> bool:
            return total("corral_generated_tokens_total") >= sum(num_tokens for _, num_tokens in asked)

        await eventually(is_counted)
        for model in ("a", "b"):
            expected = sum(num_tokens for name, num_tokens in asked if name == model)
            assert total("corral_generated_tokens_total", model=model) == expected
        assert total("corral_prompt_tokens_total") == sum(usage["prompt_tokens"] for usage in usages)
        assert total("corral_queue_wait_seconds_count") == len(asked)
        assert total("corral_worker_starts_total") == total("corral_workers", state="ready") == 2
        assert total("corral_leases_held") == 0
        supervisor.unload("a")
        await eventually(lambda: total("corral_worker_exits_total", reason="stopped", model="a"))
        assert total("corral_generated_tokens_total") == sum(num_tokens for _, num_tokens in asked)
        assert total("corral_worker_exits_total") == 1
        assert total("corral_worker_restarts_total") == 0
