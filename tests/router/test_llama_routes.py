"""llama-server's routes in the router: who is asked, what is told without waking anybody, and adapters that are set."""

from __future__ import annotations

import json
import urllib.parse
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from router.catalog import Limits, Remote, RequestRules
from router.gguf_header import read_gguf_header
from router.lifecycle import WorkerState
from router.llama_props import PARAMS, RECOMMENDED
from tests.fakes.engine import make_facts
from tests.fakes.supervisor import Received, Sender, make_resident, make_view
from tests.router.test_ops import given_ready
from tests.support.gguf_bytes import ARRAY, F32, LLAMA, STRING, U32, Key, gguf_bytes
from tests.support.http_side import HttpSide, http_side, make_catalog, make_spec
from worker.api.llama_completion import LlamaCompletionFields
from worker.api.llama_fields import generation_settings
from worker.contract import Header, ModelFacts, SlotReport, SlotState
from worker.engine.llama_vocabulary import _SAMPLING_KEYS
from worker.engine.request import GenerationRequest

NATIVE = ["/completion", "/completions", "/infill", "/tokenize", "/detokenize", "/apply-template", "/embedding"]


def facts_with(**changes: Any) -> ModelFacts:
    return replace(make_facts(), **changes)


async def post(side: HttpSide, path: str, body: Any, **headers: str) -> tuple[int, Any]:
    reply = await side.client.post(path, json=body, headers=headers)
    return reply.status, await reply.json()


def asked_lora(side: HttpSide) -> Any:
    """Return the adapters that the worker was told last."""
    told = side.worker.received[-1].headers.get(Header.LORA)
    return None if told is None else json.loads(urllib.parse.unquote(told))


# --- who is asked -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", [*NATIVE, "/embeddings"])
async def test_native_route_reaches_the_model_that_is_named_in_body_or_query(path: str) -> None:
    async with http_side() as side:
        await post(side, path, {"model": "smol"})
        await post(side, f"{path}?model=gem", {})
        granted = [name for name, _, _ in side.supervisor.granted]
    assert granted == ["smol", "gem"]


async def test_forms_of_a_route_are_one_for_the_worker() -> None:
    async with http_side() as side:
        for path in ("/completions", "/v1/completions", "/embeddings", "/v1/embeddings"):
            await post(side, path, {"model": "smol"})
        assert [one.path for one in side.worker.received] == [
            "/completion",
            "/v1/completions",
            "/embedding",
            "/v1/embeddings",
        ]


@pytest.mark.parametrize("path", NATIVE)
async def test_without_a_name_the_only_loaded_model_is_asked(path: str) -> None:
    async with http_side() as side:
        given_ready(side, "gem", facts=facts_with(pooling="mean", embedding_size=4))
        await post(side, path, {})
        assert [name for name, _, _ in side.supervisor.granted] == ["gem"]


@pytest.mark.parametrize("loaded", [(), ("smol", "gem")])
async def test_without_a_name_and_a_single_candidate_the_parameter_is_named(loaded: tuple[str, ...]) -> None:
    async with http_side() as side:
        for name in loaded:
            given_ready(side, name, facts=make_facts())
        status, body = await post(side, "/tokenize", {"content": "hi"})
        assert side.supervisor.granted == []
    assert (status, body["error"]["code"], body["error"]["param"]) == (400, 400, "model")
    assert "`gem`" in body["error"]["message"]


async def test_only_models_that_can_do_it_are_candidates() -> None:
    async with http_side() as side:
        given_ready(side, "smol", facts=make_facts())
        given_ready(side, "gem", facts=facts_with(can_generate=False, pooling="mean", embedding_size=4))
        for path in ("/completion", "/infill", "/apply-template"):
            await post(side, path, {})
        assert [name for name, _, _ in side.supervisor.granted] == ["smol"] * 3
        await post(side, "/embedding", {})
        assert side.supervisor.granted[-1][0] == "gem"


async def test_default_model_is_asked_before_the_one_that_is_loaded() -> None:
    catalog = make_catalog(make_spec("smol"), make_spec("gem"), default_model="smol")
    async with http_side(catalog) as side:
        given_ready(side, "gem", facts=make_facts())
        await post(side, "/tokenize", {"content": "hi"})
        assert side.supervisor.granted[0][0] == "smol"


async def test_models_of_other_servers_are_no_candidates() -> None:
    far = make_spec("far", remote=Remote("http://127.0.0.1:9/v1", "far"))
    async with http_side(make_catalog(far, make_spec("smol"))) as side:
        await post(side, "/tokenize", {"content": "hi"})
        assert side.supervisor.granted[0][0] == "smol"
        assert (await (await side.client.get("/props")).json())["model_alias"] == "smol"


async def test_openai_routes_still_want_a_name() -> None:
    async with http_side() as side:
        given_ready(side, "gem", facts=make_facts())
        assert (await post(side, "/v1/completions", {"prompt": "x"}))[0] == 400


@pytest.mark.parametrize("path", NATIVE)
async def test_model_of_another_server_cannot_be_asked_this_way(path: str) -> None:
    async with http_side(make_catalog(make_spec("far", remote=Remote("http://127.0.0.1:9/v1", "far")))) as side:
        status, body = await post(side, path, {"model": "far"})
    assert status == 400
    assert "another server" in body["error"]["message"]


async def test_replies_that_are_no_streams_are_never_opened_as_such() -> None:
    async def whole(received: Received, sender: Sender) -> None:
        await sender.data(b"{}")
        await sender.end()

    async with http_side(stream_open_after_s=0.0) as side:
        side.worker.script = whole
        for path in ("/tokenize", "/detokenize", "/apply-template", "/embedding", "/embeddings"):
            reply = await side.client.post(path, json={"model": "smol", "stream": True})
            assert (reply.status, reply.content_type) == (200, "application/json")


# --- errors -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "path", "status", "kind"),
    [
        ("POST", "/completion", 404, "not_found_error"),
        ("GET", "/props?model=nobody", 404, "not_found_error"),
        ("GET", "/slots?model=nobody", 404, "not_found_error"),
        ("POST", "/models/load", 404, "not_found_error"),
        ("POST", "/props", 501, "not_supported_error"),
    ],
)
async def test_errors_have_llama_servers_form(method: str, path: str, status: int, kind: str) -> None:
    async with http_side() as side:
        body = {"json": {"model": "nobody"}} if method == "POST" else {}
        reply = await side.client.request(method, path, **body)
        assert reply.status == status
        error = (await reply.json())["error"]
    assert (error["code"], error["type"]) == (status, kind)


# --- props ------------------------------------------------------------------------------------------------


async def test_router_tells_of_itself_when_there_is_no_single_candidate() -> None:
    async with http_side(make_catalog(make_spec("a"), make_spec("b"), limits=Limits(max_loaded=3))) as side:
        props = await (await side.client.get("/props")).json()
    assert (props["role"], props["max_instances"], props["models_autoload"]) == ("router", 3, True)
    assert props["default_generation_settings"] == {"params": {}, "n_ctx": 0}


async def test_props_without_a_name_are_those_of_the_default_model_whoever_is_loaded() -> None:
    catalog = make_catalog(make_spec("smol", context=2048), make_spec("gem", context=512), default_model="smol")
    async with http_side(catalog) as side:
        for loaded in ("gem", "smol"):
            props = await (await side.client.get("/props")).json()
            assert (props["model_alias"], props["default_generation_settings"]["n_ctx"]) == ("smol", 2048)
            given_ready(side, loaded, facts=facts_with(context=2048))
        await post(side, "/tokenize", {"content": "hi"})
        assert side.supervisor.granted[0][0] == "smol", "the one that requests without a name go to"


async def test_a_default_model_of_another_server_has_no_props_here() -> None:
    far = make_spec("far", remote=Remote("http://127.0.0.1:9/v1", "far"))
    async with http_side(make_catalog(far, make_spec("a"), make_spec("b"), default_model="far")) as side:
        assert (await (await side.client.get("/props")).json())["role"] == "router"
        assert (await side.client.get("/props?model=far")).status == 400


@pytest.mark.parametrize("name", ["max_tokens", "max_completion_tokens", "n_predict", "num_predict"])
async def test_a_ruled_limit_is_told_under_both_names(name: str) -> None:
    async with http_side(make_catalog(make_spec("smol", request=RequestRules(force={name: 9})))) as side:
        params = (await (await side.client.get("/props")).json())["default_generation_settings"]["params"]
    assert (params["max_tokens"], params["n_predict"]) == (9, 9)


async def test_props_of_the_only_model_are_told_without_waking_it(tmp_path: Path) -> None:
    keys: list[Key] = [
        *LLAMA,
        ("tokenizer.ggml.tokens", ARRAY, (STRING, ["<s>", "</s>"])),
        ("tokenizer.ggml.bos_token_id", U32, 0),
        ("tokenizer.ggml.eos_token_id", U32, 1),
        ("tokenizer.chat_template", STRING, "{{ messages }}"),
        ("general.sampling.temp", F32, 0.5),
    ]
    path = tmp_path / "tiny.Q4.gguf"
    path.write_bytes(gguf_bytes(keys))
    rules = RequestRules(defaults={"top_k": 7}, force={"max_tokens": 99})
    async with http_side(make_catalog(make_spec("tiny", context=512, slots=3, request=rules))) as side:
        side.supervisor.headers["tiny"] = read_gguf_header(path)
        props = await (await side.client.get("/props")).json()
        assert side.supervisor.granted == []
        assert side.supervisor.loaded == []
    settings = props.pop("default_generation_settings")
    assert props.pop("build_info").startswith("corral-")
    assert set(props.pop("chat_template_caps").values()) == {True, False}
    assert props == {
        "total_slots": 3,
        "model_alias": "tiny",
        "model_path": "tiny.Q4.gguf",
        "modalities": {"vision": False, "audio": False},
        "chat_template": "{{ messages }}",
        "bos_token": "<s>",
        "eos_token": "</s>",
        "is_sleeping": True,
    }
    assert settings["n_ctx"] == 512
    params = settings["params"]
    assert (params["temperature"], params["top_k"], params["n_predict"], params["top_p"]) == (0.5, 7, 99, 0.95)


async def test_props_of_a_loaded_model_are_what_it_has_come_to() -> None:
    async with http_side() as side:
        given_ready(side, "smol", facts=make_facts(context=128, slots=2))
        props = await (await side.client.get("/props")).json()
    assert (props["model_alias"], props["total_slots"], props["is_sleeping"]) == ("smol", 2, False)
    assert props["default_generation_settings"]["n_ctx"] == 128


async def test_unknown_texts_are_null_and_a_configured_template_wins() -> None:
    async with http_side(make_catalog(make_spec("a", chat_template="mine"), make_spec("b"))) as side:
        props = await (await side.client.get("/props?model=a")).json()
        other = await (await side.client.get("/props?model=b")).json()
    assert (props["chat_template"], props["bos_token"]) == ("mine", None)
    assert (other["chat_template"], other["chat_template_caps"]) == (None, None)


ALWAYS = ["supports_object_arguments", "supports_string_content", "supports_system_role", "supports_typed_content"]


@pytest.mark.parametrize(
    ("source", "able"),
    [
        ("", []),
        ("{{ messages }} Our toolset and fine_tools.", ALWAYS),
        ("{% if tools %}{{ tools }}{% endif %}", [*ALWAYS, "supports_tools"]),
        (
            "{{ tools }}{% for call in message.tool_calls %}{{ call }}{% endfor %}",
            [*ALWAYS, "supports_parallel_tool_calls", "supports_tool_calls", "supports_tools"],
        ),
        (
            "{{ tools }}{% if not message.tool_calls|length == 1 %}{{ raise_exception('one') }}{% endif %}",
            [*ALWAYS, "supports_tool_calls", "supports_tools"],
        ),
        (
            "{{ message.reasoning_content }}{{ reasoning_effort }}",
            [*ALWAYS, "supports_preserve_reasoning", "supports_reasoning_effort"],
        ),
    ],
)
async def test_props_tell_what_a_chat_template_has_a_place_for(source: str, able: list[str]) -> None:
    async with http_side(make_catalog(make_spec("a", chat_template=source))) as side:
        caps = (await (await side.client.get("/props")).json())["chat_template_caps"]
    assert {name for name, is_able in caps.items() if is_able} == set(able)


def test_props_start_from_what_a_worker_starts_from() -> None:
    fields = LlamaCompletionFields.model_validate({"prompt": "x"})
    settings = generation_settings(GenerationRequest((1,), 1), fields)
    assert {name: value for name, value in settings.items() if name in PARAMS} == {**PARAMS, "seed": 0}
    assert {key: name for key, (name, _) in _SAMPLING_KEYS.items()} == RECOMMENDED


# --- slots ------------------------------------------------------------------------------------------------


async def test_slots_have_the_fields_that_dashboards_read() -> None:
    slots = (SlotReport(0, SlotState.IDLE), SlotReport(1, SlotState.GENERATING, request_id="r1"))
    async with http_side() as side:
        given_ready(side, "smol", slots=slots, facts=make_facts(context=128))
        idle, busy = await (await side.client.get("/slots")).json()
        assert (await side.client.get("/slots?fail_on_no_slot=1")).status == 200
        given_ready(side, "smol", slots=slots[1:], facts=make_facts())
        assert (await side.client.get("/slots?fail_on_no_slot=1")).status == 503
    assert (idle["id"], idle["id_task"], idle["is_processing"], idle["n_ctx"]) == (0, -1, False, 128)
    assert busy["id_task"] > 0


async def test_slots_without_any_loaded_model_are_not_busy() -> None:
    async with http_side() as side:
        side.supervisor.views["smol"] = make_view("smol", WorkerState.LOADING, residents=(make_resident("smol"),))
        assert (await side.client.get("/slots?fail_on_no_slot=1")).status == 200
