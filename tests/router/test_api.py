"""Models are listed as OpenAI's and llama-server's clients expect, and found by every name."""

from __future__ import annotations

import time
from typing import Any

import pytest
from openai.types import Model

from router.api_keys import KeySpec
from router.app import all_routes
from router.auth import load_key_ring
from router.catalog import AliasSpec, RequestRules
from router.events import ExitReason, WorkerExit
from router.fetch.protocol import FetchProgress
from router.lifecycle import WorkerState
from router.routes import Streaming
from router.settings import RouterSettings
from tests.fakes.supervisor import Received, Sender, make_view
from tests.support.http_side import CHAT, STARTED_AT, http_side, make_catalog, make_spec

SEGV = WorkerExit(ExitReason.CRASHED, "killed by SIGSEGV", -11)


async def listed(side: Any, path: str = "/v1/models") -> dict[str, dict[str, Any]]:
    body = await (await side.client.get(path)).json()
    assert body["object"] == "list"
    return {entry["id"]: entry for entry in body["data"]}


async def test_models_and_listed_aliases_are_entries_with_their_root() -> None:
    async with http_side() as side:
        models = await listed(side)
        assert list(models) == ["smol", "gpt", "org/smol:fast", "gem"]
        assert models["gpt"]["root"] == "smol"
        assert models["gpt"]["parent"] == "smol"
        assert models["smol"]["root"] == "smol"
        assert models["smol"]["parent"] is None
        assert models["smol"]["aliases"] == ["gpt", "org/smol:fast"]
        assert models["gem"]["aliases"] == [], "hidden names stay hidden everywhere"
        for entry in models.values():
            assert (entry["object"], entry["owned_by"], entry["created"]) == ("model", "corral", STARTED_AT)


async def test_models_are_what_openais_own_types_expect() -> None:
    async with http_side() as side:
        listed = (await (await side.client.get("/v1/models")).json())["data"]
        one = await (await side.client.get("/v1/models/smol")).json()
        for entry in (*listed, one):
            assert Model.model_validate(entry, strict=True).id == entry["id"]


async def test_effective_context_is_known_before_a_model_is_loaded() -> None:
    async with http_side() as side:
        side.supervisor.contexts["gem"] = 32768
        models = await listed(side)
        assert (models["smol"]["context_length"], models["smol"]["max_model_len"]) == (2048, 2048)
        assert models["gem"]["context_length"] == 32768
        assert models["gem"]["state"] == "unloaded"


@pytest.mark.parametrize("path", ["org%2Fsmol:fast", "org/smol:fast", "org%2Fsmol%3Afast"])
async def test_name_with_slash_and_colon_is_found(path: str) -> None:
    async with http_side() as side:
        reply = await side.client.get(f"/v1/models/{path}")
        assert reply.status == 200
        entry = await reply.json()
        assert (entry["id"], entry["root"]) == ("org/smol:fast", "smol")


async def test_hidden_alias_is_found_by_name() -> None:
    async with http_side() as side:
        assert (await (await side.client.get("/v1/models/secret")).json())["root"] == "gem"


async def test_unknown_model_is_a_404_with_the_nearest_name() -> None:
    async with http_side() as side:
        for reply in (await side.client.get("/v1/models/smoll"), await side.client.post(CHAT, json={"model": "smoll"})):
            error = (await reply.json())["error"]
            assert (reply.status, error["code"], error["param"]) == (404, "model_not_found", "model")
            assert "`smol`" in error["message"]


async def test_log_tells_the_unknown_name_that_was_asked_for(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "router.requests")
    async with http_side() as side:
        for name in ("smoll", "smol"):
            await side.client.post(CHAT, json={"model": name, "messages": []})
    first, second = (record.__dict__ for record in caplog.records if record.name == "router.requests")
    assert (first["asked"], first["code"], "model" in first) == ("smoll", "model_not_found", False)
    assert ("asked" in second, second["model"]) == (False, "smol")


async def test_request_without_a_model_goes_to_the_only_one() -> None:
    async with http_side(make_catalog(make_spec("only"))) as side:
        await side.client.post(CHAT, json={"messages": []})
        assert side.supervisor.granted == [("only", 0, None)]


async def test_request_without_a_model_among_several_is_told_to_name_one() -> None:
    async with http_side() as side:
        reply = await side.client.post(CHAT, json={"messages": []})
        assert (reply.status, (await reply.json())["error"]["param"]) == (400, "model")


async def test_reasons_tell_an_unavailable_a_failed_and_an_unused_model_apart() -> None:
    catalog = make_catalog(make_spec("lost", problem="there is no file /x.gguf"), make_spec("bad"), make_spec("new"))
    async with http_side(catalog) as side:
        side.supervisor.views["bad"] = make_view("bad", WorkerState.BACKOFF, last_exit=SEGV)
        models = await listed(side)
        assert (models["lost"]["state"], models["lost"]["reason"]) == ("unavailable", "there is no file /x.gguf")
        assert (models["bad"]["state"], models["bad"]["reason"]) == ("backoff", "killed by SIGSEGV")
        assert abs(models["bad"]["last_exit"].pop("at") + 3 - time.time()) < 60
        assert models["bad"]["last_exit"] == {
            "reason": "crashed",
            "cause": None,
            "detail": "killed by SIGSEGV",
            "code": -11,
            "signal": "SIGSEGV",
            "ago_s": 3.0,
        }
        assert models["new"]["state"] == "unloaded"
        assert "reason" not in models["new"]
        assert "last_exit" not in models["new"]


async def test_download_is_a_state_with_progress() -> None:
    async with http_side() as side:
        side.supervisor.views["smol"] = make_view("smol", WorkerState.STARTING)
        side.supervisor.progress["smol"] = FetchProgress("downloading", 10, 100, "part 2 of 6")
        smol = (await listed(side))["smol"]
        assert smol["state"] == "downloading"
        assert smol["progress"] == {
            "phase": "downloading",
            "fraction": 0.1,
            "done_bytes": 10,
            "total_bytes": 100,
            "detail": "part 2 of 6",
        }
        assert (await listed(side, "/models"))["smol"]["status"] == {"value": "downloading"}


@pytest.mark.parametrize(
    ("state", "word"),
    [
        (WorkerState.UNLOADED, "unloaded"),
        (WorkerState.STARTING, "loading"),
        (WorkerState.LOADING, "loading"),
        (WorkerState.READY, "loaded"),
        (WorkerState.DRAINING, "unloading"),
        (WorkerState.STOPPING, "unloading"),
        (WorkerState.BACKOFF, "unloaded"),
        (WorkerState.FAILED, "unloaded"),
    ],
)
async def test_states_have_llama_servers_words(state: WorkerState, word: str) -> None:
    async with http_side() as side:
        side.supervisor.views["smol"] = make_view("smol", state, last_exit=SEGV)
        models = await listed(side, "/models")
        assert list(models) == ["smol", "gem"], "aliases are a field here"
        assert models["smol"]["aliases"] == ["gpt", "org/smol:fast"]
        status = models["smol"]["status"]
        assert status["value"] == word
        has_failed = state in (WorkerState.BACKOFF, WorkerState.FAILED)
        assert status.get("failed", False) is has_failed
        if has_failed:
            assert (status["exit_code"], status["reason"]) == (-11, "killed by SIGSEGV")


@pytest.mark.parametrize(
    ("path", "worker_path"),
    [
        ("/v1/chat/completions", "/v1/chat/completions"),
        ("/chat/completions", "/v1/chat/completions"),
        ("/v1/completions", "/v1/completions"),
    ],
)
async def test_inference_routes_work_with_and_without_the_prefix(path: str, worker_path: str) -> None:
    async with http_side() as side:
        assert (await side.client.post(path, json={"model": "smol"})).status == 200
        assert side.worker.received[0].path == worker_path
        assert side.num_requests(route=worker_path, outcome="ok") == 1


@pytest.mark.parametrize(("key", "priority", "status"), [("user", 1, 403), ("user", -5, 200), ("root", 7, 200)])
async def test_only_a_key_of_scope_admin_may_raise_the_priority_of_its_requests(
    key: str, priority: int, status: int
) -> None:
    async with http_side(keys={"api_keys": "user", "admin_keys": "root"}) as side:
        body = {"model": "smol", "messages": [], "priority": priority}
        reply = await side.client.post(CHAT, json=body, headers={"x-api-key": key})
        assert reply.status == status
        if status == 403:
            error = (await reply.json())["error"]
            assert (error["param"], error["code"]) == ("priority", "forbidden")
            assert side.supervisor.granted == []
        else:
            assert side.supervisor.granted[0][1] == priority


async def test_anybody_may_raise_the_priority_where_there_are_no_keys() -> None:
    async with http_side() as side:
        reply = await side.client.post(CHAT, json={"model": "smol", "messages": [], "priority": 9})
        assert (reply.status, side.supervisor.granted) == (200, [("smol", 9, None)])


@pytest.mark.parametrize(("own", "total"), [(None, -3), (0, -3), (-5, -8)])
async def test_priority_of_a_key_is_added_to_that_of_its_requests(own: int | None, total: int) -> None:
    keys = (KeySpec("job", env="JOB_KEY", priority=-3),)
    async with http_side(ring=load_key_ring(RouterSettings(), keys, {"JOB_KEY": "secret"})) as side:
        body = {"model": "smol", "messages": []} | ({} if own is None else {"priority": own})
        await side.client.post(CHAT, json=body, headers={"x-api-key": "secret"})
        assert side.supervisor.granted == [("smol", total, "job")]
        assert side.worker.received[0].headers["X-Corral-Priority"] == str(total)


async def test_key_of_high_priority_does_not_let_its_requests_raise_themselves() -> None:
    keys = (KeySpec("boss", env="KEY", priority=50),)
    async with http_side(ring=load_key_ring(RouterSettings(), keys, {"KEY": "secret"})) as side:
        for own, status in ((1, 403), (0, 200)):
            body = {"model": "smol", "messages": [], "priority": own}
            reply = await side.client.post(CHAT, json=body, headers={"x-api-key": "secret"})
            assert reply.status == status
        assert side.supervisor.granted == [("smol", 50, "boss")]


async def test_model_with_several_workers_is_told_the_beginnings_of_the_conversation() -> None:
    alias = AliasSpec("formal", lora={"f": 1.0})
    catalog = make_catalog(make_spec("twins", replicas=2, aliases={"formal": alias}), make_spec("single"))
    messages = [{"role": "system", "content": "x" * 300}, {"role": "user", "content": "hi"}]
    async with http_side(catalog) as side:
        for name in ("twins", "single", "formal", "twins"):
            await side.client.post(CHAT, json={"model": name, "messages": messages})
        await side.client.post(CHAT, json={"model": "twins", "messages": messages, "cache_salt": "s"})
        twins, single, formal, again, salted = side.supervisor.prefixes
        assert len(twins) == 2
        assert again == twins
        assert single == (), "there is nothing to choose"
        assert not set(twins) & set(formal), "another adapter computes another cache"
        assert not set(twins) & set(salted)


async def test_the_line_that_changes_each_time_tells_workers_apart_only_where_it_reaches_the_prompt() -> None:
    twins, loyal = make_spec("twins", replicas=2), make_spec("loyal", replicas=2, drop_billing_header=False)
    async with http_side(make_catalog(twins, loyal)) as side:
        for name in ("twins", "loyal"):
            for nonce in "ab":
                system = f"x-anthropic-billing-header: cch={nonce};\n" + "x" * 300
                body = {"model": name, "max_tokens": 5, "system": system, "messages": []}
                assert (await side.client.post("/v1/messages", json=body)).status == 200
        first, second, third, fourth = side.supervisor.prefixes
        assert first == second != ()
        assert third != fourth


@pytest.mark.parametrize(
    "path",
    [
        route.path
        for route in all_routes()
        if route.runs and route.running.streaming is Streaming.NEVER and "{" not in route.path
    ],
)
async def test_a_reply_that_comes_at_once_is_no_stream_however_long_it_takes(path: str) -> None:
    async def answer_at_once(_: Received, sender: Sender) -> None:
        await sender.data(b'{"text":"hello"}')
        await sender.end()

    async with http_side(stream_open_after_s=0, ping_interval_s=0.01) as side:
        side.worker.script = answer_at_once
        reply = await side.client.post(path, json={"model": "smol", "stream": True})
        assert (reply.status, await reply.json()) == (200, {"text": "hello"})


@pytest.mark.parametrize("name", ["claude-3-opus", "claude-exact"])
async def test_names_that_a_pattern_stands_for_are_served_and_found_but_not_listed(name: str) -> None:
    aliases = {"claude-*": AliasSpec("claude-*", RequestRules(force={"seed": 1}), listed=False)}
    async with http_side(make_catalog(make_spec("smol", aliases=aliases), make_spec("gem"))) as side:
        reply = await side.client.post(CHAT, json={"model": name, "messages": [], "seed": 5})
        assert (reply.status, reply.headers["X-Corral-Model"]) == (200, "smol")
        assert reply.headers["X-Corral-Alias"] == name
        assert side.worker.received[0].body["seed"] == 1
        assert list(await listed(side)) == ["smol", "gem"]
        entry = await (await side.client.get(f"/v1/models/{name}")).json()
        assert (entry["id"], entry["root"], entry["aliases"]) == (name, "smol", [])
        assert side.num_requests(model="smol") == 1


async def test_presets_of_one_model_have_rules_of_their_own() -> None:
    rules = RequestRules(defaults={"temperature": 0.1, "top_k": 5}, force={"n": 1})
    aliases = {
        "cold": AliasSpec("cold", RequestRules(force={"temperature": 0})),
        "hot": AliasSpec("hot", RequestRules(defaults={"temperature": 1.5}, drop=("seed",))),
    }
    async with http_side(make_catalog(make_spec("m", aliases=aliases, request=rules))) as side:
        for name in ("m", "cold", "hot"):
            await side.client.post(CHAT, json={"model": name, "messages": [], "seed": 3})
        await side.client.post(CHAT, json={"model": "cold", "messages": [], "temperature": 2, "n": 4})
        got = [
            {key: value for key, value in received.body.items() if key not in ("model", "messages")}
            for received in side.worker.received
        ]
        assert got == [
            {"temperature": 0.1, "top_k": 5, "n": 1, "seed": 3},
            {"temperature": 0, "top_k": 5, "n": 1, "seed": 3},
            {"temperature": 1.5, "top_k": 5, "n": 1},
            {"temperature": 0, "top_k": 5, "n": 1},
        ]


async def test_name_that_no_header_can_carry_is_encoded() -> None:
    spec = make_spec("modèle", aliases={"a b%": AliasSpec("a b%")})
    async with http_side(make_catalog(spec)) as side:
        reply = await side.client.post(CHAT, json={"model": "a b%"})
        assert reply.headers["X-Corral-Model"] == "mod%C3%A8le"
        assert reply.headers["X-Corral-Alias"] == "a b%25"
