"""Random histories of submits, aborts, stops and failing passes: every answer is the one it would be alone."""

from __future__ import annotations

import contextlib
import tempfile
import time
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from tests.fakes.backend import FakeBackend, computed_with
from tests.fakes.bench import Bench
from tests.fakes.drafts import OftenRight
from worker.contract import SlotState
from worker.engine import kv_store
from worker.engine.adapters import AdapterTurns
from worker.engine.occupants import Client
from worker.engine.prompt_files import PromptFolder
from worker.engine.request import AdapterSet, FinishReason, RequestId
from worker.engine.sequence import Sequence as TokenSequence
from worker.engine.slot_state import NoRoomInCache, NotTaken, SlotBusy, SlotCopy, SlotEmpty, SlotStates

PREFIXES = ([3, 1, 4, 1, 5, 9, 2, 6] * 5, [2, 7, 1, 8] * 8, [3, 1, 4, 1, 5, 9, 2, 6] * 2 + [7] * 20, [])
"""Prompts begin with one of these, so that sharing happens often and at several depths."""

ADAPTERS: tuple[AdapterSet, ...] = ((), (), ((0, 1.0),), ((0, 0.5),), ((0, 1.0), (2, -1.0)))


def stored_in(folder: Path, cells: dict[str, list[int]]) -> PromptFolder:
    """Return a folder in which an earlier life has left prompts: salts, and what the cells of each held."""
    writer = PromptFolder.open(folder, "m", "subject", 10**6)
    writer.prepare()
    for salt, held in cells.items():
        data = np.array(held, dtype=np.int64)
        tokens = (data % 2**20).astype(np.int32)
        writer.write(tokens, salt, data.view(np.uint8), used_at=time.time(), until_s=float("inf"))
    return PromptFolder.open(folder, "m", "subject", 10**6)


class EngineMachine(RuleBasedStateMachine):
    """Drives one core until everything has ended, then compares with one-at-a-time output."""

    def __init__(self) -> None:
        super().__init__()
        self.prompts: dict[RequestId, tuple[list[int], int, AdapterSet, int]] = {}
        self.told: set[RequestId] = set()
        self.cut_at: dict[RequestId, int] = {}
        self.gone: set[RequestId] = set()
        self.copies: list[tuple[Client, SlotCopy]] = []

    @initialize(
        slots=st.integers(1, 4),
        can_share=st.booleans(),
        scarce=st.booleans(),
        rows=st.sampled_from([1, 5, 32]),
        host_tokens=st.sampled_from([0, 70, 500]),
        max_idle_cells=st.sampled_from([None, 0, 40]),
        drafts=st.sampled_from([0, 1, 6]),
        is_stored=st.booleans(),
    )
    def start(
        self,
        slots: int,
        can_share: bool,
        scarce: bool,
        rows: int,
        host_tokens: int,
        max_idle_cells: int | None,
        drafts: int,
        is_stored: bool,
    ) -> None:
        self.folder = tempfile.TemporaryDirectory()
        tuned = [computed_with(token, ADAPTERS[2]) for token in PREFIXES[1]]
        left = {"": [*PREFIXES[0], 5], "tenant": PREFIXES[2], f"{ADAPTERS[2]}": tuned}
        prompts = stored_in(Path(self.folder.name), left if is_stored else {})
        cells = 110 if scarce else None
        backend = FakeBackend(num_slots=slots, context=96, num_cells=cells, can_share=can_share, num_vocab=40)
        self.bench = Bench(
            backend,
            max_rows=max(rows, slots),
            rows_alone=rows,
            rows_beside=max(1, rows // 2),
            host_tokens=host_tokens,
            max_idle_cells=max_idle_cells,
            drafting=OftenRight(drafts, num_vocab=40) if drafts else None,
            prompts=prompts,
        )
        self.slots = SlotStates(self.bench.core, lambda: self.bench.now_s, prompts)

    @rule(
        prefix=st.sampled_from(PREFIXES),
        tail=st.lists(st.integers(1, 39), min_size=1, max_size=12),
        max_tokens=st.integers(0, 40),
        priority=st.integers(0, 1),
        salt=st.sampled_from(["", "", "", "tenant"]),
        cache_prompt=st.sampled_from([True, True, True, False]),
        adapters=st.sampled_from(ADAPTERS),
        min_tokens=st.sampled_from([0, 0, 5, 50]),
        slot=st.sampled_from([None, None, 0, 1, 9]),
        is_told=st.booleans(),
    )
    def submit(
        self,
        prefix: list[int],
        tail: list[int],
        max_tokens: int,
        priority: int,
        salt: str,
        cache_prompt: bool,
        adapters: AdapterSet,
        min_tokens: int,
        slot: int | None,
        is_told: bool,
    ) -> None:
        prompt = [*prefix, *tail]
        max_tokens = min(max_tokens, 96 - len(prompt))
        request_id = self.bench.submit(
            prompt,
            max_tokens,
            priority=priority,
            cache_salt=salt,
            cache_prompt=cache_prompt,
            adapters=adapters,
            min_tokens=min_tokens,
            slot=slot,
            wants_progress=is_told,
            wants_timings=is_told,
        )
        self.prompts[request_id] = (prompt, max_tokens, adapters, min_tokens)
        if is_told:
            self.told.add(request_id)

    @rule(steps=st.integers(1, 12))
    def run_steps(self, steps: int) -> None:
        for _ in range(steps):
            self.bench.step()

    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        running = [i for i in self.prompts if i not in self.bench.ends and i not in self.gone]
        if running:
            request_id = data.draw(st.sampled_from(running))
            self.bench.core.abort(request_id)
            self.gone.add(request_id)

    @rule(data=st.data())
    def stop(self, data: st.DataObject) -> None:
        running = [i for i in self.prompts if i not in self.bench.ends and i not in self.gone and self.bench.answers[i]]
        if running:
            request_id = data.draw(st.sampled_from(running))
            count = data.draw(st.integers(1, len(self.bench.answers[request_id])))
            output = self.bench.core.finish(request_id, count)
            assert output is not None
            self.bench.ends[request_id] = output
            self.cut_at[request_id] = count

    @rule(code=st.sampled_from([1, 2, -2]))
    def fail_one_pass(self, code: int) -> None:
        self.bench.backend.failures = [code]
        self.bench.step()
        self.bench.backend.failures = []
        self.bench.step()

    @rule()
    def lose_the_next_blob(self) -> None:
        self.bench.backend.fails_to_restore = True
        self.bench.step()
        self.bench.backend.fails_to_restore = False

    @rule()
    def save_prompts(self) -> None:
        self.bench.core.save_prompts(float("inf"))

    @rule(slot=st.integers(0, 3), salt=st.sampled_from(["", "", "tenant"]))
    def copy_slot(self, slot: int, salt: str) -> None:
        if not self.bench.backend.can_share:
            return
        with contextlib.suppress(SlotBusy, SlotEmpty, NoRoomInCache):
            copy = self.slots.copy(slot % self.bench.backend.num_slots, Client(salt=salt))
            assert copy.cache_key.endswith(salt)
            held = np.frombuffer(copy.kv.tobytes(), dtype=np.int64) % 2**20
            assert held.tolist() == copy.tokens.tolist(), "what is in the bytes is what is told, and no token more"
            self.copies.append((Client(salt=salt), copy))

    @rule(slot=st.integers(0, 3), data=st.data(), fails=st.sampled_from([False, False, True]))
    def insert_copy(self, slot: int, data: st.DataObject, fails: bool) -> None:
        if not self.copies:
            return
        client, copy = data.draw(st.sampled_from(self.copies))
        self.bench.backend.fails_to_restore = fails
        with contextlib.suppress(SlotBusy, NoRoomInCache, NotTaken):
            self.slots.insert(slot % self.bench.backend.num_slots, client, copy)
        self.bench.backend.fails_to_restore = False

    @rule(slot=st.integers(0, 3), salt=st.sampled_from(["", "tenant"]))
    def erase_slot(self, slot: int, salt: str) -> None:
        with contextlib.suppress(SlotBusy):
            self.slots.erase(slot % self.bench.backend.num_slots, Client(salt=salt))

    @invariant()
    def books_are_right(self) -> None:
        if hasattr(self, "bench"):
            self.bench.core.check_cells()

    def teardown(self) -> None:
        if not hasattr(self, "bench"):
            return
        self.folder.cleanup()
        self.bench.run(max_steps=6000)
        for request_id, (prompt, max_tokens, adapters, min_tokens) in self.prompts.items():
            if request_id in self.gone:
                continue
            end = self.bench.ends[request_id]
            answer = self.bench.answers[request_id]
            assert end.finish in {FinishReason.STOP, FinishReason.LENGTH}, end
            expected = self.bench.expected(prompt, max_tokens, adapters, min_tokens=min_tokens)
            if request_id in self.cut_at:
                answer = answer[: self.cut_at[request_id]]
                assert answer == expected[: self.cut_at[request_id]]
            else:
                assert answer == expected
            told = self.bench.progress[request_id]
            assert bool(told) == (request_id in self.told)
            assert all(one.cached_tokens <= one.processed_tokens <= one.total_tokens == len(prompt) for one in told)
            assert not told or told[-1].processed_tokens == len(prompt)
        assert set(self.bench.states()) == {SlotState.IDLE}
        cells = self.bench.core.scheduler.kv_cells()
        self.bench.core.step()
        assert self.bench.backend.num_used() == cells["used"] == cells["idle"]
        holders = self.bench.core.scheduler.kv.cache
        assert set(self.bench.backend.blobs) == {
            holder.blob_id for holder in holders if not holder.is_resident and not holder.is_stored
        }


SETTINGS = settings(
    max_examples=100, stateful_step_count=25, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
QUICK = settings(SETTINGS, derandomize=True, database=None, phases=[Phase.generate], report_multiple_bugs=False)


def test_every_answer_is_the_one_it_would_be_alone() -> None:
    run_state_machine_as_test(EngineMachine, settings=SETTINGS)


@pytest.mark.slow
def test_the_property_test_notices_a_single_wrongly_shared_cell() -> None:
    right = kv_store.common_prefix

    def one_too_many(a: kv_store.TokenArray, b: kv_store.TokenArray) -> int:
        found = right(a, b)
        return found + 1 if 8 <= found < min(len(a), len(b)) else found

    with mock.patch("worker.engine.prefix_cache.common_prefix", one_too_many), pytest.raises(AssertionError):
        run_state_machine_as_test(EngineMachine, settings=QUICK)


@pytest.mark.slow
def test_the_property_test_notices_cells_of_other_adapters() -> None:
    salt_alone = property(lambda sequence: sequence.request.cache_salt)
    with mock.patch.object(TokenSequence, "cache_key", salt_alone), pytest.raises(AssertionError):
        run_state_machine_as_test(EngineMachine, settings=QUICK)


@pytest.mark.slow
def test_the_property_test_notices_a_pass_with_other_adapters() -> None:
    right = AdapterTurns.choose

    def everybody(self: AdapterTurns, running: list[TokenSequence], now_s: float) -> list[TokenSequence]:
        right(self, running, now_s)
        return running

    with mock.patch.object(AdapterTurns, "choose", everybody), pytest.raises(AssertionError):
        run_state_machine_as_test(EngineMachine, settings=QUICK)
