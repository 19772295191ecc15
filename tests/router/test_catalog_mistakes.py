"""models.yaml with mistakes in it: each is answered with its place and what to write instead, all at once."""

from __future__ import annotations

import pytest

from router.catalog_parser import read_catalog
from router.catalog_problems import CatalogError
from tests.support.catalogs import PATH, parse_catalog, problems, wrong

# --- mistakes: types and ranges ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "key", "words"),
    [
        ("slots: 0", "slots", "must be from 1 to 64, not 0"),
        ("slots: -1", "slots", "must be from 1 to 64, not -1"),
        ("slots: 65", "slots", "must be from 1 to 64, not 65"),
        ("slots: 4.0", "slots", "a whole number, not 4.0"),
        ("slots: true", "slots", "a whole number, not true"),
        ("slots: '4'", "slots", "remove the quotes"),
        ("slots:", "slots", "not nothing (null)"),
        ("slots: [4]", "slots", "not a list"),
        ("context: 15", "context", "must be from 16"),
        ("context: 8k", "context", "a whole number or `auto`, not the text '8k'"),
        ("context: null", "context", "not nothing"),
        ("gpu_layers: -2", "gpu_layers", "must be from -1"),
        ("gpu_layers: most", "gpu_layers", "or `all`"),
        ("idle_unload_s: 15m", "idle_unload_s", "a number of seconds, for example 300, not the text '15m'"),
        ("idle_unload_s: 5 minutes", "idle_unload_s", "a number of seconds"),
        ("idle_unload_s: -1", "idle_unload_s", "at least 0"),
        ("idle_unload_s: .inf", "idle_unload_s", "at most"),
        ("idle_unload_s: .nan", "idle_unload_s", "at least 0"),
        ("preload: 1", "preload", "true or false"),
        ("preload: 'true'", "preload", "without quotes"),
        ("cache_type_k: q9", "cache_type_k", "one of f32, f16, bf16, q8_0, q4_0, q4_1, iq4_nl, q5_0, q5_1"),
        ("flash_attn: maybe", "flash_attn", "one of on, off, auto"),
        ("split_mode: tensor", "split_mode", "one of none, layer, row"),
        ("tensor_split: 3,1", "tensor_split", "for example [3, 1]"),
        ("tensor_split: [3, -1]", "tensor_split", "for example [3, 1]"),
        ("tensor_split: [0, 0]", "tensor_split", "for example [3, 1]"),
        ("tensor_split: [3, x]", "tensor_split", "for example [3, 1]"),
        ("rope_scale: 0", "rope_scale", "more than 0"),
        ("batch_size: 1", "batch_size", "from 2 to 65536"),
        ("ubatch_size: 1", "ubatch_size", "from 2 to 65536"),
        ("max_tokens: 0", "max_tokens", "must be from 1"),
        ("max_queue: 0", "max_queue", "must be from 1"),
        ("priority: 1000", "priority", "from -100 to 100"),
        ("chat_template: ''", "chat_template", "must not be empty"),
        ("chat_template_kwargs: [1]", "chat_template_kwargs", "a map, not a list"),
        ("chat_template_kwargs: {a: .nan}", "chat_template_kwargs", "no form in JSON"),
        ("env: {A: true}", "env.A", "put it in quotes"),
        ("env: {A: }", "env.A", "put it in quotes"),
        ("env: {A-B: x}", "env.A-B", "not a name of an environment variable"),
        ('env: {A: "x\\0y"}', "env.A", "U+0000"),
        ("tags: small", "tags", "must be a list, not the text 'small'"),
        ("tags: [1]", "tags[0]", "put it in quotes"),
        ("description: 3", "description", "put it in quotes"),
        ("device: ''", "device", "must not be empty"),
        ("aliases: ['a**']", "aliases[0]", "write one"),
        ("aliases: {'a*': {listed: true}}", "aliases.a*.listed", "cannot be listed"),
        ("url_model: x", "url_model", "belongs to a model with a `url`"),
        ("url_key_env: X", "url_key_env", "belongs to a model with a `url`"),
        ("url: https://host/v1", "url", "keep one of the two"),
        ("aliases: x", "aliases", "a list of names or a map"),
        ("aliases: [4.1]", "aliases[0]", "put it in quotes"),
        ("aliases: {x: y}", "aliases.x", "`request`, `lora` or `listed`"),
        ("aliases: ['a b']", "aliases[0]", "spaces"),
        ("aliases: ['']", "aliases[0]", "empty"),
        (f"aliases: [{'x' * 201}]", "aliases[0]", "at most 200 characters"),
        ("request: {defaults: [1]}", "request.defaults", "a map, not a list"),
        ("request: x", "request", "a map with `defaults`, `force` or `drop`"),
    ],
)
def test_a_wrong_value_is_answered_with_what_is_expected(options: str, key: str, words: str) -> None:
    found = wrong(options)
    assert list(found) == [key]
    assert words in found[key]


@pytest.mark.parametrize(
    ("options", "key", "words"),
    [
        ("slots: 8\nbatch_size: 4", "batch_size", "at least `slots` (8)"),
        ("batch_size: 3", "batch_size", "at least `slots` (4)"),
        ("ubatch_size: 1024", "ubatch_size", "at most `batch_size` (512, its default)"),
        ("batch_size: 64\nubatch_size: 128", "ubatch_size", "at most `batch_size` (64)"),
        ("context: 4096\nkv_tokens: 2048", "kv_tokens", "at least `context` (4096)"),
        ("cache_type_v: q8_0\nflash_attn: off", "cache_type_v", "needs flash attention"),
        ("rope_scale: 2\nrope_freq_scale: 0.5", "rope_freq_scale", "set only one of the two"),
        ("mmap: true\nno_mmap: true", "no_mmap", "say the same thing"),
        ("no_kv_offload: true\nkv_offload: true", "kv_offload", "say the same thing"),
    ],
)
def test_options_that_contradict_each_other_are_refused(options: str, key: str, words: str) -> None:
    found = wrong(options)
    assert list(found) == [key]
    assert words in found[key]


def test_a_contradiction_with_a_default_is_reported_at_the_line_that_can_be_changed() -> None:
    assert "models.m.slots" in problems("defaults: {batch_size: 512}\nmodels: {m: {model: m.gguf, slots: 65}}\n")
    found = problems("defaults: {context: 4096}\nmodels: {m: {model: m.gguf, kv_tokens: 100}}\n")
    assert list(found) == ["models.m.kv_tokens"]


# --- mistakes: keys ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("key", "words"),
    [
        ("projector", "`projector` is not available in this release yet"),
        *((key, "write `context`") for key in ("ctx_size", "n_ctx", "n_ctx_per_slot", "c", "ctx-size")),
        *((key, "write `slots`") for key in ("parallel", "np", "n_parallel")),
        ("ttl", "write `idle_unload_s`"),
        *((key, "write `gpu_layers`") for key in ("n_gpu_layers", "ngl", "n-gpu-layers")),
        *((key, "write `model`") for key in ("path", "file")),
        ("temperature", "write `request: {defaults: {temperature: 1}}`"),
        ("temp", "write `request: {defaults: {temperature: 1}}`"),
        ("top_k", "write `request: {defaults: {top_k: 1}}`"),
        *((key, f"option `{key}` is not available in this release yet") for key in ("n_cpu_moe", "override_tensor")),
        *((key, f"option `{key}` is not available in this release yet") for key in ("numa", "rpc")),
        *((key, f"write `request: {{defaults: {{{key}: 1}}}}`") for key in ("mirostat", "grammar", "xtc_probability")),
        ("dynatemp_exp", "write `request: {defaults: {dynatemp_exponent: 1}}`"),
        ("reasoning-budget", "write `request: {defaults: {reasoning_budget_tokens: 1}}`"),
        *(
            (key, "leave it out: Corral decides that itself")
            for key in ("perf", "no-warmup", "cache_reuse", "verbosity")
        ),
        *((key, "leave it out") for key in ("embeddings", "rerank")),
        ("max_loaded", "top-level `limits:`"),
        ("defaults", "a key of the top level"),
        ("port", "`corral serve --host H --port P`"),
        ("n_ctxt", "write `context`"),
        ("slotz", "did you mean `slots`?"),
        ("slot", "did you mean `slots`?"),
        *((key, "write `device`") for key in ("gpu", "gpus", "devices")),
        *((key, "write `url`") for key in ("api_base", "base_url", "endpoint")),
        *((key, "write `request: {") for key in ("filters", "setParams", "strip_params", "parameters")),
        ("litellm_params", "write what it holds as `url`, `url_model` and `url_key_env`"),
        ("useModelName", "write `url_model`"),
        ("concurrencyLimit", "write `slots`"),
        ("unlisted", "`listed: false`"),
        ("cmd", "write `model` with the GGUF file"),
        ("instances", "write `replicas`"),
        ("on_load", "write `hooks: {"),
        ("load_on_startup", "write `preload: true`"),
        ("slot-save-path", "write `prompt_cache_disk_bytes`"),
        ("api_key", "`url_key_env` names"),
        ("Slots", "write `slots`"),
        ("batch-size", "write `batch_size`"),
        ("zzzzzz", "no key has a similar name"),
        ("bogus", "no key has a similar name"),
        ("n_gpu_layer", "write `gpu_layers`"),
        ("tempature", "write `request: {defaults: {temperature: 1}}`"),
        ("x" * 10_000, "no key has a similar name"),
    ],
)
def test_a_key_that_is_none_here_is_answered_with_what_to_write(key: str, words: str) -> None:
    (message,) = wrong(f"{key}: 1").values() if len(key) < 1000 else wrong(f"? {key}\n: 1").values()
    assert words in message
    assert len(message) < 300


@pytest.mark.parametrize("key", ["bogus", "gpuss", "n_gpu_layer", "tempature", "paralel", "mmprojj"])
def test_no_name_is_proposed_that_is_refused_itself(key: str) -> None:
    (message,) = wrong(f"{key}: 1").values()
    assert "did you mean" not in message


def test_defaults_cannot_hold_what_belongs_to_one_model() -> None:
    found = problems("defaults: {model: x.gguf, aliases: [x], nope: 1, projector: x}\nmodels: {a: a.gguf}\n")
    assert "belongs to one model" in found["defaults.model"]
    assert "belongs to one model" in found["defaults.aliases"]
    assert "unknown key" in found["defaults.nope"]
    assert "not available" in found["defaults.projector"]


@pytest.mark.parametrize(
    ("line", "where", "words"),
    [
        ("model: {a: a.gguf}", "model", "write a map `models:`"),
        ("idle_unload_s: 3", "idle_unload_s", "option of models"),
        ("modles: {a: a.gguf}", "modles", "did you mean `models`?"),
        ("slots: 4", "slots", "in `defaults:`"),
        ("max_loaded: 4", "max_loaded", "`limits:`"),
        ("spares: 17", "spares", "must be from 0 to 16"),
        ("spares: all", "spares", "a whole number"),
        ("groups: {}", "groups", "leave it out"),
        ("macros: {}", "macros", "`&anchor`"),
        ("healthCheckTimeout: 60", "healthCheckTimeout", "load_timeout_s"),
        ("peers: {}", "peers", "with a `url`"),
        ("model_list: []", "model_list", "a map `models:`"),
        ("hooks: {}", "hooks", "hooks belong to models"),
        ("ttl: 5", "ttl", "idle_unload_s"),
        ("gemma: {model: g.gguf}", "gemma", "in the `models:` map"),
        ("port: 80", "port", "corral serve"),
        ("zzz: 1", "zzz", "known here: `models`, `defaults`, `limits`, `keys`, `devices`, `default_model`, `spares`"),
        ("limits: {max_load: 1}", "limits.max_load", "did you mean `max_loaded`?"),
        ("limits: {slots: 1}", "limits.slots", "option of models"),
        ("limits: {max_body_bytes: 64X}", "limits.max_body_bytes", "a number of bytes"),
        ("limits:", "limits", "is empty"),
        ("limits: [1]", "limits", "not a list"),
        ("defaults: 3", "defaults", "must be a map such as"),
        ("default_model: smol", "default_model", "no model or alias is named `smol`; did you mean `smollm2`?"),
        ("default_model: [a]", "default_model", "must be the name of a model or alias"),
    ],
)
def test_mistakes_at_the_top_level_are_answered_with_where_things_belong(line: str, where: str, words: str) -> None:
    found = problems(f"{line}\nmodels: {{smollm2: a.gguf}}\n")
    assert list(found) == [where]
    assert words in found[where]


@pytest.mark.parametrize("rule", ["defaults: {stream: true}", "force: {model: x}", "drop: [cache_salt]"])
def test_rules_cannot_touch_what_the_router_reads_first(rule: str) -> None:
    (message,) = wrong(f"request: {{{rule}}}").values()
    assert "before any rule applies" in message


def test_a_parameter_directly_under_request_is_pointed_to_defaults_and_force() -> None:
    (message,) = wrong("request: {temperature: 0.3}").values()
    assert "`defaults: {temperature: 0.3}` or `force: {temperature: 0.3}`" in message


# --- mistakes: models and names ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "where", "words"),
    [
        ("models: {a: {slots: 2}}", "models.a.model", "is missing"),
        ("models: {a: {}}", "models.a.model", "is missing"),
        ("models: {a: }", "models.a", "not nothing (null)"),
        ("models: {a: [x.gguf]}", "models.a", "not a list"),
        ("models: {a: 7}", "models.a", "not 7"),
        ("models: {a: {model: }}", "models.a.model", "must be text"),
        ("models: {a: {model: ''}}", "models.a.model", "must not be empty"),
        ("models: {a: {model: 'pkg:x'}}", "models.a.model", "the file is missing"),
        ("models: {a: {model: 'ftp://x/y.gguf'}}", "models.a.model", "URLs"),
        ("models: {a: 'hf:x'}", "models.a", "the file is missing"),
        ("models: {a: mod}", "models.a", "not the name of a GGUF file"),
        ("models: {'a b': a.gguf}", "models.a b", "spaces"),
        ("models: {'a*': a.gguf}", "models.a*", "only aliases may have a `*`"),
        ('models: {"a\\tb": a.gguf}', "models.a?b", "spaces or control characters"),
        ("models: {}", "models", "write at least one model"),
        ("models:", "models", "is empty"),
        ("models: []", "models", "must be a map such as"),
        ("models: [{name: a}]", "models", "must be a map such as"),
        ("limits: {}", "models", "is missing"),
        ("", "", "the file is empty"),
        ("- a", "", "must be a map with a `models:` key, not a list"),
        ("hello", "", "must be a map with a `models:` key, not the text 'hello'"),
        ("models: [", "", "the text ends in the middle"),
    ],
)
def test_a_file_without_usable_models_says_what_is_missing(text: str, where: str, words: str) -> None:
    found = problems(text)
    assert list(found) == [where]
    assert words in found[where]


def test_a_model_written_with_another_servers_key_is_told_once() -> None:
    assert list(problems("models: {a: {path: a.gguf}}")) == ["models.a.path"]


def test_a_name_may_be_used_only_once_over_all_models_and_aliases() -> None:
    text = (
        "models:\n  a:\n    model: a.gguf\n    aliases: [x, b]\n"
        "  b:\n    model: b.gguf\n    aliases: [x]\n  c: {model: c.gguf, aliases: [y, y, c]}\n"
    )
    found = problems(text)
    assert "already used by models.b on line 5" in found["models.a.aliases[1]"]
    assert "already used by models.a.aliases[0] on line 4" in found["models.b.aliases[0]"]
    assert "already used by models.c.aliases[0] on line 8" in found["models.c.aliases[1]"]
    assert "already used by models.c on line 8" in found["models.c.aliases[2]"]


def test_a_model_that_is_written_twice_is_refused() -> None:
    assert "written twice" in problems("models:\n  a: a.gguf\n  a: b.gguf\n")["models.a"]


# --- all at once ------------------------------------------------------------------------------------------


def test_all_mistakes_are_reported_at_once_in_the_order_of_the_text() -> None:
    text = (
        "limits: {max_loaded: 0}\nmodels:\n  a:\n    model: 'pkg:'\n    slots: 0\n    nope: 1\n  b: 7\nkeys: {k: {}}\n"
    )
    with pytest.raises(CatalogError) as caught:
        parse_catalog(text, PATH)
    found = caught.value.problems
    assert [(problem.where, problem.line, problem.column) for problem in found] == [
        ("limits.max_loaded", 1, 22),
        ("models.a.model", 4, 12),
        ("models.a.slots", 5, 12),
        ("models.a.nope", 6, 5),
        ("models.b", 7, 6),
        ("keys.k", 8, 8),
    ]
    assert caught.value.message.count("\n") == 5
    assert "/srv/models.yaml:5:12: models.a.slots: must be from 1 to 64, not 0" in caught.value.message


def test_messages_stay_on_one_line_whatever_the_file_contains() -> None:
    text = 'models: {"a\\nb": {"c\\nd": 1, model: "x\\ny"}, c: {model: x.gguf, slots: "a\\nb"}}'
    for problem in read_catalog(text, PATH).problems:
        assert "\n" not in problem.describe(PATH)


def test_what_is_right_can_still_be_read_beside_what_is_wrong() -> None:
    reading = read_catalog("models: {a: a.gguf, b: {model: b.gguf, slots: 0}, c: 7}\n", PATH)
    assert list(reading.catalog.models) == ["a", "b"]
    assert reading.options["b"]["model"].where == "models.b.model"
