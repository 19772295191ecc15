"""What Ollama's clients are shown of models: lists, one model's details, what is loaded, and what is not available."""

from __future__ import annotations

import time
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from router import ollama, ollama_pull
from router.auth import KeyRing, Scope, load_key_ring
from router.capabilities import ollama_capabilities
from router.catalog import AliasSpec, RequestRules
from router.gguf_header import GgufHeader, read_gguf_header
from router.lifecycle import WorkerState
from router.ollama_shapes import details
from router.services import SERVICES
from router.settings import RouterSettings
from tests.fakes.supervisor import make_resident, make_view
from tests.support.gguf_bytes import F32, LLAMA, STRING, U32, gguf_bytes
from tests.support.http_side import HttpSide, http_side, make_catalog, make_spec
from worker.chat.reasoning import KNOWN_TAGS
from worker.chat.tool_calls.families import FAMILIES
from worker.contract import ModelFacts, Phase, WorkerStatus

KEYS = {"api_keys": ["ordinary"], "admin_keys": ["mighty"]}


async def post(side: HttpSide, path: str, key: str | None = None, **fields: Any) -> tuple[int, Any]:
    headers = {} if key is None else {"Authorization": f"Bearer {key}"}
    async with side.client.post(path, json=fields, headers=headers) as reply:
        return reply.status, await reply.json(content_type=None)


def header(path: Path, *more: Any) -> GgufHeader:
    path.write_bytes(gguf_bytes([*LLAMA, *more]))
    return read_gguf_header(path)


def ring() -> KeyRing:
    return load_key_ring(RouterSettings(**KEYS), (), {})  # type: ignore[arg-type]


async def test_tags_lists_models_and_aliases_that_run_here_under_names_with_a_tag(tmp_path: Path) -> None:
    aliases = {"smol:135m": AliasSpec("smol:135m"), "x-*": AliasSpec("x-*"), "h": AliasSpec("h", listed=False)}
    catalog = make_catalog(make_spec("smol", aliases=aliases), make_spec("away"))
    async with http_side(catalog) as side:
        side.supervisor.headers["smol"] = known = header(tmp_path / "a.gguf")
        models = (await (await side.client.get("/api/tags")).json())["models"]
        assert [(one["name"], one["model"]) for one in models] == [
            (name, name) for name in ("smol:latest", "smol:135m", "away:latest")
        ]
        smol, alias, away = models
        assert (smol["size"], away["size"]) == (known.size_bytes, 0)
        assert smol["digest"] == alias["digest"] != away["digest"]
        assert len(smol["digest"]) == 64
        assert smol["modified_at"] == "2023-11-14T22:13:20.000000000Z"
        assert smol["details"] == {
            "parent_model": "",
            "format": "gguf",
            "family": "llama",
            "families": ["llama"],
            "parameter_size": "32",
            "quantization_level": "F32",
        }
        assert away["details"]["family"] == ""
        assert side.supervisor.granted == []


async def test_entries_of_tags_are_made_again_only_when_the_model_or_its_file_has_changed(tmp_path: Path) -> None:
    async def tags(side: HttpSide) -> list[Any]:
        return (await (await side.client.get("/api/tags")).json())["models"]  # type: ignore[no-any-return]

    async with http_side(make_catalog(make_spec("smol"), make_spec("away"))) as side:
        services = side.client.server.app[SERVICES]  # type: ignore[attr-defined]
        first = await tags(side)
        kept = dict(services.kept_tags)
        assert await tags(side) == first
        assert all(services.kept_tags[name] is entry for name, entry in kept.items())
        side.supervisor.headers["smol"] = known = header(tmp_path / "a.gguf")
        smol, away = await tags(side)
        assert (smol["size"], away) == (known.size_bytes, first[1])
        side.supervisor.catalog = make_catalog(make_spec("smol", aliases={"small": AliasSpec("small")}))
        assert [one["name"] for one in await tags(side)] == ["smol:latest", "small:latest"]


async def test_show_tells_what_the_file_says_and_the_context_that_requests_have(tmp_path: Path) -> None:
    rules = RequestRules(defaults={"temperature": 0.5, "stop": ["END", "x y"], "max_tokens": 9, "logit_bias": {}})
    catalog = make_catalog(make_spec("smol", context=512, request=rules))
    keys = [
        ("general.license", STRING, "apache-2.0"),
        ("tokenizer.chat_template", STRING, "{{ messages }}"),
        ("llama.rope.freq_base", F32, 10000.0),
    ]
    async with http_side(catalog) as side:
        side.supervisor.headers["smol"] = header(tmp_path / "a.gguf", *keys)
        status, shown = await post(side, "/api/show", model="smol:latest", verbose=True)
        assert status == 200
        assert (shown["license"], shown["template"]) == ("apache-2.0", "{{ messages }}")
        assert [line.split(maxsplit=1) for line in shown["parameters"].splitlines()] == [
            ["num_ctx", "512"],
            ["temperature", "0.5"],
            ["stop", '"END"'],
            ["stop", '"x y"'],
            ["num_predict", "9"],
        ]
        assert shown["model_info"]["llama.context_length"] == 2048
        assert shown["model_info"]["general.parameter_count"] == 32
        assert shown["modelfile"].startswith("FROM smol\nPARAMETER num_ctx")
        assert shown["capabilities"] == ["completion"]
        assert shown["details"]["family"] == "llama"
        assert (await post(side, "/api/show", name="smol"))[1]["template"] == "{{ messages }}"


async def test_show_of_a_model_that_has_not_been_fetched_tells_little_and_nothing_wrong() -> None:
    async with http_side(make_catalog(make_spec("smol", chat_template="own"))) as side:
        shown = (await post(side, "/api/show", model="smol"))[1]
        assert (shown["model_info"], shown["template"]) == ({}, "own")
        assert "capabilities" not in shown


@pytest.mark.parametrize(
    ("keys", "able"),
    [
        ([], ["completion"]),
        (
            [(f"tokenizer.ggml.fim_{part}_token_id", U32, 1) for part in ("pre", "suf", "mid")],
            ["completion", "insert"],
        ),
        ([("tokenizer.ggml.fim_pre_token_id", U32, 1)], ["completion"]),
        ([("tokenizer.chat_template", STRING, "{{ messages }}")], ["completion"]),
        ([("tokenizer.chat_template", STRING, "{% if tools %}{{ tools }}{% endif %}")], ["completion", "tools"]),
        ([("tokenizer.chat_template", STRING, "{{ m.split('</think>') }}")], ["completion", "thinking"]),
        (
            [("tokenizer.chat_template", STRING, "{{ tools }}{{ enable_thinking }}")],
            ["completion", "tools", "thinking"],
        ),
        ([("llama.pooling_type", U32, 1)], ["embedding"]),
        ([("llama.pooling_type", U32, 4)], []),
    ],
)
async def test_capabilities_are_those_that_routes_have(tmp_path: Path, keys: list[Any], able: list[str]) -> None:
    async with http_side(make_catalog(make_spec("smol"))) as side:
        side.supervisor.headers["smol"] = header(tmp_path / "a.gguf", *keys)
        assert (await post(side, "/api/show", model="smol"))[1]["capabilities"] == able


async def test_capabilities_follow_the_template_of_models_yaml(tmp_path: Path) -> None:
    async with http_side(make_catalog(make_spec("smol", chat_template="{{ tools }}"))) as side:
        side.supervisor.headers["smol"] = header(tmp_path / "a.gguf")
        assert (await post(side, "/api/show", model="smol"))[1]["capabilities"] == ["completion", "tools"]


def test_every_model_whose_thoughts_are_told_apart_is_shown_as_one_that_thinks(tmp_path: Path) -> None:
    ends = [tags.sign or tags.close for tags in KNOWN_TAGS]
    ends += [family.tags.sign or family.tags.close for family in FAMILIES if family.tags is not None]
    for end in ends:
        assert "thinking" in ollama_capabilities(header(tmp_path / "a.gguf"), f"{{{{ m.split({end!r}) }}}}"), end


@pytest.mark.parametrize(
    ("file_type", "num_params", "split_count", "level", "size"),
    [
        (15, 134_515_008, 1, "Q4_K_M", "134.52M"),
        (7, 7_000_000_000, 1, "Q8_0", "7B"),
        (2, 1_540_000_000, 1, "Q4_0", "1.5B"),
        (99, 999, 1, "unknown", "999"),
        (None, 45_000, 1, "unknown", "45K"),
        (15, 134_515_008, 3, "Q4_K_M", ""),
    ],
)
def test_details_tell_size_and_quantisation_as_far_as_the_file_does(
    tmp_path: Path, file_type: int | None, num_params: int, split_count: int, level: str, size: str
) -> None:
    read = header(tmp_path / "a.gguf")
    shown = details(replace(read, file_type=file_type, num_params=num_params, split_count=split_count))
    assert (shown["quantization_level"], shown["parameter_size"]) == (level, size)


def facts(context: int) -> ModelFacts:
    return ModelFacts(
        context=context,
        slots=2,
        kv_cells=1024,
        trained_context=2048,
        num_params=10,
        size_bytes=5000,
        num_vocab=10,
        description="x",
        has_chat_template=True,
        device="CPU",
    )


async def test_running_models_are_shown_with_their_memory_and_their_end() -> None:
    async with http_side(make_catalog(make_spec("smol"), make_spec("idle"), make_spec("loading"))) as side:
        now_s = time.monotonic()
        ready = replace(make_resident("smol"), idle_unload_at_s=now_s + 100, idle_limit_s=300.0)
        side.supervisor.views["smol"] = make_view("smol", WorkerState.READY, residents=(ready,))
        loading = make_resident("loading", WorkerState.LOADING)
        side.supervisor.views["loading"] = make_view("loading", WorkerState.LOADING, residents=(loading,))
        memory = {"CPU": {"weights": 100, "kv": 20}, "CUDA0": {"weights": 1000}}
        side.supervisor.statuses[ready.worker] = WorkerStatus(Phase.READY, facts=facts(512), device_bytes=memory)
        [entry] = (await (await side.client.get("/api/ps")).json())["models"]
        assert (entry["name"], entry["size"], entry["size_vram"]) == ("smol:latest", 1120, 1000)
        assert entry["context_length"] == 512
        ends_at = datetime.fromisoformat(entry["expires_at"][:19] + "+00:00").timestamp()
        assert ends_at - time.time() == pytest.approx(100, abs=30)
        side.supervisor.views["smol"] = make_view(
            "smol", WorkerState.READY, residents=(replace(ready, idle_limit_s=None, idle_unload_at_s=None),)
        )
        [entry] = (await (await side.client.get("/api/ps")).json())["models"]
        assert entry["expires_at"] == "2300-01-01T00:00:00Z"
        assert side.supervisor.granted == []


async def test_the_version_needs_no_key_and_tells_both() -> None:
    async with http_side(ring=ring()) as side:
        body = await (await side.client.get("/api/version")).json()
        assert body["version"].count(".") == 2
        assert body["corral"]
        assert (await side.client.get("/api/tags")).status == 401
        for path in ("/", "/api/version"):
            assert (await side.client.head(path)).status == 200


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/api/create"),
        ("POST", "/api/copy"),
        ("POST", "/api/push"),
        ("DELETE", "/api/delete"),
        ("HEAD", "/api/blobs/sha256:abc"),
        ("POST", "/api/blobs/sha256:abc"),
    ],
)
async def test_what_changes_models_is_not_available_and_says_so_in_this_dialect(method: str, path: str) -> None:
    async with http_side() as side, side.client.request(method, path, json={}) as reply:
        assert reply.status == 501
        if method != "HEAD":
            body = await reply.json()
            assert body.keys() == {"error"}
            assert path in body["error"]


async def test_an_address_that_does_not_exist_is_a_404_in_this_dialect() -> None:
    async with http_side() as side:
        status, body = await post(side, "/api/tag")
        assert (status, body.keys()) == (404, {"error"})


def test_scopes_of_the_routes() -> None:
    scopes = {route.path: route.scopes for route in (*ollama.ROUTES, *ollama_pull.ROUTES)}
    assert scopes.pop("/api/pull") == (Scope.ADMIN,)
    assert scopes.pop("/api/version") == ()
    assert set(scopes.values()) == {(Scope.INFERENCE,)}
