"""Entry of a process that asks llama.cpp one question and ends: `python -P -m worker.probe`.

The question is a JSON object on stdin, the answer one line of JSON on stdout. The router asks so, because it must not
load llama.cpp itself. Must not keep anything: whatever the question does to the process, it ends.

    {"ask": "devices"}                                            -> {"devices": [...]}
    {"ask": "build"}                                              -> {"version": …, "backends": [...], …}
    {"ask": "footprint", "model_path": …, "engine": {…}, "draft_model_path": …, "gpu": …}  -> {"cpu": {…}, "gpu": {…}}
    anything that fails                                           -> {"error": "…"}
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import sys
from collections.abc import Mapping
from typing import Any

from worker.contract import EngineOptions, LoraFile
from worker.contract.records import record
from worker.engine.errors import EngineError
from worker.lifeline import die_with_parent
from worker.rights import give_up_privileges

_NICE = 10
_MAX_QUESTION_BYTES = 2**20


def main() -> int:
    """The answer is on stdout; the exit code is 0 even when it is an error."""
    die_with_parent()
    give_up_privileges()
    with contextlib.suppress(OSError, AttributeError):
        os.nice(_NICE)
    answers = os.dup(1)
    os.dup2(2, 1)  # what libraries print must not end up in the answer
    try:
        answer = _answer(json.loads(sys.stdin.buffer.readline(_MAX_QUESTION_BYTES)))
    except (EngineError, ValueError, KeyError, TypeError, OSError, MemoryError) as error:
        answer = {"error": str(error) or repr(error)}
    os.write(answers, json.dumps(answer).encode() + b"\n")
    return 0


def _answer(question: Any) -> Mapping[str, Any]:
    """Return what is asked for. Raises: ValueError for anything else; LoadFailed."""
    if not isinstance(question, dict):
        raise ValueError("a JSON object is expected")
    match question.get("ask"):
        case "devices":
            return {"devices": _devices()}
        case "build":
            return _build()
        case "footprint":
            return _footprint(question)
        case other:
            raise ValueError(f"unknown question {other!r}")


def _devices() -> list[dict[str, Any]]:
    from worker.engine.llama_params import describe_devices

    return [dataclasses.asdict(device) for device in describe_devices()]


def _build() -> dict[str, Any]:
    from worker.engine.llama_build import describe_build

    return dataclasses.asdict(describe_build())


def _footprint(question: Mapping[str, Any]) -> dict[str, Any]:
    """Return plans with everything on the CPU, and with everything on the GPU that is named, if one is."""
    from worker.engine.llama_plan import plan
    from worker.engine.llama_probe import library_version

    options = _options(question["engine"])
    gpu = question.get("gpu")
    places = {"cpu": dataclasses.replace(options, device="cpu", gpu_layers=0)}
    if gpu is not None:
        places["gpu"] = dataclasses.replace(options, device=str(gpu), gpu_layers=-1, tensor_split=())
    draft_path = question.get("draft_model_path")
    answer: dict[str, Any] = {"library": library_version()}
    for name, placed in places.items():
        answer[name] = dataclasses.asdict(plan(question["model_path"], placed))
        if draft_path is not None:
            answer[name]["draft"] = dataclasses.asdict(plan(draft_path, placed, is_draft=True))
    return answer


def _options(raw: Any) -> EngineOptions:
    """Return the options, as in a launch spec. Raises: ValueError."""
    if not isinstance(raw, dict):
        raise ValueError("`engine` must be a JSON object")
    return record(
        EngineOptions,
        raw
        | {
            "tensor_split": tuple(raw.get("tensor_split", ())),
            "loras": tuple(record(LoraFile, one) for one in raw.get("loras", ())),
        },
    )


if __name__ == "__main__":
    sys.exit(main())
