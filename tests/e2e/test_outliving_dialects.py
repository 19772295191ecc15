"""Workers killed in the middle of answers in every dialect at once, streamed and whole: no client notices."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import signal
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.test_outliving import fake_server
from tests.support.real_server import Api, api_of
from tests.support.served import until

pytestmark = pytest.mark.slow

PROMPT = "tell me of the sea"
SAID = [{"role": "user", "content": PROMPT}]
NUM_TOKENS = 60
FIXED = {"temperature": 0, "ignore_eos": True, "cache_prompt": False}
OLLAMA = {"options": {"temperature": 0, "num_predict": NUM_TOKENS, "ignore_eos": True, "cache_prompt": False}}
VOLATILE = {
    *(
        "id",
        "seed",
        "created",
        "created_at",
        "completed_at",
        "item_id",
        "timings",
        "id_slot",
        "system_fingerprint",
        "corral",
    ),
    *("total_duration", "load_duration", "prompt_eval_duration", "eval_duration", "tokens_cached"),
}


@dataclass(frozen=True)
class Dialect:
    """A route, and how to read what it streams."""

    path: str
    body: dict[str, Any]
    text_of: Callable[[dict[str, Any]], str | None]
    """Of one event; None = it brings no text."""
    id_of: Callable[[dict[str, Any]], str | None] = lambda event: event.get("id")


def _of_choice(name: str) -> Callable[[dict[str, Any]], str | None]:
    def text_of(event: dict[str, Any]) -> str | None:
        choices = event.get("choices")
        if not choices:
            return None
        found = choices[0]["text"] if name == "text" else choices[0]["delta"].get("content")
        return found or None

    return text_of


def _of_responses(event: dict[str, Any]) -> str | None:
    return event["delta"] if event["type"] == "response.output_text.delta" else None


def _of_messages(event: dict[str, Any]) -> str | None:
    return event["delta"]["text"] if event["type"] == "content_block_delta" else None


DIALECTS = (
    Dialect(
        "/v1/completions",
        {"prompt": PROMPT, "max_tokens": NUM_TOKENS, "stream_options": {"include_usage": True}} | FIXED,
        _of_choice("text"),
    ),
    Dialect(
        "/v1/chat/completions",
        {"messages": SAID, "max_tokens": NUM_TOKENS, "stream_options": {"include_usage": True}} | FIXED,
        _of_choice("content"),
    ),
    Dialect(
        "/v1/responses",
        {"input": PROMPT, "max_output_tokens": NUM_TOKENS, "store": False} | FIXED,
        _of_responses,
        lambda event: event.get("response", {}).get("id"),
    ),
    Dialect(
        "/v1/messages",
        {"messages": SAID, "max_tokens": NUM_TOKENS} | FIXED,
        _of_messages,
        lambda event: event.get("message", {}).get("id"),
    ),
    Dialect("/api/chat", {"messages": SAID} | OLLAMA, lambda event: event["message"]["content"] or None),
    Dialect("/api/generate", {"prompt": PROMPT} | OLLAMA, lambda event: event["response"] or None),
    Dialect("/completion", {"prompt": PROMPT, "n_predict": NUM_TOKENS} | FIXED, lambda event: event["content"] or None),
)


def lasting(value: Any) -> Any:
    """Return the value without what differs between any two runs."""
    if isinstance(value, dict):
        return {key: lasting(inner) for key, inner in value.items() if key not in VOLATILE}
    return [lasting(inner) for inner in value] if isinstance(value, list) else value


def events_in(text: str) -> list[dict[str, Any]]:
    """Return the events of server-sent events, or the objects of JSON lines."""
    lines = (line.removeprefix("data: ") for line in text.splitlines() if line.startswith(("data: ", "{")))
    return [json.loads(line) for line in lines if line != "[DONE]"]


def shape_of(events: Iterable[dict[str, Any]], dialect: Dialect) -> tuple[str, list[Any]]:
    """Return the whole text, and every event that brings none, without what differs between two runs.

    How the text is cut into pieces is no part of it.
    """
    text, others = "", []
    for number, event in enumerate(events):
        piece = dialect.text_of(event)
        if (place := event.get("sequence_number")) is not None:
            assert place == number, "no event is missing, none is there twice"
        kept = {key: value for key, value in event.items() if key != "sequence_number"}
        if piece is None or event.get("done") or event.get("stop"):
            others.append(lasting(kept))
        text += piece or ""
    return text, others


async def told(api: Api, dialect: Dialect, stream: bool) -> Any:
    """Return everything of an answer that may not depend on whether a worker was lost."""
    body = {"model": "fake", "stream": stream} | dialect.body
    if not stream:
        body.pop("stream_options", None)
    async with api.session.post(api.server.url + dialect.path, json=body) as reply:
        text = await reply.text()
    assert reply.status == 200, text
    if not stream:
        return lasting(json.loads(text))
    events = events_in(text)
    ids = {found for event in events if (found := dialect.id_of(event)) is not None}
    assert len(ids) <= 1, ids
    return (*shape_of(events, dialect), text.count("[DONE]"))


async def test_no_client_of_any_dialect_notices_that_its_worker_was_killed(tmp_path: Path) -> None:
    with fake_server(tmp_path) as server:
        async with api_of(server) as api:
            asked = list(itertools.product(DIALECTS, (True, False)))
            undisturbed = await asyncio.gather(*(told(api, *one) for one in asked))
            texts = [one[0] for one, (_, stream) in zip(undisturbed, asked, strict=True) if stream]
            assert [len(text) for text in texts] == [NUM_TOKENS] * len(DIALECTS)

            killed: list[int] = []

            async def all_run() -> bool:
                is_new = len(pids := server.worker_pids()) == 1 and pids[0] not in killed
                return is_new and (await api.states("fake")).count("GENERATING") == len(asked)

            running = [asyncio.create_task(told(api, *one)) for one in asked]
            for _ in range(2):
                await until(all_run, within_s=30, what="growing answers in every dialect")
                killed += server.worker_pids()
                os.kill(killed[-1], signal.SIGKILL)
            for one, expected, (dialect, stream) in zip(
                await asyncio.gather(*running), undisturbed, asked, strict=True
            ):
                assert one == expected, (dialect.path, stream)
            assert await api.metric("corral_resumed_requests_total", outcome="ok") == len(asked)
