"""Drives one client request: submits its choices, turns their tokens into text and the text into frames.

Owns the order of things within a reply. Must not know a dialect, nor HTTP: it is given a formatter and something
to write to. Runs on the event loop; whichever way it ends, nothing of the request is left in the engine.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from functools import partial

import orjson

from worker.api.deltas import CallStart, Delta, OutputParser, join_deltas
from worker.api.indent_limit import IndentLimit
from worker.api.line_limit import LineLimit
from worker.api.logprobs import PickQueue, PlacedPick
from worker.api.served import Answer, Ending, Job, Piece, ReadyJob, ServedModel
from worker.api.usage import ChoiceTotals, Totals, add_up
from worker.contract import FrameType, encode_frame
from worker.engine.detokenizer import TextStream
from worker.engine.errors import EngineStopped
from worker.engine.request import (
    FinishReason,
    GenerationRequest,
    Output,
    PrefillProgress,
    RequestId,
    RequestTimings,
)
from worker.errors import EngineGone, GenerationFailed, RequestError

Write = Callable[[bytes], Awaitable[None]]

FRAME_BYTES = 2**20
"""Of a long reply."""


class Inbox:
    """What the engine has sent and the reply has not yet handled. Filled and emptied on the event loop."""

    def __init__(self) -> None:
        self._outputs: list[tuple[int, Output]] = []
        self._filled = asyncio.Event()

    def put(self, choice: int, output: Output) -> None:
        """Keep `output`; the reader wakes after everything of this step is in."""
        self._outputs.append((choice, output))
        self._filled.set()

    async def take(self) -> list[tuple[int, Output]]:
        """Return all outputs there are, at least one."""
        await self._filled.wait()
        self._filled.clear()
        taken, self._outputs = self._outputs, []
        return taken


class Choice:
    """One choice while it grows: tokens to text, and text to what it consists of."""

    def __init__(
        self,
        index: int,
        request: GenerationRequest,
        text: TextStream,
        parser: OutputParser,
        picks: PickQueue | None,
        limit: LineLimit | None = None,
        indent: IndentLimit | None = None,
    ) -> None:
        self.index = index
        self.request = request
        self.request_id: RequestId | None = None
        self.finish: FinishReason | None = None
        self.timings: RequestTimings | None = None
        """As the engine told them last."""
        self.slot: int | None = None
        self.is_opened = False
        self.has_calls = False
        self.deltas: list[Delta] = []
        """Of a reply that is sent as a whole."""
        self._text = text
        self._parser = parser
        self._picks = picks
        self._limit = limit
        self._indent = indent
        self._is_over_limit = False
        self._untold: list[int] = []
        self._uncovered: list[int] = []

    @property
    def num_tokens(self) -> int:
        """Tokens of the answer; what came after its end was clear does not count."""
        return self._text.num_tokens

    @property
    def is_cut(self) -> bool:
        """Whether its text says that it is over: a stop string was found, or a line that is its last one."""
        return self._text.is_stopped or self._is_over_limit

    def push(self, output: Output) -> list[Delta]:
        """Take over one output and return what of the answer may be shown now.

        Mutates: `finish` when the output is the last one.
        """
        num_before = self.num_tokens
        text = "" if self._is_over_limit else self._text.push(output.tokens)
        num_new = self.num_tokens - num_before
        self._untold += output.tokens[:num_new]
        self._uncovered += output.tokens[:num_new]
        self.timings = output.timings or self.timings
        self.slot = self.slot if output.slot is None else output.slot
        if output.finish is not None:
            text += self._text.flush()
        if self._indent is not None:
            text = self._indent.cut(text)
            self._is_over_limit = self._is_over_limit or self._indent.is_over
        if output.finish is not None:
            self.finish = self._reason(output.finish)
        elif self._limit is not None and num_new and not self._text.is_stopped:
            self._is_over_limit = self._limit.is_over(text) or self._is_over_limit
        if self._picks is not None:
            assert len(output.picks) == len(output.tokens), "every token of such a request comes with its pick"
            self._picks.push(output.picks[:num_new])
            self._picks.show(len(text), is_over=self._text.is_stopped or self.finish is not None)
        deltas = self._parser.push(text) if text else []
        if self.finish is not None:
            deltas += self._parser.flush()
        for delta in deltas:
            self.has_calls = self.has_calls or isinstance(delta, CallStart)
        return deltas

    def _reason(self, told: FinishReason) -> FinishReason:
        """Return why it ended: its end counts from the token that made it clear, whatever the engine did meanwhile."""
        if self._text.is_stopped:
            return FinishReason.STOP
        return FinishReason.LENGTH if self._is_over_limit else told

    def take_tokens(self) -> tuple[int, ...]:
        """Return the tokens that were not returned before."""
        untold, self._untold = tuple(self._untold), []
        return untold

    def ending(self) -> Ending:
        """Return how the choice ended, with all tokens and picks that were not taken before."""
        assert self.finish is not None
        return Ending(
            self.finish,
            self._text.stop_string,
            self.has_calls,
            self.take_tokens(),
            self.take_picks(),
            self.slot,
            self.num_tokens,
            self.timings,
        )

    def take_picks(self) -> list[PlacedPick]:
        """Return the picks, not returned before, of tokens whose text was shown or never will be."""
        return [] if self._picks is None else self._picks.take()

    def take_covered(self) -> list[int]:
        """Return the tokens, not returned before, that are told completely; none while anything is held back."""
        if self.finish is None and (self._text.has_held_text or self._picks):
            return []
        covered, self._uncovered = self._uncovered, []
        return covered


class Reply:
    """The whole answer to one client request."""

    def __init__(self, model: ServedModel, job: Job, write: Write, clock: Callable[[], float] = time.monotonic) -> None:
        self._engine = model.engine
        self._job = job
        self._write = write
        self._inbox = Inbox()
        self._choices = [
            Choice(
                index,
                request,
                TextStream(model.vocabulary, job.stop, min_tokens=request.min_tokens),
                job.parser(),
                None if request.num_logprobs is None else PickQueue(model.vocabulary),
                None if job.max_predict_s is None else LineLimit(job.max_predict_s, clock),
                IndentLimit(job.min_indent) if job.min_indent else None,
            )
            for index, request in enumerate(job.requests)
        ]

    @property
    def totals(self) -> Totals:
        """Tokens and times so far."""
        used = [ChoiceTotals(len(one.request.prompt), one.num_tokens, one.timings) for one in self._choices]
        return add_up(used, choices_per_prompt=self._job.choices_per_prompt)

    async def run(self) -> None:
        """The request has been answered and its last frame written.

        Raises: RequestError when it could not be started or the engine gave it up; `failure` is then to be written.
        """
        try:
            self._submit()
            while self._is_open:
                frames = self._step(await self._inbox.take())
                if not self._is_open:
                    frames += self._closing()
                if frames:
                    await self._write(frames)
        finally:
            for one in self._choices:
                if one.request_id is not None and one.finish is None:
                    self._engine.abort(one.request_id)

    @property
    def _is_open(self) -> bool:
        return any(one.finish is None for one in self._choices)

    def _submit(self) -> None:
        for one in self._choices:
            try:
                one.request_id = self._engine.submit(one.request, partial(self._inbox.put, one.index))
            except EngineStopped:
                raise EngineGone("The engine of this model has stopped. Please try again.") from None
            except ValueError as error:
                raise RequestError(f"This request is impossible for the model: {error}.") from error

    def _step(self, outputs: list[tuple[int, Output]]) -> bytes:
        """Return the frames for what one or more steps of the engine brought."""
        shown: list[bytes] = []
        touched: dict[int, Choice] = {}
        for index, merged in _merge(outputs).items():
            choice = touched[index] = self._choices[index]
            shown.append(self._show(choice, merged))
        data = b"".join(shown)
        if not self._job.is_stream or not data:
            return b""
        frames = [encode_frame(FrameType.DATA, data)]
        for index, choice in touched.items():
            if tokens := choice.take_covered():
                covered = orjson.dumps({"choice": index, "token_ids": tokens})
                frames.append(encode_frame(FrameType.RESUME, covered))
        return b"".join(frames)

    def _show(self, choice: Choice, output: Output) -> bytes:
        """Return the dialect's bytes for `output`. Raises: RequestError when the engine gave up."""
        was_cut = choice.is_cut
        deltas = choice.push(output)
        match choice.finish:
            case FinishReason.ERROR:
                raise GenerationFailed(output.error or "The engine could not go on with this request.")
            case FinishReason.ABORT:
                raise EngineGone("The engine of this model was stopped during the answer. Please try again.")
            case None if choice.is_cut and not was_cut and choice.request_id is not None:
                self._engine.finish(choice.request_id, choice.num_tokens)
            case _:
                pass
        if not self._job.is_stream:
            choice.deltas += deltas
            return b""
        return self._pieces(choice, deltas, output.progress)

    def _pieces(self, choice: Choice, deltas: Sequence[Delta], progress: PrefillProgress | None) -> bytes:
        formatter = self._job.formatter
        pieces: list[bytes] = []
        if not choice.is_opened and (deltas or progress is not None or choice.finish is not None):
            choice.is_opened = True
            pieces.append(formatter.first(choice.index, self.totals))
        if progress is not None:
            pieces.append(formatter.progress(choice.index, progress))
        for number, delta in enumerate(deltas):
            if number == 0:
                totals = self.totals if choice.request.wants_timings else None
                piece = Piece(delta, choice.take_tokens(), choice.take_picks(), totals, choice.slot)
            else:
                piece = Piece(delta)
            pieces.append(formatter.piece(choice.index, piece))
        if choice.finish is not None:
            pieces.append(formatter.last(choice.index, choice.ending(), None if self._is_open else self.totals))
        return b"".join(pieces)

    def _closing(self) -> bytes:
        formatter, totals = self._job.formatter, self.totals
        if self._job.is_stream:
            data = formatter.closing(totals)
        else:
            answers = [Answer(tuple(join_deltas(one.deltas)), one.ending()) for one in self._choices]
            data = formatter.whole(answers, totals)
        reasons = [one.finish for one in self._choices if one.finish is not None]
        stored = formatter.stored()
        kept = b"" if stored is None else encode_frame(FrameType.STORE, stored)
        # Kept before the client has the last of the reply: it may go on from it at once.
        return kept + data_frames(data) + end_frame("ok", totals, reasons)


def _merge(outputs: list[tuple[int, Output]]) -> dict[int, Output]:
    """Return one output for each choice, so that a slow client gets one bigger piece instead of many."""
    merged: dict[int, Output] = {}
    for index, output in outputs:
        before = merged.get(index)
        merged[index] = output if before is None else _join(before, output)
    return merged


def _join(before: Output, after: Output) -> Output:
    return Output(
        request_id=after.request_id,
        tokens=before.tokens + after.tokens,
        num_generated=after.num_generated,
        finish=after.finish,
        timings=after.timings or before.timings,
        error=after.error,
        picks=before.picks + after.picks,
        progress=after.progress or before.progress,
        slot=before.slot if after.slot is None else after.slot,
    )


def data_frames(data: bytes) -> bytes:
    """Return the frames that carry `data`: a frame may not be longer than the contract says."""
    return b"".join(
        encode_frame(FrameType.DATA, data[start : start + FRAME_BYTES]) for start in range(0, len(data), FRAME_BYTES)
    )


class ReadyReply:
    """A reply that was complete when its request was read."""

    def __init__(self, job: ReadyJob, write: Write) -> None:
        self._job = job
        self._write = write

    @property
    def totals(self) -> Totals:
        """Tokens of what was sent."""
        return Totals(prompt_tokens=self._job.num_tokens)

    async def run(self) -> None:
        """The reply and its last frame have been written."""
        await self._write(data_frames(self._job.body) + end_frame("ok", self.totals, []))


def failure(error: RequestError, totals: Totals) -> bytes:
    """Return the frames that end the body of a request that was refused or failed."""
    return encode_frame(FrameType.ERROR, error.to_payload().to_json()) + end_frame(error.outcome, totals, [])


def end_frame(outcome: str, totals: Totals, finish_reasons: Sequence[FinishReason]) -> bytes:
    """Return the last frame of every body."""
    end = {
        "outcome": outcome,
        "usage": totals.usage,
        "timings": totals.timings,
        "finish_reasons": finish_reasons,
    }
    return encode_frame(FrameType.END, orjson.dumps(end))
