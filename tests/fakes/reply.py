"""One reply on a fake engine, in readable bytes, and the frames that it has written."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from typing import Any

from tests.fakes.engine import FakeEngine, Script
from worker.api.answer_wishes import AnswerPlan
from worker.api.formatter import Answer, Ending, Formatter, Piece
from worker.api.logprobs import PlacedPick
from worker.api.served import Job, ServedModel
from worker.api.stream import Reply
from worker.api.text_limits import TextLimits
from worker.api.usage import Totals
from worker.chat.deltas import OutputParser, PlainText, text_of
from worker.contract import Frame, FrameDecoder, FrameType
from worker.engine.request import FinishReason, GenerationRequest, PrefillProgress

STOP = FinishReason.STOP


class PlainFormatter(Formatter):
    """Readable bytes: `0<` opens choice 0, `0:text;` is text, `0>stop;` closes it; `[97]` are tokens with picks.

    `0%32;` is progress, `@3` timings that say so many tokens.
    """

    def first(self, choice: int, totals: Totals) -> bytes:
        return b"%d<" % choice

    def progress(self, choice: int, progress: PrefillProgress) -> bytes:
        return f"{choice}%{progress.processed_tokens};".encode()

    def piece(self, choice: int, piece: Piece) -> bytes:
        so_far = "" if piece.totals is None else f"@{piece.totals.timings['predicted_n']}"
        return f"{choice}:{text_of([piece.delta])}{told(piece.picks)}{so_far};".encode()

    def last(self, choice: int, ending: Ending, totals: Totals | None) -> bytes:
        return f"{choice}>{ending.finish}{'' if totals is None else '!'}{told(ending.picks)};".encode()

    def closing(self, totals: Totals) -> bytes:
        return b"done"

    def whole(self, answers: Sequence[Answer], totals: Totals) -> bytes:
        return "|".join(f"{one.text}>{one.ending.finish}{told(one.ending.picks)}" for one in answers).encode()


def told(picks: Sequence[PlacedPick]) -> str:
    return str([one.pick.token for one in picks]) if picks else ""


class Run:
    """A reply, what it has written, and the engine it runs on."""

    def __init__(
        self,
        engine: FakeEngine,
        *,
        n: int = 1,
        stop: tuple[str, ...] = (),
        is_stream: bool = True,
        num_logprobs: int | None = None,
        max_predict_s: float | None = None,
        parser: Callable[[], OutputParser] = PlainText,
        formatter: Formatter | None = None,
        **fields: Any,
    ) -> None:
        self.now_s = 0.0
        self.engine = engine
        self.writes: list[list[Frame]] = []
        self.may_write = asyncio.Event()
        self.may_write.set()
        asked = {"max_tokens": 50, "num_logprobs": num_logprobs} | fields
        requests = tuple(GenerationRequest((1, 2, 3), **asked) for _ in range(n))
        plan = AnswerPlan(lambda _: parser())
        job = Job(requests, n, stop, is_stream, formatter or PlainFormatter(), plan, limits=TextLimits(max_predict_s))
        model = ServedModel("m", engine, engine.vocabulary)
        self.reply = Reply(model, job, self._write, clock=lambda: self.now_s)

    async def _write(self, data: bytes) -> None:
        await self.may_write.wait()
        decoder = FrameDecoder()
        self.writes.append(decoder.feed(data))
        assert decoder.is_at_boundary

    @property
    def frames(self) -> list[Frame]:
        return [frame for write in self.writes for frame in write]

    @property
    def text(self) -> str:
        return b"".join(frame.payload for frame in self.frames if frame.type is FrameType.DATA).decode()

    @property
    def resumes(self) -> list[list[dict[str, Any]]]:
        """The steps that were told, each with what it brought for each choice."""
        return [json.loads(frame.payload) for frame in self.frames if frame.type is FrameType.RESUME]

    @property
    def told_tokens(self) -> list[list[int]]:
        """Of the steps of a reply with one choice."""
        return [step[0].get("token_ids", []) for step in self.resumes]

    @property
    def end(self) -> dict[str, Any]:
        assert self.frames[-1].type is FrameType.END
        assert [frame.type for frame in self.frames].count(FrameType.END) == 1
        end: dict[str, Any] = json.loads(self.frames[-1].payload)
        return end


async def play(*steps: Sequence[int], finish: FinishReason = STOP, **options: Any) -> Run:
    run = Run(FakeEngine(answers=[Script(steps, finish)]), **options)
    await run.reply.run()
    return run


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)
