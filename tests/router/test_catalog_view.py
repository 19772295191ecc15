"""A catalogue as one key may use it: what is not allowed looks like what is not there."""

from __future__ import annotations

import pytest

from router.catalog import AliasSpec, Catalog
from router.catalog_view import CatalogView, unmatched
from router.errors import BadRequest, ModelNotFound
from tests.support.http_side import make_spec

CATALOG = Catalog(
    {
        spec.name: spec
        for spec in (
            make_spec("small", aliases={"gpt": AliasSpec("gpt"), "secret": AliasSpec("secret", listed=False)}),
            make_spec("team-a", aliases={"claude-*": AliasSpec("claude-*", listed=False)}),
            make_spec("team-b"),
        )
    }
)


def view(*names: str, **options: object) -> CatalogView:
    catalog = Catalog(CATALOG.models, **options)  # type: ignore[arg-type]
    return CatalogView(catalog, names)


def test_without_names_the_view_is_the_catalogue() -> None:
    whole = view()
    assert whole.is_whole
    assert whole.models is whole.catalog.models
    assert whole.resolve("gpt").spec.name == "small"
    assert whole.without_strangers("'team-a' is busy") == "'team-a' is busy"


@pytest.mark.parametrize(
    ("names", "models", "listed"),
    [
        (("small",), ["small"], ["small", "gpt"]),
        (("team-*",), ["team-a", "team-b"], ["team-a", "team-b"]),
        (("gpt",), ["small"], ["gpt"]),
        (("claude-3",), ["team-a"], []),
        (("claude-*",), ["team-a"], []),
        (("*",), ["small", "team-a", "team-b"], ["small", "gpt", "team-a", "team-b"]),
        (("nothing",), [], []),
    ],
)
def test_models_and_names_are_those_that_the_key_names(
    names: tuple[str, ...], models: list[str], listed: list[str]
) -> None:
    seen = view(*names)
    assert list(seen.models) == models
    assert [name for name in CATALOG.models if view(*names).shows(name)] == models
    assert seen.listed_names() == listed


@pytest.mark.parametrize(
    ("names", "name", "is_allowed"),
    [
        (("small",), "small", True),
        (("small",), "gpt", True),
        (("small",), "secret", True),
        (("small",), "team-a", False),
        (("gpt",), "gpt", True),
        (("gpt",), "small", False),
        (("gpt",), "secret", False),
        (("claude-3",), "claude-3", True),
        (("claude-3",), "claude-4", False),
        (("claude-3*",), "claude-3.5", True),
        (("team-a",), "claude-4", True),
    ],
)
def test_an_alias_opens_itself_alone_and_a_model_all_its_names(
    names: tuple[str, ...], name: str, is_allowed: bool
) -> None:
    assert (view(*names).find(name) is not None) is is_allowed


def test_what_may_not_be_used_is_answered_like_what_does_not_exist() -> None:
    seen = view("small")
    texts = []
    for name in ("team-a", "team-x"):
        with pytest.raises(ModelNotFound) as refusal:
            seen.resolve(name)
        texts.append(refusal.value.message.replace(name, "…"))
    assert texts[0] == texts[1]
    assert "team" not in texts[0]
    assert "`small`" in texts[0]


def test_default_model_is_that_of_the_file_only_for_those_who_may_use_it() -> None:
    assert view("team-a", "small", default_model="gpt").resolve(None).spec.name == "small"
    with pytest.raises(BadRequest, match="name one of `team-a` or `team-b`;"):
        view("team-*", default_model="gpt").resolve(None)


@pytest.mark.parametrize(("names", "model"), [(("team-b",), "team-b"), (("gpt",), "small"), (("claude-3",), "team-a")])
def test_request_without_a_model_goes_to_the_only_one_that_may_be_used(names: tuple[str, ...], model: str) -> None:
    assert view(*names, default_model="team-a").resolve(None).spec.name == model


def test_aliases_are_shown_as_far_as_they_may_be_used() -> None:
    spec = CATALOG.models["small"]
    assert [alias.name for alias in view("small").aliases_of(spec)] == ["gpt", "secret"]
    assert [alias.name for alias in view("gpt").aliases_of(spec)] == ["gpt"]
    assert not view("gpt").opens(spec)


def test_sentences_do_not_name_models_of_others() -> None:
    words = "room among the loaded models: 'team-a' is busy, `team-b` is idle, 'small' is loading"
    assert view("small").without_strangers(words) == (
        "room among the loaded models: another model is busy, another model is idle, 'small' is loading"
    )


def test_names_that_open_nothing_are_found() -> None:
    assert unmatched(CATALOG, ("small", "tem-*", "gpt", "claude-9", "team-*", "Small")) == [1, 5]


def test_a_model_is_shown_under_a_name_that_may_be_used() -> None:
    spec = CATALOG.models["small"]
    assert [view(*names).name_of(spec) for names in ((), ("small",), ("gpt",))] == ["small", "small", "gpt"]
    assert view("claude-3").name_of(CATALOG.models["team-a"]) == "claude-3"


def test_who_may_use_some_models_gets_no_advice_for_operators() -> None:
    with pytest.raises(ModelNotFound) as restricted:
        view("small").resolve("nobody")
    with pytest.raises(ModelNotFound) as whole:
        view().resolve("nobody")
    assert ("aliases" in str(restricted.value), "aliases" in str(whole.value)) == (False, True)
