"""Constrained answers in the whole engine: what goes wrong in one of them is no trouble for the others."""

from __future__ import annotations

import asyncio
import gc
import json
import threading
import weakref
from collections.abc import AsyncIterator, Callable, Sequence

import jsonschema  # type: ignore[import-untyped]
import numpy as np
import numpy.typing as npt
import pytest

from tests.fakes.backend import FakeBackend
from tests.fakes.bench import GREEDY, Bench, prompt_of
from tests.fakes.rules import Law, Rule, lawful_answer
from tests.fakes.small_vocabulary import ByteVocabulary
from worker.contract import EngineOptions
from worker.engine.constraint import Allowed, Constraint, MakeConstraint
from worker.engine.engine import Engine
from worker.engine.grammar import GrammarRefused, Grammars
from worker.engine.request import FinishReason, GenerationRequest, Output, SamplingParams

PROMPT = tuple(prompt_of(6))
LASTING = Law(seed=2, num_vocab=64)
LAW = Law(seed=2, num_vocab=64, over_at=12)


@pytest.fixture
async def engine() -> AsyncIterator[Engine]:
    engine = Engine(FakeBackend(), EngineOptions(context=128))
    engine.start()
    yield engine
    engine.stop()


class Answer:
    """What one request brings."""

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.last: Output | None = None
        self.has_begun = asyncio.Event()
        self.has_ended = asyncio.Event()

    def __call__(self, output: Output) -> None:
        self.tokens += output.tokens
        self.has_begun.set()
        if output.finish is not None:
            self.last = output
            self.has_ended.set()

    async def end(self) -> Output:
        await asyncio.wait_for(self.has_ended.wait(), 60)
        assert self.last is not None
        return self.last


def ask(engine: Engine, make: MakeConstraint | None, max_tokens: int = 30, **fields: object) -> Answer:
    answer = Answer()
    request = GenerationRequest(PROMPT, max_tokens, GREEDY, constraint=make, **fields)  # type: ignore[arg-type]
    answer.request_id = engine.submit(request, answer)  # type: ignore[attr-defined]
    return answer


def expected(law: Law = LAW, max_tokens: int = 30) -> tuple[list[int], FinishReason]:
    return lawful_answer(PROMPT, max_tokens, law, context=128)


class Faulty(Rule):
    """Goes wrong at one place."""

    def __init__(self, place: str, fault: Exception) -> None:
        super().__init__(LASTING)
        self.place = place
        self.fault = fault

    def _fail_at(self, place: str) -> None:
        if self.place == place and len(self.answer) >= 3:
            raise self.fault

    def allowed(self, drafts: Sequence[int]) -> list[Allowed]:
        self._fail_at("allowed")
        return super().allowed(drafts)

    def accept(self, token: int) -> None:
        self._fail_at("accept")
        super().accept(token)

    def forced(self, most: int) -> Sequence[int]:
        self._fail_at("forced")
        return super().forced(most)


def refuse() -> Constraint:
    raise ZeroDivisionError


@pytest.mark.parametrize("is_reproducible", [False, True])
@pytest.mark.parametrize(
    ("make", "num_tokens"),
    [
        (lambda: Faulty("allowed", KeyError("x")), 3),
        (lambda: Faulty("accept", RuntimeError("already borrowed")), 3),
        (lambda: Faulty("allowed", AttributeError("x")), 3),
        (refuse, 0),
    ],
)
async def test_fault_of_one_rule_ends_its_answer_and_no_other(
    engine: Engine, make: Callable[[], Constraint], num_tokens: int, is_reproducible: bool
) -> None:
    broken = ask(engine, make, reproducible=is_reproducible)
    others = [ask(engine, LAW.start), ask(engine, None)]
    end = await broken.end()
    assert end.finish is FinishReason.ERROR
    assert len(broken.tokens) >= num_tokens, "what came before is told"
    assert broken.tokens == expected(LASTING)[0][: len(broken.tokens)]
    assert end.error is not None
    assert "the answer had to end" in end.error
    for other in others:
        assert (await other.end()).finish is not FinishReason.ERROR
    assert others[0].tokens == expected()[0]
    again = ask(engine, LAW.start)
    assert (await again.end()).finish is expected()[1]


async def test_reproducible_answer_follows_its_rule(engine: Engine) -> None:
    answers = [ask(engine, LAW.start, reproducible=True) for _ in range(2)]
    for answer in answers:
        assert (await answer.end()).finish is expected()[1]
        assert answer.tokens == expected()[0]


async def test_each_choice_has_a_rule_of_its_own(engine: Engine) -> None:
    made: list[Rule] = []

    def make() -> Rule:
        made.append(LAW.start())
        return made[-1]

    answers = [ask(engine, make) for _ in range(4)]
    for answer in answers:
        await answer.end()
        assert answer.tokens == expected()[0]
    assert len({id(one) for one in made}) == len(made) == 4


class Held(Rule):
    """Is busy for long where the answer has two tokens."""

    def __init__(self, may_go_on: threading.Event) -> None:
        super().__init__(LASTING)
        self.is_busy = threading.Event()
        self.may_go_on = may_go_on

    def allowed(self, drafts: Sequence[int]) -> list[Allowed]:
        if len(self.answer) >= 2:
            self.is_busy.set()
            self.may_go_on.wait(30)
        return super().allowed(drafts)


async def test_rule_that_is_busy_for_too_long_costs_its_answer_and_no_other() -> None:
    engine = Engine(FakeBackend(), EngineOptions(context=128))
    engine._beside._patience_s = 0.05
    engine.start()
    may_go_on = threading.Event()
    held = [ask(engine, lambda: Held(may_go_on)) for _ in range(2)]
    other = ask(engine, LAW.start)
    for one in held:
        end = await one.end()
        assert end.finish is FinishReason.ERROR
        assert len(one.tokens) >= 2
        assert end.error is not None
        assert "too long" in end.error
    await other.end()
    assert other.tokens == expected()[0]
    may_go_on.set()
    engine.stop()


async def test_request_that_leaves_while_its_rule_is_busy_leaves_nothing_behind(engine: Engine) -> None:
    may_go_on = threading.Event()
    rule = Held(may_go_on)
    leaving, other = ask(engine, lambda: rule), ask(engine, LAW.start)
    await asyncio.to_thread(rule.is_busy.wait, 30)
    engine.abort(leaving.request_id)  # type: ignore[attr-defined]
    may_go_on.set()
    await other.end()
    assert other.tokens == expected()[0]
    await engine.call(lambda: None)
    assert not engine._core._samplers
    assert not leaving.has_ended.is_set()


async def test_engine_stops_while_a_rule_is_busy() -> None:
    engine = Engine(FakeBackend(), EngineOptions(context=128))
    engine.start()
    may_go_on = threading.Event()
    rule = Held(may_go_on)
    ask(engine, lambda: rule)
    await asyncio.to_thread(rule.is_busy.wait, 30)
    stopping = asyncio.to_thread(engine.stop)
    may_go_on.set()
    await asyncio.wait_for(stopping, 20)


async def test_rules_are_worked_out_on_another_thread_than_the_pass(engine: Engine) -> None:
    names: set[str] = set()

    class Noted(Rule):
        def allowed(self, drafts: Sequence[int]) -> list[Allowed]:
            names.add(threading.current_thread().name.partition("_")[0])
            return super().allowed(drafts)

    await ask(engine, lambda: Noted(LAW)).end()
    assert names == {"beside"}


@pytest.mark.parametrize("leaves", [False, True])
def test_what_an_answer_was_held_to_is_freed_with_it(leaves: bool) -> None:
    made: list[weakref.ref[Rule]] = []

    def make() -> Rule:
        rule = LAW.start()
        made.append(weakref.ref(rule))
        return rule

    bench = Bench(FakeBackend())
    request_id = bench.submit(list(PROMPT), 30, constraint=make)
    for _ in range(4):
        bench.step()
    assert made[0]() is not None
    if leaves:
        bench.core.abort(request_id)
    bench.run()
    gc.collect()
    assert made[0]() is None


# --- passes that are run again ----------------------------------------------------------------------------


def test_numbers_that_are_not_finite_cost_no_rule_its_place() -> None:
    bench = Bench(FakeBackend(num_slots=2))
    steady = bench.submit(list(PROMPT), 30, constraint=LAW.start)
    for _ in range(6):
        bench.step()
    bench.backend.has_foul_cells = True
    bench.run()
    assert not bench.backend.has_foul_cells
    assert bench.ends[steady].finish is expected()[1]
    assert bench.answers[steady] == expected()[0]


@pytest.mark.parametrize("code", [1, 2, -2])
def test_a_pass_that_fails_is_run_again_with_the_same_rules(code: int) -> None:
    bench = Bench(FakeBackend(num_slots=2))
    request_id = bench.submit(list(PROMPT), 30, constraint=LAW.start)
    for _ in range(20):
        bench.backend.failures = [code]
        bench.step()
        bench.backend.failures = []
        bench.step()
    bench.run()
    assert bench.answers[request_id] == expected()[0]


def test_the_last_token_that_a_rule_allows_ends_the_answer_also_where_it_is_the_last_of_all() -> None:
    bench = Bench(FakeBackend())
    ends = {count: bench.submit(list(PROMPT), count, constraint=LAW.start) for count in (11, 12, 13)}
    bench.run()
    finishes = {count: bench.ends[request_id].finish for count, request_id in ends.items()}
    assert finishes == {11: FinishReason.LENGTH, 12: FinishReason.STOP, 13: FinishReason.STOP}


# --- JSON that a model writes without sense ---------------------------------------------------------------

SCHEMA = {
    "type": "object",
    "properties": {
        "a": {"type": "integer", "maximum": 999},
        "b": {"enum": ["x", "é"]},
        "c": {"type": "array", "items": {"type": "boolean"}, "maxItems": 3},
    },
    "required": ["a"],
    "additionalProperties": False,
}


class Babbling(FakeBackend):
    """Says any byte, whatever came before."""

    def __init__(self) -> None:
        super().__init__(num_vocab=257, num_slots=4, context=256)
        self.vocabulary = ByteVocabulary()

    def _logits(self, seq_id: int) -> npt.NDArray[np.float32]:
        return np.random.default_rng(len(self.passes) * 8 + seq_id).normal(0.0, 2.0, 257).astype(np.float32)


def test_fifty_hot_answers_are_valid_or_cut_by_their_length() -> None:
    grammars = Grammars(ByteVocabulary(), ByteVocabulary.control_tokens)
    make = grammars.compile(
        "start: %json " + json.dumps({"x-guidance": {"whitespace_flexible": False}, **SCHEMA})
    ).start
    bench = Bench(Babbling())
    sampling = SamplingParams(temperature=1.5, seed=1)
    ids = [bench.submit([1, 2], 60, choice=choice, sampling=sampling, constraint=make) for choice in range(50)]
    bench.run(max_steps=20_000)
    for request_id in ids:
        text = bytes(bench.answers[request_id]).decode()
        if bench.ends[request_id].finish is FinishReason.STOP:
            jsonschema.validate(json.loads(text), SCHEMA)
        else:
            assert bench.ends[request_id].finish is FinishReason.LENGTH
            assert len(bench.answers[request_id]) == 60
    assert sum(bench.ends[one].finish is FinishReason.STOP for one in ids) > 25


def test_a_pattern_that_cannot_be_compiled_is_refused_and_never_left_out() -> None:
    grammars = Grammars(ByteVocabulary(), ByteVocabulary.control_tokens)
    for pattern in ("(", "[z-a]", "(?=a)", "a{2,1}"):
        with pytest.raises(GrammarRefused, match=r"regex parse error: \w+"):
            grammars.compile("start: %json " + json.dumps({"type": "string", "pattern": pattern}))
