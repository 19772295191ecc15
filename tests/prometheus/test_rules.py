"""The rules and the scrape of `deploy/prometheus` are what Prometheus takes, and each alert fires and stays silent.

Owns what `promtool` says about them. Must not run a server (`test_run.py` does).
"""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.test_architecture import ROOT

pytestmark = pytest.mark.prometheus

FOLDER = ROOT / "deploy" / "prometheus"
RULES = sorted((FOLDER / "rules").glob("*.yml"))
SECTION = "docs/operations.md, section "
TESTS = sorted((FOLDER / "tests").glob("*.yml"))


def read(path: Path) -> Any:
    return yaml.safe_load(path.read_text(encoding="utf-8"))


def rules(path: Path) -> Iterator[dict[str, Any]]:
    for group in read(path)["groups"]:
        yield from group["rules"]


ALERTS = [rule["alert"] for rule in rules(FOLDER / "rules" / "alerts.yml")]


def promtool(*arguments: str, cwd: Path = FOLDER) -> subprocess.CompletedProcess[str]:
    """Return how `promtool` ended, and all that it said as `stdout`."""
    command = ["promtool", *arguments]
    return subprocess.run(
        command, check=False, cwd=cwd, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=60
    )


def test_promtool_takes_the_scrape_with_a_key_file_that_exists(tmp_path: Path) -> None:
    config = read(FOLDER / "prometheus.yml")
    (tmp_path / "key").write_text("sk-metrics")
    shutil.copytree(FOLDER / "rules", tmp_path / "rules")
    config["scrape_configs"][0]["authorization"]["credentials_file"] = "key"
    (tmp_path / "prometheus.yml").write_text(yaml.safe_dump(config))
    said = promtool("check", "config", "prometheus.yml", cwd=tmp_path)
    assert said.returncode == 0, said.stdout
    assert f"SUCCESS: {len(RULES)} rule files found" in said.stdout
    assert promtool("check", "config", "--syntax-only", "prometheus.yml").returncode == 0, "as it is shipped"


def test_shipped_scrape_passes_once_its_key_lies_beside_it_or_without_the_key(tmp_path: Path) -> None:
    folder = tmp_path / "prometheus"
    shutil.copytree(FOLDER, folder)
    assert promtool("check", "config", "prometheus.yml", cwd=folder).returncode != 0, "as docs/operations.md says"
    (folder / "corral_metrics_key").write_text("sk-metrics")
    assert promtool("check", "config", "prometheus.yml", cwd=folder).returncode == 0
    (folder / "corral_metrics_key").unlink()
    config = read(folder / "prometheus.yml")
    del config["scrape_configs"][0]["authorization"]
    (folder / "prometheus.yml").write_text(yaml.safe_dump(config))
    assert promtool("check", "config", "prometheus.yml", cwd=folder).returncode == 0


@pytest.mark.parametrize("path", RULES, ids=lambda path: path.stem)
def test_promtool_takes_the_rules(path: Path) -> None:
    said = promtool("check", "rules", "--lint=all", "--lint-fatal", str(path))
    assert said.returncode == 0, said.stdout


@pytest.mark.parametrize("path", TESTS, ids=lambda path: path.stem)
def test_the_rules_pass_their_own_tests(path: Path) -> None:
    said = promtool("test", "rules", path.name, cwd=path.parent)
    assert said.returncode == 0, said.stdout


@pytest.mark.parametrize("fault", ["never", "always", "at once"])
def test_these_tests_notice_every_alert_that_fires(fault: str, tmp_path: Path) -> None:
    shutil.copytree(FOLDER, tmp_path / "copy")
    path = tmp_path / "copy" / "rules" / "alerts.yml"
    broken, harmed = read(path), set()
    for rule in (rule for group in broken["groups"] for rule in group["rules"]):
        if fault != "at once":
            rule["expr"] = "vector(0) > 1" if fault == "never" else "vector(1)"
        elif rule.pop("for", None) is None:
            continue  # by design
        harmed.add(rule["alert"])
    path.write_text(yaml.safe_dump(broken))
    said = promtool("test", "rules", "alerts.yml", cwd=tmp_path / "copy" / "tests")
    assert said.returncode != 0
    assert harmed == set(re.findall(r"alertname:\s*(\w+), time:", said.stdout)), said.stdout
    assert harmed <= set(ALERTS)


def test_each_alert_tells_a_person_what_happens_and_where_to_read_on() -> None:
    for rule in rules(FOLDER / "rules" / "alerts.yml"):
        name, notes = rule["alert"], rule["annotations"]
        assert rule["labels"]["severity"] in {"critical", "warning"}, name
        assert len(notes["summary"]) <= 120, name
        assert len(notes["description"].split()) >= 10, f"{name} does not say what to do"
        assert notes["runbook"].startswith(SECTION), name


def test_every_runbook_has_its_section() -> None:
    text = (ROOT / "docs" / "operations.md").read_text(encoding="utf-8")
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    named = {rule["annotations"]["runbook"].removeprefix(SECTION) for rule in rules(FOLDER / "rules" / "alerts.yml")}
    assert named <= set(headings), f"without a section in docs/operations.md: {sorted(named - set(headings))}"


def test_links_to_the_runbooks_are_made_as_the_docs_say(tmp_path: Path) -> None:
    text = (ROOT / "docs" / "operations.md").read_text(encoding="utf-8")
    (command,) = re.findall(r"^sed -i .*alerts\.yml", text, re.MULTILINE)
    shutil.copytree(FOLDER / "rules", tmp_path / "rules")
    words = [word.replace("/etc/prometheus", str(tmp_path)) for word in shlex.split(command)]
    subprocess.run(words, check=True, timeout=10)
    for rule in rules(tmp_path / "rules" / "alerts.yml"):
        assert rule["annotations"]["runbook"].startswith("https://"), rule["alert"]
    assert promtool("check", "rules", str(tmp_path / "rules" / "alerts.yml")).returncode == 0


def test_names_of_recorded_series_say_level_metric_and_operation() -> None:
    for rule in rules(FOLDER / "rules" / "recording.yml"):
        level, metric, operation = rule["record"].split(":")
        assert re.fullmatch(r"corral_[a-z_]+", metric)
        assert re.fullmatch(r"(p\d\d_|rate|ratio)[a-z0-9_]*", operation)
        by = re.search(r"by \(job, (instance[a-z, ]*)\)", rule["expr"])
        if by is not None:
            assert "_".join(name for name in by[1].split(", ") if name != "le") == level, rule["record"]
