"""The images and the compose file, as far as it can be told without building them. No image is built here."""

from __future__ import annotations

import json
import re
import shlex
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from router.catalog_files import load_catalog
from router.events import FleetLimits
from router.settings import RouterSettings
from tests.support.deploy_files import DEPLOY, ROOT, run, tool

DOCKER = DEPLOY / "docker"
DOCKERFILES = ("Dockerfile", "Dockerfile.cuda")


@pytest.fixture(params=DOCKERFILES)
def dockerfile(request: pytest.FixtureRequest) -> str:
    return (DOCKER / request.param).read_text(encoding="utf-8").replace("\\\n", " ")


@pytest.fixture
def compose() -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load((DOCKER / "docker-compose.yml").read_text(encoding="utf-8"))
    return loaded


def test_image_builds_the_llama_cpp_that_the_project_asks_for(dockerfile: str) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    (wanted,) = [line for line in project["dependencies"] if line.startswith("llama-cpp-python")]
    assert f'ARG LLAMA_CPP_PYTHON="{wanted}"' in dockerfile
    assert "-DGGML_NATIVE=OFF" in dockerfile, "an image is run on other processors than the one that built it"


def test_image_is_built_from_files_that_are_sent_to_the_builder(dockerfile: str) -> None:
    ignored = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    for line in re.findall(r"^COPY (?!--from)(.+)$", dockerfile, re.MULTILINE):
        for name in shlex.split(line)[:-1]:
            assert (ROOT / name).exists()
            assert f"!{name}" in ignored


def test_image_runs_corral_as_a_user_without_rights_under_an_init(dockerfile: str) -> None:
    last = dockerfile.rpartition("\nFROM ")[2]
    assert re.search(r"^USER 10001:10001$", last, re.MULTILINE)
    entry = json.loads(re.findall(r"^ENTRYPOINT (.+)$", last, re.MULTILINE)[0])
    assert entry == ["/usr/bin/tini", "--", "corral"]
    assert json.loads(re.findall(r"^CMD (\[.+)$", last, re.MULTILINE)[-1]) == ["serve", "/etc/corral/models.yaml"]
    assert "install -d -o corral -g corral /var/cache/corral" in last
    assert "CORRAL_CACHE=/var/cache/corral" in last


def test_health_check_of_the_image_is_a_program_that_python_takes(dockerfile: str) -> None:
    (words,) = re.findall(r"^HEALTHCHECK .*CMD (\[.+)$", dockerfile, re.MULTILINE)
    program, flag, code = json.loads(words)
    assert (program.rstrip("3"), flag) == ("python", "-c")
    compile(code, "healthcheck", "exec")
    assert "/health" in code


def test_compose_file_mounts_what_is_there_and_names_what_it_defines(compose: dict[str, Any]) -> None:
    for service in compose["services"].values():
        for volume in service.get("volumes", []):
            source = volume.split(":")[0]
            if source.startswith("."):
                assert source == "./models" or (DOCKER / source).exists(), source
            else:
                assert source in compose["volumes"]
        assert set(service.get("secrets", [])) <= compose["secrets"].keys()
        assert all(port.startswith("127.0.0.1:") for port in service["ports"]), "nothing is open to other machines"
    build = compose["services"]["corral"]["build"]
    assert (DOCKER / build["context"] / build["dockerfile"]).is_file()


def test_compose_file_lets_running_answers_end(compose: dict[str, Any]) -> None:
    grace_s = float(compose["services"]["corral"]["stop_grace_period"].removesuffix("s"))
    assert grace_s >= RouterSettings().shutdown_drain_s + FleetLimits().stop_grace_s + 2 * 5.0


def test_catalogue_of_the_compose_file_is_sound_and_reads_the_keys_that_are_mounted(compose: dict[str, Any]) -> None:
    catalog = load_catalog(DOCKER / "models.yaml")
    mounted = {Path(f"/run/secrets/{name}") for name in compose["services"]["corral"]["secrets"]}
    assert {key.file for key in catalog.keys} == mounted


def test_prometheus_of_the_compose_file_scrapes_as_the_one_beside_it_does() -> None:
    ours = yaml.safe_load((DOCKER / "prometheus.yml").read_text(encoding="utf-8"))
    shipped = yaml.safe_load((DEPLOY / "prometheus" / "prometheus.yml").read_text(encoding="utf-8"))
    for config, target in ((ours, "corral:8080"), (shipped, "127.0.0.1:8080")):
        (job,) = config["scrape_configs"]
        assert job["static_configs"] == [{"targets": [target]}]
        del job["static_configs"], job["authorization"]["credentials_file"]
    assert ours == shipped


@pytest.mark.deploy
@pytest.mark.parametrize("name", DOCKERFILES)
def test_hadolint_finds_nothing_in_the_dockerfile(name: str) -> None:
    assert run(tool("hadolint"), "--no-color", DOCKER / name) == ""


@pytest.mark.deploy
def test_compose_file_is_one_by_the_specification() -> None:
    from compose_spec import PyCompose  # type: ignore[import-not-found]

    found = PyCompose.from_yaml((DOCKER / "docker-compose.yml").read_text(encoding="utf-8"))
    found.validate()
    assert set(found.service_names()) == {"corral", "prometheus", "grafana"}
