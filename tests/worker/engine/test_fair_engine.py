"""One key's long prompts, floods and costly grammars beside another key's answer: what the other notices is bounded.

The clock is the test's own: a pass takes a fixed time and more for each row, so that gaps are exact.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import pytest

from tests.fakes.backend import FakeBackend
from tests.fakes.bench import Bench, prompt_of
from worker.engine.batch import Chunk
from worker.engine.budget import MAX_GAP_S, MIN_GAP_S, MIN_ROWS_BESIDE
from worker.engine.constraint import Allowed
from worker.engine.core import EngineCore
from worker.engine.request import FinishReason, Output, RequestId
from worker.engine.rule_work import PATIENCE_S

VOCAB = 100_000
ROUNDING_S = 1e-6


class TimedBackend(FakeBackend):
    """Passes take their time on a clock of its own."""

    def __init__(self, row_s: float, num_cells: int | None = None) -> None:
        super().__init__(num_vocab=VOCAB, num_slots=4, context=2048, num_cells=num_cells)
        self.row_s = row_s
        self.now_s = 0.0
        self.rule_s = 0.0
        """Work of constraints that is under way."""

    def forward(self, chunks: Sequence[Chunk]) -> npt.NDArray[np.float32]:
        self.now_s += 0.01 + self.row_s * sum(len(chunk.tokens) for chunk in chunks)
        return super().forward(chunks)

    def beside(self, work: Callable[[], None]) -> Callable[[], None]:
        """Do the work beside a pass, as another thread would: it is waited for, but not for long."""
        self.rule_s = 0.0
        work()
        took_s = self.rule_s

        def wait() -> None:
            self.now_s += min(took_s, PATIENCE_S)
            if took_s > PATIENCE_S:
                raise TimeoutError

        return wait


class TimedBench(Bench):
    """A driver whose time is the backend's, and that notes when which answer has got tokens."""

    def __init__(self, row_s: float = 0.002, num_cells: int | None = None) -> None:
        self.timed = TimedBackend(row_s, num_cells)
        super().__init__(self.timed, max_rows=512, rows_beside=32)
        self.core = EngineCore(
            self.timed, self.core.scheduler.options, clock=lambda: self.timed.now_s, beside=self.timed.beside
        )
        self.token_times_s: dict[int, list[float]] = {}

    def step(self) -> list[Output]:
        outputs = super().step()
        for output in outputs:
            if output.tokens:
                self.token_times_s.setdefault(output.request_id, []).append(self.timed.now_s)
        return outputs

    def longest_gap_s(self, request_id: RequestId) -> float:
        """Return the longest time between two tokens of the answer."""
        return max(self.gaps_s(request_id))

    def gaps_s(self, request_id: RequestId) -> list[float]:
        """Return the times between two tokens of the answer."""
        return [later - earlier for earlier, later in pairwise(self.token_times_s[request_id])]

    def running_keys(self) -> list[str]:
        """Return whose the sequences are that have slots."""
        return sorted(sequence.request.key for sequence in self.core.scheduler.slots.running)

    def answering(self, key: str, num_tokens: int = 300, **fields: object) -> RequestId:
        """Return a request of the key that generates now."""
        request_id = self.submit(prompt_of(5), num_tokens, key=key, **fields)
        while not self.answers[request_id]:
            self.step()
        return request_id


def long_prompt(start: int, length: int = 1000) -> list[int]:
    return [1000 * start + number for number in range(length)]


def test_a_long_prompt_of_another_key_leaves_a_token_in_every_step_and_gaps_within_the_target() -> None:
    bench = TimedBench()
    mine = bench.answering("mine")
    other = bench.submit(long_prompt(1), 1, key="other")
    while other not in bench.ends:
        before = len(bench.answers[mine])
        bench.step()
        assert len(bench.answers[mine]) == before + 1, "it rides in every pass"
    assert bench.longest_gap_s(mine) <= MIN_GAP_S + ROUNDING_S, "five usual gaps of 12 ms are less than the least bound"
    assert len(bench.backend.passes) > 8, "the prompt has come in pieces"


def test_a_flood_of_long_prompts_of_another_key_keeps_the_gaps_within_the_target_as_well() -> None:
    bench = TimedBench()
    mine = bench.answering("mine")
    for number in range(1, 9):
        bench.submit(long_prompt(number), 20, key="other")
    while mine not in bench.ends:
        bench.step()
    assert bench.longest_gap_s(mine) <= MIN_GAP_S + ROUNDING_S


def test_a_request_may_ask_for_shorter_gaps() -> None:
    bench = TimedBench()
    mine = bench.answering("mine", itl_target_ms=60.0)
    for number in range(1, 4):
        bench.submit(long_prompt(number), 20, key="other")
    while mine not in bench.ends:
        bench.step()
    assert bench.longest_gap_s(mine) <= 0.06 + ROUNDING_S


def test_on_a_machine_too_slow_for_the_target_a_step_has_a_few_rows_of_prompts_and_no_more() -> None:
    bench = TimedBench(row_s=0.2)
    mine = bench.answering("mine", num_tokens=40)
    bench.submit(long_prompt(1), 1, key="other")
    for _ in range(40):  # the very first pass beside it is a guess
        bench.step()
        if mine in bench.ends:
            break
    usual_s = 0.01 + 0.2
    assert max(bench.gaps_s(mine)[3:]) <= max(MAX_GAP_S, usual_s + MIN_ROWS_BESIDE * 0.2) + ROUNDING_S


class Costly:
    """A constraint that allows everything, and takes long to say so from the third token of the answer on."""

    def __init__(self, timed: TimedBackend, took_s: float) -> None:
        self._timed = timed
        self._took_s = took_s
        self._num_taken = 0

    def allowed(self, drafts: Sequence[int]) -> list[Allowed]:
        self._timed.rule_s += self._took_s if self._num_taken >= 2 else 0.0
        return [None for _ in range(len(drafts) + 1)]

    def accept(self, token: int) -> None:
        self._num_taken += 1

    def rollback(self, num_tokens: int) -> None:
        self._num_taken -= num_tokens

    def forced(self, most: int) -> list[int]:
        return []

    def num_allowed(self, tokens: Sequence[int]) -> int:
        return len(tokens)

    @property
    def is_over(self) -> bool:
        return False


@pytest.mark.parametrize(("took_s", "is_given_up"), [(0.3, False), (0.6, True), (60.0, True)])
def test_a_heavy_grammar_of_another_key_costs_one_bounded_wait_a_step_or_its_own_answer(
    took_s: float, is_given_up: bool
) -> None:
    bench = TimedBench()
    mine = bench.answering("mine", num_tokens=60)
    other = bench.submit(prompt_of(5, start=2), 10, key="other", constraint=lambda: Costly(bench.timed, took_s))
    while mine not in bench.ends:
        bench.step()
    assert (bench.ends[other].finish is FinishReason.ERROR) == is_given_up
    assert bench.longest_gap_s(mine) <= MIN_GAP_S + PATIENCE_S + ROUNDING_S
    late = [gap_s for gap_s in bench.gaps_s(mine) if gap_s > MIN_GAP_S + ROUNDING_S]
    assert len(late) == (1 if is_given_up else 8), "what takes too long is not tried again"


def test_the_next_free_slot_goes_to_the_key_that_has_the_fewest_whoever_waits_longer() -> None:
    bench = TimedBench()
    for number in range(8):
        bench.submit(prompt_of(5, start=number), 10 + 5 * number, key="flood")
    bench.step()
    bench.submit(prompt_of(5, start=20), 30, key="mine")
    while not bench.ends:
        bench.step()
    bench.step()
    assert bench.running_keys() == ["flood", "flood", "flood", "mine"]


def test_slots_are_shared_evenly_between_keys_that_wait() -> None:
    bench = TimedBench()
    for key in ("a", "b"):
        for number in range(4):
            bench.submit(prompt_of(5, start=number + 10 * ord(key)), 50, key=key)
    bench.step()
    assert bench.running_keys() == ["a", "a", "b", "b"]


def test_priority_goes_before_the_share_of_a_key_and_age_decides_where_there_are_no_keys() -> None:
    bench = TimedBench()
    for number in range(4):
        bench.submit(prompt_of(5, start=number), 5, key="flood", priority=1)
    bench.submit(prompt_of(5, start=30), 5, key="other")
    bench.step()
    assert bench.running_keys() == ["flood"] * 4
    plain = TimedBench()
    ids = [plain.submit(prompt_of(5, start=number), 5) for number in range(9)]
    plain.run()
    assert list(plain.ends) == ids


def test_the_second_prompt_of_a_key_does_not_go_before_the_first_of_another_one() -> None:
    bench = TimedBench()
    first, second = (bench.submit(long_prompt(number, 300 + 10 * number), 1, key="flood") for number in (1, 2))
    mine = bench.submit(long_prompt(3, 400), 1, key="mine")
    bench.run()
    assert list(bench.ends) == [first, mine, second], "by length alone it would be the last one"


def test_who_makes_room_in_a_full_cache_is_of_the_key_that_holds_most_of_it() -> None:
    bench = TimedBench(num_cells=2400)
    for number in range(1, 4):
        bench.submit(long_prompt(number, 400), 500, key="flood")
    bench.step()
    mine = bench.submit(long_prompt(9, 100), 400, key="mine")
    while mine not in bench.ends:
        bench.step()
        assert not bench.answers[mine] or mine in bench.ends or "mine" in bench.running_keys()
    assert bench.core.scheduler.num_parked > 0, "there was no room for all of them"
    bench.run(max_steps=5000)
    assert all(end.finish is FinishReason.LENGTH for end in bench.ends.values())
