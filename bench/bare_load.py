"""llama.cpp alone: loads a model, makes a context and computes one token. The least that a first token can take.

python -m bench.bare_load FILE CELLS SLOTS THREADS     prints the seconds from the process's start to its token
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from pathlib import Path

import psutil


async def bare_load_s(path: Path, cells: int, slots: int, threads: int, environment: dict[str, str]) -> float:
    """Return the seconds from the start of a process to its first token. Raises: RuntimeError."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "bench.bare_load", str(path), str(cells), str(slots), str(threads)),
        cwd=Path(__file__).parents[1],
        env=environment,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, err = await process.communicate()
    if process.returncode:
        raise RuntimeError(f"the bare load failed: {err.decode(errors='replace')[-300:]}")
    return float(out.split()[-1])


def main(file: str, cells: int, slots: int, threads: int) -> None:
    """Load, compute, print; the process ends without freeing anything."""
    from llama_cpp import llama_cpp as lib  # what the import takes counts

    silent = lib.llama_log_callback(lambda *_: None)
    lib.llama_log_set(silent, None)
    lib.llama_backend_init()
    model = lib.llama_model_load_from_file(file.encode(), lib.llama_model_default_params())
    params = lib.llama_context_default_params()
    params.n_ctx, params.n_seq_max = cells, slots
    params.n_threads = params.n_threads_batch = threads
    context = lib.llama_init_from_model(model, params)
    if not model or not context:
        sys.exit("llama.cpp could not load the model or make its context")
    token = (lib.llama_token * 1)(1)
    if lib.llama_decode(context, lib.llama_batch_get_one(token, 1)) != 0 or not lib.llama_get_logits(context):
        sys.exit("llama.cpp could not compute a token")
    print(time.time() - psutil.Process().create_time(), flush=True)
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:5]))
