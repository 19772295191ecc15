"""A crowd of conversations over few slots, and the judge of every answer: it holds nobody else's marker.

Each conversation has one to three turns. Prompts share their beginnings; some are cancelled, stopped, constrained,
refused, poisoned, parked, continued after their worker's death, or the copies of another tenant's prompts.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from tests.fakes.bench import GREEDY, Bench
from tests.fakes.marked import (
    CONTEXT,
    FIRST_MARKER,
    FOUL,
    NUM_VOCAB,
    POISON,
    Guesses,
    SpeakingBackend,
    WordsOnly,
    lone_answer,
)
from worker.engine.prefix_cache import common_prefix
from worker.engine.prompt_files import PromptFolder
from worker.engine.request import AdapterSet, Earlier, FinishReason, Output, RequestId, RequestTimings

SALTS = ("", "", "", "tenant", "other tenant")
ADAPTERS: tuple[AdapterSet, ...] = ((), (), (), ((0, 1.0),), ((1, 0.5),))
AT_FAULT = ("llama.cpp refused the tokens", "numbers that are not finite", "no room for this request")
"""Reasons to end a request that the storm itself brings about."""


class Leak(AssertionError):
    """An answer is not the one that its own prompt brings about."""


@dataclass(eq=False)
class Turn:
    """One request of a conversation."""

    talk: Talk
    prompt: list[int]
    max_tokens: int
    law: WordsOnly | None
    earlier: int = 0
    """So many tokens of the answer come from a worker that has died."""
    cancel_after: int | None = None
    stop_after: int | None = None
    steps_left: int | None = None


@dataclass(eq=False)
class Talk:
    """One conversation."""

    number: int
    salt: str
    adapters: AdapterSet
    num_turns: int
    history: list[int]
    may_say: set[int]
    """Markers in its own prompts."""

    @property
    def key(self) -> tuple[str, AdapterSet]:
        return self.salt, self.adapters


@dataclass
class Tally:
    """What has really happened in a storm."""

    judged: int = 0
    reused: int = 0
    cancelled: int = 0
    stopped: int = 0
    refused: int = 0
    failed: int = 0
    constrained: int = 0
    continued: int = 0
    parked: int = 0
    restored: int = 0
    stored: int = 0
    copied: int = 0


@dataclass
class Crowd:
    """All conversations of one seed; `storm` lets them loose on one core, as often as there are lives."""

    seed: int
    num_talks: int
    window: int = 0
    """Of the layers that have one."""
    tally: Tally = field(default_factory=Tally)

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)
        self._prefixes = ([], self._words(24), self._words(40))
        self._seen: dict[tuple[str, AdapterSet], list[tuple[Turn, np.ndarray]]] = {}
        """What was computed under each key: nothing else may be reused."""
        self._next: list[Turn] = []
        for number in range(self.num_talks):
            self._next.append(self._turn_of(self._talk(number)))

    def _words(self, count: int) -> list[int]:
        return [self._random.randrange(1, 256) for _ in range(count)]

    def _talk(self, number: int) -> Talk:
        chance, marker = self._random, FIRST_MARKER + number
        history = [*chance.choice(self._prefixes), marker, *self._words(chance.randrange(1, 20)), marker]
        return Talk(
            number, chance.choice(SALTS), chance.choice(ADAPTERS), chance.choice((1, 1, 2, 3)), history, {marker}
        )

    def _turn_of(self, talk: Talk) -> Turn:
        chance = self._random
        turn = Turn(talk, [*talk.history, *self._words(chance.randrange(1, 8))], chance.randrange(4, 15), None)
        kind = chance.random()
        if kind < 0.15:
            turn.cancel_after = chance.randrange(1, 40)
        elif kind < 0.25:
            turn.stop_after = chance.randrange(1, turn.max_tokens)
        elif kind < 0.45:
            turn.law = WordsOnly(chance.randrange(10**6), NUM_VOCAB, over_at=chance.choice((None, 5)))
        elif kind < 0.47:
            turn.prompt.append(POISON)
        elif kind < 0.475:
            turn.prompt.append(FOUL)
        elif kind < 0.55:
            turn.earlier = chance.randrange(1, turn.max_tokens)
        elif kind < 0.57:
            turn.prompt += self._words(CONTEXT)
        elif kind < 0.64 and turn.talk.number:
            self._copy_other(turn)
        return turn

    def _copy_other(self, turn: Turn) -> None:
        """Ask what another tenant has asked, marker and all, to find out whether it was asked before."""
        others = [one for one in self._next if one.talk.key != turn.talk.key]
        if others:
            other = self._random.choice(others)
            turn.prompt = list(other.prompt)
            turn.talk.may_say |= {token for token in other.prompt if token >= FIRST_MARKER}
            self.tally.copied += 1

    # --- one life ---------------------------------------------------------------------------------------

    def storm(self, folder: Path | None = None, *, share: float = 1.0, fault: str = "", checks: bool = True) -> None:
        """Run the next turns of the crowd, `share` of what is left, on a new core; prompts live on in `folder`.

        Raises: Leak.
        """
        backend = SpeakingBackend(num_cells=230)
        backend.fault, backend.window = fault, self.window
        prompts = None if folder is None else PromptFolder.open(folder, "m", "subject", 10**6)
        guesses = Guesses(range(FIRST_MARKER, FIRST_MARKER + self.num_talks))
        bench = Bench(backend, guesses, prompts, check_cells=checks, host_tokens=600, max_idle_cells=120)
        life = _Life(self, bench, self._random)
        count = max(1, int(len(self._next) * share))
        turns, self._next = self._next[:count], self._next[count:]
        self._next += life.run(turns)
        self.tally.parked += bench.core.scheduler.num_parked
        self.tally.restored += backend.num_restored
        if folder is not None:
            backend.failures = []
            bench.core.save_prompts(float("inf"))
            self.tally.stored += len(list(folder.rglob("*.kv")))
        self.num_faults = backend.num_faults

    @property
    def is_over(self) -> bool:
        return not self._next

    def follow_up(self, turn: Turn, answer: list[int]) -> Turn | None:
        """Return the conversation's next turn; None if it has had its last."""
        talk = turn.talk
        talk.num_turns -= 1
        room = CONTEXT - len(turn.prompt) - len(answer)
        if talk.num_turns <= 0 or room < 40:
            return None
        talk.history = [*turn.prompt, *answer]
        return self._turn_of(talk)

    # --- the judge --------------------------------------------------------------------------------------

    def computes(self, turn: Turn, answer: list[int]) -> None:
        """Remember what may be reused under the turn's key from now on."""
        tokens = np.array([*turn.prompt, *answer], dtype=np.int32)
        self._seen.setdefault(turn.talk.key, []).append((turn, tokens))

    def judge(self, turn: Turn, answer: list[int], end: Output | None) -> None:
        """Raises: Leak unless the answer is the lone one, as far as it goes, and says nobody else's marker."""
        self.tally.judged += 1
        foreign = [token for token in answer if token >= FIRST_MARKER and token not in turn.talk.may_say]
        if foreign:
            raise Leak(f"talk {turn.talk.number} says the marker of talk {foreign[0] - FIRST_MARKER}")
        right = lone_answer(turn.prompt, turn.max_tokens, turn.talk.adapters, turn.law)
        if answer != right[: len(answer)]:
            raise Leak(f"talk {turn.talk.number} says something else than alone")
        if end is None:
            return
        if end.finish is FinishReason.ERROR:
            if not any(words in (end.error or "") for words in AT_FAULT):
                raise Leak(f"talk {turn.talk.number}: {end.error}")
        elif turn.stop_after is None and answer != right:
            raise Leak(f"talk {turn.talk.number} says less than alone")
        self._judge_reuse(turn, end)

    def _judge_reuse(self, turn: Turn, end: Output) -> None:
        """A tenant must not even learn from its timings that another one has asked the same."""
        if end.timings is None or turn.earlier or not end.timings.cached_tokens:
            return
        self.tally.reused += 1
        prompt = np.array(turn.prompt, dtype=np.int32)
        others = (tokens for one, tokens in self._seen.get(turn.talk.key, ()) if one is not turn)
        most = max((common_prefix(tokens, prompt) for tokens in others), default=0)
        if end.timings.cached_tokens > most:
            raise Leak(f"talk {turn.talk.number} reused {end.timings.cached_tokens} tokens, {most} were its tenant's")


class _Life:
    """One core from its first request to its last."""

    def __init__(self, crowd: Crowd, bench: Bench, chance: random.Random) -> None:
        self._crowd = crowd
        self._bench = bench
        self._random = chance
        self._running: dict[RequestId, Turn] = {}
        self._later: list[Turn] = []
        self._num_full = 0
        self._was_broken = False
        self._excused = 0
        """Requests that may fail: each injected refusal is one, and each bad token."""

    def run(self, turns: list[Turn]) -> list[Turn]:
        """Return the turns that come after these."""
        waiting = list(turns)
        for _ in range(20_000):
            while waiting and len(self._running) < 24 and self._random.random() < 0.7:
                self._submit(waiting.pop(0))
            if not waiting and not self._running:
                break
            self._hinder()
            self._bench.step()
            self._leave()
            self._collect()
            if self._bench.backend.num_gaps:
                raise Leak("rows were to be computed that do not follow what their sequence holds")
        assert not self._running, "the core did not come to an end"
        if self._crowd.tally.failed > self._excused:
            raise Leak(f"{self._crowd.tally.failed} requests failed, {self._excused} had to")
        self._crowd.tally.failed = 0
        return self._later

    def _submit(self, turn: Turn) -> None:
        talk, tally = turn.talk, self._crowd.tally
        right = lone_answer(turn.prompt, turn.max_tokens, talk.adapters, turn.law)
        fields: dict[str, object] = {}
        if turn.earlier and len(right) > turn.earlier:
            fields["earlier"] = Earlier(tuple(right[: turn.earlier]), RequestTimings())
            tally.continued += 1
        else:
            turn.earlier = 0
        if turn.law is not None:
            fields["constraint"] = turn.law.start
            tally.constrained += 1
        try:
            request_id = self._bench.submit(
                turn.prompt,
                turn.max_tokens,
                sampling=GREEDY,
                cache_salt=talk.salt,
                adapters=talk.adapters,
                priority=self._random.randrange(2),
                **fields,
            )
        except ValueError:
            assert len(turn.prompt) >= CONTEXT
            tally.refused += 1
            return
        self._excused += any(token in (POISON, FOUL) for token in turn.prompt)
        self._crowd.computes(turn, right)
        self._running[request_id] = turn

    def _hinder(self) -> None:
        """Let some passes and operations fail."""
        backend, chance = self._bench.backend, self._random.random()
        backend.failures = []
        if self._num_full or chance > 0.99:  # refused again and again: somebody must make room
            self._num_full = (self._num_full or 8) - 1
            backend.failures = [1]
        elif chance < 0.04:
            code = self._random.choice((1, 2, -1, -2))
            backend.failures = [code if code in (1, -1) or not self._was_broken else 0]
            self._excused += code == -1
        self._was_broken = bool(backend.failures) and backend.failures[0] in (2, -2)  # several in a row end a worker
        backend.fails_to_restore = 0.04 < chance < 0.12
        backend.fails_to_share = 0.12 < chance < 0.15  # as cells before a window that are gone

    def _leave(self) -> None:
        """Some clients hang up, and some have heard enough."""
        for request_id, turn in list(self._running.items()):
            answer = self._bench.answers[request_id]
            if turn.cancel_after is not None:
                turn.cancel_after -= 1
                if turn.cancel_after <= 0:
                    self._bench.core.abort(request_id)
                    self._crowd.tally.cancelled += 1
                    del self._running[request_id]
                    self._crowd.judge(turn, answer, None)
            elif turn.stop_after is not None and len(answer) >= turn.stop_after and request_id not in self._bench.ends:
                output = self._bench.core.finish(request_id, turn.stop_after)
                if output is not None:
                    self._bench.ends[request_id] = output
                    self._bench.answers[request_id] = answer[: turn.stop_after]
                    self._crowd.tally.stopped += 1

    def _collect(self) -> None:
        for request_id in [one for one in self._running if one in self._bench.ends]:
            turn, end = self._running.pop(request_id), self._bench.ends[request_id]
            answer = self._bench.answers[request_id]
            if turn.earlier:
                right = lone_answer(turn.prompt, turn.max_tokens, turn.talk.adapters, turn.law)
                answer = [*right[: turn.earlier], *answer]
            self._crowd.judge(turn, answer, end)
            self._crowd.tally.failed += end.finish is FinishReason.ERROR
            is_whole = end.finish is not FinishReason.ERROR and not {POISON, FOUL} & set(turn.prompt)
            follow_up = self._crowd.follow_up(turn, answer) if is_whole else None
            if follow_up is not None:
                self._later.append(follow_up)
