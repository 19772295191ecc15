"""The manifests: kustomize puts them together, Kubernetes' own schemas know them, and they fit the program.

There is no cluster. Of PodMonitor and ScaledObject, no kinds of Kubernetes' own, only what we rely on is checked.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from router.app import all_routes
from router.catalog_files import load_catalog
from router.events import FleetLimits
from tests.support.deploy_files import DEPLOY, by_kind, documents, run, tool

FOLDER = DEPLOY / "kubernetes"
BUILDS = ("base", "examples/gpu-with-keda")
FOREIGN_KINDS = {"PodMonitor", "ScaledObject"}


@pytest.fixture
def stateful_set() -> dict[str, Any]:
    return by_kind(documents((FOLDER / "base" / "statefulset.yaml").read_text(encoding="utf-8")), "StatefulSet")


def pod_of(stateful_set: dict[str, Any]) -> dict[str, Any]:
    pod: dict[str, Any] = stateful_set["spec"]["template"]["spec"]
    return pod


def container_of(stateful_set: dict[str, Any]) -> dict[str, Any]:
    (container,) = pod_of(stateful_set)["containers"]
    found: dict[str, Any] = container
    return found


def test_every_file_is_used_by_a_kustomization() -> None:
    for kustomization in FOLDER.rglob("kustomization.yaml"):
        (told,) = documents(kustomization.read_text(encoding="utf-8"))
        named = {*told.get("resources", []), *told.get("components", [])}
        named |= {name for made in told.get("configMapGenerator", []) for name in made["files"]}
        there = {path.name for path in kustomization.parent.glob("*.yaml")} - {"kustomization.yaml"}
        assert there <= named
        assert all((kustomization.parent / name).exists() for name in named)


def test_probes_ask_routes_that_need_no_key_and_tell_starting_from_dead(stateful_set: dict[str, Any]) -> None:
    container = container_of(stateful_set)
    open_routes = {route.path for route in all_routes() if route.method == "GET" and not route.scopes}
    paths = {name: container[name]["httpGet"]["path"] for name in ("startupProbe", "livenessProbe", "readinessProbe")}
    assert set(paths.values()) <= open_routes
    assert paths["readinessProbe"] == "/health", "it turns 503 while the server drains"
    assert paths["livenessProbe"] != "/health", "a server that drains is not dead"
    starting_s = container["startupProbe"]["periodSeconds"] * container["startupProbe"]["failureThreshold"]
    assert starting_s >= 60


def test_grace_period_covers_the_drain(stateful_set: dict[str, Any]) -> None:
    container = container_of(stateful_set)
    env = {entry["name"]: entry["value"] for entry in container["env"]}
    leaving_s = float(container["lifecycle"]["preStop"]["exec"]["command"][1])
    longest_s = leaving_s + float(env["CORRAL_SHUTDOWN_DRAIN_S"]) + FleetLimits().stop_grace_s + 2 * 5.0
    assert pod_of(stateful_set)["terminationGracePeriodSeconds"] >= longest_s


def test_service_named_corral_sets_no_variable_that_corral_would_read(stateful_set: dict[str, Any]) -> None:
    services = documents((FOLDER / "base" / "service.yaml").read_text(encoding="utf-8"))
    assert "corral" in {service["metadata"]["name"] for service in services}
    assert pod_of(stateful_set)["enableServiceLinks"] is False


def test_catalogue_is_sound_and_its_keys_are_mounted(stateful_set: dict[str, Any]) -> None:
    catalog = load_catalog(FOLDER / "base" / "models.yaml")
    mounts = {mount["name"]: Path(mount["mountPath"]) for mount in container_of(stateful_set)["volumeMounts"]}
    assert {key.file.parent for key in catalog.keys if key.file is not None} == {mounts["keys"]}
    assert mounts["models"] / "models.yaml" == Path(container_of(stateful_set)["args"][1])
    monitor = by_kind(documents((FOLDER / "components/monitoring/podmonitor.yaml").read_text("utf-8")), "PodMonitor")
    (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
    assert endpoint["authorization"]["credentials"]["key"] in {key.file.name for key in catalog.keys if key.file}
    (relabeling,) = endpoint["relabelings"]
    shipped = yaml.safe_load((DEPLOY / "prometheus" / "prometheus.yml").read_text(encoding="utf-8"))
    assert relabeling == {"targetLabel": "job", "replacement": shipped["scrape_configs"][0]["job_name"]}


def test_pods_are_as_restricted_as_the_namespace_demands(stateful_set: dict[str, Any]) -> None:
    namespace = by_kind(documents((FOLDER / "base" / "namespace.yaml").read_text(encoding="utf-8")), "Namespace")
    assert namespace["metadata"]["labels"]["pod-security.kubernetes.io/enforce"] == "restricted"
    pod, container = pod_of(stateful_set)["securityContext"], container_of(stateful_set)["securityContext"]
    assert (pod["runAsNonRoot"], pod["seccompProfile"]) == (True, {"type": "RuntimeDefault"})
    assert container["allowPrivilegeEscalation"] is False
    assert container["capabilities"] == {"drop": ["ALL"]}
    assert container["readOnlyRootFilesystem"] is True


def test_scaling_looks_at_the_queue_of_the_set_that_it_scales(stateful_set: dict[str, Any]) -> None:
    keda = by_kind(documents((FOLDER / "components/keda/scaledobject.yaml").read_text("utf-8")), "ScaledObject")["spec"]
    (trigger,) = keda["triggers"]
    assert trigger["type"] == "prometheus"
    assert "corral_queue_length" in trigger["metadata"]["query"]
    hpa = by_kind(
        documents((FOLDER / "components/hpa/horizontalpodautoscaler.yaml").read_text("utf-8")),
        "HorizontalPodAutoscaler",
    )["spec"]
    assert hpa["metrics"][0]["pods"]["metric"] == {"name": "corral_queue_length"}
    for target in (keda["scaleTargetRef"], hpa["scaleTargetRef"]):
        assert (target["kind"], target["name"]) == ("StatefulSet", stateful_set["metadata"]["name"])


@pytest.mark.deploy
@pytest.mark.parametrize("build", BUILDS)
def test_schemas_of_kubernetes_know_every_field(build: str, tmp_path: Path) -> None:
    built = run(tool("kubectl"), "kustomize", FOLDER / build)
    own = [document for document in documents(built) if document["kind"] not in FOREIGN_KINDS]
    path = tmp_path / "built.yaml"
    path.write_text(yaml.safe_dump_all(own), encoding="utf-8")
    told = run(tool("kubernetes-validate"), "--strict", path)
    assert told.count(" passed ") == len(own)


@pytest.mark.deploy
def test_component_for_autoscaling_by_kubernetes_itself_is_valid(tmp_path: Path) -> None:
    run(tool("kubernetes-validate"), "--strict", FOLDER / "components/hpa/horizontalpodautoscaler.yaml")


@pytest.mark.deploy
def test_components_change_what_they_are_for() -> None:
    built = documents(run(tool("kubectl"), "kustomize", FOLDER / "examples/gpu-with-keda"))
    container = container_of(by_kind(built, "StatefulSet"))
    assert container["image"].endswith(":cuda")
    assert container["resources"]["limits"] == {"memory": "8Gi", "nvidia.com/gpu": "1"}
    assert {document["kind"] for document in built} >= FOREIGN_KINDS
    assert {document["metadata"].get("namespace", "corral") for document in built} == {"corral"}
