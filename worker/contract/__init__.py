"""All that the router knows of a worker: launch spec, request headers, reply frames, status lines, exit codes.

Owns the wire formats between the two processes. Must not do any I/O, read a clock or know what a model is:
both sides import it, and the router may import nothing else of `worker`.

Three channels join a router to each worker:

- stdin: the first line is a `LaunchSpec`, later lines are `Control`s; end of file means "exit now".
- a Unix socket: plain HTTP whose reply bodies are frames (`encode_frame`, `FrameDecoder`).
- a status pipe: one JSON `WorkerStatus` a line, at every transition and at least once a second.
"""

from worker.contract.billing import BILLING_HEADER, without_billing_header
from worker.contract.frames import (
    FRAMES_CONTENT_TYPE,
    MAX_FRAME_BYTES,
    ErrorPayload,
    Frame,
    FrameDecoder,
    FrameType,
    FramingError,
    Header,
    encode_frame,
)
from worker.contract.launch import (
    PROTOCOL,
    SPARE_ARGUMENT,
    WRITES_ARGUMENT,
    Control,
    ControlOp,
    EngineOptions,
    ExitCode,
    LaunchSpec,
    LoraFile,
    default_max_leases,
)
from worker.contract.status import (
    EngineCounters,
    Histogram,
    ModelFacts,
    Phase,
    SlotReport,
    SlotState,
    WorkerStatus,
)

__all__ = [
    "BILLING_HEADER",
    "FRAMES_CONTENT_TYPE",
    "MAX_FRAME_BYTES",
    "PROTOCOL",
    "SPARE_ARGUMENT",
    "WRITES_ARGUMENT",
    "Control",
    "ControlOp",
    "EngineCounters",
    "EngineOptions",
    "ErrorPayload",
    "ExitCode",
    "Frame",
    "FrameDecoder",
    "FrameType",
    "FramingError",
    "Header",
    "Histogram",
    "LaunchSpec",
    "LoraFile",
    "ModelFacts",
    "Phase",
    "SlotReport",
    "SlotState",
    "WorkerStatus",
    "default_max_leases",
    "encode_frame",
    "without_billing_header",
]
