"""Replies that outlive their connection: whose they are, what ends them, and what they cost others."""

from __future__ import annotations

import asyncio
import hashlib
import json

import pytest

from router.api_keys import KeyLimits
from router.auth import Grant, KeyRing, Scope
from router.errors import Gone
from router.kept_runs import KEPT_RUNS
from router.kept_streams import CONVERSATION, KeptStream, Reader
from tests.support.http_side import CHAT, http_side
from tests.support.kept_replies import ALL, ASK, ID, KEYS, PIECES, Talk, headers, left, read_half, read_on, store_of
from tests.support.served import until

# --- whose it is ------------------------------------------------------------------------------------------


async def test_another_key_and_a_wrong_id_get_the_same_answer() -> None:
    async with left(key="one", keys=KEYS) as (side, talk, _):
        talk.may_go_on.set()
        assert await read_on(side, key="one") == (200, ALL)
        foreign = await side.client.get(f"/v1/streams/{ID}", headers=headers(key="two"))
        wrong = await side.client.get(f"/v1/streams/{'z' * 30}", headers=headers(key="one"))
        assert (foreign.status, wrong.status) == (404, 404)
        assert await foreign.read() == await wrong.read()
        assert (await side.client.delete(f"/v1/streams/{ID}", headers=headers(key="two"))).status == 404
        assert (await side.client.get(f"/v1/streams/{ID}")).status == 401
        assert (await read_on(side, key="one"))[0] == 200


async def test_there_is_no_list_of_ids() -> None:
    async with left() as (side, _, __):
        for path in ("/v1/streams", "/v1/streams/"):
            assert (await side.client.get(path)).status == 404
        for path in ("/metrics", "/status", "/requests", "/slots"):
            assert ID not in await (await side.client.get(path)).text()


async def test_two_keys_may_use_the_same_id() -> None:
    async with left(key="one", keys=KEYS) as (side, talk, _):
        talk.may_go_on.set()
        second = await side.client.post(CHAT, json=ASK, headers=headers(key="two"))
        assert (await second.read(), await read_on(side, key="one")) == (ALL, (200, ALL))
        assert store_of(side).counts()["finished"] == 2


async def test_the_server_makes_an_id_that_nobody_can_guess() -> None:
    async with http_side() as side:
        replies = [await side.client.post(CHAT, json=ASK, headers=headers("new")) for _ in range(2)]
        first, second = (reply.headers[CONVERSATION] for reply in replies)
        assert first != second
        assert len(first) == 32
        assert await read_on(side, name=first) == (200, await replies[0].read())


@pytest.mark.parametrize("name", ["short", "x" * 21, "a/b" * 10])
async def test_a_weak_id_is_refused_before_anything_is_done(name: str) -> None:
    async with http_side() as side:
        reply = await side.client.post(CHAT, json=ASK, headers=headers(name))
        assert (reply.status, (await reply.json())["error"]["code"]) == (400, "invalid_conversation_id")
        assert side.worker.received == []


async def test_a_key_that_is_withdrawn_ends_what_it_has_asked_for() -> None:
    async with left(key="one", keys=KEYS) as (side, talk, _):
        runs = side.client.server.app[KEPT_RUNS]
        (run,) = runs._runs.values()
        runs._services.keys.adopt(KeyRing([(b"0" * 32, run.grant)]))
        run.seen_at_s = -10.0  # it was looked at a while ago
        talk.may_go_on.set()
        await until(lambda: side.num_requests() == 1)
        assert side.num_requests(outcome="client_gone") == 1
        assert (store_of(side).num_bytes, side.supervisor.num_leases) == (0, 0)


# --- stopping ---------------------------------------------------------------------------------------------


async def test_a_stop_frees_the_place_at_once_and_forgets_the_reply() -> None:
    async with left() as (side, _, __):
        assert side.supervisor.num_leases == 1
        reply = await side.client.delete(f"/v1/streams/{ID}")
        assert (reply.status, await reply.read(), side.supervisor.num_leases) == (204, b"", 0)
        await asyncio.wait_for(side.worker.aborted.wait(), 5)
        assert (await read_on(side))[0] == (await side.client.delete(f"/v1/streams/{ID}")).status == 404
        assert side.num_requests(outcome="client_gone") == side.num_requests() == 1
        assert store_of(side).num_bytes == 0


async def test_whoever_reads_a_reply_that_is_stopped_is_told_so_by_an_event() -> None:
    async with http_side() as side:
        side.worker.script = Talk()
        reply = await side.client.post(CHAT, json=ASK, headers=headers())
        got = await read_half(reply)
        await side.client.delete(f"/v1/streams/{ID}")
        last = json.loads((await reply.read()).removeprefix(b"data: "))
        assert last["error"]["code"] == "stream_stopped"
        assert got == ALL[: len(got)]


async def test_a_request_that_still_waits_for_its_model_can_be_stopped() -> None:
    async with http_side() as side:
        side.supervisor.gate = asyncio.Event()
        asking = asyncio.ensure_future(side.client.post(CHAT, json=ASK, headers=headers()))
        await side.supervisor.waiting.wait()
        assert (await side.client.delete(f"/v1/streams/{ID}")).status == 204
        reply = await asking
        assert (reply.status, (await reply.json())["error"]["code"]) == (410, "stream_stopped")
        assert (side.supervisor.num_leases, side.body_memory.num_bytes) == (0, 0)


async def test_a_request_that_is_stopped_before_its_task_has_begun_says_so_too(monkeypatch: pytest.MonkeyPatch) -> None:
    async with http_side() as side:
        runs = side.client.server.app[KEPT_RUNS]
        attach = runs.store.attach

        def attach_and_stop(stream: KeptStream, offset: int) -> Reader:
            runs._stop(runs._runs[stream], Gone("it was stopped", code="stream_stopped"))
            return attach(stream, offset)

        monkeypatch.setattr(runs.store, "attach", attach_and_stop)
        reply = await side.client.post(CHAT, json=ASK, headers=headers())
        assert (reply.status, (await reply.json())["error"]["code"]) == (410, "stream_stopped")
        assert (side.num_requests(outcome="client_gone"), side.body_memory.num_bytes) == (1, 0)
        assert side.worker.received == []


async def test_a_new_request_of_the_conversation_stops_the_one_before() -> None:
    async with left() as (side, talk, _):
        second = asyncio.ensure_future(side.client.post(CHAT, json=ASK, headers=headers()))
        await asyncio.wait_for(side.worker.aborted.wait(), 5)
        talk.may_go_on.set()
        assert await (await second).read() == ALL
        assert await read_on(side) == (200, ALL)
        assert (side.num_requests(outcome="client_gone"), side.num_requests(outcome="ok")) == (1, 1)


async def test_an_answer_that_nobody_reads_for_too_long_is_stopped_and_says_so() -> None:
    async with left(detached_stream_s=0.1) as (side, _, got):
        await asyncio.wait_for(side.worker.aborted.wait(), 5)
        await until(lambda: store_of(side).counts()["finished"] == 1)
        status, rest = await read_on(side, len(got))
        assert (status, json.loads(rest.removeprefix(b"data: "))["error"]["code"]) == (200, "stream_abandoned")
        assert side.num_requests(outcome="client_gone") == 1


async def test_a_complete_reply_is_forgotten_after_its_time() -> None:
    async with left(kept_stream_s=0.1) as (side, talk, _):
        talk.may_go_on.set()
        await until(lambda: sum(store_of(side).counts().values()) == 0)
        assert (store_of(side).num_bytes, (await read_on(side))[0]) == (0, 404)


async def test_a_server_that_stops_ends_what_nobody_reads_and_lets_the_others_go_on() -> None:
    async with left() as (side, talk, _):
        other = await side.client.post(CHAT, json=ASK, headers=headers("y" * 30))
        await read_half(other)
        side.client.server.app[KEPT_RUNS].dismiss()
        await until(lambda: side.num_requests() == 1)
        assert side.supervisor.num_leases == 1
        talk.may_go_on.set()
        assert await other.read() == b"".join(PIECES[3:])


async def test_a_server_that_is_gone_leaves_no_task_and_the_reader_an_error() -> None:
    async with http_side() as side:
        side.worker.script = Talk()
        reply = await side.client.post(CHAT, json=ASK, headers=headers())
        await read_half(reply)
        closing = asyncio.ensure_future(side.client.server.runner.cleanup())
        assert json.loads((await reply.read()).removeprefix(b"data: "))["error"]["code"] == "shutting_down"
        await closing
        assert not any("kept" in task.get_name() for task in asyncio.all_tasks())


async def test_an_answer_without_its_client_counts_for_the_limits_of_its_key_until_it_ends() -> None:
    grant = Grant("team", frozenset({Scope.INFERENCE}), limits=KeyLimits(max_concurrent=1))
    ring = KeyRing([(hashlib.sha256(b"one").digest(), grant)])
    async with left(key="one", ring=ring) as (side, talk, _):
        assert (await side.client.post(CHAT, json=ASK, headers=headers("y" * 30, "one"))).status == 429
        assert (await read_on(side, "0", key="one", name="y" * 30))[0] == 404
        assert (await side.client.delete(f"/v1/streams/{ID}", headers=headers(key="one"))).status == 204
        talk.may_go_on.set()
        assert (await side.client.post(CHAT, json=ASK, headers=headers("y" * 30, "one"))).status == 200


# --- offsets and readers ----------------------------------------------------------------------------------


@pytest.mark.parametrize("offset", ["-1", "x", "1.5", "9" * 16])
async def test_an_offset_that_is_no_number_of_bytes_is_refused(offset: str) -> None:
    async with left() as (side, _, __):
        assert (await read_on(side, offset))[0] == 400


async def test_an_offset_beyond_the_reply_is_refused() -> None:
    async with left() as (side, _, got):
        status, body = await read_on(side, len(got) + 1)
        assert (status, f"at most {len(got)}".encode() in body) == (400, True)


async def test_several_clients_read_one_reply_and_a_fifth_is_refused() -> None:
    async with left() as (side, talk, _):
        readings = [asyncio.ensure_future(read_on(side)) for _ in range(4)]
        stream = next(iter(side.client.server.app[KEPT_RUNS]._runs))
        await until(lambda: len(stream.readers) == 4)
        assert (await read_on(side))[0] == 429
        talk.may_go_on.set()
        assert await asyncio.gather(*readings) == [(200, ALL)] * 4


async def test_a_head_request_tells_of_the_reply_without_reading_it() -> None:
    async with left() as (side, talk, _):
        talk.may_go_on.set()
        await until(lambda: store_of(side).counts()["finished"] == 1)
        reply = await side.client.head(f"/v1/streams/{ID}?from=5")
        assert (reply.status, reply.headers["Content-Length"]) == (200, str(len(ALL) - 5))
        stream = next(iter(side.client.server.app[KEPT_RUNS]._runs))
        await until(lambda: not stream.readers)


async def test_a_client_that_does_not_read_is_left_behind_and_the_answer_goes_on() -> None:
    pieces = [b"data: " + b"x" * 2**20 + b"\n\n"] * 12
    async with http_side(max_client_stall_s=0.2, kept_stream_max_bytes=2**20) as side:
        side.worker.script = talk = Talk(pieces)
        talk.may_go_on.set()
        body = json.dumps(ASK).encode()
        head = f"POST {CHAT} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n{CONVERSATION}: {ID}\r\n"
        server = side.client.server
        _, writer = await asyncio.open_connection(server.host, server.port, limit=1024)
        try:
            writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
            await until(lambda: side.num_requests(outcome="ok") == 1)
            assert store_of(side).num_bytes <= 2**20
            whole = b"".join(pieces)
            assert await read_on(side, len(whole) - 100) == (200, whole[-100:])
        finally:
            writer.close()


async def test_a_reader_that_makes_no_room_in_time_is_cut_off_and_holds_nothing_up() -> None:
    pieces = [b"data: " + b"x" * 30_000 + b"\n\n"] * 8
    async with left(talk=Talk(pieces), max_client_stall_s=0.1, kept_stream_max_bytes=2**17) as (side, talk, _):
        stream = next(iter(side.client.server.app[KEPT_RUNS]._runs))
        reader = store_of(side).attach(stream, 0)  # it never reads
        talk.may_go_on.set()
        await until(lambda: side.num_requests(outcome="ok") == 1)
        assert (reader.is_lost, stream.readers, stream.num_bytes) == (True, set(), 2**17)


async def test_the_bytes_of_all_replies_together_stay_within_their_bound() -> None:
    async with http_side(kept_streams_max_bytes=2**16) as side:
        side.worker.script = talk = Talk([b"data: " + b"x" * 30_000 + b"\n\n"] * 2)
        talk.may_go_on.set()
        for number in range(4):
            reply = await side.client.post(CHAT, json=ASK, headers=headers(f"{number}" * 30))
            assert len(await reply.read()) == 2 * 30_008
            assert store_of(side).num_bytes <= 2**16
        assert (await read_on(side, name="0" * 30))[0] == 404
        assert (await read_on(side, name="3" * 30))[0] == 200


async def test_metrics_tell_how_many_replies_are_kept_and_how_large() -> None:
    async with left() as (side, _, got):
        page = await (await side.client.get("/metrics")).text()
        assert 'corral_kept_streams{state="detached"} 1.0' in page
        assert f"corral_kept_streams_bytes {float(len(got))}" in page
        assert 'corral_open_streams{kind="answers"} 0.0' in page
