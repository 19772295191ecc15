"""The metrics page is valid and complete in each of its forms, and what the router itself counts is right."""

from __future__ import annotations

import re
import time
from typing import Any

import orjson
import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families

from router.account import Outcome
from router.events import ExitReason
from router.metrics import RouterMetrics
from router.metrics.families import Counters
from tests.support.busy_metrics import A1, CHAT, busy_metrics, samples, value

EXPECTED = {
    "corral_requests_total": "counter",
    "corral_resumed_requests_total": "counter",
    "corral_request_seconds": "histogram",
    "corral_time_to_first_byte_seconds": "histogram",
    "corral_queue_wait_seconds": "histogram",
    "corral_load_wait_seconds": "histogram",
    "corral_key_refusals_total": "counter",
    "corral_time_to_first_token_seconds": "histogram",
    "corral_inter_token_seconds": "histogram",
    "corral_batch_rows": "histogram",
    "corral_batch_rows_max": "gauge",
    "corral_batch_busy_slots": "histogram",
    "corral_prompt_tokens_total": "counter",
    "corral_generated_tokens_total": "counter",
    "corral_prefill_seconds_total": "counter",
    "corral_generation_seconds_total": "counter",
    "corral_forward_total": "counter",
    "corral_forward_seconds_total": "counter",
    "corral_step_seconds_total": "counter",
    "corral_prefix_cache_requests_total": "counter",
    "corral_prefix_cache_evictions_total": "counter",
    "corral_parked_sequences_total": "counter",
    "corral_failed_steps_total": "counter",
    "corral_drafted_tokens_total": "counter",
    "corral_accepted_tokens_total": "counter",
    "corral_slots": "gauge",
    "corral_kv_cells": "gauge",
    "corral_queue_length": "gauge",
    "corral_queue_oldest_seconds": "gauge",
    "corral_models": "gauge",
    "corral_workers": "gauge",
    "corral_leases_held": "gauge",
    "corral_leases_max": "gauge",
    "corral_worker_state": "gauge",
    "corral_worker_starts_total": "counter",
    "corral_worker_restarts_total": "counter",
    "corral_worker_exits_total": "counter",
    "corral_worker_kills_total": "counter",
    "corral_worker_queue_length": "gauge",
    "corral_worker_threads": "gauge",
    "corral_worker_context_tokens": "gauge",
    "corral_worker_status_age_seconds": "gauge",
    "corral_worker_stuck_seconds": "gauge",
    "corral_worker_reserved_bytes": "gauge",
    "corral_worker_device_bytes": "gauge",
    "corral_worker_memory_bytes": "gauge",
    "corral_load_seconds": "histogram",
    "corral_evictions_total": "counter",
    "corral_catalog_reloads_total": "counter",
    "corral_authentication_failures_total": "counter",
    "corral_catalog_reload_success": "gauge",
    "corral_catalog_reload_timestamp_seconds": "gauge",
    "corral_device_memory_bytes": "gauge",
    "corral_device_info": "gauge",
    "corral_open_streams": "gauge",
    "corral_kept_responses": "gauge",
    "corral_kept_responses_bytes": "gauge",
    "corral_request_body_bytes": "gauge",
    "corral_kept_streams": "gauge",
    "corral_kept_streams_bytes": "gauge",
    "corral_event_loop_lag_seconds": "histogram",
    "corral_build_info": "gauge",
    "process_cpu_seconds_total": "counter",
    "process_resident_memory_bytes": "gauge",
    "process_virtual_memory_bytes": "gauge",
    "process_start_time_seconds": "gauge",
    "process_open_fds": "gauge",
    "process_max_fds": "gauge",
    "process_threads": "gauge",
}


# --- the page in its forms --------------------------------------------------------------------------------


def test_page_has_every_family_once_with_help_type_and_samples() -> None:
    page, content_type = busy_metrics().render()
    text = page.decode()
    types = re.findall(r"^# TYPE (\S+) (\S+)$", text, re.MULTILINE)
    helps = re.findall(r"^# HELP (\S+) ", text, re.MULTILINE)
    assert dict(types) == EXPECTED
    assert len(types) == len(EXPECTED)
    assert sorted(helps) == sorted(EXPECTED)
    assert all(family.samples for family in text_string_to_metric_families(text))
    assert content_type.startswith("text/plain")


def test_every_help_tells_the_unit_of_its_name() -> None:
    words = {"seconds": "second", "bytes": "bytes", "tokens": "token"}
    for family in text_string_to_metric_families(busy_metrics().render()[0].decode()):
        for unit, word in words.items():
            if re.search(rf"_{unit}$", family.name):
                assert word in family.documentation.lower(), family.name
        assert family.documentation.endswith("."), family.name


def test_names_have_no_other_characters_than_letters_and_underscores() -> None:
    for name, labels in samples(busy_metrics()):
        assert re.fullmatch(r"[a-z_]+", name)
        assert all(re.fullmatch(r"[a-z_]+", label) for label, _ in labels)


def test_every_histogram_is_cumulative_and_complete() -> None:
    for family in text_string_to_metric_families(busy_metrics().render()[0].decode()):
        if family.type != "histogram":
            continue
        by_series: dict[Any, list[float]] = {}
        counts = {}
        for sample in family.samples:
            key = tuple(sorted((k, v) for k, v in sample.labels.items() if k != "le"))
            if sample.name.endswith("_bucket"):
                by_series.setdefault(key, []).append(sample.value)
            elif sample.name.endswith("_count"):
                counts[key] = sample.value
        for key, buckets in by_series.items():
            assert buckets == sorted(buckets)
            assert buckets[-1] == counts[key]


def test_label_values_are_escaped() -> None:
    metrics = RouterMetrics()
    model = 'odd "name" with \\ and\nline'
    metrics.worker_started(model)
    assert value(metrics, "corral_worker_starts_total", model=model) == 1
    families = parse_openmetrics(metrics.render("application/openmetrics-text")[0].decode())  # type: ignore[no-untyped-call]
    (starts,) = [family for family in families if family.name == "corral_worker_starts"]
    assert [sample.labels for sample in starts.samples] == [{"model": model}]


def test_openmetrics_is_served_to_those_who_accept_it() -> None:
    page, content_type = busy_metrics().render("application/openmetrics-text; version=1.0.0,text/plain;q=0.5")
    assert content_type.startswith("application/openmetrics-text; version=1.0.0")
    families = {family.name: family for family in parse_openmetrics(page.decode())}  # type: ignore[no-untyped-call]
    told = {name.removesuffix("_total") for name in EXPECTED}
    assert told - families.keys() == {"corral_build_info"}, "OpenMetrics has a type for it"
    assert families.keys() - told == {"corral_build"}
    assert all(family.samples for family in families.values())


def test_openmetrics_has_the_same_samples_as_the_text() -> None:
    metrics = busy_metrics()
    page = metrics.render("application/openmetrics-text")[0].decode()
    shown = {
        (sample.name, tuple(sorted(sample.labels.items())))
        for family in parse_openmetrics(page)  # type: ignore[no-untyped-call]
        for sample in family.samples
    }
    assert shown == set(samples(metrics))


def exemplars(page: bytes) -> dict[str, list[Any]]:
    return {
        family.name: found
        for family in parse_openmetrics(page.decode())  # type: ignore[no-untyped-call]
        if (found := [sample.exemplar for sample in family.samples if sample.exemplar is not None])
    }


def test_histograms_of_requests_have_their_ids_as_exemplars() -> None:
    page, _ = busy_metrics().render("application/openmetrics-text")
    found = exemplars(page)
    assert found.keys() == {
        "corral_request_seconds",
        "corral_time_to_first_byte_seconds",
        "corral_queue_wait_seconds",
        "corral_load_wait_seconds",
    }
    assert {one.value for one in found["corral_request_seconds"]} == {0.3}
    assert {one.value for one in found["corral_queue_wait_seconds"]} == {0.01}
    for each in found.values():
        for one in each:
            assert one.labels == {"request_id": "0123456789abcdef01234567"}
            assert float(one.timestamp) == pytest.approx(time.time(), abs=60)


def test_prometheus_text_has_no_exemplars() -> None:
    assert b" # {" not in busy_metrics().render()[0]


@pytest.mark.parametrize("accept", [None, "", "*/*", "text/plain; version=0.0.4", "text/html", ";;,=", "x" * 5000])
def test_any_other_accept_header_gets_prometheus_text(accept: str | None) -> None:
    page, content_type = busy_metrics().render(accept)
    assert content_type.startswith("text/plain")
    assert b"corral_requests_total" in page


@pytest.mark.parametrize("version", ["abc", "1.0.0.0.0.0", "-1", "", "99"])
def test_a_strange_version_in_the_accept_header_is_no_error(version: str) -> None:
    assert busy_metrics().render(f"application/openmetrics-text; version={version}")[0]


def test_json_has_the_same_families_and_samples_as_the_text() -> None:
    metrics = busy_metrics()
    families = orjson.loads(metrics.render_json())
    assert {family["name"]: family["type"] for family in families} == EXPECTED
    text = {family.name: family for family in text_string_to_metric_families(metrics.render()[0].decode())}
    for family in families:
        assert family["help"] == text[family["name"].removesuffix("_total")].documentation
    shown = {
        (sample["name"], tuple(sorted(sample["labels"].items()))): sample["value"]
        for family in families
        for sample in family["samples"]
    }
    assert shown.keys() == samples(metrics).keys()
    moving = ("process_", "corral_worker_status_age", "corral_worker_stuck")
    for key, number in samples(metrics).items():
        assert isinstance(shown[key], int | float)
        assert not isinstance(shown[key], bool)
        assert key[0].startswith(moving) or shown[key] == number, key


def test_a_fresh_router_has_a_page() -> None:
    page, _ = RouterMetrics().render()
    assert b"corral_build_info" in page


def test_two_routers_in_one_process_count_apart() -> None:
    first, second = RouterMetrics(), RouterMetrics()
    first.worker_started("a")
    assert value(second, "corral_worker_starts_total", model="a") is None


# --- what the router counts -------------------------------------------------------------------------------


@pytest.mark.parametrize("outcome", list(Outcome))
def test_requests_are_counted_by_outcome_and_timed_whatever_it_is(outcome: Outcome) -> None:
    metrics = RouterMetrics()
    metrics.request_finished("a", CHAT, outcome.value, 3.0)
    assert value(metrics, "corral_requests_total", model="a", route=CHAT, outcome=outcome.value) == 1
    assert value(metrics, "corral_request_seconds_count", model="a", route=CHAT) == 1
    assert value(metrics, "corral_request_seconds_sum", model="a", route=CHAT) == 3.0
    assert value(metrics, "corral_request_seconds_bucket", model="a", route=CHAT, le="2.5") == 0
    assert value(metrics, "corral_request_seconds_bucket", model="a", route=CHAT, le="5.0") == 1


def test_counters_of_what_may_happen_are_there_before_it_does() -> None:
    """Prometheus takes no series that appears as a 1 for an increase."""
    metrics = RouterMetrics()
    metrics.request_finished("a", CHAT, "ok", 3.0)
    metrics.worker_started("a")
    for outcome in Outcome:
        shown = value(metrics, "corral_requests_total", model="a", route=CHAT, outcome=outcome.value)
        assert shown == (outcome is Outcome.OK)
    for reason in ExitReason:
        assert value(metrics, "corral_worker_exits_total", model="a", reason=reason.value) == 0
    for name in ("worker_kills", "worker_restarts", "evictions"):
        assert value(metrics, f"corral_{name}_total", model="a") == 0


def test_a_request_of_a_known_model_and_route_looks_up_no_more_than_its_own_counter(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    metrics, asked = RouterMetrics(), []
    of = Counters.of
    monkeypatch.setattr(Counters, "of", lambda self, *values: asked.append(values) or of(self, *values))
    for outcome in ("ok", "error"):
        asked.clear()
        metrics.request_finished("a", CHAT, outcome, 3.0)
    assert asked == [("a", "error", CHAT)]


def test_only_streams_have_a_first_byte() -> None:
    metrics = RouterMetrics()
    metrics.request_finished("a", CHAT, "ok", 3.0)
    assert value(metrics, "corral_time_to_first_byte_seconds_count", model="a", route=CHAT) is None
    metrics.request_finished("a", CHAT, "ok", 3.0, first_byte_s=0.5)
    assert value(metrics, "corral_time_to_first_byte_seconds_sum", model="a", route=CHAT) == 0.5


def test_only_requests_that_caused_or_awaited_a_load_count_as_having_waited_for_one() -> None:
    metrics = RouterMetrics()
    metrics.lease_granted("a", 0.5, 0.0)
    assert value(metrics, "corral_load_wait_seconds_count", model="a") is None
    metrics.lease_granted("a", 0.5, 2.0)
    assert value(metrics, "corral_load_wait_seconds_sum", model="a") == 2
    assert value(metrics, "corral_queue_wait_seconds_count", model="a") == 2


def test_configuration_that_the_router_started_with_is_in_force() -> None:
    metrics = RouterMetrics()
    assert value(metrics, "corral_catalog_reload_success") == 1
    assert value(metrics, "corral_catalog_reload_timestamp_seconds") == pytest.approx(time.time(), abs=60)
    for result in ("success", "failure"):
        assert value(metrics, "corral_catalog_reloads_total", result=result) == 0


def test_failed_reload_is_shown_until_one_succeeds() -> None:
    metrics = RouterMetrics()
    since = value(metrics, "corral_catalog_reload_timestamp_seconds")
    assert since is not None
    metrics.catalog_reloaded(False)
    metrics.catalog_reloaded(False)
    assert value(metrics, "corral_catalog_reload_success") == 0
    assert value(metrics, "corral_catalog_reload_timestamp_seconds") == since, "the old one is still in force"
    metrics.catalog_reloaded(True)
    assert value(metrics, "corral_catalog_reload_success") == 1
    assert (value(metrics, "corral_catalog_reload_timestamp_seconds") or 0.0) > since
    assert value(metrics, "corral_catalog_reloads_total", result="failure") == 2
    assert value(metrics, "corral_catalog_reloads_total", result="success") == 1


def test_evictions_are_counted_by_the_model_that_went() -> None:
    metrics = RouterMetrics()
    metrics.model_evicted("a")
    metrics.model_evicted("a")
    assert value(metrics, "corral_evictions_total", model="a") == 2


@pytest.mark.parametrize("reason", list(ExitReason))
def test_every_reason_of_an_exit_is_a_label(reason: ExitReason) -> None:
    metrics = RouterMetrics()
    metrics.worker_exited(A1, reason)
    assert value(metrics, "corral_worker_exits_total", model="a", reason=reason.value) == 1


def test_exits_are_counted_by_reason() -> None:
    metrics = RouterMetrics()
    for reason in (ExitReason.STOPPED, ExitReason.STOPPED, ExitReason.BAD_MODEL):
        metrics.worker_exited(A1, reason)
    assert value(metrics, "corral_worker_exits_total", model="a", reason="stopped") == 2
    assert value(metrics, "corral_worker_exits_total", model="a", reason="bad_model") == 1
    assert value(metrics, "corral_worker_kills_total", model="a") is None


@pytest.mark.parametrize(
    ("exits", "restarts"),
    [
        ((), 0),
        ((ExitReason.STOPPED,), 0),
        ((ExitReason.CRASHED,), 1),
        ((ExitReason.CRASHED, ExitReason.SPAWN_FAILED), 1),
        ((ExitReason.CRASHED, ExitReason.NO_ROOM), 1),
        ((ExitReason.CRASHED, ExitReason.STOPPED), 0),
        ((ExitReason.NO_ROOM,), 0),
    ],
)
def test_a_restart_is_a_start_after_a_failure(exits: tuple[ExitReason, ...], restarts: int) -> None:
    metrics = RouterMetrics()
    metrics.worker_started("a")
    for reason in exits:
        metrics.worker_exited(A1, reason)
    metrics.worker_started("a")
    metrics.worker_started("a")
    assert value(metrics, "corral_worker_starts_total", model="a") == 3
    assert value(metrics, "corral_worker_restarts_total", model="a") == restarts


def test_lag_of_the_event_loop_is_never_negative() -> None:
    metrics = RouterMetrics()
    metrics.loop_lagged(-0.5)
    metrics.loop_lagged(0.2)
    assert value(metrics, "corral_event_loop_lag_seconds_sum") == 0.2
    assert value(metrics, "corral_event_loop_lag_seconds_count") == 2
