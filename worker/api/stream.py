"""Drives one client request: submits its choices, and has what they come to written as frames.

Owns the order of things within a reply. Must not know a dialect, nor HTTP: it is given a formatter and something
to write to. Runs on the event loop; whichever way it ends, nothing of the request is left in the engine.

Every step of a stream is told once more in a RESUME frame behind its data. A reply that another worker has begun takes
these steps first, without a word, and goes on from there.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from functools import partial

import orjson

from worker.api.choice import Choice
from worker.api.formatter import Piece
from worker.api.logprobs import PickQueue
from worker.api.marked_pieces import MarkedPieces
from worker.api.resuming import ChoiceSoFar, read_steps, record_of
from worker.api.served import Job, ReadyJob, ServedModel
from worker.api.usage import Totals, add_up
from worker.contract import FrameType, encode_frame
from worker.engine.detokenizer import TextStream
from worker.engine.errors import EngineStopped
from worker.engine.request import FinishReason, Output, PrefillProgress, RequestId
from worker.errors import CannotResume, EngineGone, GenerationFailed, RequestError

Write = Callable[[bytes], Awaitable[None]]

FRAME_BYTES = 2**20
"""Of a long reply."""

RECORDED_TOKENS = 32
"""A reply that is sent whole is recorded whenever it has so many more."""

_COMPUTES_OTHERWISE = (
    "The worker of this answer has gone, and the one in its place computes with other last digits (another device, or "
    "other batch sizes), so that it cannot go on. Please ask again."
)


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

    def __init__(
        self,
        model: ServedModel,
        job: Job,
        write: Write,
        clock: Callable[[], float] = time.monotonic,
        earlier: bytes = b"",
    ) -> None:
        """`earlier`: the payloads of all RESUME frames of a reply that goes on here, one a line."""
        self._engine = model.engine
        self._clock = clock
        self._earlier = earlier
        self._num_vocab = model.engine.facts.num_vocab
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
        self._began_at_s: dict[int, float] = {}
        """When the first token of a choice came."""
        self._known: list[Sequence[int]] = [()] * len(self._choices)
        """Tokens of choices that come once more although they have been taken."""
        self._known_progress: dict[int, int] = {}
        """Tokens of prompts that the client was told to be computed."""
        self._unrecorded: list[tuple[int, Output]] = []
        self._is_recorded = not earlier
        """False = with its next token, so that the router knows that this one comes on."""

    @property
    def totals(self) -> Totals:
        """Tokens and times so far."""
        return add_up([one.totals for one in self._choices], choices_per_prompt=self._job.choices_per_prompt)

    async def run(self) -> None:
        """The request has been answered and its last frame written.

        Raises: RequestError when it could not be started or the engine gave it up; `failure` is then to be written.
        """
        try:
            self._submit(self._take_up())
            if not self._is_open:  # only the last words were lost
                await self._write(self._closing())
            while self._is_open:
                frames = self._step(self._unknown(await self._inbox.take()))
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

    def _take_up(self) -> list[ChoiceSoFar]:
        """Stand where another worker has stood; return how far each choice was. Raises: CannotResume."""
        so_far = [ChoiceSoFar() for _ in self._choices]
        if not self._earlier:
            return so_far
        now_s = self._clock()
        for step in read_steps(self._earlier, num_choices=len(self._choices), num_vocab=self._num_vocab):
            for index, output, generation_s in step:
                so_far[index].add(output, generation_s)
                if output.progress is not None:
                    self._known_progress[index] = output.progress.processed_tokens
                self._show(self._choices[index], output)  # the client has it
        self._earlier = b""
        for index, one in enumerate(so_far):
            if one.tokens:
                self._began_at_s[index] = now_s - one.generation_s
        return so_far

    def _submit(self, so_far: Sequence[ChoiceSoFar]) -> None:
        for one, taken in zip(self._choices, so_far, strict=True):
            if one.finish is not None:
                continue
            if one.is_cut:  # its end was clear, and the engine had not said yes yet
                end = Output(RequestId(0), finish=FinishReason.STOP, timings=taken.earlier.timings)
                self._inbox.put(one.index, end)
                continue
            request = taken.continued(one.request)
            self._known[one.index] = () if request.earlier is not None else taken.tokens
            try:
                one.request_id = self._engine.submit(request, partial(self._inbox.put, one.index))
            except EngineStopped:
                raise EngineGone("The engine of this model has stopped. Please try again.") from None
            except ValueError as error:
                raise RequestError(f"This request is impossible for the model: {error}.") from error

    def _unknown(self, outputs: list[tuple[int, Output]]) -> list[tuple[int, Output]]:
        """Return the outputs without what the lost worker had told already: tokens, and how far a prompt was.

        Raises: CannotResume when they are not those that it had told: this worker computes otherwise.
        """
        if not self._known_progress and not any(self._known):
            return outputs
        left: list[tuple[int, Output]] = []
        for index, output in outputs:
            known = self._known[index]
            num = min(len(known), len(output.tokens))
            ends_early = num < len(known) and output.finish not in (None, FinishReason.ERROR, FinishReason.ABORT)
            if ends_early or tuple(known[:num]) != tuple(output.tokens[:num]):
                raise CannotResume(_COMPUTES_OTHERWISE)
            self._known[index] = known[num:]
            rest = replace(output, tokens=output.tokens[num:], picks=output.picks[num:]) if num else output
            if rest.progress is not None and rest.progress.processed_tokens <= self._known_progress.get(index, -1):
                rest = replace(rest, progress=None)
            if rest is output or rest.tokens or rest.progress is not None or rest.finish is not None:
                left.append((index, rest))
        return left

    def _step(self, outputs: list[tuple[int, Output]]) -> bytes:
        """Return the frames for what one or more steps of the engine brought."""
        data = b""
        brought: list[tuple[int, Output]] = []
        for index, output in _merge(outputs).items():
            num_before = self._choices[index].num_tokens
            data += self._show(self._choices[index], output)
            num_new = self._choices[index].num_tokens - num_before
            if num_new < len(output.tokens):  # the rest came behind the answer's end: the client has not got it
                output = replace(output, tokens=output.tokens[:num_new], picks=output.picks[:num_new])  # noqa: PLW2901
            brought.append((index, output))
        if self._job.is_stream:
            frames = encode_frame(FrameType.DATA, data) if data else b""
            return frames + self._recorded(brought) if brought else frames
        self._unrecorded += brought
        num_new = sum(len(output.tokens) for _, output in self._unrecorded)
        if num_new < (RECORDED_TOKENS if self._is_recorded else 1):
            return b""
        self._is_recorded = True
        step, self._unrecorded = list(_merge(self._unrecorded).items()), []
        return self._recorded(step)

    def _recorded(self, step: Sequence[tuple[int, Output]]) -> bytes:
        """Return the frame that tells the step to whoever goes on if this worker is lost."""
        now_s = self._clock()
        generation_s = {}
        for index, output in step:
            if output.tokens:
                generation_s[index] = now_s - self._began_at_s.setdefault(index, now_s)
        return encode_frame(FrameType.RESUME, record_of(step, generation_s))

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
        sampler_state=after.sampler_state or before.sampler_state,
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
