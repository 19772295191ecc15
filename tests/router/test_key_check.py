"""Wrong keys over HTTP: counted, answered late after many of them, and never in the way of a right one."""

from __future__ import annotations

import asyncio
import logging

import pytest

from router import key_check
from router.key_guesses import MAX_GUESSES
from tests.support.http_side import HttpSide, http_side
from tests.support.served import until

KEYS = {"api_keys": "right"}


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(key_check, "HOLD_S", 0.0)


async def ask(side: HttpSide, headers: dict[str, str]) -> int:
    async with side.client.get("/v1/models", headers=headers) as reply:
        await reply.read()
        return reply.status


def counted(side: HttpSide) -> dict[str, int]:
    text = side.metrics.render()[0].decode()
    lines = [line for line in text.splitlines() if line.startswith("corral_authentication_failures_total{")]
    return {line.split('"')[1]: int(float(line.split()[-1])) for line in lines}


async def test_failures_are_counted_by_reason() -> None:
    async with http_side(keys=KEYS) as side:
        assert counted(side) == {"missing": 0, "wrong": 0, "throttled": 0}
        for headers in ({}, {"x-api-key": ""}, {"Authorization": "Basic x"}, {"x-api-key": "wrong"}):
            assert await ask(side, headers) == 401
        assert await ask(side, {"x-api-key": "right"}) == 200
        assert counted(side) == {"missing": 3, "wrong": 1, "throttled": 0}


@pytest.mark.parametrize("header", ["x-api-key", "Authorization"])
async def test_many_wrong_keys_are_told_to_stop_and_a_right_one_is_let_in_all_the_same(
    header: str, caplog: pytest.LogCaptureFixture
) -> None:
    scheme = "Bearer " if header == "Authorization" else ""
    async with http_side(keys=KEYS) as side:
        with caplog.at_level(logging.WARNING, "router.key_check"):
            statuses = [await ask(side, {header: f"{scheme}guess-{number}"}) for number in range(MAX_GUESSES + 5)]
        assert statuses == [401] * MAX_GUESSES + [429] * 5
        assert [record.getMessage() for record in caplog.records] == [
            "many wrong API keys come from 127.0.0.1: further ones are answered late"
        ]
        assert await ask(side, {header: f"{scheme}right"}) == 200
        assert await ask(side, {}) == 401, "who sends no key guesses none"
        reply = await side.client.get("/v1/models", headers={header: f"{scheme}guess"})
        error = (await reply.json())["error"]
        assert (error["code"], error["type"]) == ("too_many_wrong_keys", "rate_limit_error")
        assert "guess" not in error["message"]
        assert 1 <= int(reply.headers["Retry-After"]) <= 6
        assert reply.headers["x-should-retry"] == "false"
        assert counted(side) == {"missing": 1, "wrong": MAX_GUESSES, "throttled": 6}


async def test_answers_that_are_late_keep_nobody_waiting_and_are_few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(key_check, "HOLD_S", 30.0)
    monkeypatch.setattr(key_check, "MAX_HELD", 3)
    async with http_side(keys=KEYS) as side:
        for number in range(MAX_GUESSES):
            await ask(side, {"x-api-key": f"guess-{number}"})
        held = side.client.app[key_check.HELD_ANSWERS]
        late = [asyncio.create_task(ask(side, {"x-api-key": "guess"})) for _ in range(3)]
        await until(lambda: held.number == 3)
        async with asyncio.timeout(10):
            assert await ask(side, {"x-api-key": "right"}) == 200
            assert await ask(side, {"x-api-key": "guess"}) == 429, "three are held back already"
        for task in late:
            task.cancel()
        await asyncio.gather(*late, return_exceptions=True)
        await until(lambda: held.number == 0)
