"""The server that all of this happens to: a real router over real workers whose faults can be ordered.

Owns how it is started and what is killed. Must not judge.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from tests.chaos.faulty_worker import faulty_worker_command
from tests.chaos.orders import give
from tests.support.real_server import RealServer
from tests.support.tiny_bert import write_tiny_bert
from tests.support.tiny_gguf import write_tiny_llama

PACE_S = 0.01
LOADED_WITHIN_S = 60.0
HANG_S = 4.0
"""After so long without a sign a worker hangs. Less than a default would be, more than a busy machine takes."""
SLOTS = 4
_NO_BYTECODE = {"PYTHONDONTWRITEBYTECODE": "1"}
"""Python would write it cut off where files may not grow, and stumble over it for ever."""
_ROOT = Path(__file__).resolve().parents[2]
_TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


@dataclass(frozen=True)
class Arena:
    """One running server, with a model `text` that generates and `embed` that embeds."""

    server: RealServer
    folder: Path

    @property
    def url(self) -> str:
        return self.server.url

    @property
    def router_pid(self) -> int:
        return self.server.process.pid

    def order(self, kind: str, order: str, model: str = "text") -> None:
        """The model's worker gets an order of `faulty_worker`."""
        give(self.orders(model), kind, order)

    def orders(self, model: str = "text") -> Path:
        """Return the folder of the model's orders."""
        return self.folder / "orders" / model

    def signal(self, number: int, model: str = "text") -> int:
        """The model's worker has got this signal; return its process, 0 when there was none."""
        pids = self.server.worker_pids(model)
        if not pids:
            return 0
        os.kill(pids[-1], number)
        return pids[-1]


def tiny_models(folder: Path) -> dict[str, dict[str, Any]]:
    """Return the options of both models, with their files written."""
    write_tiny_llama(folder / "text.gguf", chat_template=_TEMPLATE)
    write_tiny_bert(folder / "embed.gguf")
    models: dict[str, dict[str, Any]] = {
        "text": {"model": "./text.gguf", "slots": SLOTS, "context": 512},
        "embed": {"model": "./embed.gguf"},
    }
    here = {"idle_unload_s": 0, "device": "cpu", "threads": 1, "preload": True, "calibrate": False}
    for name in models:
        pace_s = PACE_S if name == "text" else 0.0
        env = {"CHAOS_ORDERS": str(folder / "orders" / name), "CHAOS_PACE_S": str(pace_s)} | _NO_BYTECODE
        models[name] |= here | {"hang_timeout_s": HANG_S, "env": env}
    return models


@contextmanager
def arena(
    folder: Path,
    *,
    models: Mapping[str, Mapping[str, Any]] | None = None,
    env: Mapping[str, str] | None = None,
    **top: Any,
) -> Iterator[Arena]:
    """Serve both tiny models until the end of the block. `models`: further options of each, by name."""
    described = tiny_models(folder)
    for name, options in (models or {}).items():
        described[name] |= options
    (folder / "models.yaml").write_text(yaml.safe_dump({"models": described} | top))
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("CORRAL_", "CHAOS_"))}
    own = {
        "CORRAL_LOG_FORMAT": "json",
        **_NO_BYTECODE,
        "CORRAL_CACHE": str(folder / "cache"),
        "CORRAL_WORKER_COMMAND": json.dumps(faulty_worker_command()),
        "CORRAL_STREAM_OPEN_AFTER_S": "2",
    }
    command = [sys.executable, "-m", "tests.chaos.odd_server", "serve", str(folder / "models.yaml"), "--port", "0"]
    process = subprocess.Popen(command, cwd=_ROOT, env=kept | own | dict(env or {}), stdout=subprocess.PIPE)
    server = RealServer(process)
    try:
        server.wait_ready()
        _wait_loaded(server)
        yield Arena(server, folder)
    finally:
        server.close()


def _wait_loaded(server: RealServer) -> None:
    deadline_s = time.monotonic() + LOADED_WITHIN_S
    states: list[str] = []
    while states != ["ready", "ready"]:
        assert time.monotonic() < deadline_s, f"the models are {states}"
        with urllib.request.urlopen(f"{server.url}/status", timeout=30) as reply:
            states = [model["state"] for model in json.load(reply)["models"]]
        time.sleep(0.05)
