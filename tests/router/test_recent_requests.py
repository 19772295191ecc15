"""Of each request that has ended a record is kept: times and counts, never a word of it, and so many of them."""

from __future__ import annotations

import json

import pytest

from router.account import Account, Outcome
from router.recent_requests import MAX_KEPT, RecentRequests, Record, record_of, shown
from tests.support.http_side import CHAT, http_side

ADMIN = {"x-api-key": "root"}
PROM = {"x-api-key": "prom"}
KEYS = {"api_keys": "user", "metrics_keys": "prom", "admin_keys": "root"}


def record(number: int = 0, **more: object) -> Record:
    found = dict(record_of(Account(f"r{number}", CHAT, 0.0), now_s=1.0, at=2.0))
    return found | more


def test_record_has_what_the_account_knows_and_null_for_what_nobody_knows() -> None:
    account = Account(
        "abc",
        CHAT,
        10.0,
        model="smol",
        key_id="k",
        is_stream=True,
        queue_s=0.5,
        load_s=0.25,
        first_byte_at_s=11.0,
        usage={"prompt_tokens": 7, "completion_tokens": 3, "prompt_tokens_details": {"cached_tokens": 4}},
        timings={"predicted_n": 3, "predicted_ms": 100.0, "predicted_per_second": 30.0},
        finish_reasons=("stop",),
    )
    told = record_of(account, now_s=12.0, at=1_700_000_000.12345)
    assert (told["total_s"], told["ttft_s"], told["queue_s"], told["load_s"]) == (2.0, 1.0, 0.5, 0.25)
    assert (told["prompt_tokens"], told["cached_tokens"], told["completion_tokens"]) == (7, 4, 3)
    assert (told["tokens_per_second"], told["finish"], told["at"]) == (30.0, "stop", 1_700_000_000.123)
    bare = record()
    unknown = {name for name, value in bare.items() if value is None}
    assert unknown >= {"model", "ttft_s", "prompt_tokens", "cached_tokens", "tokens_per_second", "finish"}


@pytest.mark.parametrize(
    "timings",
    [
        {"predicted_n": 0, "predicted_ms": 0.0, "predicted_per_second": 0.0},
        {"predicted_n": 1, "predicted_ms": 0.0, "predicted_per_second": 0.0},
        {"x": 1},
    ],
)
def test_speed_of_an_answer_without_tokens_is_unknown_and_not_0(timings: dict[str, float]) -> None:
    account = Account("r", CHAT, 0.0, timings=timings)
    assert record_of(account, now_s=1.0, at=1.0)["tokens_per_second"] is None


def test_only_so_many_are_kept() -> None:
    recent = RecentRequests(max_kept=3)
    for number in range(5):
        recent.note(record(number))
    assert [one["request_id"] for one in recent.last(10)] == ["r2", "r3", "r4"]
    assert [one["request_id"] for one in recent.last(2)] == ["r3", "r4"]
    assert [one["request_id"] for one in recent.find()] == ["r4", "r3", "r2"]
    assert MAX_KEPT == 1000


def test_they_are_found_by_model_and_outcome() -> None:
    recent = RecentRequests()
    recent.note(record(1, model="a"))
    recent.note(record(2, model="b", outcome="error"))
    recent.note(record(3, model="b"))
    assert [one["request_id"] for one in recent.find(model="b")] == ["r3", "r2"]
    assert [one["request_id"] for one in recent.find(outcome=Outcome.ERROR)] == ["r2"]


def test_whose_key_it_was_is_left_out_for_others_than_administrators() -> None:
    kept = record(1, key="k")
    assert shown(kept, with_key=True)["key"] == "k"
    assert shown(kept, with_key=False)["key"] is None
    assert kept["key"] == "k"


async def test_requests_that_have_ended_are_listed_without_a_word_of_them() -> None:
    async with http_side() as side:
        prompt = "an elephant in the room"
        body = {"model": "gpt", "messages": [{"role": "user", "content": prompt}]}
        reply = await side.client.post(CHAT, json=body)
        await reply.read()
        await side.client.post(CHAT, json={"model": prompt})
        listed = await (await side.client.get("/requests")).json()
        assert [(one["model"], one["outcome"], one["status"]) for one in listed] == [
            (None, "rejected", 404),
            ("smol", "ok", 200),
        ]
        first = listed[1]
        assert (first["alias"], first["request_id"]) == ("gpt", reply.headers["X-Request-Id"])
        assert (first["prompt_tokens"], first["completion_tokens"]) == (3, 2)
        assert "elephant" not in json.dumps(listed)


async def test_looking_at_the_server_is_no_request_that_is_listed() -> None:
    async with http_side() as side:
        for path in ("/health", "/status", "/v1/models", "/nowhere", "/requests"):
            await side.client.get(path)
        assert await (await side.client.get("/requests")).json() == []


async def test_listing_takes_a_limit_a_model_and_an_outcome() -> None:
    async with http_side() as side:
        for model in ("gpt", "gem", "gem", "nobody"):
            await (await side.client.post(CHAT, json={"model": model, "messages": []})).read()

        async def listed(query: str) -> list[str | None]:
            return [one["model"] for one in await (await side.client.get(f"/requests{query}")).json()]

        assert await listed("?limit=2") == [None, "gem"]
        assert await listed("?model=gpt") == ["smol"], "by an alias, too"
        assert await listed("?outcome=rejected") == [None]
        for query, status in (("?limit=0", 400), ("?limit=x", 400), ("?limit=1001", 400), ("?outcome=bad", 400)):
            assert (await side.client.get(f"/requests{query}")).status == status
        assert (await side.client.get("/requests?model=nobody")).status == 404


async def test_only_keys_for_metrics_see_requests_and_only_administrators_whose_they_were() -> None:
    async with http_side(keys=KEYS) as side:
        await (await side.client.post(CHAT, json={"model": "gpt"}, headers={"x-api-key": "user"})).read()
        assert (await side.client.get("/requests")).status == 401
        assert (await side.client.get("/requests", headers={"x-api-key": "user"})).status == 403
        (for_prom,) = await (await side.client.get("/requests", headers=PROM)).json()
        (for_root,) = await (await side.client.get("/requests", headers=ADMIN)).json()
        assert (for_prom["key"], for_root["key"]) == (None, "env-1")
