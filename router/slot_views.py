"""How slots look to clients: one entry each, with llama-server's fields where it has them.

Owns the entry; docs/status.md explains it. Must not ask a worker: it is given what the worker has reported.
"""

from __future__ import annotations

import zlib
from typing import Any

from router.fleet_views import ResidentView
from worker.contract import SlotReport, SlotState, WorkerStatus


def slot_entries(resident: ResidentView, status: WorkerStatus | None, now_s: float) -> list[dict[str, Any]]:
    """Return one entry for each slot of a worker; none if it has not reported any.

    Units: `now_s` of the monotonic clock that all processes of one machine share.
    """
    if status is None:
        return []
    context = status.facts.context if status.facts is not None else None
    return [_slot_entry(resident, slot, context, now_s) for slot in status.slots]


def _task_number(slot: SlotReport) -> int:
    """Return a number that tells one request from the next, which is what llama-server's dashboards look at."""
    return zlib.crc32((slot.request_id or "").encode()) >> 1


def _slot_entry(resident: ResidentView, slot: SlotReport, context: int | None, now_s: float) -> dict[str, Any]:
    is_processing = slot.state is not SlotState.IDLE
    speed = None
    if is_processing and slot.first_token_at_s is not None and now_s > slot.first_token_at_s:
        speed = round((slot.generated - 1) / (now_s - slot.first_token_at_s), 2)
    return {
        "model": resident.worker.model,
        "replica": resident.worker.replica,
        "id": slot.id,
        "id_task": _task_number(slot) if is_processing else -1,
        "state": slot.state.value,
        "is_processing": is_processing,
        "request_id": slot.request_id,
        "n_ctx": context,
        "prompt_total": slot.prompt_total,
        "prompt_processed": slot.prompt_processed,
        "prompt_cached": slot.prompt_cached,
        "generated": slot.generated,
        "tokens_per_second": speed,
        "cached_tokens": slot.cached_tokens,
        "age_s": round(now_s - slot.started_at_s, 3) if is_processing and slot.started_at_s is not None else None,
    }
