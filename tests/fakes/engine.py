"""An engine without a model: a small vocabulary, answers by script, and a record of what was asked.

Two ways to use it. With `answers`, each submitted request plays the next script by itself, one step in each round of
the event loop. Without, the test itself calls `step` and decides what a step of the engine brings to whom.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from worker.contract import EngineCounters, ModelFacts, SlotReport, SlotState
from worker.engine.engine import EngineSnapshot
from worker.engine.errors import EngineStopped
from worker.engine.request import (
    FinishReason,
    GenerationRequest,
    Output,
    Pick,
    PrefillProgress,
    RequestId,
    RequestTimings,
)
from worker.engine.vocabulary import FimTokens

Sink = Callable[[Output], None]

BOS, EOS, IM_START, IM_END = 256, 257, 258, 259
SPECIAL = {"<s>": BOS, "</s>": EOS, "<|im_start|>": IM_START, "<|im_end|>": IM_END}
FIM_TEXTS = ("<fim_pre>", "<fim_suf>", "<fim_mid>", "<fim_rep>", "<fim_sep>")
WORDS = ("Hello", " world", " there", "one ", "two ", "three ", "user", "assistant", "system")


class FakeVocabulary:
    """Tokens 0 to 255 are bytes, then come control tokens and a few words."""

    def __init__(self, *, add_bos: bool = False, chat_template: str | None = None, has_fim: bool = False) -> None:
        self.add_bos = add_bos
        self.add_eos = False
        self.bos: int | None = BOS
        self.eos: int | None = EOS
        self.eog = frozenset({EOS, IM_END})
        self.bos_text, self.eos_text = "<s>", "</s>"
        self.control_texts = tuple(sorted(SPECIAL, key=lambda text: (-len(text), text)))
        self.chat_template = chat_template
        self.sampling_defaults: Mapping[str, float | int] = {}
        self.fim = FimTokens()
        self.words = {word: 260 + i for i, word in enumerate(WORDS)}
        self._pieces = {token: word.encode() for word, token in self.words.items()}
        self._special_pieces = {token: text.encode() for text, token in SPECIAL.items()}
        self.num_vocab = 260 + len(WORDS)
        if has_fim:
            first = self.num_vocab
            self.fim = FimTokens(first, first + 1, first + 2, first + 3, first + 4)
            self._special_pieces |= {first + i: text.encode() for i, text in enumerate(FIM_TEXTS)}
            self.num_vocab += len(FIM_TEXTS)

    def tokenize(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]:
        """Return the longest matches from the left; control tokens only with `parse_special`."""
        tokens = [BOS] if add_special and self.add_bos else []
        known = self.words | (SPECIAL if parse_special else {})
        while text:
            found = max((word for word in known if text.startswith(word)), key=len, default="")
            if found:
                tokens.append(known[found])
                text = text[len(found) :]
            else:
                tokens += text[0].encode()
                text = text[1:]
        return tokens

    def piece(self, token: int, *, special: bool = False) -> bytes:
        """Return the token's bytes; none for control tokens unless `special`."""
        if token < 256:
            return bytes([token])
        return self._pieces.get(token) or (self._special_pieces[token] if special else b"")

    @property
    def control_tokens(self) -> frozenset[int]:
        """All special tokens."""
        return frozenset(self._special_pieces)

    def marker(self, text: str) -> int | None:
        """Return the special token of this text."""
        return next((token for token, piece in self._special_pieces.items() if piece == text.encode()), None)

    def pieces(self) -> list[bytes]:
        """Return the bytes of all tokens."""
        return [self.piece(token, special=True) for token in range(self.num_vocab)]

    def text(self, tokens: Iterable[int]) -> str:
        """Return the text of `tokens`, control tokens included."""
        return b"".join(self.piece(token, special=True) for token in tokens).decode("utf-8", "replace")


def make_facts(*, context: int = 256, slots: int = 4) -> ModelFacts:
    """Return facts of a plausible small model."""
    return ModelFacts(
        context=context,
        slots=slots,
        kv_cells=slots * context,
        trained_context=2048,
        num_params=1_000_000,
        size_bytes=2_000_000,
        num_vocab=260 + len(WORDS),
        description="fake 1M F16",
        has_chat_template=True,
        device="CPU",
    )


def make_pick(token: int, num_top: int, num_vocab: int) -> Pick:
    """Return a pick whose numbers follow from the token: itself is the most likely, its neighbours come next."""
    logprob = -0.125 * (token % 16)
    top = tuple(((token + rank) % num_vocab, logprob - 0.5 * rank) for rank in range(num_top))
    return Pick(token, logprob, top)


@dataclass
class Script:
    """What one request gets: the tokens of each step, and how it ends."""

    steps: Sequence[Sequence[int]]
    finish: FinishReason | None = FinishReason.STOP
    """None = it never ends by itself."""
    error: str | None = None


def _behind(script: Script, earlier: Sequence[int]) -> Script:
    """Return what is left of a script when so much of it has been told."""
    left, steps = list(earlier), list(script.steps)
    while left:
        step = list(steps.pop(0))
        assert left[: len(step)] == step[: len(left)], "the answer that goes on is not the one of this script"
        if len(step) > len(left):
            steps.insert(0, step[len(left) :])
        del left[: len(step)]
    return replace(script, steps=steps or [()])


NOTHING = Script([()], FinishReason.LENGTH)
"""What a request for no token gets."""


@dataclass
class FakeEngine:
    """The interface of `worker.engine.engine.Engine`; all requests are kept for the test to look at."""

    vocabulary: FakeVocabulary = field(default_factory=FakeVocabulary)
    facts: ModelFacts = field(default_factory=make_facts)
    answers: list[Script] = field(default_factory=list)
    """Played in order of submission; the last one again and again. Empty = the test steps by hand."""
    is_by_choice: bool = False
    """... or by the request's own choice."""
    num_cached: list[int] = field(default_factory=lambda: [0])
    """Cached prompt tokens that each request reports; the last one again and again."""
    requests: dict[RequestId, GenerationRequest] = field(default_factory=dict)
    aborted: list[RequestId] = field(default_factory=list)
    finished: list[tuple[RequestId, int]] = field(default_factory=list)
    num_threads: int = 1
    is_stopped: bool = False

    def __post_init__(self) -> None:
        self._sinks: dict[RequestId, Sink] = {}
        self._generated: dict[RequestId, int] = {}
        self._waiters: list[tuple[Callable[[], bool], asyncio.Event]] = []

    @property
    def submitted(self) -> list[GenerationRequest]:
        """All requests in order of submission."""
        return list(self.requests.values())

    @property
    def running(self) -> list[RequestId]:
        """Requests that have neither ended nor been aborted."""
        return list(self._sinks)

    def submit(self, request: GenerationRequest, sink: Sink) -> RequestId:
        if self.is_stopped:
            raise EngineStopped("the engine takes no more requests")
        request_id = RequestId(len(self.requests) + 1)
        self.requests[request_id] = request
        self._sinks[request_id] = sink
        self._generated[request_id] = 0
        if self.answers:
            place = request.sampling.choice if self.is_by_choice else request_id - 1
            script = self.answers[min(place, len(self.answers) - 1)]
            if request.earlier is not None:
                self._generated[request_id] = len(request.earlier.tokens)
                script = _behind(script, request.earlier.tokens)
            self._play(request_id, script if request.max_tokens else NOTHING, 0)
        self._wake()
        return request_id

    def abort(self, request_id: RequestId) -> None:
        if self._sinks.pop(request_id, None) is not None:
            self.aborted.append(request_id)
            self._wake()

    def finish(self, request_id: RequestId, num_tokens: int) -> None:
        if request_id in self._sinks:
            self.finished.append((request_id, num_tokens))
            asyncio.get_running_loop().call_soon(self._end_at, request_id, num_tokens)

    def set_threads(self, num_threads: int) -> None:
        self.num_threads = num_threads

    def snapshot(self) -> EngineSnapshot:
        states = [SlotState.GENERATING] * min(len(self._sinks), self.facts.slots)
        states += [SlotState.IDLE] * (self.facts.slots - len(states))
        return EngineSnapshot(
            slots=tuple(SlotReport(i, state) for i, state in enumerate(states)),
            counters=EngineCounters(finished=len(self.requests) - len(self._sinks)),
            histograms={},
            kv_cells={"total": self.facts.kv_cells},
            step=sum(self._generated.values()),
            step_at_s=0.0,
            has_work=bool(self._sinks),
            queue_length=max(0, len(self._sinks) - self.facts.slots),
            num_threads=self.num_threads,
            max_rows=512,
        )

    async def submissions(self, num: int) -> None:
        """Return when so many requests have been submitted."""
        await self._until(lambda: len(self.requests) >= num)

    async def aborts(self, num: int) -> None:
        """Return when so many requests have been aborted."""
        await self._until(lambda: len(self.aborted) >= num)

    def step(
        self,
        tokens: Mapping[int, Sequence[int]],
        *,
        finish: FinishReason | None = None,
        error: str | None = None,
        progress: PrefillProgress | None = None,
    ) -> None:
        """Deliver what one step brought, as the engine does: everything in one call on the event loop."""
        for number, new in tokens.items():
            request_id = RequestId(number)
            sink = self._sinks.get(request_id)
            if sink is None:
                continue
            if finish is not None:
                del self._sinks[request_id]
            sink(replace(self._output(request_id, new, finish, error), progress=progress))

    async def _until(self, condition: Callable[[], bool]) -> None:
        event = asyncio.Event()
        self._waiters.append((condition, event))
        self._wake()
        async with asyncio.timeout(10):
            await event.wait()

    def _wake(self) -> None:
        for condition, event in self._waiters:
            if condition():
                event.set()

    def _play(self, request_id: RequestId, script: Script, index: int) -> None:
        def next_step() -> None:
            is_last = index + 1 >= len(script.steps)
            finish = script.finish if is_last else None
            tokens = script.steps[index] if index < len(script.steps) else ()
            self.step({request_id: tokens}, finish=finish, error=script.error if is_last else None)
            if not is_last and request_id in self._sinks:
                self._play(request_id, script, index + 1)

        asyncio.get_running_loop().call_soon(next_step)

    def _end_at(self, request_id: RequestId, num_tokens: int) -> None:
        self._generated[request_id] = num_tokens
        self.step({request_id: ()}, finish=FinishReason.STOP)

    def _output(
        self, request_id: RequestId, tokens: Sequence[int], finish: FinishReason | None, error: str | None
    ) -> Output:
        is_first = bool(tokens) and not self._generated[request_id]
        self._generated[request_id] += len(tokens)
        num_generated = self._generated[request_id]
        cached = self.num_cached[min(request_id, len(self.num_cached)) - 1]
        timings = RequestTimings(
            queue_s=0.001,
            prompt_s=0.5,
            generation_s=2.0,
            prompt_tokens=len(self.requests[request_id].prompt),
            cached_tokens=cached,
            generated_tokens=num_generated,
        )
        num_top = self.requests[request_id].num_logprobs
        picks = () if num_top is None else tuple(make_pick(one, num_top, self.facts.num_vocab) for one in tokens)
        has_timings = finish is not None or is_first or self.requests[request_id].wants_timings
        told = timings if has_timings else None
        slot = (request_id - 1) % self.facts.slots if has_timings else None
        return Output(request_id, tuple(tokens), num_generated, finish, told, error, picks, slot=slot)
