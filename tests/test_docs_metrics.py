"""docs/metrics.md names every family of the page with its type and labels, every word of a label, and no other."""

from __future__ import annotations

import re

import pytest

from router.account import Outcome
from router.device import DeviceKind
from router.events import ExitReason
from router.kept_streams import KeptStreams
from router.key_guesses import Failure
from router.key_usage import Limit
from router.live_streams import Kind
from router.metrics.fleet import DEVICE_MEMORY_KINDS, LIVE_STATES, WORKER_STATES
from router.metrics.registry import LOAD_PHASES, RELOAD_RESULTS
from router.metrics.workers import EVICTED, RESULTS, SLOT_STATES, SOURCES
from tests.support.busy_metrics import busy_metrics
from tests.test_docs import name_in, quoted, rows, section, text_of
from worker.engine.kv_store import KvStore

METRICS = text_of("docs/metrics.md")
SECTIONS = ("## Requests", "## What workers do", "## Models, workers and devices", "## The router")
FAMILIES = {family.text_name: family for family in busy_metrics().families()}

WORDS = {
    ("outcome", "corral_requests_total"): {outcome.value for outcome in Outcome},
    ("outcome", "corral_resumed_requests_total"): {outcome.value for outcome in Outcome},
    ("kind", "corral_open_streams"): {"answers", *(kind.name.lower() for kind in Kind)},
    ("state", "corral_kept_streams"): set(KeptStreams().counts()),
    ("source", "corral_prompt_tokens_total"): set(SOURCES),
    ("result", "corral_prefix_cache_requests_total"): set(RESULTS),
    ("kind", "corral_prefix_cache_evictions_total"): set(EVICTED),
    ("state", "corral_slots"): set(SLOT_STATES),
    ("kind", "corral_kv_cells"): set(KvStore(8, 1, can_share=True).report([])),
    ("state", "corral_worker_state"): set(WORKER_STATES),
    ("state", "corral_workers"): set(LIVE_STATES),
    ("reason", "corral_worker_exits_total"): {reason.value for reason in ExitReason},
    ("reason", "corral_key_refusals_total"): {limit.value for limit in Limit},
    ("phase", "corral_load_seconds"): set(LOAD_PHASES),
    ("kind", "corral_device_memory_bytes"): set(DEVICE_MEMORY_KINDS),
    ("kind", "corral_device_info"): {kind.value for kind in DeviceKind},
    ("result", "corral_catalog_reloads_total"): set(RELOAD_RESULTS),
    ("reason", "corral_authentication_failures_total"): {reason.value for reason in Failure},
}
FREE = {"model", "key", "replica", "device", "description", "version", "python", "llama_cpp_python"}
"""Labels whose values are names of the configuration and of the machine."""


def shown_labels(name: str) -> set[str]:
    """Return the labels of a family's samples."""
    found = {label for block in FAMILIES[name].blocks for sample in block.samples() for label in sample.labels}
    return found - {"le"}


def test_every_family_is_explained_with_its_type_and_labels() -> None:
    told = {name_in(row[0]): (row[1], set(quoted(row[2]))) for part in SECTIONS for row in rows(section(METRICS, part))}
    assert told == {name: (family.text_type, shown_labels(name)) for name, family in FAMILIES.items()}


def test_families_with_exemplars_are_named() -> None:
    told = {name_in(row[0]) for part in SECTIONS for row in rows(section(METRICS, part)) if "With exemplars" in row[3]}
    shown = {
        name
        for name, family in FAMILIES.items()
        if any(sample.exemplar for block in family.blocks for sample in block.samples())
    }
    assert told == shown


def test_every_word_of_a_closed_label_is_explained() -> None:
    table = {(name_in(row[0]), name_in(row[1])): row[2] for row in rows(section(METRICS, "## Words of labels"))}
    for key, words in WORDS.items():
        named = set(quoted(table[key]))
        assert named & words == words, key
        assert {word for word in named if not word.startswith("/")} == words, key
    for label, name in (("kind", "corral_worker_memory_bytes"), ("kind", "corral_worker_device_bytes")):
        shown = {s.labels[label] for block in FAMILIES[name].blocks for s in block.samples()}
        assert set(quoted(table[label, name])) == shown
    closed = {(label, name) for name in FAMILIES for label in shown_labels(name) - FREE - {"route"}}
    assert table.keys() == closed | {("route", "corral_requests_total")}


@pytest.mark.parametrize("query", re.findall(r"```promql\n(.*?)```", METRICS, re.DOTALL))
def test_queries_ask_for_families_and_labels_that_exist(query: str) -> None:
    names = set(re.findall(r"\b(?:corral|process)_\w+", query))
    assert names
    for name in names:
        family = re.sub(r"_(bucket|count|sum)$", "", name)
        assert name in FAMILIES or FAMILIES[family].text_type == "histogram"
    for label, _, value in re.findall(r'(\w+)(=~|!=|=)"([^"]*)"', query):
        for word in value.split("|"):
            assert any(word in words for (known, _), words in WORDS.items() if known == label), word


def test_no_other_family_is_named() -> None:
    assert set(re.findall(r"`(corral_\w+)`", METRICS)) == {name for name in FAMILIES if name.startswith("corral_")}
