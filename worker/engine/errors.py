"""What can go wrong below the engine, as types.

    EngineError
    ├── LoadFailed
    │   ├── BadModel          the file or the options must change
    │   │   └── NoKvCache     it cannot generate
    │   └── OutOfMemory       weights or KV did not fit
    ├── EngineStopped         submitted after the end
    └── ForwardError          a llama_decode return code
        ├── KvCacheFull        1: no free cells, nothing changed
        ├── ForwardAborted     2: the abort flag was set, the pass is rolled back
        ├── InvalidBatch      -1: refused before anything changed
        └── BackendFailed    < -1: allocation or compute failed, earlier rows may stay

Source: llama.h, llama_decode. Must not know requests or HTTP.
"""

from __future__ import annotations


class EngineError(Exception):
    """Root of the engine's errors."""


class LoadFailed(EngineError):
    """The model could not be loaded; `str()` carries llama.cpp's own reason."""


class BadModel(LoadFailed):
    """Loading again will not help until the file or the options change."""


class NoKvCache(BadModel):
    """The model keeps nothing between passes, so it cannot generate text."""


class OutOfMemory(LoadFailed):
    """Weights or KV cache did not fit; may work later or with smaller options."""


class EngineStopped(EngineError):
    """The engine takes no more requests."""


class ForwardError(EngineError):
    """A forward pass was refused or failed."""

    code: int = 0


class KvCacheFull(ForwardError):
    """No cells for the rows of this pass; nothing changed."""

    code = 1


class ForwardAborted(ForwardError):
    """The pass was aborted; its rows are rolled back."""

    code = 2


class InvalidBatch(ForwardError):
    """llama.cpp refused the batch before doing anything: one of its rows is wrong."""

    code = -1


class BackendFailed(ForwardError):
    """Allocation or computation failed; what earlier micro-batches stored stays."""

    def __init__(self, code: int) -> None:
        super().__init__(f"llama_decode failed with code {code}")
        self.code = code
