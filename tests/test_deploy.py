"""What is shipped for operators fits the program. Single kinds of files have tests of their own in `deploy/`."""

from __future__ import annotations

import re

import click
import pytest
import yaml

from router import ops
from router.auth import Scope
from router.cli import main
from router.settings import ENV_PREFIX, OF_COMMANDS, RouterSettings
from tests.support.deploy_files import DEPLOY, ROOT

_TEXTS = (".md", ".yml", ".yaml", ".service", ".socket", ".conf", ".tpl", ".json", ".txt", ".cuda", "")


def test_scrape_reads_the_metrics_with_a_key() -> None:
    (job,) = yaml.safe_load((DEPLOY / "prometheus" / "prometheus.yml").read_text(encoding="utf-8"))["scrape_configs"]
    (route,) = [route for route in ops.ROUTES if route.path == job["metrics_path"]]
    assert route.scopes == (Scope.METRICS,)
    assert job["authorization"]["credentials_file"]
    settings = RouterSettings()
    assert job["static_configs"][0]["targets"] == [f"{settings.host}:{settings.port}"]


def test_settings_that_are_named_exist() -> None:
    known = {f"{ENV_PREFIX}{field.upper()}" for field in RouterSettings.model_fields}
    known |= {f"{ENV_PREFIX}NAME", *OF_COMMANDS}
    paths = [path for path in DEPLOY.rglob("*") if path.is_file() and path.suffix in _TEXTS]
    assert len(paths) > 30
    for path in [*paths, *(ROOT / "docs" / f"{name}.md" for name in ("gpus", "operations", "tuning"))]:
        named = set(re.findall(rf"\b{ENV_PREFIX}[A-Z][A-Z_]*[A-Z]\b", path.read_text(encoding="utf-8")))
        assert named <= known, path.name


@pytest.mark.parametrize("name", ["gpus", "operations", "tuning"])
def test_commands_that_are_named_exist(name: str) -> None:
    text = (ROOT / "docs" / f"{name}.md").read_text(encoding="utf-8")
    named = set(re.findall(r"(?:`|^|bin/)corral ([a-z]+)", text, re.MULTILINE))
    assert named
    assert named <= set(main.list_commands(click.Context(main)))
