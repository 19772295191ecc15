"""One real server for all client programs, and what became of the checks of each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from gguf.constants import PoolingType

from tests.clients.running import KEY, Outcomes, Program, run
from tests.support.minilm import minilm_path
from tests.support.models import qwen_coder_path, smollm2_path
from tests.support.real_server import RealServer, real_server
from tests.support.tiny_bert import write_tiny_bert
from tests.support.tiny_gguf import write_not_gguf, write_tiny_llama

COLD_S = 5
CHATML = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealServer]:
    """A server whose only key is `KEY`, with the models that `programs/checking.py` names, none loaded."""
    folder: Path = tmp_path_factory.mktemp("clients")
    smol = {
        "model": str(smollm2_path()),
        "device": "cpu",
        "threads": 2,
        "slots": 4,
        "context": 2048,
        "idle_unload_s": 0,
        "aliases": {
            "gpt-4o-mini": {},
            "org/smol:fast": {},
            "claude-haiku-4-5": {},
            "smollm2:135m": {},
            "smol-exact": {"listed": False, "request": {"defaults": {"reproducible": True, "seed": 1}}},
        },
    }
    mini = {
        "model": str(minilm_path()),
        "device": "cpu",
        "threads": 2,
        "aliases": ["text-embedding-3-small", "all-minilm:l6-v2"],
    }
    coder = {
        "model": str(qwen_coder_path()),
        "device": "cpu",
        "threads": 2,
        "slots": 4,
        "context": 4096,
        "idle_unload_s": 0,
        "aliases": {
            "claude-coder": {},
            "qwen2.5-coder:0.5b": {},
            "coder-exact": {"listed": False, "request": {"defaults": {"reproducible": True, "seed": 1}}},
        },
    }
    tiny = {"model": str(write_tiny_llama(folder / "tiny.gguf", vocab="bpe", chat_template=CHATML).path)}
    cold = tiny | {"hooks": {"before_load": ["sleep", str(COLD_S)]}}
    # It may take this long for an answer that takes far longer: what a stream is like that breaks off.
    hasty = smol | {"slots": 1, "aliases": {}, "idle_unload_s": 20, "request_timeout_s": 3}
    ranker = {"model": str(write_tiny_bert(folder / "ranker.gguf", pooling=PoolingType.RANK).path)}
    write_not_gguf(folder / "broken.gguf")
    models: dict[str, dict[str, Any]] = {
        "smol": smol,
        "coder": coder,
        "hasty": hasty,
        "mini": mini,
        "ranker": ranker,
        "tiny": tiny,
        "cold-openai": cold,
        "cold-openai-stream": cold,
        "cold-anthropic": cold,
        "cold-anthropic-stream": cold,
        "cold-ollama": cold,
        "broken": {"model": "./broken.gguf"},
    }
    # Streams open early and are pinged often, so that every client meets that.
    settings = {"CORRAL_API_KEYS": KEY, "CORRAL_STREAM_OPEN_AFTER_S": "1", "CORRAL_PING_INTERVAL_S": "1"}
    with real_server(folder, models, env=settings) as started:
        yield started


@pytest.fixture(scope="session")
def outcomes(server: RealServer, tmp_path_factory: pytest.TempPathFactory) -> Outcomes:
    """Runs a program when the first of its checks is asked for, and remembers the rest."""
    known: dict[Program, Mapping[str, Any]] = {}

    def outcomes_of(program: Program) -> Mapping[str, Any]:
        if program not in known:
            known[program] = run(program, server.url, tmp_path_factory.mktemp(program.path.stem))
        return known[program]

    return outcomes_of
