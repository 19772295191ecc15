"""A real Prometheus on a free port, with the configuration and the rules that are shipped, in a hurry.

Owns the process, what of the configuration is changed for tests, and its API. Must not know what anybody expects of it.
"""

from __future__ import annotations

import functools
import json
import math
import re
import shutil
import socket
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

SHIPPED = Path(__file__).resolve().parents[2] / "deploy" / "prometheus"
START_WITHIN_S = 30.0


@dataclass(frozen=True)
class Sample:
    """One series, and its values over the time that was asked for."""

    labels: Mapping[str, str]
    values: tuple[float, ...]

    @property
    def last(self) -> float:
        return self.values[-1]


class RealPrometheus:
    """One running Prometheus."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.started_at_s = time.time()

    def api(self, path: str, **parameters: str) -> Any:
        """Return the data of an answer. Fails with Prometheus' own words."""
        body = urllib.parse.urlencode(parameters)
        url = f"{self.url}/api/v1/{path}" + (f"?{body}" if body else "")
        try:
            with urllib.request.urlopen(url, timeout=10) as reply:
                answer = json.load(reply)
        except urllib.error.HTTPError as error:
            raise AssertionError(f"{parameters}: {error.read().decode()}") from None
        assert answer["status"] == "success", answer
        assert not answer.get("warnings"), answer["warnings"]
        return answer["data"]

    def query(self, expr: str) -> list[Sample]:
        """Return what `expr` is now, without values that are no numbers."""
        found = self.api("query", query=expr)
        assert found["resultType"] == "vector", found
        return [_sample(each["metric"], [each["value"]]) for each in found["result"] if each["value"][1] != "NaN"]

    def over_time(self, expr: str, step_s: float = 2.0) -> list[Sample]:
        """Return what `expr` has been since the start, series that never were numbers left out."""
        span = {"start": f"{self.started_at_s:.3f}", "end": f"{time.time():.3f}", "step": str(step_s)}
        found = self.api("query_range", query=expr, **span)
        samples = [_sample(each["metric"], each["values"]) for each in found["result"]]
        return [sample for sample in samples if sample.values]

    def value(self, expr: str) -> float:
        """Return the only value of `expr`; not a number when there is none."""
        found = self.query(expr)
        assert len(found) <= 1, f"{expr} is {len(found)} series"
        return found[0].last if found else math.nan

    def by(self, label: str, expr: str) -> dict[str, float]:
        """Return the values of `expr` by one of its labels."""
        return {sample.labels.get(label, ""): sample.last for sample in self.query(expr)}

    def exemplars(self, series: str) -> list[dict[str, str]]:
        """Return the labels of the single observations that are kept of a histogram."""
        found = self.api("query_exemplars", query=series, start=f"{self.started_at_s:.3f}", end=f"{time.time():.3f}")
        return [exemplar["labels"] for each in found for exemplar in each["exemplars"]]

    def label_values(self, query: str) -> list[str]:
        """Return what a variable of the dashboard offers: `label_values(SERIES, LABEL)`."""
        found = re.fullmatch(r"label_values\((.+), (\w+)\)", query)
        assert found is not None, query
        values: list[str] = self.api(f"label/{found[2]}/values", **{"match[]": found[1]})
        return values

    def firing(self) -> dict[str, list[dict[str, str]]]:
        """Return the labels of alerts that fire, by name."""
        alerts: dict[str, list[dict[str, str]]] = {}
        for alert in self.api("alerts")["alerts"]:
            if alert["state"] == "firing":
                alerts.setdefault(alert["labels"]["alertname"], []).append(alert["labels"])
        return alerts

    def wait(self, check: Callable[[], bool], what: str, within_s: float = 20.0) -> None:
        """Return once `check` is true. Fails when that takes too long."""
        deadline_s = time.monotonic() + within_s
        while not check():
            assert time.monotonic() < deadline_s, f"{what} did not happen within {within_s} s"
            time.sleep(0.2)

    def wait_scraped(self, num: int = 2) -> None:
        """Return once everything that is true now has been scraped `num` times, and the rules have seen it."""
        for _ in range(num):
            self.wait(functools.partial(self._is_scraped_since, time.time()), "a scrape")

    def _is_scraped_since(self, since_s: float) -> bool:
        return self.value('timestamp(up{job="corral"})') > since_s and self.value('up{job="corral"}') == 1


def _sample(labels: Mapping[str, str], values: list[tuple[float, str]]) -> Sample:
    return Sample(labels, tuple(float(value) for _, value in values if value != "NaN"))


@contextmanager
def real_prometheus(folder: Path, target: str, key: str) -> Iterator[RealPrometheus]:
    """Run what is shipped against `target`, with a scrape every second and alerts that fire after two."""
    shutil.copytree(SHIPPED / "rules", folder / "rules")
    for path in (folder / "rules").glob("*.yml"):
        path.write_text(re.sub(r"^( +for:) .*$", r"\1 2s", path.read_text(encoding="utf-8"), flags=re.MULTILINE))
    (folder / "key").write_text(key)
    config = yaml.safe_load((SHIPPED / "prometheus.yml").read_text(encoding="utf-8"))
    config["global"] = {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"}
    (job,) = config["scrape_configs"]
    job["authorization"]["credentials_file"] = "key"
    job["static_configs"] = [{"targets": [target]}]
    (folder / "prometheus.yml").write_text(yaml.safe_dump(config))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    command = ["prometheus", "--config.file=prometheus.yml", "--storage.tsdb.path=data", "--log.level=warn"]
    command.append("--enable-feature=exemplar-storage")
    with (folder / "prometheus.log").open("w") as log:
        process = subprocess.Popen(
            [*command, f"--web.listen-address={address}"], cwd=folder, stdout=log, stderr=subprocess.STDOUT
        )
    try:
        _wait_ready(f"http://{address}/-/ready", process, folder / "prometheus.log")
        yield RealPrometheus(f"http://{address}")
    finally:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _wait_ready(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline_s = time.monotonic() + START_WITHIN_S
    while time.monotonic() < deadline_s:
        assert process.poll() is None, log.read_text()
        try:
            with urllib.request.urlopen(url, timeout=2) as reply:
                if reply.status == 200:
                    return
        except OSError:
            pass
        time.sleep(0.1)
    raise AssertionError(f"prometheus is not ready after {START_WITHIN_S} s: {log.read_text()}")
