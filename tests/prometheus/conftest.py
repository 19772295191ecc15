"""One server, one Prometheus and one run of requests, for all tests that ask what Prometheus knows of it."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.prometheus.mixed_run import Told, mixed_run
from tests.support.models import smollm2_path
from tests.support.real_prometheus import RealPrometheus, real_prometheus
from tests.support.real_server import RealServer, real_server
from tests.support.tiny_gguf import write_truncated

NUM_REQUESTS = 200
ADMIN, METRICS = "sk-admin-of-the-tests", "sk-metrics-of-the-tests"


@dataclass(frozen=True)
class Scraped:
    """What has happened, from both sides."""

    server: RealServer
    prometheus: RealPrometheus
    told: Told


@pytest.fixture(scope="session")
def scraped(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scraped]:
    """A run that has ended, with all of it scraped: `main`, `narrow`, `left` and `fragile` are loaded.

    `broken` cannot be loaded, `missing` is not there, and models.yaml has been broken after the run.
    """
    folder: Path = tmp_path_factory.mktemp("scraped")
    file: dict[str, Any] = {"model": str(smollm2_path()), "idle_unload_s": 0, "device": "cpu", "threads": 1}
    write_truncated(folder / "broken.gguf")
    models = {
        "main": file | {"slots": 4, "context": 1024},
        "narrow": file | {"slots": 1, "context": 256, "queue_timeout_s": 1},
        "left": file | {"slots": 2, "context": 256},
        "fragile": file | {"slots": 1, "context": 256},
        "broken": {"model": "./broken.gguf"},
        "missing": {"model": "./nowhere.gguf"},
    }
    env = {"CORRAL_ADMIN_KEYS": ADMIN, "CORRAL_METRICS_KEYS": METRICS}
    limits = {"max_resumes": 0}  # else nobody would see that a worker has died
    with real_server(folder, models, env=env, limits=limits) as server:
        target = server.url.removeprefix("http://")
        (folder / "prometheus").mkdir()
        with real_prometheus(folder / "prometheus", target, METRICS) as prometheus:
            prometheus.wait_scraped(3)  # what begins now has grown, and was not there at the first look
            for name in ("main", "narrow"):
                load(server, prometheus, name)
            told = Told()
            asyncio.run(send(server, told, is_first=True))
            prometheus.wait_scraped()
            asyncio.run(send(server, told, is_first=False))
            assert told.outcomes.total() == NUM_REQUESTS
            catalogue = folder / "models.yaml"
            catalogue.write_text(catalogue.read_text() + "\nmodelz: {}\n")
            is_broken = "corral_catalog_reload_success == 0"
            prometheus.wait(lambda: bool(prometheus.query(is_broken)), "the failure of the reload")
            prometheus.wait_scraped(3)
            yield Scraped(server, prometheus, told)


def load(server: RealServer, prometheus: RealPrometheus, model: str) -> None:
    """Return once the model is loaded, and Prometheus knows it."""
    headers = {"Authorization": f"Bearer {ADMIN}", "Content-Type": "application/json"}
    request = urllib.request.Request(server.url + "/models/load", json.dumps({"model": model}).encode(), headers)
    with urllib.request.urlopen(request, timeout=60) as reply:
        assert reply.status == 200
    is_ready = f'corral_worker_state{{model="{model}", state="ready"}} == 1'
    prometheus.wait(lambda: bool(prometheus.query(is_ready)), f"the load of {model}", within_s=60)


async def send(server: RealServer, told: Told, *, is_first: bool) -> None:
    def kill(model: str) -> None:
        (pid,) = server.worker_pids(model)
        os.kill(pid, signal.SIGKILL)

    async with mixed_run(server.url, ADMIN, told, kill) as run:
        await (run.first() if is_first else run.rest())
