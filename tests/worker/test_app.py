"""The worker's HTTP on a real socket: frames, refusals, cancelling, draining."""

from __future__ import annotations

import asyncio
import json
import threading

import pytest

from tests.fakes.engine import FakeEngine, FakeVocabulary, Script, make_facts
from tests.support.worker_client import serve
from worker.contract import FrameDecoder, FrameType, Header, default_max_leases
from worker.engine.request import FinishReason

ROUTES = ["/v1/chat/completions", "/v1/completions"]


async def test_a_reply_is_framed_and_names_the_type_that_the_client_shall_see() -> None:
    async with serve(FakeEngine(answers=[Script([b"hi"])])) as worker:
        whole = await worker.complete("x")
        stream = await worker.complete("x", stream=True)
    assert (whole.status, whole.shown_type) == (200, "application/json")
    assert (stream.status, stream.shown_type) == (200, "text/event-stream")
    assert [frame.type for frame in whole.frames] == [FrameType.DATA, FrameType.END]


async def test_the_same_request_with_the_same_headers_gives_the_same_bytes() -> None:
    async with serve(FakeEngine(answers=[Script([b"hi", b" you"])])) as worker:
        for fields in ({}, {"stream": True}, {"stream": True, "stream_options": {"include_usage": True}}):
            first, second = [await worker.complete("x", **fields) for _ in range(2)]
            for frames in zip(first.frames, second.frames, strict=True):
                if frames[0].type is not FrameType.RESUME:  # which tells the slot, too
                    assert frames[0] == frames[1]


@pytest.mark.parametrize("path", ROUTES)
@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"{", "The request body is not valid JSON"),
        (b"\xff", "The request body is not valid JSON"),
        (b"[]", "The request body must be a JSON object."),
        (b"", "The request body is not valid JSON"),
    ],
)
async def test_a_body_that_is_no_json_object_is_refused(path: str, body: bytes, message: str) -> None:
    async with serve(FakeEngine()) as worker:
        reply = await worker.post(path, body)
    assert reply.status == 200
    assert reply.error.status == 400
    assert reply.error.message.startswith(message)
    assert reply.end["outcome"] == "rejected"


async def test_what_the_router_says_in_headers_reaches_the_engine() -> None:
    engine = FakeEngine(answers=[Script([b"x"])])
    async with serve(engine) as worker:
        await worker.complete("x")
    request = engine.submitted[0]
    assert (request.external_id, request.priority, request.cache_salt, request.sampling.seed) == ("r1", 3, "salt", 7)


async def test_headers_may_be_absent() -> None:
    engine = FakeEngine(answers=[Script([b"x"])])
    async with serve(engine) as worker:
        worker.headers = {}
        reply = await worker.complete("x")
    assert reply.json["created"] == 0
    assert engine.submitted[0].sampling.seed == 0


@pytest.mark.parametrize("name", [Header.CREATED, Header.SEED, Header.PRIORITY])
async def test_a_header_that_should_be_a_number_and_is_none_is_refused_by_its_name(name: Header) -> None:
    async with serve(FakeEngine()) as worker:
        reply = await worker.post("/v1/completions", {"prompt": "x"}, **{name: "soon"})
    assert (reply.status, reply.error.status, reply.end["outcome"]) == (200, 400, "rejected")
    assert name in reply.error.message


@pytest.mark.parametrize(("is_stream", "shown"), [(True, "text/event-stream"), (False, "application/json")])
async def test_the_router_has_the_headers_before_the_first_token_is_there(is_stream: bool, shown: str) -> None:
    engine = FakeEngine()
    async with serve(engine) as worker:
        body = {"prompt": "x", "stream": is_stream}
        async with worker.session.post("http://worker/v1/completions", json=body) as response:
            assert engine.running == [1], "nothing has been generated yet"
            assert (response.status, response.headers[Header.CONTENT_TYPE]) == (200, shown)
            engine.step({1: b"ok"}, finish=FinishReason.STOP)
            frames = FrameDecoder().feed(await response.read())
    assert frames[-1].type is FrameType.END


@pytest.mark.parametrize("has_begun", [True, False])
async def test_a_fault_that_nobody_foresaw_ends_the_reply_with_an_error_and_is_logged(
    has_begun: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    engine = FakeEngine()

    def broken(*_: object, **__: object) -> None:
        raise ZeroDivisionError("ours")

    async with serve(engine) as worker:
        if has_begun:
            asked = asyncio.create_task(worker.complete("x", stream=True))
            await engine.submissions(1)
            monkeypatch.setattr(FakeVocabulary, "piece", broken)
            engine.step({1: b"a"})
            reply = await asked
            assert engine.aborted == [1], "nothing of the request stays in the engine"
        else:
            monkeypatch.setattr(FakeVocabulary, "tokenize", broken)
            reply = await worker.complete("x")
        monkeypatch.undo()
        await worker.gate.wait_empty()
    error = reply.error
    assert (error.status, error.code, reply.end["outcome"]) == (500, "engine_error", "error")
    assert "ours" not in error.message
    assert [record.levelname for record in caplog.records if "r1" in record.message] == ["ERROR", "INFO"]
    assert "ZeroDivisionError" in caplog.text


async def test_a_reply_is_continued_only_by_a_worker_of_the_same_identity() -> None:
    sent = {"prompt": "x", "stream": True, "max_tokens": 4}
    engine = FakeEngine(answers=[Script([b"a", b"b"])])
    async with serve(engine, identity="one") as worker:
        steps = b'[{"choice": 0, "token_ids": [97]}]\n'
        body = steps + json.dumps(sent).encode()
        same = await worker.post("/v1/completions", body, **{Header.RESUME: str(len(steps)), Header.RESUME_OF: "one"})
        other = await worker.post("/v1/completions", body, **{Header.RESUME: str(len(steps)), Header.RESUME_OF: "two"})
    assert [event["choices"][0]["text"] for event in same.events] == ["b", ""]
    assert (other.error.status, other.error.code) == (503, "cannot_resume")


@pytest.mark.parametrize("is_stream", [True, False])
async def test_a_failure_of_the_engine_ends_what_was_sent_with_an_error(is_stream: bool) -> None:
    engine = FakeEngine(answers=[Script([b"a", b"b"], FinishReason.ERROR, error="llama_decode failed")])
    async with serve(engine) as worker:
        reply = await worker.complete("x", stream=is_stream)
    kinds = [frame.type for frame in reply.frames]
    assert kinds[-2:] == [FrameType.ERROR, FrameType.END]
    assert (FrameType.DATA in kinds) is is_stream
    error = json.loads(reply.frames[-2].payload)
    assert (error["status"], error["code"], error["message"]) == (500, "engine_error", "llama_decode failed")
    assert reply.end["outcome"] == "error"
    assert reply.end["usage"]["prompt_tokens"] == 1


@pytest.mark.parametrize("is_stream", [True, False])
async def test_a_client_that_leaves_before_the_first_token_aborts_its_request(is_stream: bool) -> None:
    engine = FakeEngine()
    async with serve(engine) as worker:
        _, writer = await worker.open("/v1/completions", {"prompt": "x", "stream": is_stream, "n": 2})
        await engine.submissions(2)
        writer.close()
        await engine.aborts(2)
        assert engine.aborted == [1, 2]
        await worker.gate.wait_empty()


async def test_a_client_that_leaves_during_the_answer_aborts_its_request() -> None:
    engine = FakeEngine()
    async with serve(engine) as worker:
        reader, writer = await worker.open("/v1/completions", {"prompt": "x", "stream": True})
        await engine.submissions(1)
        engine.step({1: b"a"})
        await reader.readuntil(b'"text":"a"')
        writer.close()
        await engine.aborts(1)
        assert engine.aborted == [1]


async def test_a_client_that_leaves_does_not_disturb_others() -> None:
    engine = FakeEngine()
    async with serve(engine) as worker:
        staying = asyncio.create_task(worker.complete("x"))
        await engine.submissions(1)
        _, writer = await worker.open("/v1/completions", {"prompt": "y"})
        await engine.submissions(2)
        writer.close()
        await engine.aborts(1)
        assert engine.aborted == [2]
        engine.step({1: b"ok"}, finish=FinishReason.STOP)
        assert (await staying).json["choices"][0]["text"] == "ok"


async def test_as_many_requests_are_read_at_a_time_as_a_worker_may_have(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = FakeEngine(facts=make_facts(slots=40), answers=[Script([b"ok"])])
    num_requests = default_max_leases(40)
    all_are_here = threading.Barrier(num_requests)

    def read_together(*_: object, **__: object) -> list[int]:
        all_are_here.wait(30)
        return [1]

    monkeypatch.setattr(FakeVocabulary, "tokenize", read_together)
    async with serve(engine) as worker:
        replies = await asyncio.gather(*(worker.complete("x") for _ in range(num_requests)))
    assert [reply.status for reply in replies] == [200] * num_requests


async def test_a_connection_serves_many_requests() -> None:
    engine = FakeEngine(answers=[Script([b"ok"])])
    async with serve(engine) as worker:
        for _ in range(3):
            assert (await worker.complete("x")).end["outcome"] == "ok"
        assert (await worker.complete("")).end["outcome"] == "rejected"
        assert (await worker.complete("x")).end["outcome"] == "ok"


async def test_a_closed_gate_refuses_new_requests_and_lets_running_ones_finish() -> None:
    engine = FakeEngine()
    async with serve(engine) as worker:
        running = asyncio.create_task(worker.complete("x"))
        await engine.submissions(1)
        worker.gate.close()
        refused = await worker.complete("y")
        assert (refused.error.status, refused.error.code) == (503, "worker_draining")
        assert refused.error.retry_after_s == 1.0
        drained = asyncio.create_task(worker.gate.wait_empty())
        await asyncio.sleep(0)
        assert not drained.done()
        engine.step({1: b"ok"}, finish=FinishReason.STOP)
        assert (await running).json["choices"][0]["text"] == "ok"
        await drained


async def test_health_tells_whether_the_worker_takes_requests() -> None:
    async with serve(FakeEngine()) as worker:
        async with worker.session.get("http://worker/health") as response:
            assert await response.json() == {"status": "ok", "model": "tiny"}
        worker.gate.close()
        async with worker.session.get("http://worker/health") as response:
            assert (await response.json())["status"] == "draining"


async def test_prompts_do_not_appear_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG")
    async with serve(FakeEngine(answers=[Script([b"the answer"])])) as worker:
        await worker.complete("my secret prompt", temperature=-1)
        await worker.complete("my secret prompt")
    assert "secret" not in caplog.text
    assert "the answer" not in caplog.text


async def test_every_step_reaches_the_client_before_the_next_one() -> None:
    engine = FakeEngine()
    async with serve(engine) as worker:
        reader, writer = await worker.open("/v1/completions", {"prompt": "x", "stream": True})
        await engine.submissions(1)
        for step in (b"a", b"b", b"c"):
            engine.step({1: step})
            await reader.readuntil(b'"text":"%b"' % step)
        engine.step({1: b""}, finish=FinishReason.STOP)
        await reader.readuntil(b"[DONE]")
        writer.close()
