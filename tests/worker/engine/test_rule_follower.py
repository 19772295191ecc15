"""One answer keeps to its rule, whatever is sampled again, guessed wrong or banned; and faults end it alone."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fakes.backend import END
from tests.fakes.rules import Law, Rule
from worker.engine.constraint import Allowed, ConstraintFailed
from worker.engine.request import GenerationRequest, SamplerKind, SamplingParams
from worker.engine.rule_follower import RuleFollower
from worker.engine.rule_work import OtherThread, RuleWork, at_once
from worker.engine.sampler import Sampler
from worker.engine.sampling_candidates import MAX_LISTED, Candidates

NUM_VOCAB = 24
ENDS = frozenset({END, 23})


class Only:
    """A rule that always allows the same tokens."""

    def __init__(self, mask: Allowed, *, fault: Exception | None = None) -> None:
        self.mask = mask
        self.fault = fault
        self.num_taken = 0

    def allowed(self, drafts: Sequence[int]) -> list[Allowed]:
        if self.fault is not None:
            raise self.fault
        return [self.mask] * (len(drafts) + 1)

    def accept(self, token: int) -> None:
        self.num_taken += 1

    def rollback(self, num_tokens: int) -> None:
        self.num_taken -= num_tokens

    def forced(self, most: int) -> Sequence[int]:
        return ()

    def num_allowed(self, tokens: Sequence[int]) -> int:
        return len(tokens)

    is_over = False


def mask_of(*tokens: int, num_vocab: int = NUM_VOCAB) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    mask = np.zeros(num_vocab, dtype=np.bool_)
    mask[list(tokens)] = True
    return mask


def sampler_of(mask: Allowed, *, num_vocab: int = NUM_VOCAB, min_tokens: int = 0, **params: object) -> Sampler:
    sampling = replace(SamplingParams(temperature=0.8, seed=3), **params)  # type: ignore[arg-type]
    request = GenerationRequest((1,), 9, sampling, min_tokens=min_tokens, constraint=lambda: Only(mask), num_logprobs=2)
    return Sampler(request, num_vocab, ENDS, lambda token: bytes([65 + token % 26]))


def row(seed: int, num_vocab: int = NUM_VOCAB) -> np.ndarray[tuple[int], np.dtype[np.float32]]:
    return np.random.default_rng(seed).normal(0.0, 4.0, num_vocab).astype(np.float32)


CHAINS: dict[str, dict[str, object]] = {
    "greedy": {"temperature": 0.0},
    "top_k": {"top_k": 1},
    "top_p": {"top_p": 0.01},
    "min_p": {"min_p": 0.99},
    "typical": {"typical_p": 0.1},
    "penalties": {"repeat_penalty": 5.0, "presence_penalty": 2.0, "frequency_penalty": 2.0},
    "dry": {"dry_multiplier": 5.0, "dry_allowed_length": 1},
    "xtc": {"xtc_probability": 1.0, "xtc_threshold": 0.01},
    "mirostat 1": {"mirostat": 1},
    "mirostat 2": {"mirostat": 2, "mirostat_tau": 0.01},
    "tiny temperature": {"temperature": 1e-6},
    "huge temperature": {"temperature": 1e6},
    "infill": {"samplers": (SamplerKind.INFILL,)},
    "adaptive": {"samplers": (SamplerKind.ADAPTIVE_P,), "adaptive_target": 0.3},
    "top_n_sigma": {"top_n_sigma": 0.1},
    "biased": {"logit_bias": ((5, 100.0), (6, -math.inf))},
}


@pytest.mark.parametrize("name", CHAINS)
@pytest.mark.parametrize("num_vocab", [NUM_VOCAB, 3 * MAX_LISTED])
def test_every_chain_of_samplers_picks_what_is_allowed(name: str, num_vocab: int) -> None:
    for allowed in ([7], [2, 6, 9], [*range(1, 20)], [*range(1, num_vocab)], [END], [END, 3]):
        sampler = sampler_of(mask_of(*allowed, num_vocab=num_vocab), num_vocab=num_vocab, **CHAINS[name])
        tokens = np.array([1, 7, 2, 7, 2, 9, 7, 2], dtype=np.int32)
        for index in range(6):
            pick = sampler.sample(row(index, num_vocab), tokens, index)
            assert pick.token in allowed
            assert pick.logprob is None or math.isfinite(pick.logprob)


@settings(deadline=None)
@given(
    allowed=st.frozensets(st.integers(0, NUM_VOCAB - 1), min_size=1),
    banned=st.frozensets(st.integers(0, NUM_VOCAB - 1)),
    ignore_eos=st.booleans(),
    min_tokens=st.sampled_from([0, 5]),
    seed=st.integers(0, 99),
)
def test_bans_never_lead_out_of_what_is_allowed(
    allowed: frozenset[int], banned: frozenset[int], ignore_eos: bool, min_tokens: int, seed: int
) -> None:
    biases = tuple(dict.fromkeys(sorted(banned), -math.inf).items())
    sampler = sampler_of(mask_of(*allowed), logit_bias=biases, ignore_eos=ignore_eos, min_tokens=min_tokens)
    no_ends = ENDS if ignore_eos or min_tokens else frozenset()
    left = allowed - banned - no_ends
    if not left and not allowed & ENDS:
        with pytest.raises(ConstraintFailed, match="leave no token"):
            sampler.sample(row(seed), np.array([1], dtype=np.int32), 0)
    else:
        assert sampler.sample(row(seed), np.array([1], dtype=np.int32), 0).token in (left or allowed & ENDS)


def test_no_sampler_sees_a_row_without_any_possible_token() -> None:
    with pytest.raises(ConstraintFailed, match="no token"):
        sampler_of(mask_of()).sample(row(1), np.array([1], dtype=np.int32), 0)


def test_log_probabilities_are_those_of_the_model_without_the_rule() -> None:
    logits = row(4)
    expected = logits - np.log(np.exp(logits.astype(np.float64)).sum())
    pick = sampler_of(mask_of(2, 6)).sample(logits.copy(), np.array([1], dtype=np.int32), 0)
    assert pick.logprob == pytest.approx(expected[pick.token], abs=1e-4)
    assert [token for token, _ in pick.top] == np.argsort(-expected)[:2].tolist()


def test_token_that_is_sampled_again_replaces_the_one_before() -> None:
    law = Law(seed=1, num_vocab=NUM_VOCAB)
    made: list[Rule] = []

    def make() -> Rule:
        made.append(law.start())
        return made[-1]

    follower = RuleFollower(make, frozenset({END}))
    assert not made, "the rule is made beside a pass, not where requests come in"
    answer: list[int] = []
    for index in (0, 1, 2, 1, 2, 3, 3, 0, 1, 2, 3, 4):
        del answer[index:]
        allowed = law.after(answer)
        token = allowed if isinstance(allowed, int) else max((allowed or {5}) - {END})
        follower.prepare(index, (token, 9, END, 4))
        follower.cut(Candidates(row(index)), index)
        assert not follower.take(token, index)
        answer.append(token)
        assert made[0].answer == answer
    assert len(made) == 1


@pytest.mark.parametrize(
    "fault", [kind("a fault") for kind in (ZeroDivisionError, KeyError, OSError, ValueError, BufferError)]
)
def test_fault_of_a_rule_is_told_where_its_answer_is_sampled(fault: Exception) -> None:
    follower = RuleFollower(lambda: Only(None, fault=fault), ENDS)
    follower.prepare(0, ())
    for _ in range(2):
        with pytest.raises(ConstraintFailed, match=type(fault).__name__):
            follower.cut(Candidates(row(1)), 0)
    follower.look_ahead(4)
    assert (follower.forced(4), follower.num_allowed([1, 2])) == ((), 0)


def test_rule_that_cannot_be_made_is_told_where_its_answer_is_sampled() -> None:
    def make() -> Only:
        raise ConstraintFailed("no such thing")

    follower = RuleFollower(make, ENDS)
    follower.prepare(0, ())
    with pytest.raises(ConstraintFailed, match="no such thing"):
        follower.cut(Candidates(row(1)), 0)


# --- the work beside a pass -------------------------------------------------------------------------------


def jobs_of(*works: Callable[[], None]) -> tuple[list[RuleFollower], list[tuple[RuleFollower, Callable[[], None]]]]:
    rules = [RuleFollower(lambda: Only(mask_of(3)), ENDS) for _ in works]
    return rules, list(zip(rules, works, strict=True))


def test_jobs_are_done_in_order_before_the_wait_is_over() -> None:
    done: list[int] = []
    _, jobs = jobs_of(lambda: done.append(1), lambda: done.append(2))
    thread = OtherThread()
    RuleWork(thread).begin(jobs)()
    assert done == [1, 2]
    thread.close()


def test_without_a_thread_jobs_are_done_before_the_pass() -> None:
    done: list[int] = []
    _, jobs = jobs_of(lambda: done.append(1))
    is_ready = RuleWork(at_once).begin(jobs)
    assert done == [1]
    is_ready()


def test_answer_whose_job_takes_too_long_ends_and_the_others_go_on() -> None:
    may_end, is_over, done = threading.Event(), threading.Event(), list[str]()

    def stuck() -> None:
        may_end.wait(30)
        is_over.set()

    rules, jobs = jobs_of(lambda: done.append("before"), stuck, lambda: done.append("behind"))
    thread = OtherThread(patience_s=0.05)
    work = RuleWork(thread)
    work.begin(jobs)()
    assert done == ["before", "behind"]
    with pytest.raises(ConstraintFailed, match="too long"):
        rules[1].cut(Candidates(row(1)), 0)
    for rule in (rules[0], rules[2]):
        rule.cut(Candidates(row(1)), 0)
    work.begin(jobs_of(lambda: done.append("next pass"))[1])()
    assert done[-1] == "next pass"
    may_end.set()
    assert is_over.wait(30)
    assert done.count("behind") == 1, "what was left to itself does nothing more"
    thread.close()
