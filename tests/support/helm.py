"""Helm as a library, and what it makes of a chart. No cluster: a stand-in for its API ends the installation in time.

The library of the package helm-sdkpy is Helm itself. The package wants a newer Python than we do, but only for its
wrapper: what it wraps is called here directly.
"""

from __future__ import annotations

import base64
import ctypes
import functools
import gzip
import json
import re
import subprocess
import sys
import threading
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from tests.support.deploy_files import documents

_PACKAGE = "helm-sdkpy==0.1.32"
_RESOURCES = {
    "v1": {"ConfigMap": "configmaps", "Secret": "secrets", "Service": "services"},
    "apps/v1": {"StatefulSet": "statefulsets"},
    "autoscaling/v2": {"HorizontalPodAutoscaler": "horizontalpodautoscalers"},
    "keda.sh/v1alpha1": {"ScaledObject": "scaledobjects"},
    "monitoring.coreos.com/v1": {"PodMonitor": "podmonitors"},
    "networking.k8s.io/v1": {"Ingress": "ingresses"},
    "policy/v1": {"PodDisruptionBudget": "poddisruptionbudgets"},
}
"""What the stand-in's cluster knows."""


class HelmFailed(Exception):
    """Helm has refused the chart or its values."""


def lint(chart: Path, folder: Path) -> None:
    """Helm finds no fault in the chart, its templates and its own values. Raises: HelmFailed."""
    with _configured(folder, port=1) as (library, handle):
        out = ctypes.c_char_p()
        if library.helm_sdkpy_lint(handle, str(chart).encode(), ctypes.byref(out)) != 0:
            raise HelmFailed(library.helm_sdkpy_last_error().decode())
        told = json.loads(out.value or b"{}")
        worst = max((message["Severity"] for message in told["Messages"] or []), default=0)
        if told["Errors"] or worst > 1:  # 1 = the chart has no icon
            raise HelmFailed(str(told))


def render(chart: Path, folder: Path, values: dict[str, Any]) -> list[dict[str, Any]]:
    """Return what the chart makes with `values` on top of its own. Raises: HelmFailed."""
    with _cluster() as (port, releases), _configured(folder, port) as (library, handle):
        options = json.dumps({"disable_openapi_validation": True, "timeout_seconds": 10}).encode()
        arguments = (b"corral", str(chart).encode(), json.dumps(values).encode(), b"", options)
        library.helm_sdkpy_install(handle, *arguments, ctypes.byref(ctypes.c_char_p()))
        if not releases:
            raise HelmFailed(library.helm_sdkpy_last_error().decode())
        return documents(releases[0]["manifest"])


@functools.cache
def _library() -> Any:
    folder = Path(sys.prefix) / "helm"
    path = folder / "helm_sdkpy" / "_lib" / "linux-amd64" / "libhelm_sdkpy.so"
    if not path.exists():
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:"]
        subprocess.run([*pip, "--python-version=3.12", "--dest", str(folder), _PACKAGE], check=True, timeout=300)
        (wheel,) = folder.glob("*.whl")
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(folder)
        wheel.unlink()
    library = ctypes.CDLL(str(path))
    library.helm_sdkpy_last_error.restype = ctypes.c_char_p
    return library


@contextmanager
def _configured(folder: Path, port: int) -> Iterator[tuple[Any, ctypes.c_ulonglong]]:
    kubeconfig = folder / f"kubeconfig-{port}"
    there = {"cluster": {"server": f"http://127.0.0.1:{port}"}, "name": "here"}
    context = {"context": {"cluster": "here", "user": "me"}, "name": "here"}
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [there],
        "contexts": [context],
        "current-context": "here",
    }
    kubeconfig.write_text(json.dumps(config | {"users": [{"name": "me", "user": {}}]}), encoding="utf-8")
    library, handle = _library(), ctypes.c_ulonglong()
    code = library.helm_sdkpy_config_create(b"corral", str(kubeconfig).encode(), b"", b"{}", ctypes.byref(handle))
    assert code == 0, library.helm_sdkpy_last_error()
    try:
        yield library, handle
    finally:
        library.helm_sdkpy_config_destroy(handle)


@contextmanager
def _cluster() -> Iterator[tuple[int, list[dict[str, Any]]]]:
    """Run the stand-in; Helm's releases appear in the list, whose first one it refuses to keep."""
    releases: list[dict[str, Any]] = []
    handler = type("Handler", (_Handler,), {"releases": releases})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield server.server_address[1], releases
        finally:
            server.shutdown()
            thread.join()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    releases: list[dict[str, Any]]

    def do_GET(self) -> None:
        path = self.path.split("?")[0]
        if path == "/version":
            self._answer({"major": "1", "minor": "33", "gitVersion": "v1.33.0"})
        elif path == "/api":
            self._answer({"kind": "APIVersions", "versions": ["v1"]})
        elif path == "/apis":
            versions = [(name.split("/")[0], {"groupVersion": name, "version": name.split("/")[1]}) for name in _GROUPS]
            groups = [{"name": name, "versions": [version], "preferredVersion": version} for name, version in versions]
            self._answer({"kind": "APIGroupList", "apiVersion": "v1", "groups": groups})
        elif (group := path.removeprefix("/apis/").removeprefix("/api/")) in _RESOURCES:
            self._answer({"kind": "APIResourceList", "groupVersion": group, "resources": _listed(_RESOURCES[group])})
        elif path.endswith("/secrets"):
            self._answer({"kind": "SecretList", "apiVersion": "v1", "metadata": {}, "items": []})
        else:
            self._refuse(404, "NotFound")

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if packed := re.search(rb"H4sI[A-Za-z0-9+/=]+", body):
            self.releases.append(json.loads(gzip.decompress(base64.b64decode(packed.group()))))
        self._refuse(403, "Forbidden")

    def _refuse(self, code: int, reason: str) -> None:
        status = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": reason, "code": code}
        self._answer(status, code)

    def _answer(self, told: dict[str, Any], code: int = 200) -> None:
        body = json.dumps(told).encode()
        self.send_response(code)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Nothing is logged."""


_GROUPS = [name for name in _RESOURCES if "/" in name]


def _listed(kinds: dict[str, str]) -> list[dict[str, Any]]:
    verbs = ["create", "delete", "get", "list", "patch", "update"]
    return [{"name": name, "kind": kind, "namespaced": True, "verbs": verbs} for kind, name in kinds.items()]
