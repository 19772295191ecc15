"""models.yaml -> Catalog: what every key becomes."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from router.api_keys import KeySpec
from router.catalog import AliasSpec, Hooks, Limits, ModelSpec, RequestRules
from router.catalog_keys import MODEL_KEYS
from tests.support.catalogs import model, parse, problems
from worker.contract import EngineOptions

# --- what a model becomes ---------------------------------------------------------------------------------


def test_a_model_with_nothing_but_a_file_gets_the_documented_defaults() -> None:
    spec = model("")
    assert spec == ModelSpec("m", "./m.gguf", Path("/srv"))
    assert (spec.context, spec.slots, spec.kv_tokens, spec.idle_unload_s, spec.queue_timeout_s) == (
        None,
        4,
        None,
        900,
        300,
    )
    assert (spec.max_queue, spec.preload, spec.pin, spec.priority, spec.max_tokens) == (256, False, False, 0, None)
    assert EngineOptions(context=8192, **spec.engine) == EngineOptions(context=8192)


def test_a_model_may_be_just_its_reference() -> None:
    served = parse("models:\n  a: ./a.gguf\n  b: hf:org/repo:Q4_K_M\n")
    assert served.models["a"] == ModelSpec("a", "./a.gguf", Path("/srv"))
    assert served.models["b"].source == "hf:org/repo:Q4_K_M"


def test_every_key_of_a_model_arrives_where_it_belongs() -> None:
    spec = model(
        "aliases: [x]\ncontext: 2048\nslots: 2\nkv_tokens: 4096\nidle_unload_s: 1.5\npreload: true\npin: true\n"
        "priority: -3\nload_timeout_s: 10\nrequest_timeout_s: 20\nqueue_timeout_s: 30\nmax_queue: 5\nmax_tokens: 64\n"
        "chat_template: '{{ messages }}'\nchat_template_kwargs: {thinking: false, level: [1, null]}\n"
        "allow_request_templates: true\ndrop_billing_header: false\n"
        "request: {defaults: {temperature: 0.5}, force: {seed: 1}, drop: [stop]}\n"
        "env: {A: b, N: 4, F: 0.50}\ndescription: |\n  two\n  lines\n"
        "tags: [small, chat]\nreplicas: 3\ncalibrate: false\nhome: true\nmax_wait_s: 7\nhang_timeout_s: 8\n"
        "device: [CUDA1, CUDA0]\nhooks: {before_load: [sh, -c, 'a | b'], timeout_s: 9}\n"
    )
    assert spec == ModelSpec(
        name="m",
        source="./m.gguf",
        base_dir=Path("/srv"),
        aliases={"x": AliasSpec("x")},
        context=2048,
        slots=2,
        kv_tokens=4096,
        idle_unload_s=1.5,
        load_timeout_s=10,
        request_timeout_s=20,
        queue_timeout_s=30,
        max_queue=5,
        preload=True,
        pin=True,
        priority=-3,
        max_tokens=64,
        chat_template="{{ messages }}",
        chat_template_kwargs={"thinking": False, "level": [1, None]},
        allow_request_templates=True,
        drop_billing_header=False,
        request=RequestRules({"temperature": 0.5}, {"seed": 1}, ("stop",)),
        env={"A": "b", "N": "4", "F": "0.50"},
        description="two\nlines\n",
        tags=("small", "chat"),
        calibrate=False,
        replicas=3,
        home=True,
        max_wait_s=7,
        hang_timeout_s=8,
        devices=("CUDA1", "CUDA0"),
        hooks=Hooks(before_load=("sh", "-c", "a | b"), timeout_s=9),
    )


ENGINE_VALUES: dict[str, tuple[str, Any]] = {
    "gpu_layers": ("12", 12),
    "threads": ("3", 3),
    "batch_size": ("256", 256),
    "ubatch_size": ("128", 128),
    "itl_target_ms": ("80", 80.0),
    "draft_max": ("8", 8),
    "prompt_cache_bytes": ("1000000", 1_000_000),
    "prompt_cache_disk_bytes": ("20MB", 20_000_000),
    "cache_type_k": ("q8_0", "q8_0"),
    "cache_type_v": ("bf16", "bf16"),
    "flash_attn": ("off", "off"),
    "swa_full": ("false", False),
    "pooling": ("cls", "cls"),
    "rope_scaling": ("yarn", "yarn"),
    "rope_scale": ("4", 4.0),
    "rope_freq_base": ("1e6", 1e6),
    "rope_freq_scale": ("0.25", 0.25),
    "yarn_orig_ctx": ("32768", 32768),
    "yarn_ext_factor": ("-1", -1.0),
    "yarn_attn_factor": ("1.5", 1.5),
    "yarn_beta_slow": ("1", 1.0),
    "yarn_beta_fast": ("32", 32.0),
    "mmap": ("false", False),
    "mlock": ("true", True),
    "check_tensors": ("true", True),
    "split_mode": ("row", "row"),
    "main_gpu": ("1", 1),
    "tensor_split": ("[3, 1.5]", (3.0, 1.5)),
    "no_kv_offload": ("true", True),
    "no_op_offload": ("true", True),
}


def test_every_option_of_the_engine_can_be_set_in_the_file() -> None:
    fields = {field.name for field in dataclasses.fields(EngineOptions)}
    assert set(ENGINE_VALUES) == fields - {"context", "slots", "kv_tokens", "loras", "device"}


@pytest.mark.parametrize("name", ENGINE_VALUES)
def test_options_of_llama_cpp_reach_the_engine_under_their_own_names(name: str) -> None:
    text, value = ENGINE_VALUES[name]
    assert model(f"{name}: {text}").engine[name] == value


def test_the_option_table_and_the_engine_agree_on_defaults() -> None:
    fields = {field.name: field.default for field in dataclasses.fields(EngineOptions)}
    for key in MODEL_KEYS.values():
        if key.engine is not None and key.negates is None and key.name != "gpu_layers":
            assert key.default == fields[key.engine], key.name


@pytest.mark.parametrize(("text", "value"), [("all", -1), ("-1", -1), ("0", 0), ("99", 99)])
def test_gpu_layers_is_a_number_or_all(text: str, value: int) -> None:
    assert model(f"gpu_layers: {text}").engine["gpu_layers"] == value


@pytest.mark.parametrize(
    ("text", "value"),
    [("on", "on"), ("off", "off"), ("auto", "auto"), ("true", "on"), ("false", "off"), ("'off'", "off")],
)
def test_flash_attn_takes_words_and_yaml_booleans(text: str, value: str) -> None:
    assert model(f"flash_attn: {text}").engine["flash_attn"] == value


@pytest.mark.parametrize(
    ("text", "field", "value"),
    [
        ("no_mmap: true", "mmap", False),
        ("no_mmap: false", "mmap", True),
        ("kv_offload: false", "no_kv_offload", True),
        ("op_offload: true", "no_op_offload", False),
    ],
)
def test_negated_flags_set_the_option_that_they_negate(text: str, field: str, value: bool) -> None:
    assert model(text).engine == {field: value}


def test_context_auto_is_left_to_the_model_file() -> None:
    assert model("context: auto").context is None


@pytest.mark.parametrize("size", [64, 512, 1024])
def test_the_micro_batch_follows_the_batch_down_and_up(size: int) -> None:
    assert model(f"batch_size: {size}").engine == {"batch_size": size, "ubatch_size": size}


def test_a_micro_batch_of_its_own_is_kept() -> None:
    sizes = {"batch_size": 2048, "ubatch_size": 256}
    assert model("batch_size: 2048\nubatch_size: 256").engine == sizes
    assert model("batch_size: 2048", "defaults: {ubatch_size: 256}\n").engine == sizes


def test_a_quantised_value_cache_turns_automatic_flash_attention_on() -> None:
    assert model("cache_type_v: q8_0").engine["flash_attn"] == "on"
    assert model("cache_type_v: q4_0\nflash_attn: auto").engine["flash_attn"] == "on"
    assert "flash_attn" not in model("cache_type_k: q8_0\ncache_type_v: bf16").engine


@pytest.mark.parametrize(
    "text", ["'{{ messages }}'", '"{% for m in messages %}x{% endfor %}"', "|\n  a\n  b", "'{# c #}x'"]
)
def test_a_template_with_marks_or_lines_is_the_text_itself(text: str) -> None:
    spec = model(f"chat_template: {text}")
    assert spec.chat_template is not None
    assert spec.chat_template_file is None


def test_a_template_without_marks_is_a_file_beside_the_catalogue_and_is_not_read_here() -> None:
    spec = model("chat_template: templates/chat.jinja")
    assert spec.chat_template is None
    assert spec.chat_template_file == Path("/srv/templates/chat.jinja")
    assert model("chat_template: /abs/x").chat_template_file == Path("/abs/x")


# --- defaults ---------------------------------------------------------------------------------------------


def test_defaults_hold_for_every_model_that_does_not_say_otherwise() -> None:
    served = parse("defaults: {slots: 2, pin: true}\nmodels:\n  a: a.gguf\n  b: {model: b.gguf, slots: 3}\n")
    assert [(spec.slots, spec.pin) for spec in served.models.values()] == [(2, True), (3, True)]


def test_maps_merge_with_defaults_key_by_key() -> None:
    before = (
        "defaults:\n  env: {A: a, B: b}\n  chat_template_kwargs: {x: 1, y: 1}\n"
        "  request: {defaults: {t: 1, u: 1}, drop: [p]}\n"
    )
    spec = model("env: {B: c}\nchat_template_kwargs: {y: 2}\nrequest: {defaults: {u: 2}, drop: [q]}", before)
    assert spec.env == {"A": "a", "B": "c"}
    assert spec.chat_template_kwargs == {"x": 1, "y": 2}
    assert spec.request == RequestRules({"t": 1, "u": 2}, {}, ("p", "q"))


def test_null_undoes_a_default() -> None:
    spec = model("max_tokens: null\nthreads: null", "defaults: {max_tokens: 5, threads: 2}\n")
    assert spec.max_tokens is None
    assert "threads" not in spec.engine


def test_a_models_positive_flag_replaces_a_negated_default() -> None:
    assert model("mmap: true", "defaults: {no_mmap: true}\n").engine == {"mmap": True}


def test_limits_are_the_defaults_of_queues() -> None:
    assert model("", "limits: {max_wait_s: 12}\n").max_wait_s == 12
    assert model("max_wait_s: 1", "limits: {max_wait_s: 12}\n").policy().max_wait_s == 1
    before = "limits: {max_queue: 7, queue_timeout_s: 8}\ndefaults: {max_queue: 9}\n"
    assert model("", "limits: {max_queue: 7, queue_timeout_s: 8}\n").max_queue == 7
    assert model("", before).max_queue == 9
    assert model("max_queue: 10\nqueue_timeout_s: 11", before).max_queue == 10
    assert model("max_queue: 10\nqueue_timeout_s: 11", before).queue_timeout_s == 11


def test_a_mistake_in_defaults_is_reported_once_and_where_it_stands() -> None:
    found = problems("defaults:\n  batch_size: 2\n  ubatch_size: 600\nmodels:\n  a: a.gguf\n  b: b.gguf\n")
    assert set(found) == {"defaults.batch_size", "defaults.ubatch_size"}


# --- the rest of the file ---------------------------------------------------------------------------------


def test_limits_are_read() -> None:
    served = parse(
        "limits: {max_loaded: 2, max_queue: 3, queue_timeout_s: 4, max_wait_s: 0, max_body_bytes: 2048}\n"
        "models: {a: a.gguf}\n"
    )
    assert served.limits == Limits(2, 3, 4, 0, 2048)
    assert parse("limits: {max_loaded: null}\nmodels: {a: a.gguf}\n").limits == Limits()
    assert Limits().max_body_bytes == 64 * 2**20


def test_keys_are_read_with_their_sources_and_scopes() -> None:
    digest = "AB" * 32
    served = parse(
        "keys:\n  a: {env: A_KEY}\n  b: {file: b.key, scopes: [metrics, admin]}\n"
        f"  c: {{sha256: {digest}, priority: -5}}\n  d: {{sha256: {'1' * 64}}}\nmodels: {{a: a.gguf}}\n"
    )
    assert served.keys == (
        KeySpec("a", env="A_KEY", scopes=frozenset({"inference"})),
        KeySpec("b", file=Path("/srv/b.key"), scopes=frozenset({"metrics", "admin"})),
        KeySpec("c", sha256=digest.lower(), priority=-5),
        KeySpec("d", sha256="1" * 64),
    )


def test_the_default_model_may_be_an_alias() -> None:
    served = parse("default_model: x\nmodels: {a: {model: a.gguf, aliases: [x]}, b: b.gguf}\n")
    assert served.resolve(None).spec.name == "a"
    assert parse("default_model: null\nmodels: {a: a.gguf}\n").default_model is None


def test_aliases_are_a_list_or_a_map_with_options() -> None:
    assert model('aliases: [gpt-4o-mini, "smollm2:135m", org/x@y_z]').aliases == {
        name: AliasSpec(name) for name in ("gpt-4o-mini", "smollm2:135m", "org/x@y_z")
    }
    spec = model("aliases:\n  a:\n  b: {listed: false}\n  c: {request: {force: {temperature: 0}}}")
    assert spec.aliases == {
        "a": AliasSpec("a"),
        "b": AliasSpec("b", listed=False),
        "c": AliasSpec("c", RequestRules(force={"temperature": 0})),
    }


def test_models_keep_the_order_of_the_file() -> None:
    assert list(parse("models: {z: z.gguf, a: a.gguf, m: m.gguf}\n").models) == ["z", "a", "m"]
