"""Prints the dashboard: `python deploy/grafana/make_dashboard.py > deploy/grafana/dashboards/corral.json`.

Owns Grafana's JSON; what the panels show is in `requests_rows.py` and `machine_rows.py`. Must need nothing but Python.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import Any

import machine_rows
import requests_rows
from panel import Panel, Target

DATASOURCE = {"type": "prometheus", "uid": "${datasource}"}
WIDTH = 24
ROWS = requests_rows.ROWS + machine_rows.ROWS


def dashboard(rows: Sequence[tuple[str, Sequence[Panel]]] = ROWS) -> dict[str, Any]:
    """Return the whole of it, as Grafana 11 and later read it."""
    panels: list[dict[str, Any]] = []
    top = 0
    for title, content in rows:
        panels.append(
            {
                "type": "row",
                "title": title,
                "collapsed": False,
                "gridPos": {"x": 0, "y": top, "w": WIDTH, "h": 1},
                "panels": [],
            }
        )
        top, left, height = top + 1, 0, 0
        for panel in content:
            if left + panel.width > WIDTH:
                top, left, height = top + height, 0, 0
            panels.append(_panel(panel, {"x": left, "y": top, "w": panel.width, "h": panel.height}))
            left, height = left + panel.width, max(height, panel.height)
        top += height
    for number, made in enumerate(panels, start=1):
        made["id"] = number
    return {
        "uid": "corral",
        "title": "Corral",
        "description": "Models, requests, tokens, memory and workers of Corral servers.",
        "tags": ["corral", "llm"],
        "schemaVersion": 39,
        "version": 1,
        "editable": True,
        "graphTooltip": 1,
        "refresh": "30s",
        "time": {"from": "now-1h", "to": "now"},
        "timezone": "browser",
        "templating": {"list": _variables()},
        "annotations": {"list": [_restarts()]},
        "panels": panels,
    }


def _variables() -> list[dict[str, Any]]:
    datasource = {
        "name": "datasource",
        "label": "Data source",
        "type": "datasource",
        "query": "prometheus",
        "refresh": 1,
        "hide": 0,
        "includeAll": False,
        "multi": False,
    }
    return [
        datasource,
        _names("instance", "Server", "label_values(corral_models, instance)"),
        _names("model", "Model", 'label_values(corral_worker_state{instance=~"$instance"}, model)'),
    ]


def _names(name: str, label: str, query: str) -> dict[str, Any]:
    """Return a variable of which several values may be chosen; all of them include requests that reached no model."""
    return {
        "name": name,
        "label": label,
        "type": "query",
        "datasource": DATASOURCE,
        "query": {"qryType": 1, "query": query, "refId": "PrometheusVariableQueryEditor-VariableQuery"},
        "definition": query,
        "refresh": 2,
        "sort": 1,
        "multi": True,
        "includeAll": True,
        "allValue": ".*",
        "current": {"text": ["All"], "value": ["$__all"]},
        "hide": 0,
    }


def _restarts() -> dict[str, Any]:
    return {
        "name": "Server starts",
        "datasource": DATASOURCE,
        "enable": True,
        "iconColor": "blue",
        "expr": 'changes(process_start_time_seconds{job="corral", instance=~"$instance"}[2m]) > 0',
        "step": "60s",
        "titleFormat": "Corral has started",
        "textFormat": "{{instance}}",
    }


def _panel(panel: Panel, place: dict[str, int]) -> dict[str, Any]:
    made: dict[str, Any] = {
        "type": panel.kind,
        "title": panel.title,
        "description": panel.description,
        "datasource": DATASOURCE,
        "gridPos": place,
        "targets": [_target(target, panel, number) for number, target in enumerate(panel.targets)],
        "fieldConfig": {"defaults": _defaults(panel), "overrides": [_color(*each) for each in panel.colors.items()]},
        "options": _OPTIONS[panel.kind] | ({"graphMode": "none"} if panel.kind == "stat" and panel.is_now else {}),
    }
    if panel.kind == "table":
        hidden = dict.fromkeys(("Time", "Value", "__name__", "alertstate", "job"), True)
        made["transformations"] = [{"id": "organize", "options": {"excludeByName": hidden}}]
    return made


def _color(name: str, color: str) -> dict[str, Any]:
    shown = {"id": "color", "value": {"mode": "fixed", "fixedColor": color}}
    return {"matcher": {"id": "byName", "options": name}, "properties": [shown]}


def _target(target: Target, panel: Panel, number: int) -> dict[str, Any]:
    is_instant = panel.is_now or panel.kind in ("table", "bargauge")
    return {
        "refId": chr(ord("A") + number),
        "datasource": DATASOURCE,
        "editorMode": "code",
        "expr": target.expr,
        "legendFormat": target.legend,
        "instant": is_instant,
        "range": not is_instant,
        "exemplar": panel.has_exemplars,
        "format": {"heatmap": "heatmap", "table": "table"}.get(panel.kind, "time_series"),
    }


def _defaults(panel: Panel) -> dict[str, Any]:
    steps: list[dict[str, Any]] = [{"color": "green" if panel.thresholds else panel.color, "value": None}]
    steps += [{"color": color, "value": value} for value, color in panel.thresholds]
    defaults: dict[str, Any] = {
        "unit": panel.unit,
        "noValue": panel.no_value,
        "color": {"mode": "thresholds" if panel.kind in ("stat", "bargauge") else "palette-classic"},
        "thresholds": {"mode": "absolute", "steps": steps},
        "mappings": [],
    }
    if panel.unit == "percentunit" and panel.kind != "timeseries":
        defaults |= {"min": 0, "max": 1}
    elif panel.kind == "timeseries":
        defaults["min"] = 0
    if panel.words:
        shown = {str(value): {"text": text, "color": color} for value, (text, color) in panel.words.items()}
        defaults["mappings"] = [{"type": "value", "options": shown}]
    if panel.kind == "timeseries":
        defaults["custom"] = {
            "drawStyle": "bars" if panel.is_bars else "line",
            "lineWidth": 1,
            "fillOpacity": 60 if panel.is_bars else 25 if panel.is_stacked else 8,
            "showPoints": "never",
            "spanNulls": False,
            "stacking": {"mode": "normal" if panel.is_stacked else "none", "group": "A"},
            "thresholdsStyle": {"mode": "dashed" if panel.thresholds else "off"},
        }
        if panel.unit == "percentunit":
            defaults["custom"]["axisSoftMax"] = 1
    if panel.kind == "state-timeline":
        defaults["custom"] = {"lineWidth": 0, "fillOpacity": 80, "spanNulls": False}
    return defaults


_REDUCE = {"calcs": ["lastNotNull"], "fields": "", "values": False}
_LEGEND = {"showLegend": True, "displayMode": "list", "placement": "bottom", "calcs": []}
_OPTIONS: dict[str, dict[str, Any]] = {
    "stat": {
        "reduceOptions": _REDUCE,
        "colorMode": "value",
        "graphMode": "area",
        "justifyMode": "center",
        "textMode": "auto",
        "orientation": "auto",
    },
    "bargauge": {"reduceOptions": _REDUCE, "displayMode": "lcd", "orientation": "horizontal", "showUnfilled": True},
    "timeseries": {"legend": _LEGEND, "tooltip": {"mode": "multi", "sort": "desc"}},
    "state-timeline": {
        "legend": _LEGEND,
        "mergeValues": True,
        "showValue": "auto",
        "rowHeight": 0.8,
        "tooltip": {"mode": "single"},
    },
    "table": {"showHeader": True, "cellHeight": "sm", "footer": {"show": False}},
    "heatmap": {
        "calculate": False,
        "cellGap": 1,
        "color": {"mode": "scheme", "scheme": "Oranges", "steps": 64, "exponent": 0.5, "reverse": False},
        "yAxis": {"unit": "s", "axisPlacement": "left"},
        "rowsFrame": {"layout": "auto"},
        "tooltip": {"mode": "single", "yHistogram": False},
        "legend": {"show": True},
    },
}


if __name__ == "__main__":
    sys.stdout.write(json.dumps(dashboard(), indent=2) + "\n")
