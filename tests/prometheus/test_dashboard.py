"""Every query of the dashboard works on a real Prometheus and shows what the run implies; the file is what makes it.

Owns the dashboard alone; figures that it is made of are checked in `test_run.py`.
"""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

from tests.prometheus.conftest import Scraped
from tests.test_architecture import ROOT

pytestmark = pytest.mark.prometheus

FOLDER = ROOT / "deploy" / "grafana"
DASHBOARD: dict[str, Any] = json.loads((FOLDER / "dashboards" / "corral.json").read_text(encoding="utf-8"))
PANELS = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]
VARIABLES = {each["name"]: each for each in DASHBOARD["templating"]["list"]}

NOT_IN_THIS_RUN = {
    "Drafted tokens that were right": "the model drafts nothing without a draft model",
    "Made room for others": "everything fits",
}
"""Panels that may stay empty, and why."""


QUERIES = pytest.mark.parametrize(
    ("title", "expr", "target"),
    [
        pytest.param(panel["title"], target["expr"], target, id=f"{panel['title']} {target['refId']}")
        for panel in PANELS
        for target in panel["targets"]
    ],
)
"""Each with its panel's title and the rest of its target."""


def filled(expr: str, instance: str = ".*", model: str = ".*") -> str:
    """Return the query as Grafana sends it, with every variable replaced."""
    text = (
        expr.replace("$instance", instance)
        .replace("$model", model)
        .replace("$__rate_interval", "1m")
        .replace("$__interval", "2s")
    )
    assert "$" not in text, f"a variable that is not known: {text}"
    return text


def test_the_file_is_what_the_program_beside_it_prints() -> None:
    made = subprocess.run(
        [sys.executable, str(FOLDER / "make_dashboard.py")], capture_output=True, text=True, check=True, timeout=60
    )
    assert made.stdout == (FOLDER / "dashboards" / "corral.json").read_text(encoding="utf-8"), (
        "run `python deploy/grafana/make_dashboard.py > deploy/grafana/dashboards/corral.json`"
    )


def test_the_starts_of_servers_are_marked(scraped: Scraped) -> None:
    (annotation,) = DASHBOARD["annotations"]["list"]
    scraped.prometheus.api("query", query=filled(annotation["expr"]))


def test_every_panel_says_what_it_shows_in_which_unit_and_that_nothing_is_unknown() -> None:
    assert len({panel["id"] for panel in DASHBOARD["panels"]}) == len(DASHBOARD["panels"])
    assert len({panel["title"] for panel in PANELS}) >= len(PANELS) - 2
    for panel in PANELS:
        assert len(panel["description"]) > 20, panel["title"]
        assert panel["fieldConfig"]["defaults"]["unit"], panel["title"]
        assert panel["fieldConfig"]["defaults"]["noValue"] in ("unknown", "none"), panel["title"]
        assert panel["datasource"]["uid"] == "${datasource}"


def test_panels_lie_beside_each_other_without_overlap() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken, panel["title"]
        assert place["x"] + place["w"] <= 24, panel["title"]
        taken |= cells


def test_variables_offer_the_servers_and_models_that_there_are(scraped: Scraped) -> None:
    instances = scraped.prometheus.label_values(filled(VARIABLES["instance"]["query"]["query"]))
    assert instances == [scraped.server.url.removeprefix("http://")]
    models = scraped.prometheus.label_values(filled(VARIABLES["model"]["query"]["query"]))
    assert models == ["broken", "fragile", "left", "main", "missing", "narrow"]
    assert VARIABLES["datasource"]["query"] == "prometheus"


@QUERIES
def test_every_query_shows_what_the_run_implies(
    scraped: Scraped, title: str, expr: str, target: dict[str, Any]
) -> None:
    found = scraped.prometheus.over_time(filled(expr))
    if title in NOT_IN_THIS_RUN:
        return
    assert found, f"{title} shows nothing: {expr}"
    legend = target["legendFormat"]
    for label in ("model", "instance", "device", "kind", "outcome", "source", "state", "reason", "phase", "result"):
        if f"{{{{{label}}}}}" in legend:
            assert any(sample.labels.get(label) for sample in found), f"{title} has no label {label}: {expr}"


@QUERIES
def test_every_query_works_for_chosen_servers_and_models_too(
    scraped: Scraped, title: str, expr: str, target: dict[str, Any]
) -> None:
    instance = scraped.server.url.removeprefix("http://").replace(".", r"\\.")
    found = scraped.prometheus.over_time(filled(expr, instance=f"({instance}|x)", model="(main|narrow)"))
    models = {sample.labels["model"] for sample in found if "model" in sample.labels}
    assert models <= {"main", "narrow"} or title.startswith("Alerts")
    if "$model" in expr and title not in NOT_IN_THIS_RUN:
        elsewhere = scraped.prometheus.over_time(filled(expr, model="no such model"))
        assert not elsewhere or "or 0 *" in expr or "count(" in expr, f"{title} tells something of no model"


@pytest.mark.parametrize(
    ("title", "total"),
    [
        ("Starts", "sum(corral_worker_starts_total)"),
        ("Ends by reason", "sum(corral_worker_exits_total)"),
        ("Configuration", 'sum(corral_catalog_reloads_total{result="failure"})'),
    ],
)
def test_bars_show_each_event_once_the_first_one_too(scraped: Scraped, title: str, total: str) -> None:
    (panel,) = [panel for panel in PANELS if panel["title"] == title and panel["type"] == "timeseries"]
    shown = scraped.prometheus.over_time(filled(panel["targets"][0]["expr"]), step_s=2)
    assert sum(sum(sample.values) for sample in shown) == scraped.prometheus.value(total) > 0


def test_figures_of_the_first_row_are_those_of_the_run(scraped: Scraped) -> None:
    shown = {
        panel["title"]: scraped.prometheus.value(filled(panel["targets"][0]["expr"]))
        for panel in PANELS
        if panel["type"] == "stat"
    }
    assert shown["Servers"] == 1
    assert shown["Loaded models"] == 4
    assert shown["Failing models"] == 2
    assert shown["Waiting requests"] == 0
    assert shown["Longest wait"] == 0
    assert shown["Configuration"] == 0
    assert shown["Alerts"] >= 3
    told = scraped.told.outcomes
    stayed = told.total() - told["client_gone"]
    assert shown["Failed requests"] == pytest.approx(
        (told["error"] + told["timeout"] + told["worker_died"]) / stayed, abs=0.08
    )
    assert shown["Requests a second"] > 0
    states = {
        sample.labels["model"]: sample.last
        for panel in PANELS
        if panel["title"] == "States of models"
        for sample in scraped.prometheus.query(filled(panel["targets"][0]["expr"]))
    }
    words = next(panel for panel in PANELS if panel["title"] == "States of models")["fieldConfig"]["defaults"][
        "mappings"
    ]
    names = {model: words[0]["options"][str(int(number))]["text"] for model, number in states.items()}
    assert names.pop("broken") in ("backoff", "failed")
    assert names == {"main": "ready", "narrow": "ready", "left": "ready", "fragile": "ready", "missing": "unavailable"}
