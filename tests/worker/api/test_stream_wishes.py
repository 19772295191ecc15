"""What a request wishes of its reply: a least length, an end in time, progress, timings, no answer at all."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.fakes.engine import FakeEngine
from tests.fakes.reply import Run, play, settle
from worker.engine.request import FinishReason, PrefillProgress

STOP = FinishReason.STOP


async def test_a_stop_string_within_the_least_length_does_not_end_the_answer() -> None:
    run = await play(b"aX", b"bX", b"cX", b"d", stop=("X",), min_tokens=4)
    assert run.text == "0<0:aX;0:bX;0:c;0>stop!;done"
    assert run.engine.finished == [(1, 6)]


async def timed(*steps: tuple[float, bytes], finish: FinishReason | None = None, **options: Any) -> Run:
    """Return a run in which each step comes at its time; without a `finish` its own limit must end it."""
    run = Run(FakeEngine(), **options)
    task = asyncio.create_task(run.reply.run())
    await run.engine.submissions(1)
    for number, (now_s, step) in enumerate(steps, 1):
        run.now_s = now_s
        run.engine.step({1: step}, finish=finish if number == len(steps) else None)
        await settle()
    await asyncio.wait_for(task, 10)
    return run


@pytest.mark.parametrize("is_stream", [True, False])
async def test_an_answer_whose_time_is_up_ends_when_it_has_a_line(is_stream: bool) -> None:
    steps = ((7.0, b"ab"), (8.5, b"c"), (9.5, b"d\n"), (9.6, b"ef"))
    run = await timed(*steps, max_predict_s=2.0, is_stream=is_stream)
    assert run.text == ("0<0:ab;0:c;0:d\n;0>length!;done" if is_stream else "abcd\n>length")
    assert run.engine.finished == [(1, 5)]
    assert run.end["usage"]["completion_tokens"] == 5
    assert run.end["finish_reasons"] == ["length"]


async def test_an_answer_that_has_a_line_ends_as_soon_as_its_time_is_up() -> None:
    run = await timed((7.0, b"a\n"), (9.0, b"b"), (9.1, b"c"), (9.2, b"d"), max_predict_s=2.0)
    assert run.text == "0<0:a\n;0:b;0:c;0>length!;done"


async def test_an_answer_of_one_line_is_not_cut_and_one_in_time_neither() -> None:
    run = await timed((7.0, b"a"), (99.0, b"b"), (100.0, b"c"), max_predict_s=2.0, finish=STOP)
    assert run.text == "0<0:a;0:b;0:c;0>stop!;done"
    run = await timed((7.0, b"a\n"), (8.0, b"b"), (9.0, b"c"), max_predict_s=2.0, finish=STOP)
    assert run.text == "0<0:a\n;0:b;0:c;0>stop!;done"


async def test_time_before_the_first_token_does_not_count() -> None:
    run = await timed((7.0, b""), (50.0, b"a\n"), (51.0, b"b"), max_predict_s=2.0, finish=STOP)
    assert run.text == "0<0:a\n;0:b;0>stop!;done"


async def test_text_that_was_held_when_the_time_was_up_is_sent_and_later_tokens_are_not() -> None:
    run = Run(FakeEngine(), max_predict_s=2.0, stop=("KLM",), num_logprobs=0)
    task = asyncio.create_task(run.reply.run())
    await run.engine.submissions(1)
    run.engine.step({1: b"a\n"})
    await settle()
    run.now_s = 3.0
    run.engine.step({1: b"K"})
    run.engine.step({1: b""})
    await asyncio.sleep(0)
    run.engine.step({1: b"LMN"})
    await task
    assert run.text == "0<0:a\n[97, 10];0:K[75];0>length!;done"
    assert run.engine.finished == [(1, 3)]


async def test_progress_opens_a_choice_and_comes_before_its_text() -> None:
    run = Run(FakeEngine(), wants_progress=True)
    task = asyncio.create_task(run.reply.run())
    await run.engine.submissions(1)
    for processed in (1, 2):
        run.engine.step({1: b""}, progress=PrefillProgress(3, 0, processed, 0.1))
        await settle()
    run.engine.step({1: b"a"}, progress=PrefillProgress(3, 0, 3, 0.1))
    await settle()
    run.engine.step({1: b"b"}, finish=STOP)
    await task
    assert run.text == "0<0%1;0%2;0%3;0:a;0:b;0>stop!;done"


async def test_timings_so_far_come_with_each_piece_if_wanted() -> None:
    assert (await play(b"ab", b"c", wants_timings=True)).text == "0<0:ab@2;0:c@3;0>stop!;done"


async def test_a_request_for_no_token_is_opened_and_closed() -> None:
    assert (await play(b"never", max_tokens=0)).text == "0<0>length!;done"
    assert (await play(b"never", max_tokens=0, is_stream=False)).text == ">length"
