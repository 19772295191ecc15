"""Names, request rules, fingerprints and policies of catalogues that are made by hand."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from router.catalog import AliasSpec, Catalog, Hooks, Limits, ModelSpec, RequestRules
from router.catalog_problems import CatalogError, Problem
from router.errors import BadRequest, ModelNotFound, RouterError
from router.events import FleetLimits


def spec(name: str, *aliases: str | AliasSpec, **options: Any) -> ModelSpec:
    made = [alias if isinstance(alias, AliasSpec) else AliasSpec(alias) for alias in aliases]
    return ModelSpec(name, f"{name}.gguf", Path("/srv"), {alias.name: alias for alias in made}, **options)


def catalog(*specs: ModelSpec, **options: Any) -> Catalog:
    return Catalog({model.name: model for model in specs}, **options)


# --- resolve ----------------------------------------------------------------------------------------------


def test_a_model_is_found_by_its_name_and_by_each_alias() -> None:
    served = catalog(spec("smollm2", "gpt-4o-mini", "org/smol:fast"), spec("gemma"))
    assert served.resolve("smollm2").spec.name == "smollm2"
    assert served.resolve("smollm2").alias is None
    for name in ("gpt-4o-mini", "org/smol:fast"):
        found = served.resolve(name)
        assert found.spec.name == "smollm2"
        assert found.alias is not None
        assert found.alias.name == name


def test_an_unknown_name_is_answered_with_the_nearest_ones() -> None:
    served = catalog(spec("smollm2", "gpt-4o-mini"), spec("qwen2.5-coder"))
    with pytest.raises(ModelNotFound) as caught:
        served.resolve("SmolLM-2")
    assert "did you mean `smollm2`?" in caught.value.message
    assert caught.value.http_status == 404
    assert caught.value.code == "model_not_found"
    assert caught.value.param == "model"


def test_a_name_that_is_like_no_other_is_answered_with_all_names() -> None:
    with pytest.raises(ModelNotFound, match="there is `a` or `b`"):
        catalog(spec("a"), spec("b")).resolve("zzzzzzzz")


def test_hidden_aliases_are_found_but_never_suggested() -> None:
    served = catalog(spec("big", AliasSpec("secret-name", listed=False)), spec("other"))
    assert served.resolve("secret-name").spec.name == "big"
    with pytest.raises(ModelNotFound) as caught:
        served.resolve("secret-nam")
    assert "secret-name" not in caught.value.message.replace("'secret-nam'", "")
    assert "secret-name" not in served.listed_names()


def test_a_huge_unknown_name_is_refused_without_being_compared_or_echoed_whole() -> None:
    served = catalog(*(spec(f"model-{i}") for i in range(200)))
    with pytest.raises(ModelNotFound) as caught:
        served.resolve("x" * 1_000_000)
    assert len(caught.value.message) < 400


def test_a_request_without_a_name_gets_the_only_model() -> None:
    served = catalog(spec("only"))
    assert served.resolve(None).spec.name == "only"
    assert served.resolve("").spec.name == "only"


def test_a_request_without_a_name_gets_the_default_model_even_if_that_is_an_alias() -> None:
    served = catalog(spec("a"), spec("b", "fast"), default_model="fast")
    found = served.resolve(None)
    assert found.spec.name == "b"
    assert found.alias is not None


def test_a_request_without_a_name_is_refused_when_several_models_could_be_meant() -> None:
    with pytest.raises(BadRequest) as caught:
        catalog(spec("a"), spec("b")).resolve(None)
    assert caught.value.param == "model"
    assert "`a` or `b`" in caught.value.message


def test_a_long_list_of_names_is_cut_in_messages() -> None:
    with pytest.raises(BadRequest, match="and 92 more"):
        catalog(*(spec(f"m{i}") for i in range(100))).resolve(None)


@pytest.mark.parametrize(
    ("name", "model"),
    [
        ("claude-3-opus", "a"),
        ("claude-", "a"),
        ("claude-3-haiku", "b"),
        ("claude-exact", "c"),
        ("gpt-4-mini", "c"),
        ("Claude-3", "rest"),
        ("anything else", "rest"),
        ("claude-*", "a"),
    ],
)
def test_an_exact_name_wins_and_then_the_pattern_with_the_most_text(name: str, model: str) -> None:
    served = catalog(
        spec("rest", "*"), spec("a", "claude-*"), spec("b", "claude-*-haiku"), spec("c", "claude-exact", "gpt-*mini")
    )
    found = served.resolve(name)
    assert found.spec.name == model
    assert found.alias is not None
    assert found.alias.name == name, "the name that was asked for"


def test_of_equal_patterns_the_first_of_the_file_wins() -> None:
    served = catalog(spec("a", "x-*-1"), spec("b", "x-1-*"))
    assert served.resolve("x-1-1").spec.name == "a"
    assert served.resolve("x-1-2").spec.name == "b"


def test_a_pattern_brings_its_aliass_rules_and_is_never_suggested() -> None:
    served = catalog(spec("m", AliasSpec("gpt-*", RequestRules(force={"seed": 1}))))
    assert served.resolve("gpt-4").rules.apply({}) == {"seed": 1}
    assert served.listed_names() == ["m"]
    with pytest.raises(ModelNotFound) as caught:
        served.resolve("gpt")
    assert "*" not in caught.value.message


@pytest.mark.parametrize("name", ["x" * 201, "a\nb", "a\0b", "\ud800"])
def test_a_name_that_no_model_could_have_fits_no_pattern(name: str) -> None:
    with pytest.raises(ModelNotFound):
        catalog(spec("a", "*")).resolve(name)


def test_the_default_model_may_be_a_name_that_a_pattern_stands_for() -> None:
    assert catalog(spec("a"), spec("b", "fast-*"), default_model="fast-one").resolve(None).spec.name == "b"


# --- request rules ----------------------------------------------------------------------------------------


def test_rules_drop_then_fill_in_then_force() -> None:
    rules = RequestRules(defaults={"a": 1, "b": 1}, force={"c": 1}, drop=("b", "c"))
    assert rules.apply({"a": 0, "b": 0, "c": 0, "d": 0}) == {"a": 0, "b": 1, "c": 1, "d": 0}


def test_defaults_do_not_replace_a_null_that_the_client_sent() -> None:
    assert RequestRules(defaults={"stop": ["x"]}).apply({"stop": None}) == {"stop": None}


@pytest.mark.parametrize("name", ["max_tokens", "max_completion_tokens", "max_output_tokens", "n_predict"])
def test_limit_of_the_answer_is_one_rule_whatever_a_request_calls_it(name: str) -> None:
    assert RequestRules(defaults={"max_tokens": 9, "top_k": 1}).apply({name: 5}) == {name: 5, "top_k": 1}
    assert RequestRules(force={"max_tokens": 9}).apply({name: 5}) == {"max_tokens": 9}
    assert RequestRules(defaults={"max_tokens": 9}).apply({"n": 1, "n_predict": None})["max_tokens"] == 9


def test_applying_rules_changes_neither_the_body_nor_the_rules() -> None:
    rules = RequestRules(defaults={"stop": ["a"]}, force={"options": {"x": 1}}, drop=("seed",))
    body = {"seed": 1, "messages": []}
    result = rules.apply(body)
    result["stop"].append("b")
    result["options"]["x"] = 2
    assert body == {"seed": 1, "messages": []}
    assert rules.apply({}) == {"stop": ["a"], "options": {"x": 1}}


def test_empty_rules_say_so() -> None:
    assert RequestRules().is_empty
    assert not RequestRules(drop=("x",)).is_empty
    assert not RequestRules(defaults={"x": None}).is_empty


def test_an_aliass_rules_win_over_its_models() -> None:
    alias = AliasSpec("hot", RequestRules(defaults={"temperature": 1.5}, force={"seed": 2}, drop=("stop",)))
    rules = RequestRules(defaults={"temperature": 0.1, "top_k": 5}, force={"seed": 1, "n": 1}, drop=("logprobs",))
    served = catalog(spec("m", alias, request=rules))
    body = {"stop": ["x"], "logprobs": 3, "seed": 9}
    assert served.resolve("hot").rules.apply(body) == {"temperature": 1.5, "top_k": 5, "seed": 2, "n": 1}
    assert served.resolve("m").rules.apply({}) == {"temperature": 0.1, "top_k": 5, "seed": 1, "n": 1}


def test_an_aliass_force_wins_over_its_models_drop() -> None:
    alias = AliasSpec("fixed", RequestRules(force={"seed": 2}))
    served = catalog(spec("m", alias, request=RequestRules(drop=("seed",))))
    assert served.resolve("fixed").rules.apply({"seed": 1}) == {"seed": 2}


# --- fingerprint and policy -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "change",
    [
        {"source": "other.gguf"},
        {"base_dir": Path("/elsewhere")},
        {"context": 512},
        {"slots": 2},
        {"kv_tokens": 4096},
        {"engine": {"cache_type_k": "q8_0"}},
        {"max_tokens": 5},
        {"chat_template": "{{ x }}"},
        {"chat_template_kwargs": {"enable_thinking": False}},
        {"allow_request_templates": True},
        {"drop_billing_header": False},
        {"env": {"A": "1"}},
        {"devices": ("CUDA1",)},
        {"is_partial_allowed": True},
    ],
)
def test_the_fingerprint_changes_with_what_a_worker_was_started_with(change: dict[str, Any]) -> None:
    assert dataclasses.replace(spec("m"), **change).fingerprint() != spec("m").fingerprint()


@pytest.mark.parametrize(
    "change",
    [
        {"aliases": {"x": AliasSpec("x")}},
        {"idle_unload_s": 5.0},
        {"request_timeout_s": 5.0},
        {"queue_timeout_s": 5.0},
        {"load_timeout_s": 5.0},
        {"max_queue": 5},
        {"preload": True},
        {"pin": True},
        {"priority": 3},
        {"request": RequestRules(drop=("x",))},
        {"description": "x"},
        {"tags": ("x",)},
        {"chat_template_file": Path("/x")},
        {"replicas": 2},
        {"home": True},
        {"max_wait_s": 1.0},
        {"hang_timeout_s": 1.0},
        {"hooks": Hooks(before_load=("a",))},
        {"engine": {"mmap": True, "batch_size": 512}},
    ],
)
def test_the_fingerprint_stays_when_a_running_worker_needs_no_restart(change: dict[str, Any]) -> None:
    assert dataclasses.replace(spec("m"), **change).fingerprint() == spec("m").fingerprint()


def test_the_policy_carries_what_the_fleet_decides_on() -> None:
    model = spec("m", slots=2, idle_unload_s=5.0, pin=True, preload=True, priority=3, max_queue=7, problem="no file")
    policy = model.policy()
    assert (policy.name, policy.idle_unload_s, policy.pin, policy.preload) == ("m", 5.0, True, True)
    assert (policy.priority, policy.max_queue, policy.unavailable) == (3, 7, "no file")
    assert policy.fingerprint == model.fingerprint()
    assert catalog(model).policies() == {"m": policy}


def test_the_fleets_limits_come_from_the_catalogues() -> None:
    limits = catalog(spec("m"), limits=Limits(max_loaded=2, max_wait_s=7.0)).fleet_limits()
    assert limits == FleetLimits(max_loaded=2, max_wait_s=7.0)


# --- errors -----------------------------------------------------------------------------------------------


def test_a_catalogue_error_shows_every_problem_with_file_line_and_column() -> None:
    problems = [Problem("models.a.slots", "must be from 1 to 64, not 0", 3, 5), Problem("", "is empty")]
    error = CatalogError(problems, Path("models.yaml"))
    assert isinstance(error, RouterError)
    assert error.message.split("\n") == [
        "models.yaml:3:5: models.a.slots: must be from 1 to 64, not 0",
        "models.yaml: is empty",
    ]
    assert error.summary == "models.yaml:3:5: models.a.slots: must be from 1 to 64, not 0 (and 1 more)"
    assert error.problems == tuple(problems)


def test_a_problem_without_a_path_still_tells_its_line() -> None:
    assert Problem("models.a", "is wrong", 3, 5).describe() == "line 3, column 5: models.a: is wrong"
