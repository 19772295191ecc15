"""Reproducible requests: a core of their own, with one slot on a context that they share with nobody.

Which rows share a pass, where a prompt is cut and which cells it lies in all change the last digits of logits. So
these requests run one after another, in equal passes from position 0, on cells that start out as if new. Made by
the first such request, because it takes memory. Must not know the slots of all other requests.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace

from worker.contract import EngineOptions, SlotReport
from worker.engine.budget import SchedulerOptions
from worker.engine.core import Backend, EngineCore
from worker.engine.errors import LoadFailed
from worker.engine.request import FinishReason, GenerationRequest, Output, RequestId
from worker.engine.rule_work import Beside, at_once

log = logging.getLogger(__name__)

CPU_ROWS = 32
"""Prompt rows of a pass. On a CPU small passes cost little, and others wait for them."""
GPU_ROWS = 256


class Lane:
    """The core for reproducible requests, as soon as there was one."""

    def __init__(
        self,
        main: Backend,
        options: EngineOptions,
        *,
        clock: Callable[[], float],
        check_cells: bool = False,
        beside: Beside = at_once,
    ) -> None:
        self.core: EngineCore | None = None
        self._main = main
        self._options = lane_options(main, options)
        self._clock = clock
        self._check_cells = check_cells
        self._beside = beside

    def submit(self, request_id: RequestId, request: GenerationRequest, num_threads: int) -> Output | None:
        """Queue the request; its end as an output if there is no memory for a context."""
        if self.core is None:
            try:
                backend = self._main.lone(self._options.max_rows)
            except (LoadFailed, MemoryError) as error:
                log.warning("no context for reproducible requests: %s", error)
                reason = (
                    f"there is no context for reproducible requests: {str(error) or 'not enough memory'}; "
                    "ask without `reproducible`, or give the model a smaller `context`"
                )
                return Output(request_id, finish=FinishReason.ERROR, error=reason)
            backend.set_threads(num_threads)
            self.core = EngineCore(
                backend, self._options, clock=self._clock, check_cells=self._check_cells, beside=self._beside
            )
        self.core.submit(request_id, replace(request, cache_prompt=False))
        return None

    def reports(self, slot_id: int) -> tuple[SlotReport, ...]:
        """Return its slot under `slot_id`, none before the first request. May be called from another thread."""
        core = self.core
        return () if core is None else tuple(replace(report, id=slot_id) for report in core.scheduler.reports())

    def close(self) -> None:
        """Free the context."""
        if self.core is not None:
            self.core.backend.close()


def lane_options(main: Backend, options: EngineOptions) -> SchedulerOptions:
    """Return options under which nothing is kept, guessed or adapted to what passes cost; with one slot nothing is
    shared either."""
    rows = GPU_ROWS if main.facts.gpu_layers > 0 else CPU_ROWS
    rows = max(2, min(rows, options.batch_size, options.ubatch_size))
    return SchedulerOptions(
        num_slots=1,
        context=options.context,
        num_cells=options.context,
        max_rows=rows,
        rows_alone=rows,
        rows_beside=rows,
        fixed_rows=rows,
        end_tokens=main.vocabulary.eog,
        can_share=main.can_share,
        first_slot=options.slots,
    )
