"""A client that does not read holds up its own answer alone: the engine never waits for a reply to be written."""

from __future__ import annotations

import asyncio

from tests.fakes.engine import FakeEngine
from tests.fakes.reply import STOP, Run, settle


async def test_an_answer_goes_on_step_by_step_beside_one_whose_client_reads_nothing() -> None:
    engine = FakeEngine()
    slow, mine = Run(engine), Run(engine)
    slow.may_write.clear()
    tasks = [asyncio.create_task(run.reply.run()) for run in (slow, mine)]
    await engine.submissions(2)
    for number, letter in enumerate(b"abcdefgh", 1):
        engine.step({1: bytes([letter]), 2: bytes([letter])})
        await settle()
        assert mine.text.count(";") == number, "its token is written before the next step"
    engine.step({1: b"", 2: b""}, finish=STOP)
    await tasks[1]
    assert mine.text.startswith("0<0:a;0:b;0:c;")
    assert slow.writes == []
    slow.may_write.set()
    await tasks[0]
    assert slow.end["usage"] == mine.end["usage"], "nothing is lost for the one who came late"
