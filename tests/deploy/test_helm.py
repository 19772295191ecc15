"""The chart, through Helm itself: it is sound, refuses wrong values, and makes manifests that Kubernetes knows.

Nothing is installed anywhere.
"""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from router.catalog_files import load_catalog
from router.settings import ENV_PREFIX, RouterSettings
from tests.support import helm
from tests.support.deploy_files import DEPLOY, ROOT, by_kind, documents, run, tool

CHART = DEPLOY / "helm" / "corral"
ALL_ON: dict[str, Any] = {
    "image": {"tag": "cuda"},
    "imagePullSecrets": [{"name": "registry"}],
    "settings": {"CORRAL_LOG_LEVEL": "debug", "CORRAL_OFFLINE": True},
    "extraEnv": [{"name": "HF_TOKEN", "value": "x"}],
    "drainSeconds": 120,
    "gpu": {"count": 2},
    "ingress": {"enabled": True, "tlsSecret": "tls"},
    "podMonitor": {"enabled": True, "labels": {"release": "prometheus"}},
    "autoscaling": {"kind": "keda"},
    "cache": {"storageClass": "fast"},
    "extraVolumes": [{"name": "files", "emptyDir": {}}],
    "extraVolumeMounts": [{"name": "files", "mountPath": "/models"}],
    "nodeSelector": {"disk": "ssd"},
    "tolerations": [{"key": "models", "operator": "Exists"}],
    "podAnnotations": {"note": "x"},
}
VARIANTS: dict[str, dict[str, Any]] = {
    "as it is": {},
    "everything": ALL_ON,
    "hpa": {"autoscaling": {"kind": "hpa"}, "podMonitor": {"enabled": True, "key": ""}},
}


def values() -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load((CHART / "values.yaml").read_text(encoding="utf-8"))
    return loaded


def test_every_value_that_a_template_reads_exists() -> None:
    known = _paths(values())
    for template in CHART.glob("templates/*"):
        for path in re.findall(r"\.Values\.([A-Za-z.]+)", template.read_text(encoding="utf-8")):
            assert path in known, f"{template.name}: .Values.{path}"


def test_every_value_is_read_by_a_template() -> None:
    text = "".join(template.read_text(encoding="utf-8") for template in CHART.glob("templates/*"))
    read = set(re.findall(r"\.Values\.([A-Za-z.]+)", text))
    for path in _paths(values(), leaves_only=True):
        assert any(path == name or path.startswith(f"{name}.") for name in read), path


def test_schema_takes_the_values_and_refuses_what_nobody_reads() -> None:
    schema = json.loads((CHART / "values.schema.json").read_text(encoding="utf-8"))
    validator = jsonschema.Draft7Validator(schema)
    validator.validate(values())
    assert not validator.is_valid(values() | {"replica": 2})
    assert not validator.is_valid(values() | {"settings": {"PATH": "/"}})
    assert not validator.is_valid(values() | {"autoscaling": {"kind": "vpa"}})


def test_chart_has_the_version_of_the_program() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text(encoding="utf-8"))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert chart["appVersion"] == project["version"]


def test_catalogue_of_the_values_is_sound(tmp_path: Path) -> None:
    path = tmp_path / "models.yaml"
    path.write_text(yaml.safe_dump(values()["models"]), encoding="utf-8")
    catalog = load_catalog(path)
    assert [key.file.name for key in catalog.keys if key.file] == ["client", "metrics", "operator"]


@pytest.mark.deploy
def test_helm_finds_no_fault(tmp_path: Path) -> None:
    helm.lint(CHART, tmp_path)


@pytest.mark.deploy
@pytest.mark.parametrize("variant", VARIANTS)
def test_what_the_chart_makes_is_known_to_kubernetes(variant: str, tmp_path: Path) -> None:
    made = helm.render(CHART, tmp_path, VARIANTS[variant])
    own = [document for document in made if document["kind"] not in {"PodMonitor", "ScaledObject"}]
    path = tmp_path / "made.yaml"
    path.write_text(yaml.safe_dump_all(own), encoding="utf-8")
    assert run(tool("kubernetes-validate"), "--strict", path).count(" passed ") == len(own)


@pytest.mark.deploy
def test_chart_makes_the_same_pods_as_the_manifests(tmp_path: Path) -> None:
    made = by_kind(helm.render(CHART, tmp_path, {}), "StatefulSet")["spec"]["template"]["spec"]
    manifest = documents((DEPLOY / "kubernetes/base/statefulset.yaml").read_text(encoding="utf-8"))
    written = by_kind(manifest, "StatefulSet")["spec"]["template"]["spec"]
    names = {"image", "imagePullPolicy", "volumeMounts", "resources"}
    ours, theirs = made["containers"][0], written["containers"][0]
    assert {key: value for key, value in ours.items() if key not in names} == {
        key: value for key, value in theirs.items() if key not in names
    }
    assert ours["resources"] == theirs["resources"]
    for key in ("securityContext", "terminationGracePeriodSeconds", "enableServiceLinks"):
        assert made[key] == written[key]


@pytest.mark.deploy
def test_values_reach_the_manifests(tmp_path: Path) -> None:
    made = helm.render(CHART, tmp_path, ALL_ON)
    pod = by_kind(made, "StatefulSet")["spec"]["template"]["spec"]
    env = {entry["name"]: entry["value"] for entry in pod["containers"][0]["env"]}
    assert env == {
        "CORRAL_SHUTDOWN_DRAIN_S": "120",
        "CORRAL_LOG_LEVEL": "debug",
        "CORRAL_OFFLINE": "true",
        "HF_TOKEN": "x",
    }
    known = {f"{ENV_PREFIX}{field.upper()}" for field in RouterSettings.model_fields}
    assert {name for name in env if name.startswith(ENV_PREFIX)} <= known
    assert pod["terminationGracePeriodSeconds"] == 150
    assert pod["containers"][0]["resources"]["limits"] == {"memory": "8Gi", "nvidia.com/gpu": "2"}
    assert by_kind(made, "ScaledObject")["spec"]["scaleTargetRef"]["name"] == "corral"
    assert by_kind(made, "PodMonitor")["metadata"]["labels"]["release"] == "prometheus"
    assert "replicas" not in by_kind(made, "StatefulSet")["spec"], "it would undo what the autoscaler did"


@pytest.mark.deploy
def test_wrong_values_are_refused_by_their_names(tmp_path: Path) -> None:
    with pytest.raises(helm.HelmFailed, match="replica"):
        helm.render(CHART, tmp_path, {"replica": 2})


def _paths(value: Any, prefix: str = "", *, leaves_only: bool = False) -> set[str]:
    """Return the dotted path of every value; a map that is empty or holds what users like is one value."""
    found: set[str] = set()
    for name, inner in value.items():
        path = f"{prefix}{name}"
        is_group = isinstance(inner, dict) and inner and path != "models"
        if not (leaves_only and is_group):
            found.add(path)
        if is_group:
            found |= _paths(inner, f"{path}.", leaves_only=leaves_only)
    return found
