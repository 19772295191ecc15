"""The router's HTTP side over a `FakeSupervisor` and one scripted worker, for tests of routes and of the relay."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aiohttp.test_utils import TestClient, TestServer
from prometheus_client.parser import text_string_to_metric_families

from router.app import make_app
from router.auth import KeyRing, load_key_ring
from router.body import BodyMemory
from router.catalog import AliasSpec, Catalog, ModelSpec, RequestRules
from router.cors import Cors
from router.host_guard import HostGuard
from router.metrics import RouterMetrics
from router.reload import Parts, Reloader
from router.resuming import ResumeMemory
from router.serve import make_conversations
from router.services import Services
from router.settings import RouterSettings
from tests.fakes.supervisor import FakeSupervisor, ScriptedWorker

STARTED_AT = 1_700_000_000

CHAT = "/v1/chat/completions"


def make_spec(name: str, **options: Any) -> ModelSpec:
    return ModelSpec(name=name, source=f"{name}.gguf", base_dir=Path("/models"), **options)


def make_catalog(*specs: ModelSpec, **options: Any) -> Catalog:
    chosen = specs or (
        make_spec("smol", context=2048, aliases={"gpt": AliasSpec("gpt"), "org/smol:fast": AliasSpec("org/smol:fast")}),
        make_spec("gem", context=512, aliases={"secret": AliasSpec("secret", RequestRules(), listed=False)}),
    )
    return Catalog({spec.name: spec for spec in chosen}, **options)


@dataclass
class HttpSide:
    """Everything that one test needs to ask and to look behind."""

    client: TestClient[Any, Any]
    supervisor: FakeSupervisor
    worker: ScriptedWorker
    metrics: RouterMetrics
    body_memory: BodyMemory
    reloader: Reloader
    """Reads `models.yaml` in the folder, which is not there unless the test writes it."""
    folder: Path
    resume_memory: ResumeMemory

    def num_requests(self, **labels: str) -> float:
        """Return `corral_requests_total` summed over the series that have these labels."""
        text = self.metrics.render()[0].decode()
        return sum(
            sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
            if sample.name == "corral_requests_total" and labels.items() <= sample.labels.items()
        )


@asynccontextmanager
async def http_side(
    catalog: Catalog | None = None,
    *,
    host: str = "127.0.0.1",
    keys: Mapping[str, Any] | None = None,
    ring: KeyRing | None = None,
    allowed_hosts: tuple[str, ...] = (),
    max_body_memory: int = 2**30,
    store: Any = None,
    tracing: Any = None,
    **settings: Any,
) -> AsyncIterator[HttpSide]:
    folder = Path(tempfile.mkdtemp(prefix="corral-test-", dir="/tmp"))  # short enough for a socket's name
    worker = ScriptedWorker(folder / "w.sock")
    await worker.start()
    chosen = RouterSettings(**settings, **(keys or {}))
    ring = ring or (load_key_ring(chosen, (), {}) if keys else KeyRing())
    supervisor = FakeSupervisor(catalog or make_catalog(), [worker.socket_path])
    parts = Parts(
        supervisor=supervisor,  # type: ignore[arg-type]
        keys=ring,
        guard=HostGuard(host=host, allowed=allowed_hosts, has_keys=not ring.is_empty, cors=Cors(chosen.cors_origins)),
        body_memory=BodyMemory(max_body_memory),
        metrics=RouterMetrics(),
    )
    reloader = Reloader(folder / "models.yaml", parts, settings=chosen, environ={})
    services = Services(
        supervisor=parts.supervisor,
        settings=chosen,
        metrics=parts.metrics,
        keys=ring,
        guard=parts.guard,
        cors=Cors(chosen.cors_origins),
        body_memory=parts.body_memory,
        conversations=make_conversations(chosen),
        reloader=reloader,
        store=store,
        tracing=tracing,
        started_at=STARTED_AT,
    )
    server = TestServer(make_app(services))
    await server.start_server(auto_decompress=False)  # as `make_runner` has it
    client: TestClient[Any, Any] = TestClient(server)
    await client.start_server()
    try:
        yield HttpSide(
            client, supervisor, worker, services.metrics, services.body_memory, reloader, folder, services.resume_memory
        )
    finally:
        await reloader.close()
        await client.close()
        await supervisor.close()
        await worker.stop()
        shutil.rmtree(folder)
