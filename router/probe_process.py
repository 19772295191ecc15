"""One question to llama.cpp, asked in a process of its own that ends with the answer.

Owns that process: its bounds, its environment and what is said when it fails. Must not know what is asked.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
from collections.abc import Mapping, Sequence
from typing import Any, Final

from router.launch import worker_environment

_MAX_ANSWER_BYTES: Final = 2**20
_MAX_SHOWN = 300
_HAS_ENDED: Final = (BrokenPipeError, ConnectionResetError, RuntimeError)
"""What writing to a process that is gone raises; the last one is uvloop's."""


class ProbeFailed(Exception):
    """There is no answer; the message says why."""


async def ask_probe(
    request: Mapping[str, Any],
    *,
    environ: Mapping[str, str],
    timeout_s: float,
    command: Sequence[str] | None = None,
) -> dict[str, Any]:
    """Return the answer; the process is gone then, and also when this is cancelled. Raises: ProbeFailed."""
    words = list(command) if command is not None else [sys.executable, "-P", "-m", "worker.probe"]
    env = worker_environment(environ, {})
    try:
        process = await asyncio.create_subprocess_exec(
            *words,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=env,
            start_new_session=True,
            limit=_MAX_ANSWER_BYTES,
        )
    except OSError as error:
        raise ProbeFailed(f"{words[0]} cannot be started: {error}") from None
    try:
        async with asyncio.timeout(timeout_s):
            assert process.stdin is not None
            with contextlib.suppress(*_HAS_ENDED):
                process.stdin.write(json.dumps(request).encode() + b"\n")
                process.stdin.close()
            out, said = await process.communicate()
    except _HAS_ENDED:
        raise ProbeFailed("the process ended before it was asked") from None
    except TimeoutError:
        raise ProbeFailed(f"no answer within {timeout_s:.0f} s") from None
    finally:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()
    return _answer(out, said.decode("utf-8", "replace"), process.returncode)


def _answer(out: bytes, said: str, exit_code: int | None) -> dict[str, Any]:
    """Return the last line of `out` as an object. Raises: ProbeFailed with the process's last words."""
    lines = out.splitlines()
    try:
        answer = json.loads(lines[-1]) if lines else None
    except (ValueError, RecursionError):
        answer = None
    if not isinstance(answer, dict):
        words = [line.strip() for line in said.splitlines() if line.strip()]
        last = f": {words[-1][:_MAX_SHOWN]}" if words else ""
        end = (
            f"was killed by signal {-exit_code}" if exit_code is not None and exit_code < 0 else f"ended ({exit_code})"
        )
        raise ProbeFailed(f"the process {end} without an answer{last}")
    if "error" in answer:
        raise ProbeFailed(str(answer["error"])[:_MAX_SHOWN])
    return answer
