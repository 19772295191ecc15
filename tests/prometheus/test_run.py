"""What a real Prometheus knows of a run of 200 mixed requests is what their clients were told.

Owns figures, alerts and the state of the scrape; the dashboard's queries are in `test_dashboard.py`.
"""

from __future__ import annotations

import pytest

from tests.prometheus.conftest import Scraped

pytestmark = pytest.mark.prometheus


def test_the_target_is_up_and_is_scraped_without_trouble(scraped: Scraped) -> None:
    (target,) = scraped.prometheus.api("targets", state="active")["activeTargets"]
    assert target["health"] == "up"
    assert target["lastError"] == ""
    assert target["labels"]["job"] == "corral"
    assert scraped.prometheus.value('min_over_time(up{job="corral"}[5m])') == 1, "no scrape failed in all of the run"
    assert scraped.prometheus.value('max_over_time(scrape_duration_seconds{job="corral"}[5m])') < 1
    assert scraped.prometheus.value('scrape_samples_scraped{job="corral"}') > 200


def test_requests_by_model_and_outcome_are_those_that_clients_sent(scraped: Scraped) -> None:
    told = {key: count for key, count in scraped.told.by_model.items() if count}
    counted = {
        (sample.labels.get("model", ""), sample.labels["outcome"]): sample.last
        for sample in scraped.prometheus.query("sum by (model, outcome) (corral_requests_total) > 0")
    }
    assert counted == told
    assert set(scraped.told.outcomes) == {"ok", "client_gone", "rejected", "timeout", "error", "worker_died"}, (
        "the run has all of them"
    )


def test_the_increase_over_the_run_is_what_was_sent(scraped: Scraped) -> None:
    found = scraped.prometheus.value('sum(increase(corral_requests_total{model="main", outcome="ok"}[10m]))')
    # What was there at the first look, a series of another route included, is no increase to Prometheus.
    assert 0.8 * scraped.told.by_model["main", "ok"] <= found <= 1.05 * scraped.told.by_model["main", "ok"]


def test_tokens_are_those_of_the_usage_that_clients_were_told(scraped: Scraped) -> None:
    prometheus, told = scraped.prometheus, scraped.told
    generated = prometheus.by("model", "sum by (model) (corral_generated_tokens_total)")
    prompt = prometheus.by("model", "sum by (model) (corral_prompt_tokens_total)")
    cached = prometheus.by("model", 'sum by (model) (corral_prompt_tokens_total{source="cached"})')
    assert generated["main"] == told.generated_tokens["main"]
    assert generated["narrow"] == told.generated_tokens["narrow"]
    assert prompt["main"] == told.prompt_tokens["main"]
    assert cached["main"] == told.cached_tokens["main"] > 0
    assert generated["left"] > 1, "those who left had begun to read"
    assert generated.keys() == {"main", "narrow", "left", "fragile"}


def test_histograms_have_counted_each_request_once(scraped: Scraped) -> None:
    prometheus, told = scraped.prometheus, scraped.told
    seconds = prometheus.by("model", "sum by (model) (corral_request_seconds_count)")
    for model in ("main", "narrow", "left", "fragile", "broken"):
        sent = sum(count for (name, _), count in told.by_model.items() if name == model)
        assert seconds[model] == sent, model
    first_bytes = prometheus.by("model", "sum by (model) (corral_time_to_first_byte_seconds_count)")
    assert first_bytes == {name: told.num_streamed[name] for name in ("main", "left", "fragile")}
    waits = prometheus.by("model", "sum by (model) (corral_queue_wait_seconds_count)")
    assert waits["narrow"] == told.by_model["narrow", "ok"], "those who gave up got no place"


def test_single_requests_are_known_by_the_id_that_the_log_has(scraped: Scraped) -> None:
    known = {line.get("request_id") for line in scraped.server.lines if line.get("message") == "request"}
    for histogram in ("corral_request_seconds", "corral_time_to_first_byte_seconds"):
        found = scraped.prometheus.exemplars(f"{histogram}_bucket")
        assert found
        assert {labels["request_id"] for labels in found} <= known


def test_states_and_devices_are_as_the_server_has_them(scraped: Scraped) -> None:
    states = scraped.prometheus.query("corral_worker_state == 1")
    found = {sample.labels["model"]: sample.labels["state"] for sample in states}
    assert found.pop("broken") in {"backoff", "failed"}
    assert found == {"main": "ready", "narrow": "ready", "left": "ready", "fragile": "ready", "missing": "unavailable"}
    slots = scraped.prometheus.by("model", "sum by (model) (corral_slots)")
    assert slots == {"main": 4, "narrow": 1, "left": 2, "fragile": 1}
    assert scraped.prometheus.value('corral_device_memory_bytes{device="CPU", kind="total"}') > 2**30
    assert scraped.prometheus.value("sum(corral_worker_reserved_bytes)") > 2**27
    exits = scraped.prometheus.by("reason", 'sum by (reason) (corral_worker_exits_total{model="broken"})')
    assert {reason for reason, count in exits.items() if count} == {"bad_model"}
    exits = scraped.prometheus.by("reason", 'sum by (reason) (corral_worker_exits_total{model="fragile"})')
    assert {reason: count for reason, count in exits.items() if count} == {"crashed": 1}
    assert scraped.prometheus.value('corral_worker_restarts_total{model="fragile"}') == 1


def test_all_rules_are_evaluated_without_an_error(scraped: Scraped) -> None:
    rules = [rule for group in scraped.prometheus.api("rules")["groups"] for rule in group["rules"]]
    assert len(rules) > 30
    for rule in rules:
        assert rule["health"] == "ok", f"{rule['name']}: {rule.get('lastError')}"


def test_every_recorded_series_has_been_recorded(scraped: Scraped) -> None:
    rules = [rule for group in scraped.prometheus.api("rules")["groups"] for rule in group["rules"]]
    for name in (rule["name"] for rule in rules if rule["type"] == "recording"):
        assert scraped.prometheus.over_time(name), f"{name} is empty"


def test_alerts_fire_for_what_happened_and_for_nothing_else(scraped: Scraped) -> None:
    expected = {"CorralModelFailing", "CorralModelUnavailable", "CorralReloadFailed", "CorralManyErrors"}
    scraped.prometheus.wait(lambda: expected <= scraped.prometheus.firing().keys(), f"the alerts {expected}")
    firing = scraped.prometheus.firing()
    (failing,) = firing["CorralModelFailing"]
    assert (failing["model"], failing["severity"]) == ("broken", "critical")
    (unavailable,) = firing["CorralModelUnavailable"]
    assert unavailable["model"] == "missing"
    assert "broken" in {labels["model"] for labels in firing["CorralManyErrors"]}
    assert "main" not in {labels["model"] for labels in firing["CorralManyErrors"]}
    # Requests for models that there are not may or may not be many enough; a small machine may be short of memory.
    allowed = expected | {"CorralManyRejections", "CorralDeviceMemoryShort", "CorralWorkersDie"}
    assert firing.keys() <= allowed
