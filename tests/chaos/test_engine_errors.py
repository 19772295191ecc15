"""Every code that `llama_decode` may return: requests go on in the same worker, or in the next one."""

from __future__ import annotations

import pytest

from tests.chaos.arena import Arena
from tests.chaos.storm import IS_SHORT, rounds, storm
from tests.chaos.table import Table

pytestmark = pytest.mark.chaos


CODES = ["1", "2", "-1", "-2", "-3"] + ([] if IS_SHORT else ["late 2", "late -2", "late -3"])


@pytest.mark.parametrize("code", CODES)
async def test_pass_that_fails_once_is_made_again_by_the_same_worker(field: Arena, table: Table, code: str) -> None:
    before = field.server.worker_pids("text")
    when = ", its work done" if "late" in code else ""
    async with storm(field, table, f"llama_decode returns {code.removeprefix('late ')}{when}") as it:
        for _ in range(rounds(5, 1)):
            await it.strike(lambda: it.order("decode", code))
    assert field.server.worker_pids("text") == before


@pytest.mark.parametrize("code", ["-3"] if IS_SHORT else ["-2", "-3"])
async def test_passes_that_fail_again_and_again_end_the_worker_and_cost_no_request(
    field: Arena, table: Table, code: str
) -> None:
    before = field.server.worker_pids("text")
    async with storm(field, table, f"llama_decode returns {code}, five times") as it:
        for _ in range(rounds(3, 1)):
            await it.strike(lambda: it.order("decode", f"{code}*5"))
    assert field.server.worker_pids("text") != before
