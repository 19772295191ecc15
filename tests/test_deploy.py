"""What is shipped for operators fits the program that it runs."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import yaml

from router import ops
from router.auth import Scope
from router.catalog import Limits
from router.cli import main
from router.events import FleetLimits
from router.settings import ENV_PREFIX, RouterSettings
from tests.test_architecture import ROOT

DEPLOY = ROOT / "deploy"


def unit() -> dict[str, str]:
    """Return the settings of the service, all sections together."""
    lines = (DEPLOY / "corral.service").read_text(encoding="utf-8").splitlines()
    return dict(line.split("=", 1) for line in lines if line and line[0] not in "#[")


def test_service_runs_a_command_that_exists() -> None:
    program, command, file = shlex.split(unit()["ExecStart"])
    assert Path(program).name == "corral"
    assert command in main.commands
    assert Path(file).name == "models.yaml"
    assert (ROOT / "models.yaml").is_file()


def test_service_waits_for_running_answers_before_it_kills() -> None:
    settings = unit()
    longest_s = RouterSettings().shutdown_drain_s + FleetLimits().stop_grace_s + 2 * 5.0
    assert float(settings["TimeoutStopSec"]) >= longest_s
    assert settings["KillMode"] == "mixed", "workers are stopped by the router, which lets them finish"


def test_scrape_reads_the_metrics_with_a_key() -> None:
    (job,) = yaml.safe_load((DEPLOY / "prometheus.yml").read_text(encoding="utf-8"))["scrape_configs"]
    (route,) = [route for route in ops.ROUTES if route.path == job["metrics_path"]]
    assert route.scopes == (Scope.METRICS,)
    assert job["authorization"]["credentials_file"]
    settings = RouterSettings()
    assert job["static_configs"][0]["targets"] == [f"{settings.host}:{settings.port}"]


def test_proxy_holds_back_no_stream_and_refuses_no_body_that_corral_takes() -> None:
    text = (DEPLOY / "README.md").read_text(encoding="utf-8")
    example = text.partition("```nginx\n")[2].partition("```")[0]
    assert "proxy_buffering off;" in example
    assert f"client_max_body_size {Limits().max_body_bytes // 2**20}m;" in example
    assert f"server {RouterSettings().host}:{RouterSettings().port};" in example


def test_settings_that_are_named_exist() -> None:
    known = {f"{ENV_PREFIX}{field.upper()}" for field in RouterSettings.model_fields} | {f"{ENV_PREFIX}NAME"}
    for path in DEPLOY.iterdir():
        named = set(re.findall(rf"{ENV_PREFIX}[A-Z_]+", path.read_text(encoding="utf-8")))
        assert named <= known, path.name
