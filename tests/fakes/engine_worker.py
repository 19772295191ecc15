"""A real worker - process, HTTP side, dialects, engine - over `FakeBackend` in place of llama.cpp.

Its answers follow from their prompts alone, so that an answer that went on elsewhere can be compared letter by letter.

    CORRAL_WORKER_COMMAND = json.dumps(engine_worker_command())

FAKE_PASS_S=0.005 (in a model's `env`): how long every pass takes.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from tests.fakes.backend import FakeBackend
from worker.api.speech import Speech
from worker.chat.template import ChatTemplate
from worker.contract import LaunchSpec
from worker.engine.batch import Chunk
from worker.engine.pooling import Pooling, PoolingShape
from worker.loading import Loaded

NUM_VOCAB = 997
TEMPLATE = "{% for one in messages %}{{ one.role }}: {{ one.content }}\n{% endfor %}"


def engine_worker_command() -> list[str]:
    """Return the command that starts such a worker."""
    root = str(Path(__file__).resolve().parents[2])
    code = f"import sys; sys.path.insert(0, {root!r}); from tests.fakes.engine_worker import main; main()"
    return [sys.executable, "-P", "-c", code]


KILLS = "\N{SKULL AND CROSSBONES}" * 4
"""A prompt with this ends the process as soon as it is computed."""
POISON = np.array([ord(letter) % NUM_VOCAB for letter in KILLS], dtype=np.int32).tobytes()


class NoPooling:
    """The pooled context of a model of which nobody wants a vector."""

    shape = PoolingShape(Pooling.LAST, 1, 128, 128, 128, 8, is_divisible=True)


class PacedBackend(FakeBackend):
    """Takes its time for every pass; has what a worker asks of a backend beside an engine."""

    pooled = NoPooling()
    device_bytes: ClassVar[dict[str, dict[str, int]]] = {}
    private_bytes = 0
    pass_s = float(os.environ.get("FAKE_PASS_S", "0.005"))

    def forward(self, chunks: Sequence[Chunk]) -> npt.NDArray[np.float32]:
        time.sleep(self.pass_s)
        if any(POISON in chunk.tokens.tobytes() for chunk in chunks):
            os.kill(os.getpid(), signal.SIGSEGV)
        return super().forward(chunks)


def load(spec: LaunchSpec, on_progress: Callable[[float], bool]) -> Loaded:
    """Stand in for `worker.loading.load`."""
    on_progress(1.0)
    options = spec.engine
    backend = PacedBackend(num_vocab=NUM_VOCAB, num_slots=options.slots, context=options.context)
    template = ChatTemplate(TEMPLATE, bos_text="", eos_text="", control_texts=())
    return Loaded(backend, None, template, None, TEMPLATE, Speech(), {"read": 0.0}, None, identity="fake")  # type: ignore[arg-type]


def main() -> None:
    """Live as a worker."""
    import worker.life
    from worker.__main__ import main as live

    worker.life.load = load
    live()
