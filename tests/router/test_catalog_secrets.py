"""models.yaml with mistakes near keys and environment variables: told with their place, and never repeated."""

from __future__ import annotations

import pytest

from router.catalog_problems import CatalogError
from tests.support.catalogs import PATH, parse_catalog, problems


@pytest.mark.parametrize(
    "entry",
    [
        "a: sk-very-secret",
        "a: {key: sk-very-secret}",
        "a: {value: sk-very-secret}",
        "a: {env: sk-very-secret}",
        "a: {sha256: sk-very-secret}",
        "a: [sk-very-secret]",
        "a: {env: A, scopes: sk-very-secret}",
        "a: {env: A, scopes: [sk-very-secret]}",
        "a: {env: A, priority: sk-very-secret}",
        "a: {env: A, models: sk-very-secret}",
        "a: {env: A, models: [sk very-secret]}",
        "a: {env: A, max_priority: sk-very-secret}",
        "a: {env: A, weight: sk-very-secret}",
    ],
)
def test_a_key_in_plain_text_is_refused_and_never_repeated(entry: str) -> None:
    with pytest.raises(CatalogError) as caught:
        parse_catalog(f"keys: {{{entry}}}\nmodels: {{a: a.gguf}}\n", PATH)
    assert len(caught.value.problems) == 1
    assert "secret" not in caught.value.message
    assert "keys.a" in caught.value.problems[0].where


@pytest.mark.parametrize(
    ("env", "where"),
    [
        ("hf_secret", "env"),
        ("[TOKEN=hf_secret]", "env"),
        ("{TOKEN=hf_secret: }", "env.TOKEN"),
        ("{TOKEN: [hf_secret]}", "env.TOKEN"),
        ("{TOKEN: {hf_secret: 1}}", "env.TOKEN"),
        ("{TOKEN: !hf_secret }", "env.TOKEN"),
        ("{TOKEN: !!int hf_secret}", "env.TOKEN"),
    ],
)
@pytest.mark.parametrize("section", ["models.a", "defaults"])
def test_what_stands_below_env_is_never_repeated(section: str, env: str, where: str) -> None:
    text = (
        "models: {a: a.gguf}\ndefaults: {env: %s}\n"
        if section == "defaults"
        else "models: {a: {model: a.gguf, env: %s}}"
    )
    found = problems(text % env)
    assert f"{section}.{where}" in found
    assert "secret" not in str(found)


@pytest.mark.parametrize("text", ["{A: &hf_secret , B: &hf_secret }", "{A: *hf_secret }", "{A: !hf!secret }"])
def test_values_that_begin_with_signs_of_yaml_are_never_repeated(text: str) -> None:
    found = problems(f"models: {{a: {{model: a.gguf, env: {text}}}}}")
    assert "put quotes around" in str(found)
    assert "secret" not in str(found)


def test_a_list_of_keys_is_refused_without_being_repeated() -> None:
    found = problems("keys: [sk-very-secret]\nmodels: {a: a.gguf}\n")
    assert "does not belong in this file" in found["keys"]
    assert "secret" not in found["keys"]


@pytest.mark.parametrize(
    ("entry", "where", "words"),
    [
        ("{}", "keys.a", "exactly one of"),
        ("{env: A, file: b}", "keys.a", "has env and file: keep one"),
        ("{scopes: [admin]}", "keys.a", "exactly one of"),
        ("{env: A, scopes: [root]}", "keys.a.scopes[0]", "one of inference, metrics, admin"),
        ("{env: A, scopes: []}", "keys.a.scopes", "at least one of"),
        ("{env: A, scopes: admin}", "keys.a.scopes", "must be a list, for example [inference]"),
        ("{env: A, scope: admin}", "keys.a.scope", "write `scopes`"),
        ("{env: }", "keys.a.env", "the name of an environment variable"),
        ("{env: A, zzz: 1}", "keys.a.zzz", "known here: `env`, `file`, `sha256`, `scopes`, `priority`"),
        ("{env: A, priority: 101}", "keys.a.priority", "must be from -100 to 100"),
    ],
)
def test_a_key_needs_one_source_and_known_scopes(entry: str, where: str, words: str) -> None:
    found = problems(f"keys: {{a: {entry}}}\nmodels: {{a: a.gguf}}\n")
    assert list(found) == [where]
    assert words in found[where]
