"""A long conversation with a real model after the model was unloaded: what is cached, what is said, how soon."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from tests.support.models import smollm2_path
from tests.support.real_server import Api, RealServer, api_of, real_server
from tests.support.served import until

pytestmark = pytest.mark.models

Messages = list[dict[str, str]]
NAMES = ("Ada", "Bo", "Cy", "Di", "Ed", "Flo", "Gus", "Hal")
MARGIN = 0.1
"""Log-probabilities of equal histories may differ by so much: cells lie elsewhere, so that sums have another order."""
PLACES = ("the harbour", "the mill", "the old town", "the library", "the lighthouse")


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealServer]:
    """SmolLM2 under two names: one keeps its prompts on the disk."""
    folder = tmp_path_factory.mktemp("kept")
    file = {"model": str(smollm2_path()), "context": 2048, "slots": 2, "device": "cpu", "idle_unload_s": 0}
    file["draft_max"] = 0  # rows of drafts would change the last digits
    models = {"kept": file | {"prompt_cache_disk_bytes": "500MB"}, "plain": file}
    with real_server(folder, models, env={"CORRAL_CACHE": str(folder / "cache")}, limits={"max_loaded": 1}) as server:
        yield server


@pytest.fixture
async def api(served: RealServer) -> AsyncIterator[Api]:
    async with api_of(served) as client:
        yield client


@dataclass(frozen=True)
class Turn:
    text: str
    prompt_tokens: int
    cached_tokens: int
    first_token_s: float
    picks: tuple[tuple[str, float, float], ...]
    """Each token, its log-probability, and by how much it was ahead of the next best."""


async def turn(api: Api, model: str, messages: Messages) -> Turn:
    """Return the greedy answer, and when its first token came."""
    body: dict[str, Any] = {
        "model": model,
        "messages": messages,
        "max_tokens": 24,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
        "logprobs": True,
        "top_logprobs": 2,
    }
    started_s = time.monotonic()
    first_s, text, usage, picks = 0.0, "", {}, []
    async with api.session.post(f"{api.server.url}/v1/chat/completions", json=body) as reply:
        async for line in reply.content:
            if not line.startswith(b"data: {"):
                continue
            chunk = json.loads(line[6:])
            usage = chunk.get("usage") or usage
            for choice in chunk["choices"]:
                text += choice["delta"].get("content") or ""
                for one in (choice.get("logprobs") or {}).get("content") or []:
                    best, second = (top["logprob"] for top in one["top_logprobs"])
                    picks.append((one["token"], one["logprob"], best - second))
                first_s = first_s or (text and time.monotonic() - started_s) or 0.0
    return Turn(text, usage["prompt_tokens"], usage["prompt_tokens_details"]["cached_tokens"], first_s, tuple(picks))


async def reloaded(api: Api, model: str) -> None:
    """The model has been unloaded and is loaded again."""
    await api.post("/models/unload", {"model": model})

    async def is_unloaded() -> bool:
        return await api.state(model) == "unloaded"

    await until(is_unloaded, within_s=20, what="the unload")
    await api.post("/models/load", {"model": model})

    async def is_ready() -> bool:
        return await api.state(model) == "ready"

    await until(is_ready, within_s=60, what="the load")


def assert_same_answer(one: Turn, other: Turn) -> None:
    """The answers are equal up to the last digits, which decide only between tokens that are as good as equal."""
    assert len(one.picks) > 8
    for (token, logprob, ahead), (other_token, other_logprob, _) in zip(one.picks, other.picks, strict=False):
        if token != other_token:
            assert ahead < MARGIN, f"{token!r} was ahead of {other_token!r} by {ahead}"
            return
        assert abs(logprob - other_logprob) < MARGIN, f"{token!r}: {logprob} and {other_logprob}"


async def test_a_long_chat_goes_on_after_an_unload_as_without_one(api: Api, capsys: pytest.CaptureFixture[str]) -> None:
    facts = " ".join(
        f"On day {day} {NAMES[day % 8]} walked {day % 7 + 2} miles from {PLACES[day % 5]} to {PLACES[(day + 2) % 5]}."
        for day in range(1, 85)
    )
    chat = [{"role": "user", "content": f"{facts} Who walked on day 3?"}]
    first = await turn(api, "kept", chat)
    assert first.cached_tokens == 0
    assert first.prompt_tokens > 1400
    chat += [{"role": "assistant", "content": first.text}, {"role": "user", "content": "And on day 4?"}]
    await turn(api, "kept", chat)
    uninterrupted = await turn(api, "kept", chat)
    await reloaded(api, "kept")
    after = await turn(api, "kept", chat)
    await reloaded(api, "plain")
    without = await turn(api, "plain", chat)
    with capsys.disabled():
        print(  # noqa: T201 - the figures are wanted even when all is well
            f"\nafter an unload, {after.prompt_tokens} prompt tokens: {after.cached_tokens} cached, first token after"
            f" {after.first_token_s:.2f} s; nothing kept: {without.first_token_s:.2f} s;"
            f" never unloaded: {uninterrupted.first_token_s:.2f} s"
        )
    assert without.cached_tokens == 0
    assert after.cached_tokens == uninterrupted.cached_tokens >= first.prompt_tokens
    assert_same_answer(uninterrupted, after)
    assert after.first_token_s < without.first_token_s / 2
