"""Prometheus' own tool finds nothing wrong with the metrics page, with or without anything to show."""

from __future__ import annotations

import shutil
import subprocess

import pytest

from router.fleet_views import FleetSnapshot
from router.metrics import RouterMetrics
from tests.support.busy_metrics import CHAT, busy_metrics
from tests.support.http_side import http_side

pytestmark = pytest.mark.prometheus


def check(page: bytes) -> str:
    """Return what the tool complains of; nothing if it is content."""
    tool = shutil.which("promtool")
    assert tool is not None, "promtool is missing: install Debian's package `prometheus`"
    done = subprocess.run([tool, "check", "metrics"], input=page, capture_output=True, check=False, timeout=30)
    return f"{done.stderr.decode()}{done.stdout.decode()}" if done.returncode else ""


def test_the_tool_complains_of_a_wrong_page() -> None:
    assert "counter metrics should have" in check(b"# HELP x X.\n# TYPE x counter\nx 1\n")


@pytest.mark.parametrize("has_odd_names", [False, True])
def test_a_page_on_which_every_family_has_samples_is_right(has_odd_names: bool) -> None:
    page = busy_metrics().render()[0]
    if has_odd_names:  # labels that need escapes
        page = page.replace(b'model="a"', b'model="a \\"b\\" \\\\ c\\nd"')
    assert check(page) == ""


def test_the_page_of_a_router_that_has_done_nothing_is_right() -> None:
    metrics = RouterMetrics()
    metrics.watch_fleet(lambda: FleetSnapshot({}, is_shutting_down=False))
    assert check(metrics.render()[0]) == ""


async def test_the_page_that_a_server_sends_is_right() -> None:
    async with http_side() as side:
        await side.client.post(CHAT, json={"model": "smol", "stream": True})
        await side.client.post("/nowhere")
        assert check(await (await side.client.get("/metrics")).read()) == ""
