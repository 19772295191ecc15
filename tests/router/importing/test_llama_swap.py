"""llama-swap's configuration becomes a models.yaml; what has no counterpart is said."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from router.catalog import Catalog
from router.catalog_parser import read_catalog
from router.importing.imported import Imported, ImportedModel, NotImportable
from router.importing.llama_swap import expand, read_llama_swap
from router.importing.writing import write_catalog

EVERYTHING = """
$schema: https://example.com/schema.json
healthCheckTimeout: 120
logLevel: info
logToStdout: proxy
metricsMaxInMemory: 1000
captureBuffer: 5
startPort: 10001
globalTTL: 300
sendLoadingState: true
includeAliasesInList: false
apiKeys: [sk-geheim]
macros:
  - server: /opt/llama/llama-server --port ${PORT} --host 127.0.0.1
  - folder: /srv/models
hooks:
  on_startup:
    preload: [chat]
models:
  chat:
    cmd: |
      ${server}
      # which model
      --model ${folder}/chat.gguf
      --ctx-size ${tokens} -np 2
    macros: {tokens: 8192}
    cmdStop: docker stop ${MODEL_ID}
    checkEndpoint: /health
    proxy: http://127.0.0.1:${PORT}
    name: Chat
    description: answers as ${MODEL_ID}
    aliases: [gpt-4o-mini, "my favourite"]
    env: ["CUDA_VISIBLE_DEVICES=0", "HF_TOKEN=hf_geheim", "A_KEY=geheim", "OMP_PROC_BIND=false",
      "LLAMA_ARG_CACHE_TYPE_K=q8_0"]
    ttl: 60
    unlisted: true
    useModelName: qwen
    concurrencyLimit: 4
    sendLoadingState: false
    metadata: {port: 1}
    timeouts: {connect: 3}
    filters:
      stripParams: "temperature, model, top_k"
      setParams: {top_p: 0.9}
      setParamsByID:
        "${MODEL_ID}:high": {reasoning_effort: high}
  "code big":
    cmd: ${server} -m ${folder}/code.gguf
  contained:
    cmd: docker run --rm -v /models:/models ghcr.io/ggml-org/llama.cpp:server -m /models/a.gguf
  stranger:
    cmd: vllm serve x --port ${PORT}
  far:
    proxy: http://192.0.2.5:8080/
groups:
  always: {swap: false, persistent: true, members: ["code big"]}
  big: {swap: true, exclusive: true, members: [chat, contained]}
peers:
  cloud:
    proxy: https://api.example.com
    apiKey: sk-geheim
    models: [large]
  own:
    proxy: https://own.example.com/v1
    apiKey: ${env.OWN_KEY}
    models: ["big one"]
"""


@pytest.fixture
def everything() -> Imported:
    return read_llama_swap(EVERYTHING)


def model(imported: Imported, name: str) -> ImportedModel:
    (found,) = [one for one in imported.models if one.name == name]
    return found


def catalog_of(imported: Imported) -> Catalog:
    reading = read_catalog(write_catalog(imported), Path("/srv/models.yaml"))
    assert [problem.describe() for problem in reading.problems] == []
    return reading.catalog


def test_result_is_a_valid_catalogue_with_every_model_that_can_be_served(everything: Imported) -> None:
    assert list(catalog_of(everything).models) == ["chat", "code-big", "contained", "far", "large", "big-one"]


def test_command_line_macros_and_environment_make_the_options(everything: Imported) -> None:
    spec = catalog_of(everything).models["chat"]
    assert (spec.source, spec.context, spec.slots) == ("/srv/models/chat.gguf", 4096, 2)
    assert spec.engine["cache_type_k"] == "q8_0"
    assert spec.env == {"OMP_PROC_BIND": "false"}


def test_names_rules_and_times_are_kept(everything: Imported) -> None:
    spec = catalog_of(everything).models["chat"]
    assert list(spec.aliases) == ["gpt-4o-mini", "my-favourite", "chat:high"]
    assert spec.aliases["chat:high"].request.force == {"reasoning_effort": "high"}
    assert spec.request.drop == ("temperature", "top_k"), "`model` is the router's own"
    assert spec.request.force == {"top_p": 0.9}
    assert spec.description == "Chat: answers as chat"
    assert (spec.idle_unload_s, spec.load_timeout_s, spec.preload) == (60, 120, True)


def test_persistent_group_is_pinned(everything: Imported) -> None:
    catalog = catalog_of(everything)
    assert [name for name, spec in catalog.models.items() if spec.pin] == ["code-big"]


def test_time_to_live_of_all_is_the_default(everything: Imported) -> None:
    assert catalog_of(everything).models["code-big"].idle_unload_s == 300


def test_without_a_time_to_live_models_stay() -> None:
    found = read_llama_swap("models: {a: {cmd: llama-server -m a.gguf}}")
    assert catalog_of(found).models["a"].idle_unload_s == 0


def test_servers_elsewhere_become_models_with_a_url(everything: Imported) -> None:
    models = catalog_of(everything).models
    remotes = {name: spec.remote for name, spec in models.items() if spec.remote is not None}
    assert {name: remote.url for name, remote in remotes.items()} == {
        "far": "http://192.0.2.5:8080/v1",
        "large": "https://api.example.com/v1",
        "big-one": "https://own.example.com/v1",
    }
    assert remotes["big-one"].model == "big one"
    assert (remotes["large"].key_env, remotes["big-one"].key_env) == ("CLOUD_API_KEY", "OWN_KEY")


def test_secrets_are_never_copied(everything: Imported) -> None:
    assert "geheim" not in write_catalog(everything)


@pytest.mark.parametrize(
    "word",
    ["unlisted", "useModelName", "concurrencyLimit", "metadata", "timeouts", "CUDA_VISIBLE_DEVICES"],
)
def test_what_a_model_cannot_have_is_noted(everything: Imported, word: str) -> None:
    assert any(word in note for note in model(everything, "chat").notes)


def test_program_that_is_not_llama_server_is_left_out_with_the_reason(everything: Imported) -> None:
    stranger = model(everything, "stranger")
    assert not stranger.is_usable
    assert "`vllm`" in stranger.notes[0]
    assert "# stranger: not carried over" not in write_catalog(everything).splitlines()
    assert "  # stranger: not carried over" in write_catalog(everything).splitlines()


def test_paths_of_a_container_are_pointed_out(everything: Imported) -> None:
    assert any("container" in note for note in model(everything, "contained").notes)


@pytest.mark.parametrize("word", ["apiKeys", "logLevel", "groups.big"])
def test_what_the_file_cannot_have_is_noted(everything: Imported, word: str) -> None:
    assert any(word in note for note in everything.notes)


def test_key_that_nobody_knows_is_noted() -> None:
    found = read_llama_swap("newThing: 1\nmodels: {a: {cmd: llama-server -m a.gguf, other: 2, filters: {odd: 1}}}")
    assert any("newThing" in note for note in found.notes)
    assert found.models[0].notes == ["filters.odd: not known here", "other: not known here"]


def test_macros_may_use_macros_but_not_for_ever() -> None:
    assert expand("${a}", {"a": "${b}!", "b": "x"}) == "x!"
    assert expand("${PORT} ${env.HOME}", {}) == "${PORT} ${env.HOME}"
    assert len(expand("${a}", {"a": "${a}${a}"})) <= 2**16


def test_macro_that_is_not_defined_is_noted() -> None:
    found = read_llama_swap("models: {a: {cmd: 'llama-server -m ${folder}/a.gguf'}}")
    assert any("${folder}" in note for note in found.models[0].notes)


@pytest.mark.parametrize("text", ["", "[1, 2]", "a: b: c", "models: 3", "hello", "x: &a [*a]", "a: 2026-13-45"])
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(NotImportable):
        read_llama_swap(text)


@pytest.mark.parametrize(
    "entry",
    [
        {"cmd": "llama-server -m 'a.gguf"},
        {"cmd": ""},
        {"cmd": "llama-server"},
        {},
        {"cmd": "llama-server -m a.gguf", "aliases": 3, "env": "x", "filters": [], "ttl": "soon"},
        {"cmd": ["llama-server"]},
    ],
)
def test_odd_entries_are_read_as_far_as_they_can_be(entry: dict[str, Any]) -> None:
    found = read_llama_swap(json.dumps({"models": {"a": entry, "b": {"cmd": "llama-server -m b.gguf"}}}))
    assert "b" in catalog_of(found).models


def test_variables_in_front_of_the_program_are_taken_as_its_environment() -> None:
    found = read_llama_swap("models: {a: {cmd: 'env OMP_NUM_THREADS=4 LLAMA_ARG_N_PARALLEL=2 llama-server -m a.gguf'}}")
    spec = catalog_of(found).models["a"]
    assert spec.env == {"OMP_NUM_THREADS": "4"}
    assert spec.slots == 2


def test_other_servers_keep_their_own_options() -> None:
    found = read_llama_swap("models: {a: {proxy: 'http://192.0.2.5:80', ttl: 60, env: [A=b], aliases: [c]}}")
    spec = catalog_of(found).models["a"]
    assert spec.remote is not None
    assert list(spec.aliases) == ["c"]
    assert "idle_unload_s" in found.models[0].notes[-1]


@pytest.mark.parametrize(
    "text",
    [
        "models: {a: {cmd: 'MY_TOKEN=geheim vllm serve x'}}",
        "models: {a: {proxy: 'http://me:geheim@192.0.2.5:80'}}",
        "models: {}\npeers: {p: {proxy: 'https://me:geheim@example.com', models: [a]}}",
        "models: {a: {cmd: llama-server -m a.gguf, env: [BASIC_AUTH=geheim]}}",
        "models: {a: {cmd: llama-server -m a.gguf --some-token geheim}}",
        "models: {a: {cmd: 'llama-server -m a.gguf --mmproj-url https://me:geheim@example.com/p.gguf'}}",
    ],
)
def test_secrets_in_odd_places_are_not_copied_either(text: str) -> None:
    found = read_llama_swap(text)
    assert "geheim" not in write_catalog(found)
    assert found.models[0].notes


def test_rules_that_cannot_be_had_are_noted() -> None:
    filters = {"setParams": {"stream": True, "top_k": 3}, "setParamsByID": {"${MODEL_ID}": {"seed": 1}}}
    entry = {"cmd": "llama-server -m a.gguf", "filters": filters}
    (model,) = read_llama_swap(json.dumps({"models": {"a": entry}})).models
    assert model.options["request"] == {"force": {"top_k": 3}}
    assert any("filters.setParams: stream" in note for note in model.notes)
    assert any("setParamsByID: seed" in note for note in model.notes)


@pytest.mark.parametrize(
    "text", ["a: !!timestamp x", "a: !!bool x", "a: !!int ''", "a: 2024-99-99", "a: [", "!!set [a]"]
)
def test_values_that_the_parser_of_yaml_stumbles_over_are_no_valid_yaml(text: str) -> None:
    with pytest.raises(NotImportable, match="no valid YAML"):
        read_llama_swap(text)
