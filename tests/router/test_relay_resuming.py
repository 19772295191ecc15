"""An answer whose worker is lost goes on with another one, and the client sees nothing of it, within bounds."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from router.auth import Grant, KeyRing, Scope
from router.catalog import Limits
from router.errors import ModelUnavailable, TooManyRequests
from router.events import ExitReason, WorkerExit, WorkerId
from router.worker_session import MAX_HEAD_BYTES
from tests.fakes.supervisor import EVENTS, Received, Script, Sender, make_view
from tests.support.http_side import CHAT, HttpSide, http_side, make_catalog
from tests.support.openai_stream import payloads_of
from tests.support.served import until
from worker.contract import ErrorPayload, FrameType, Header, encode_frame

HELLO = {"model": "smol", "messages": [{"role": "user", "content": "hi"}]}
STREAM = HELLO | {"stream": True}
STEPS = [b'[{"choice":0,"token_ids":[%d]}]' % n for n in range(6)]


def step(number: int) -> bytes:
    """Return the frames that show `number` and tell its step."""
    return encode_frame(FrameType.DATA, b"data: %d\n\n" % number) + encode_frame(FrameType.RESUME, STEPS[number])


def known(received: Received) -> Sequence[bytes]:
    """Return the steps that the worker is told, and check what stands behind them."""
    num = int(received.headers.get(Header.RESUME, "0"))
    assert json.loads(received.raw[num:]) in (HELLO, STREAM)
    return received.raw[:num].splitlines()


def dying(*lives: int, identity: str = "m1", end: int = 4) -> Script:
    """Return workers that each come so much further before they die; then one that comes to the end."""
    left = list(lives)

    async def work(received: Received, sender: Sender) -> None:
        told = known(received)
        assert list(told) == STEPS[: len(told)]
        sender.headers[Header.CONTENT_TYPE] = EVENTS
        sender.headers[Header.RESUME] = identity
        await sender.start()
        num = left.pop(0) if left else None
        for number in range(len(told), end if num is None else min(end, len(told) + num)):
            await sender.raw(step(number))
        if num is not None:
            sender.cut()
            return
        await sender.data(b"data: [DONE]\n\n")
        await sender.end(usage={"completion_tokens": end})

    return work


def whole(*numbers: int) -> list[Any]:
    return [*numbers, "[DONE]"]


async def stream_of(side: HttpSide, script: Script) -> list[Any]:
    side.worker.script = script
    reply = await side.client.post(CHAT, json=STREAM)
    return payloads_of(await reply.text())


async def test_a_stream_goes_on_behind_what_the_client_has_seen(caplog: pytest.LogCaptureFixture) -> None:
    async with http_side() as side:
        assert await stream_of(side, dying(2, 1)) == whole(0, 1, 2, 3)
        first, second, third = side.worker.received
        assert [len(known(one)) for one in (first, second, third)] == [0, 2, 3]
        assert Header.RESUME not in first.headers
        assert second.headers[Header.RESUME_OF] == "m1"
        assert {first.headers[name] for name in (Header.SEED, Header.CREATED, Header.REQUEST_ID)} == {
            third.headers[name] for name in (Header.SEED, Header.CREATED, Header.REQUEST_ID)
        }
        assert side.num_requests(model="smol", outcome="ok") == 1
        text = side.metrics.render()[0].decode()
        assert 'corral_resumed_requests_total{model="smol",outcome="ok"} 1' in text
        assert side.resume_memory.num_bytes == 0
        assert caplog.text.count("; the answer goes on with another worker") == 2
        assert "ask again" not in caplog.text, "nobody has to do anything"


async def test_data_whose_step_has_not_come_are_not_shown_but_made_again() -> None:
    async def die_inside(received: Received, sender: Sender) -> None:
        sender.headers[Header.CONTENT_TYPE], sender.headers[Header.RESUME] = EVENTS, "m1"
        await sender.raw(step(0) + step(1)[:-4])
        side.worker.script = dying()
        sender.cut()

    async with http_side() as side:
        assert await stream_of(side, die_inside) == whole(0, 1, 2, 3)


async def test_an_answer_that_is_sent_whole_goes_on_too() -> None:
    async def die_then_answer(received: Received, sender: Sender) -> None:
        sender.headers[Header.RESUME] = "m1"
        if len(side.worker.received) == 1:
            await sender.raw(encode_frame(FrameType.RESUME, STEPS[0]))
            sender.cut()
            return
        assert known(received) == [STEPS[0]]
        await sender.data(b'{"text":"hello"}')
        await sender.end()

    async with http_side() as side:
        side.worker.script = die_then_answer
        reply = await side.client.post(CHAT, json=HELLO)
        assert (reply.status, await reply.json()) == (200, {"text": "hello"})


async def test_a_reply_without_steps_is_asked_for_again_as_long_as_nothing_of_it_was_shown() -> None:
    async def die_then_answer(received: Received, sender: Sender) -> None:
        assert Header.RESUME not in received.headers
        await sender.data(b'{"vector":')
        if len(side.worker.received) == 1:
            sender.cut()
            return
        await sender.data(b"[1]}")
        await sender.end()

    async with http_side() as side:
        side.worker.script = die_then_answer
        reply = await side.client.post(CHAT, json=HELLO)
        assert (reply.status, await reply.json()) == (200, {"vector": [1]})


@pytest.mark.parametrize("max_resumes", [0, 1, 2])
async def test_without_a_new_token_it_goes_on_only_so_often(max_resumes: int) -> None:
    catalog = make_catalog(limits=Limits(max_resumes=max_resumes))
    async with http_side(catalog) as side:
        *shown, last = await stream_of(side, dying(1, 0, 0, 0, 0))
        assert shown == [0]
        assert last["error"]["code"] == "worker_died"
        assert len(side.worker.received) == 1 + max_resumes
        assert side.num_requests(outcome="worker_died") == 1
        assert side.resume_memory.num_bytes == 0


async def test_every_new_token_gives_it_all_resumes_again() -> None:
    async with http_side() as side:
        assert await stream_of(side, dying(1, 1, 0, 1, 0, 1, 0, 1, end=6)) == whole(0, 1, 2, 3, 4, 5)


async def test_a_worker_that_was_stopped_on_purpose_is_not_started_again_for_it() -> None:
    async with http_side() as side:
        exit_ = WorkerExit(ExitReason.STOPPED, "unloaded by request", 0)
        side.supervisor.views["smol"] = make_view("smol", last_exit=exit_)
        *_, last = await stream_of(side, dying(1))
        assert "unloaded by request" in last["error"]["message"]
        assert len(side.worker.received) == 1


async def test_nothing_goes_on_while_the_server_stops() -> None:
    async with http_side() as side:
        side.supervisor.is_shutting_down = True
        *_, last = await stream_of(side, dying(1))
        assert last["error"]["code"] == "shutting_down"


@pytest.mark.parametrize("code", ["engine_stopped", "worker_draining"])
async def test_an_engine_that_gives_up_counts_as_a_lost_worker(code: str) -> None:
    async def give_up(received: Received, sender: Sender) -> None:
        sender.headers[Header.CONTENT_TYPE], sender.headers[Header.RESUME] = EVENTS, "m1"
        await sender.raw(step(0))
        side.worker.script = dying()
        await sender.error(ErrorPayload(503, code, "gone", None, 1.0))
        await sender.end("error")

    async with http_side() as side:
        assert await stream_of(side, give_up) == whole(0, 1, 2, 3)


async def test_a_reply_whose_head_does_not_end_counts_as_a_lost_worker() -> None:
    async def endless(received: Received, sender: Sender) -> None:
        side.worker.script = dying()
        sender.headers["X-Long"] = "x" * 64 * MAX_HEAD_BYTES
        await sender.start()

    async with http_side() as side:
        assert await stream_of(side, endless) == whole(0, 1, 2, 3)


async def test_a_worker_that_cannot_go_on_with_it_ends_the_stream_with_its_reason() -> None:
    async def refuse(received: Received, sender: Sender) -> None:
        sender.headers[Header.CONTENT_TYPE], sender.headers[Header.RESUME] = EVENTS, "m2"
        if len(side.worker.received) == 1:
            await sender.raw(step(0))
            sender.cut()
            return
        await sender.error(ErrorPayload(503, "cannot_resume", "The model has changed."))
        await sender.end("error")

    async with http_side() as side:
        *_, last = await stream_of(side, refuse)
        assert last["error"]["code"] == "cannot_resume"


@pytest.mark.parametrize(("max_bytes", "is_enough"), [(0, False), (200, False), (1000, False), (4000, True)])
async def test_more_than_the_memory_for_it_is_not_kept_and_the_answer_ends_with_the_cause(
    max_bytes: int, is_enough: bool
) -> None:
    catalog = make_catalog(limits=Limits(max_resume_bytes=max_bytes))
    async with http_side(catalog) as side:
        *shown, last = await stream_of(side, dying(6, end=6))
        assert shown == [0, 1, 2, 3, 4, 5]
        assert (last == "[DONE]") if is_enough else (last["error"]["code"] == "worker_died")
        assert len(side.worker.received) == (2 if is_enough else 1)
        assert side.resume_memory.num_bytes == 0


@pytest.mark.parametrize("refusal", [ModelUnavailable("it pauses", retry_after_s=0.1), TooManyRequests("full")])
async def test_a_pause_after_a_crash_and_a_full_line_are_waited_for(refusal: Any) -> None:
    async with http_side() as side:
        died = asyncio.Event()
        alive, dead = dying(), dying(1)

        async def work(received: Received, sender: Sender) -> None:
            side.supervisor.refusal = refusal
            side.worker.script = alive
            died.set()
            await dead(received, sender)

        async def open_again() -> None:
            await died.wait()
            await until(lambda: side.supervisor.num_leases == 0, what="a request that waits for a place")
            side.supervisor.refusal = None

        opening = asyncio.create_task(open_again())
        assert await stream_of(side, work) == whole(0, 1, 2, 3)
        await opening


async def test_the_refusal_is_told_when_the_time_for_it_is_over() -> None:
    catalog = make_catalog(limits=Limits(resume_timeout_s=0.2))
    async with http_side(catalog) as side:
        dead = dying(1)

        async def work(received: Received, sender: Sender) -> None:
            side.supervisor.refusal = ModelUnavailable("it pauses for long", retry_after_s=30.0)
            await dead(received, sender)

        *_, last = await stream_of(side, work)
        assert last["error"]["code"] == "worker_died"
        assert "it pauses for long" in last["error"]["message"]


async def test_an_answer_that_finds_no_place_in_time_ends_with_the_limit_s_name() -> None:
    catalog = make_catalog(limits=Limits(resume_timeout_s=0.2))
    async with http_side(catalog) as side:
        dead = dying(1)

        async def work(received: Received, sender: Sender) -> None:
            side.supervisor.gate = asyncio.Event()
            await dead(received, sender)

        *_, last = await stream_of(side, work)
        assert "limits.resume_timeout_s" in last["error"]["message"]


async def test_it_goes_before_its_equals_in_the_line() -> None:
    async with http_side() as side:
        await stream_of(side, dying(1))
        assert [priority for _, priority, _ in side.supervisor.granted] == [0, 0], "it is charged where it belongs"
        assert side.supervisor.going_first == [False, True]


async def test_whoever_may_have_killed_two_workers_goes_on_alone() -> None:
    """One request kills its workers at once; the others that die with it must all come to their end."""
    running: set[str] = set()
    together: list[frozenset[str]] = []

    async def work(received: Received, sender: Sender) -> None:
        name = received.body["user"]
        sender.headers[Header.CONTENT_TYPE], sender.headers[Header.RESUME] = EVENTS, "m1"
        running.add(name)
        await sender.start()
        num_before = sum(one.body["user"] == name for one in side.worker.received)
        if num_before <= 2:  # the worker dies under all of them, twice
            await all_in.wait()
            running.discard(name)
            sender.cut()
            return
        together.append(frozenset(running))
        if name == "poison":
            running.discard(name)
            sender.cut()
            return
        await asyncio.sleep(0.02)
        await sender.raw(step(0))
        running.discard(name)
        await sender.end()

    async with http_side() as side:
        side.worker.script, all_in = work, asyncio.Event()
        names = ["a", "poison", "b", "c"]
        tasks = [asyncio.create_task(side.client.post(CHAT, json=STREAM | {"user": name})) for name in names]
        await until(lambda: len(side.worker.received) == len(names), what="all requests at the worker")
        all_in.set()
        replies = dict(zip(names, [await (await task).text() for task in tasks], strict=True))
        assert all(len(group) == 1 for group in together), "no suspect ran beside another one"
        assert "worker_died" in replies.pop("poison")
        assert set(replies.values()) == {"data: 0\n\n"}


async def test_the_whole_answer_s_time_limit_holds_over_all_of_its_workers() -> None:
    catalog = make_catalog()
    smol = replace(catalog.models["smol"], request_timeout_s=0.3)
    catalog = replace(catalog, models={**catalog.models, "smol": smol})
    async with http_side(catalog) as side:
        hang = asyncio.Event()

        async def work(received: Received, sender: Sender) -> None:
            sender.headers[Header.CONTENT_TYPE], sender.headers[Header.RESUME] = EVENTS, "m1"
            await sender.raw(step(len(known(received))))
            if len(side.worker.received) < 3:
                sender.cut()
            else:
                await hang.wait()

        *shown, last = await stream_of(side, work)
        assert shown == [0, 1, 2]
        assert "request_timeout_s" in last["error"]["message"]


async def test_a_key_is_charged_once_for_each_token_however_many_workers_it_takes() -> None:
    ring = KeyRing([(hashlib.sha256(b"one").digest(), Grant("team", frozenset({Scope.INFERENCE})))])
    async with http_side(ring=ring) as side:
        side.worker.script = dying(2, 0, 1)
        reply = await side.client.post(CHAT, json=STREAM, headers={"Authorization": "Bearer one"})
        assert payloads_of(await reply.text()) == whole(0, 1, 2, 3)
        assert [tokens for _, _, tokens in side.supervisor.shares] == [2, 0, 1, 1]


async def test_a_request_that_came_to_nothing_is_charged_nothing() -> None:
    async def refuse(received: Received, sender: Sender) -> None:
        await sender.error(ErrorPayload(400, "bad", "No."))
        await sender.end("error")

    async def cut(received: Received, sender: Sender) -> None:
        side.worker.script = refuse
        sender.cut()

    async with http_side() as side:
        side.worker.script = cut
        await (await side.client.post(CHAT, json=STREAM)).read()
        assert [tokens for _, _, tokens in side.supervisor.shares] == [0, 0]


async def test_how_far_a_prompt_is_counts_as_nothing_new() -> None:
    """Else a request that kills its worker in its prompt could go on killing workers."""

    async def die_in_the_prompt(received: Received, sender: Sender) -> None:
        sender.headers[Header.CONTENT_TYPE], sender.headers[Header.RESUME] = EVENTS, "m1"
        progress = b'[{"choice":0,"progress":{"total_tokens":9}}]'
        await sender.raw(encode_frame(FrameType.DATA, b"data: 0\n\n") + encode_frame(FrameType.RESUME, progress))
        sender.cut()

    async with http_side() as side:
        *_, last = await stream_of(side, die_in_the_prompt)
        assert last["error"]["code"] == "worker_died"
        assert len(side.worker.received) == 3


async def test_the_exit_of_another_replica_does_not_decide_whether_an_answer_goes_on() -> None:
    async with http_side() as side:
        exit_ = WorkerExit(ExitReason.STOPPED, "unloaded by request", 0)
        other = WorkerId("smol", 1, 7)
        side.supervisor.views["smol"] = replace(make_view("smol", last_exit=exit_), last_to_exit=other)
        assert await stream_of(side, dying(1)) == whole(0, 1, 2, 3)


async def test_an_engine_that_gives_up_and_is_cut_off_before_it_ends_its_reply_counts_as_lost() -> None:
    async def give_up(received: Received, sender: Sender) -> None:
        sender.headers[Header.CONTENT_TYPE], sender.headers[Header.RESUME] = EVENTS, "m1"
        await sender.raw(step(0))
        side.worker.script = dying()
        await sender.error(ErrorPayload(503, "engine_stopped", "gone", None, 1.0))
        sender.cut()

    async with http_side() as side:
        assert await stream_of(side, give_up) == whole(0, 1, 2, 3)
