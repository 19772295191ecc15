"""Streams in Anthropic's dialect while a worker is silent, loads or dies. Stub workers in real processes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.served import chat_body, served

PING = 'event: ping\ndata: {"type":"ping"}'
QUICK = {"CORRAL_STREAM_OPEN_AFTER_S": "0.1", "CORRAL_PING_INTERVAL_S": "0.1"}


def body(**fake: Any) -> dict[str, Any]:
    return chat_body("a", stream=True, **fake) | {"max_tokens": 5}


async def test_a_killed_worker_ends_a_stream_with_an_error_event(tmp_path: Path) -> None:
    async with served(tmp_path, {"a": {}}) as server:
        async with server.session.post(f"{server.url}/v1/messages", json=body(die_after=2)) as reply:
            assert reply.status == 200
            *pieces, error, rest = (await reply.text()).split("\n\n")
        assert rest == ""
        assert len(pieces) == 2
        name, data = error.split("\n")
        told = json.loads(data.removeprefix("data: "))
        assert (name, told["type"], told["error"]["type"]) == ("event: error", "error", "overloaded_error")
        assert "SIGKILL" in told["error"]["message"]
        assert told["request_id"] == reply.headers["request-id"]
        async with server.session.post(f"{server.url}/v1/messages", json=body()) as reply:
            assert "event: error" not in await reply.text(), "another worker answers the next request"


@pytest.mark.slow
async def test_a_stream_is_pinged_while_the_model_loads_and_while_its_prompt_is_computed(tmp_path: Path) -> None:
    async with served(tmp_path, {"a": {"fake": {"LOAD_S": 0.5}}}, env=QUICK) as server:
        for fake in ({}, {"prefill_s": 0.5}):
            async with server.session.post(f"{server.url}/v1/messages", json=body(**fake)) as reply:
                events = (await reply.text()).split("\n\n")
            assert reply.status == 200
            assert events[0] == PING
            num_pings = events.index(next(event for event in events if event.startswith("data: ")))
            assert events[:num_pings] == [PING] * num_pings
            assert 2 <= num_pings <= 12


async def test_an_early_failure_keeps_its_status(tmp_path: Path) -> None:
    refusal = {"status": 400, "code": "invalid_request_error", "message": "no"}
    async with (
        served(tmp_path, {"a": {}}) as server,
        server.session.post(f"{server.url}/v1/messages", json=body(error=refusal)) as reply,
    ):
        told = await reply.json()
        assert (reply.status, told["error"]) == (400, {"type": "invalid_request_error", "message": "no"})
