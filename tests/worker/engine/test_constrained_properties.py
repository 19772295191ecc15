"""Random histories of constrained requests: each answer is the one that its rule and the model give it alone."""

from __future__ import annotations

import math
from dataclasses import dataclass
from unittest import mock

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from tests.fakes.backend import END, FakeBackend
from tests.fakes.bench import GREEDY, Bench
from tests.fakes.drafts import OftenRight
from tests.fakes.rules import Law, lawful_answer
from worker.engine.drafting import Drafting
from worker.engine.request import FinishReason, RequestId
from worker.engine.rule_follower import RuleFollower
from worker.engine.sampling_candidates import Candidates

NUM_VOCAB = 24
CONTEXT = 96
PROMPTS = ([3, 1, 4, 1, 5, 9, 2, 6] * 5, [2, 7, 1, 8] * 6, [7, 7, 7])


@dataclass(frozen=True)
class Asked:
    """One request and what it must bring."""

    answer: list[int]
    finish: FinishReason


class ConstrainedMachine(RuleBasedStateMachine):
    """Drives one core until everything has ended, then compares with one-at-a-time output."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: dict[RequestId, Asked] = {}
        self.gone: set[RequestId] = set()

    @initialize(
        slots=st.integers(1, 3),
        can_share=st.booleans(),
        scarce=st.booleans(),
        rows=st.sampled_from([1, 5, 32]),
        host_tokens=st.sampled_from([0, 300]),
        drafts=st.sampled_from([None, "guessed", "own"]),
    )
    def start(self, slots: int, can_share: bool, scarce: bool, rows: int, host_tokens: int, drafts: str | None) -> None:
        backend = FakeBackend(
            num_slots=slots,
            context=CONTEXT,
            num_cells=110 if scarce else None,
            can_share=can_share,
            num_vocab=NUM_VOCAB,
        )
        drafting = {None: None, "guessed": OftenRight(5, NUM_VOCAB), "own": Drafting(6, 18)}[drafts]
        self.bench = Bench(
            backend,
            drafting,
            max_rows=max(rows, slots),
            rows_alone=rows,
            rows_beside=max(1, rows // 2),
            host_tokens=host_tokens,
            max_drafted_each=6,
            max_drafted=18,
        )

    @rule(
        prompt=st.sampled_from(PROMPTS),
        seed=st.integers(0, 30),
        max_tokens=st.sampled_from([1, 2, 7, 30, 30, 90]),
        over_at=st.sampled_from([None, None, 1, 2, 7, 12, 30]),
        fails_at=st.sampled_from([None, None, None, 0, 5, 13]),
        min_tokens=st.sampled_from([0, 0, 4, 60]),
        ignore_eos=st.booleans(),
        banned=st.sampled_from([frozenset(), frozenset(), frozenset(range(3, 20))]),
        priority=st.integers(0, 1),
        num_choices=st.integers(1, 2),
        num_logprobs=st.sampled_from([None, None, 3]),
    )
    def submit(
        self,
        prompt: list[int],
        seed: int,
        max_tokens: int,
        over_at: int | None,
        fails_at: int | None,
        min_tokens: int,
        ignore_eos: bool,
        banned: frozenset[int],
        priority: int,
        num_choices: int,
        num_logprobs: int | None,
    ) -> None:
        law = Law(seed, NUM_VOCAB, over_at, fails_at)
        max_tokens = min(max_tokens, CONTEXT - len(prompt))
        biases = dict.fromkeys(sorted(banned), -math.inf)
        for choice in range(num_choices):
            request_id = self.bench.submit(
                prompt,
                max_tokens,
                choice=choice,
                sampling=type(GREEDY)(temperature=0.0, logit_bias=tuple(biases.items()), ignore_eos=ignore_eos),
                priority=priority,
                min_tokens=min_tokens,
                num_logprobs=num_logprobs,
                constraint=law.start,
            )
            out = banned | ({END} if ignore_eos else set())
            expected = lawful_answer(prompt, max_tokens, law, context=CONTEXT, min_tokens=min_tokens, banned=out)
            self.asked[request_id] = Asked(*expected)

    @rule(steps=st.integers(1, 12))
    def run_steps(self, steps: int) -> None:
        for _ in range(steps):
            self.bench.step()

    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        running = [one for one in self.asked if one not in self.bench.ends and one not in self.gone]
        if running:
            request_id = data.draw(st.sampled_from(running))
            self.bench.core.abort(request_id)
            self.gone.add(request_id)

    @rule(code=st.sampled_from([1, 2, -2]))
    def fail_one_pass(self, code: int) -> None:
        self.bench.backend.failures = [code]
        self.bench.step()
        self.bench.backend.failures = []
        self.bench.step()

    @invariant()
    def books_are_right(self) -> None:
        if hasattr(self, "bench"):
            self.bench.core.check_cells()

    def teardown(self) -> None:
        if not hasattr(self, "bench"):
            return
        self.bench.run(max_steps=6000)
        for request_id, asked in self.asked.items():
            if request_id not in self.gone:
                assert self.bench.answers[request_id] == asked.answer
                assert self.bench.ends[request_id].finish is asked.finish
        assert not self.bench.core._samplers, "what has ended must not keep its rule"


SETTINGS = settings(
    max_examples=70, stateful_step_count=20, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
QUICK = settings(SETTINGS, derandomize=True, database=None, phases=[Phase.generate], report_multiple_bugs=False)


def test_every_constrained_answer_is_the_one_it_would_be_alone() -> None:
    run_state_machine_as_test(ConstrainedMachine, settings=SETTINGS)


def test_the_property_test_notices_a_rule_that_is_one_token_behind() -> None:
    right = RuleFollower.cut

    def behind(self: RuleFollower, candidates: Candidates, index: int) -> None:
        right(self, candidates, max(0, index - (index > 5)))

    with mock.patch.object(RuleFollower, "cut", behind), pytest.raises(AssertionError):
        run_state_machine_as_test(ConstrainedMachine, settings=QUICK)


def test_the_property_test_notices_a_token_that_is_let_through() -> None:
    right = RuleFollower._keep

    def lax(self: RuleFollower, candidates: Candidates, allowed: np.ndarray[tuple[int], np.dtype[np.bool_]]) -> None:
        right(self, candidates, allowed | (np.arange(len(allowed)) == 5))

    with mock.patch.object(RuleFollower, "_keep", lax), pytest.raises(AssertionError):
        run_state_machine_as_test(ConstrainedMachine, settings=QUICK)
