"""What `models.yaml` says about API keys beside where they are: models, priority, limits."""

from __future__ import annotations

import jsonschema
import pytest
import yaml

from router.api_keys import KeyLimits
from router.catalog_parser import read_catalog
from router.catalog_schema import make_schema
from router.checking import key_problems
from router.settings import RouterSettings
from tests.support.catalogs import PATH, parse, problems


def key_text(options: str) -> str:
    return f"keys:\n  team: {{env: TEAM_KEY, {options}}}\nmodels: {{a: a.gguf, b-1: b.gguf}}\n"


def test_limits_of_a_key_are_read() -> None:
    served = parse(
        key_text("models: [a, b-*], max_priority: 5, max_concurrent: 4, requests_per_min: 60, ").replace(
            "60, ", "60, tokens_per_min: 20000, weight: 2"
        )
    )
    assert served.keys[0].limits == KeyLimits(("a", "b-*"), 5, 4, 60, 20_000, 2.0)


def test_a_key_without_limits_has_none() -> None:
    assert parse(key_text("priority: 3")).keys[0].limits == KeyLimits()


def test_null_takes_a_limit_away() -> None:
    assert parse(key_text("max_concurrent: null, max_priority: null")).keys[0].limits == KeyLimits()


@pytest.mark.parametrize(
    ("option", "where", "words"),
    [
        ("models: a", "keys.team.models", "must be a list"),
        ("models: []", "keys.team.models", "must name at least one of the models, or be left out for all"),
        ("models: [a, 'b c']", "keys.team.models[1]", "must not contain spaces"),
        ("models: ['a**']", "keys.team.models[0]", "`**` means the same as `*`"),
        ("models: [7]", "keys.team.models[0]", "must be text, not a number"),
        ("max_priority: -1", "keys.team.max_priority", "must be from 0 to 100"),
        ("max_concurrent: 0", "keys.team.max_concurrent", "must be from 1 to 100000"),
        ("requests_per_min: 1.5", "keys.team.requests_per_min", "must be a whole number"),
        ("tokens_per_min: 0", "keys.team.tokens_per_min", "must be from 1 to"),
        ("weight: 0", "keys.team.weight", "must be at least 0.01 and at most 100"),
        ("weight: .inf", "keys.team.weight", "at most 100"),
        ("weight: .nan", "keys.team.weight", "at most 100"),
        ("rpm: 6", "keys.team.rpm", "write `requests_per_min`"),
        ("tpm_limit: 6", "keys.team.tpm_limit", "write `tokens_per_min`"),
        ("max_parallel_requests: 6", "keys.team.max_parallel_requests", "write `max_concurrent`"),
        ("allowed_models: [a]", "keys.team.allowed_models", "write `models`"),
        ("max_priorty: 6", "keys.team.max_priorty", "did you mean `max_priority`?"),
    ],
)
def test_wrong_limit_is_refused_at_its_place(option: str, where: str, words: str) -> None:
    found = problems(key_text(option))
    assert list(found) == [where]
    assert words in found[where]


@pytest.mark.parametrize(
    ("options", "is_right"),
    [
        ("models: [a, 'b-*'], max_priority: 5, max_concurrent: 4, weight: 0.5", True),
        ("requests_per_min: 60, tokens_per_min: 20000", True),
        ("models: []", False),
        ("models: ['a b']", False),
        ("weight: 0", False),
        ("max_priority: 101", False),
    ],
)
def test_schema_for_editors_judges_limits_as_the_server_does(options: str, is_right: bool) -> None:
    text = key_text(options)
    assert jsonschema.Draft202012Validator(make_schema()).is_valid(yaml.safe_load(text)) is is_right
    assert (not problems(text)) is is_right


def test_an_administrator_cannot_be_kept_to_some_models() -> None:
    found = problems(key_text("scopes: [admin], models: [a]"))
    assert list(found) == ["keys.team.models"]
    assert "take one of the two away" in found["keys.team.models"]


def test_names_that_open_nothing_are_found_at_the_line_of_their_key() -> None:
    text = key_text("models: [a, tem-*, b-*, nothing]")
    catalog, reading = parse(text), read_catalog(text, PATH)
    found = key_problems(RouterSettings(), catalog, {"TEAM_KEY": "x"}, reading)
    assert [(problem.where, problem.line) for problem in found] == [
        ("keys.team.models[1]", 2),
        ("keys.team.models[3]", 2),
    ]
    assert all("fits no model and no alias" in problem.message for problem in found)
