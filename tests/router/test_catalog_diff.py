"""What an edit of the configuration changes, and whether a worker must be started again for it."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from router.catalog import Catalog
from router.catalog_diff import AVAILABILITY, CatalogDiff, compare
from tests.support.catalogs import parse_catalog

PATH = Path("/srv/models.yaml")
BASE = "models:\n  smol: {model: smol.gguf, aliases: [gpt]}\n  gem: gem.gguf\n"


def read(text: str) -> Catalog:
    return parse_catalog(text, PATH)


def diff_of(old: str, new: str) -> CatalogDiff:
    return compare(read(old), read(new))


def test_the_same_text_changes_nothing() -> None:
    diff = diff_of(BASE, "# a comment\n" + BASE)
    assert diff.is_empty
    assert diff.num_unchanged == 2
    assert diff.describe() == "nothing has changed"


def test_models_that_come_and_go_are_named() -> None:
    diff = diff_of(BASE, "models:\n  gem: gem.gguf\n  new: new.gguf\n")
    assert (diff.added, diff.removed, diff.num_unchanged) == (("new",), ("smol",), 1)
    assert diff.describe() == "1 model added (new); 1 model removed (smol); 1 unchanged"


@pytest.mark.parametrize(
    ("options", "key"),
    [
        ("aliases: [gpt, other]", "aliases"),
        ("aliases: {gpt: {listed: false}}", "aliases"),
        ("idle_unload_s: 5", "idle_unload_s"),
        ("load_timeout_s: 5", "load_timeout_s"),
        ("request_timeout_s: 5", "request_timeout_s"),
        ("queue_timeout_s: 5", "queue_timeout_s"),
        ("max_queue: 5", "max_queue"),
        ("priority: 5", "priority"),
        ("pin: true", "pin"),
        ("preload: true", "preload"),
        ("request: {force: {temperature: 0}}", "request"),
        ("description: small", "description"),
        ("tags: [small]", "tags"),
    ],
)
def test_what_the_router_does_itself_changes_at_once(options: str, key: str) -> None:
    own = options if options.startswith("aliases") else f"aliases: [gpt], {options}"
    diff = diff_of(BASE, f"models:\n  smol: {{model: smol.gguf, {own}}}\n  gem: gem.gguf\n")
    assert dict(diff.changed) == {"smol": (key,)}
    assert dict(diff.restarted) == {}
    assert diff.num_unchanged == 1


@pytest.mark.parametrize(
    ("options", "key"),
    [
        ("context: 512", "context"),
        ("slots: 9", "slots"),
        ("kv_tokens: 9000", "kv_tokens"),
        ("threads: 1", "threads"),
        ("gpu_layers: 3", "gpu_layers"),
        ("mmap: false", "mmap"),
        ("no_mmap: true", "mmap"),
        ("max_tokens: 10", "max_tokens"),
        ("chat_template: '{{ messages }}'", "chat_template"),
        ("chat_template_kwargs: {a: 1}", "chat_template_kwargs"),
        ("allow_request_templates: true", "allow_request_templates"),
        ("drop_billing_header: false", "drop_billing_header"),
        ("env: {A: b}", "env"),
        ("loras: {formal: formal.gguf}", "loras"),
        ("draft_model: draft.gguf", "draft_model"),
    ],
)
def test_what_a_running_worker_cannot_change_waits_until_it_is_idle(options: str, key: str) -> None:
    diff = diff_of(BASE, f"models:\n  smol: {{model: smol.gguf, aliases: [gpt], {options}}}\n  gem: gem.gguf\n")
    assert dict(diff.restarted) == {"smol": (key,)}
    assert dict(diff.changed) == {}
    assert diff.describe() == f"1 model restarted when idle (smol: {key}); 1 unchanged"


def test_another_file_under_the_same_name_waits_until_the_worker_is_idle() -> None:
    diff = diff_of(BASE, BASE.replace("gem: gem.gguf", "gem: other.gguf"))
    assert dict(diff.restarted) == {"gem": ("model",)}


def test_a_model_may_change_in_both_ways() -> None:
    diff = diff_of(BASE, "models:\n  smol: {model: smol.gguf, slots: 8, priority: 1}\n  gem: gem.gguf\n")
    assert dict(diff.changed) == {"smol": ("aliases", "priority")}
    assert dict(diff.restarted) == {"smol": ("slots",)}
    assert diff.num_unchanged == 1


def test_a_new_default_changes_every_model_that_has_none_of_its_own() -> None:
    diff = diff_of(BASE, "defaults: {slots: 2}\n" + BASE)
    assert dict(diff.restarted) == {"smol": ("slots",), "gem": ("slots",)}
    assert diff.num_unchanged == 0


def test_what_concerns_all_models_is_told_apart() -> None:
    more = "limits: {max_loaded: 1, max_body_bytes: 4096}\ndefault_model: gem\nkeys: {app: {env: APP_KEY}}\n"
    diff = diff_of(BASE, more + BASE)
    assert set(diff.settings) == {"limits.max_loaded", "limits.max_body_bytes", "default_model", "keys"}
    assert diff.num_unchanged == 2
    assert "limits.max_loaded" in diff.describe()


def test_a_file_that_was_missing_and_is_there_is_a_change() -> None:
    old = read(BASE)
    missing = dataclasses.replace(old.models["gem"], problem="gem.gguf does not exist")
    diff = compare(dataclasses.replace(old, models={**old.models, "gem": missing}), old)
    assert dict(diff.changed) == {"gem": (AVAILABILITY,)}


def test_a_long_list_is_cut_in_the_log_and_whole_in_the_verdict() -> None:
    many = "models:\n" + "".join(f"  m{number}: m.gguf\n" for number in range(8))
    diff = diff_of("models: {m0: m.gguf}\n", many)
    assert diff.describe() == "7 models added (m1, m2, m3, m4, m5 and 2 more); 1 unchanged"
    assert diff.to_json()["added"] == [f"m{number}" for number in range(1, 8)]


def test_where_the_file_lies_does_not_matter() -> None:
    old = read(BASE)
    assert compare(old, dataclasses.replace(old, path=Path("/elsewhere/models.yaml"))).is_empty
