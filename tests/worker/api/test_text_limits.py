"""Which limits an answer has, and how those of several kinds go together in one."""

from __future__ import annotations

import asyncio

from tests.fakes.engine import FakeEngine, Script
from tests.fakes.reply import PlainFormatter, Run, settle
from worker.api.indent_limit import IndentLimit
from worker.api.line_limit import LineLimit
from worker.api.served import Job, ServedModel
from worker.api.stream import Reply
from worker.api.text_limits import TextLimits
from worker.contract import FrameDecoder, FrameType
from worker.engine.request import FinishReason, GenerationRequest


def test_only_limits_that_are_asked_for_watch_an_answer() -> None:
    assert TextLimits().start(lambda: 0.0) == ()
    kinds = [type(one) for one in TextLimits(max_predict_s=1.0, min_indent=2).start(lambda: 0.0)]
    assert kinds == [IndentLimit, LineLimit]


def test_each_answer_has_limits_of_its_own() -> None:
    limits = TextLimits(min_indent=2)
    (first,), (second,) = limits.start(lambda: 0.0), limits.start(lambda: 0.0)
    first.take("a\nb", is_last=False)
    assert (first.is_over, second.is_over) == (True, False)


def test_an_answer_that_ends_by_itself_is_not_over_its_time() -> None:
    now_s = [0.0]
    limit = LineLimit(1.0, lambda: now_s[0])
    limit.take("a\n", is_last=False)
    now_s[0] = 5.0
    assert limit.take("b", is_last=True) == "b"
    assert not limit.is_over
    assert limit.take("c", is_last=False) == "c"
    assert limit.is_over


async def test_an_answer_with_too_little_indentation_is_cut_there_and_its_tokens_end() -> None:
    written: list[bytes] = []

    async def write(data: bytes) -> None:
        written.append(data)

    engine = FakeEngine(answers=[Script((b"a\n", b"  b\n", b"c", b"d"), FinishReason.STOP)])
    job = Job((GenerationRequest((1,), 50),), 1, (), True, PlainFormatter(), limits=TextLimits(min_indent=2))
    await Reply(ServedModel("m", engine, engine.vocabulary), job, write).run()
    frames = FrameDecoder().feed(b"".join(written))
    text = b"".join(frame.payload for frame in frames if frame.type is FrameType.DATA)
    assert text == b"0<0:a\n;0:  b\n;0>length!;done"
    assert engine.finished == [(1, 7)]


async def test_progress_starts_no_clock() -> None:
    run = Run(FakeEngine(), max_predict_s=1.0)
    task = asyncio.create_task(run.reply.run())
    await run.engine.submissions(1)
    run.engine.step({1: b""})
    await settle()
    run.now_s = 50.0
    run.engine.step({1: b"a\n"})
    await settle()
    run.engine.step({1: b"b"}, finish=FinishReason.STOP)
    await task
    assert run.text == "0<0:a\n;0:b;0>stop!;done"
