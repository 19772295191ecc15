"""What the scheduler must know of a backend and of the configuration: rows, cells, memory for prompts.

Must not change anything.
"""

from __future__ import annotations

from worker.contract import EngineOptions
from worker.engine.budget import SchedulerOptions
from worker.engine.core import Backend
from worker.machine import machine_memory_bytes

CPU_ROWS = (128, 32)
GPU_ROWS = (512, 128)
"""Rows of a first pass alone and beside generating sequences; measured passes replace these guesses."""

SKIPPED_PER_READ = 4
MIN_IDLE_CELLS = 256
"""Idle cells that are never worth moving."""


def scheduler_options(backend: Backend, options: EngineOptions) -> SchedulerOptions:
    """Return what the scheduler must know of this backend."""
    rows_alone, rows_beside = GPU_ROWS if backend.facts.gpu_layers > 0 else CPU_ROWS
    return SchedulerOptions(
        num_slots=options.slots,
        context=options.context,
        num_cells=options.num_kv_cells,
        max_rows=max(2, options.slots, min(options.batch_size, options.ubatch_size)),
        rows_alone=rows_alone,
        rows_beside=rows_beside,
        end_tokens=backend.vocabulary.eog,
        host_tokens=_prompt_cache_bytes(options) // backend.bytes_per_token if backend.bytes_per_token else 0,
        max_idle_cells=_max_idle_cells(backend, skips_masked=options.flash_attn != "off"),
        target_gap_s=options.itl_target_ms / 1000 if options.itl_target_ms is not None else None,
        can_share=backend.can_share,
        is_windowed=backend.can_share and backend.window > 0,
        max_drafted_each=options.draft_max,
        max_drafted=options.max_drafted,
    )


def _prompt_cache_bytes(options: EngineOptions) -> int:
    """Return the host memory for finished prefixes: as configured, else a sixteenth of the machine's, at most 4 GiB."""
    if options.prompt_cache_bytes is not None:
        return options.prompt_cache_bytes
    return min(4 * 2**30, machine_memory_bytes() // 16)


def _max_idle_cells(backend: Backend, *, skips_masked: bool) -> int | None:
    """Return how many idle cells may stay beside running sequences.

    Every pass reads all cells as it reads all weights, so that so many add a twentieth to what it reads. With flash
    attention it only looks whether they are meant, which takes about a quarter of the time.
    """
    if not backend.bytes_per_token:
        return None
    num_cells = max(MIN_IDLE_CELLS, backend.facts.size_bytes // 20 // backend.bytes_per_token)
    return num_cells * SKIPPED_PER_READ if skips_masked else num_cells
