"""Drives one client request: submits its choices, and has what they come to written as frames.

Owns the order of things within a reply. Must not know a dialect, nor HTTP: it is given a formatter and something
to write to. Runs on the event loop; whichever way it ends, nothing of the request is left in the engine.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from functools import partial

import orjson

from worker.api.choice import Choice
from worker.api.formatter import Piece
from worker.api.logprobs import PickQueue
from worker.api.marked_pieces import MarkedPieces
from worker.api.served import Job, ReadyJob, ServedModel
from worker.api.usage import Totals, add_up
from worker.contract import FrameType, encode_frame
from worker.engine.detokenizer import TextStream
from worker.engine.errors import EngineStopped
from worker.engine.request import FinishReason, Output, PrefillProgress
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


class Reply:
    """The whole answer to one client request."""

    def __init__(self, model: ServedModel, job: Job, write: Write, clock: Callable[[], float] = time.monotonic) -> None:
        self._engine = model.engine
        self._job = job
        vocabulary = MarkedPieces(model.vocabulary, job.plan.markers) if job.plan.markers else model.vocabulary
        self._write = write
        self._inbox = Inbox()
        self._choices = [
            Choice(
                index,
                request,
                TextStream(vocabulary, job.stop, min_tokens=request.min_tokens),
                job.plan.parser(index),
                None if request.num_logprobs is None else PickQueue(vocabulary),
                job.limits.start(clock),
                job.plan.check,
            )
            for index, request in enumerate(job.requests)
        ]

    @property
    def totals(self) -> Totals:
        """Tokens and times so far."""
        return add_up([one.totals for one in self._choices], choices_per_prompt=self._job.choices_per_prompt)

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
        pieces = choice.push(output)
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
            choice.keep(pieces)
            return b""
        return self._told(choice, pieces, output.progress)

    def _told(self, choice: Choice, pieces: Sequence[Piece], progress: PrefillProgress | None) -> bytes:
        formatter = self._job.formatter
        told: list[bytes] = []
        if not choice.is_opened and (pieces or progress is not None or choice.finish is not None):
            choice.is_opened = True
            told.append(formatter.first(choice.index, self.totals))
        if progress is not None:
            told.append(formatter.progress(choice.index, progress))
        if pieces and choice.request.wants_timings:
            pieces = [pieces[0]._replace(totals=self.totals), *pieces[1:]]
        told += [formatter.piece(choice.index, piece) for piece in pieces]
        if choice.finish is not None:
            told.append(formatter.last(choice.index, choice.ending(), None if self._is_open else self.totals))
        return b"".join(told)

    def _closing(self) -> bytes:
        formatter, totals = self._job.formatter, self.totals
        if self._job.is_stream:
            data = formatter.closing(totals)
        else:
            data = formatter.whole([one.answer() for one in self._choices], totals)
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
