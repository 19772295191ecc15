"""A streaming client of OpenAI-compatible servers that notes when each piece of text arrived."""

from __future__ import annotations

import asyncio
import itertools
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import aiohttp


@dataclass(slots=True)
class Answer:
    """One streamed completion. Times in seconds on the monotonic clock."""

    started_s: float = 0.0
    arrivals_s: list[float] = field(default_factory=list)
    text: str = ""
    finish_reason: str | None = None
    num_prompt: int = 0
    num_generated: int = 0
    num_cached: int = 0
    error: str | None = None

    @property
    def first_s(self) -> float:
        """Seconds to the first piece of text."""
        return self.arrivals_s[0] - self.started_s if self.arrivals_s else float("inf")

    @property
    def ended_s(self) -> float:
        """When the last piece arrived."""
        return self.arrivals_s[-1] if self.arrivals_s else self.started_s

    def largest_gap_s(self, since_s: float = 0.0, until_s: float = float("inf")) -> float:
        """Longest time between two pieces within the window."""
        times = [at for at in self.arrivals_s if since_s <= at <= until_s]
        return max((b - a for a, b in itertools.pairwise(times)), default=0.0)

    def tokens_within(self, since_s: float, until_s: float) -> float:
        """Tokens that arrived after `since_s` and not after `until_s`.

        The first piece of text is taken for one token; later ones may hold several, all alike here, as nobody tells.
        """
        if not self.arrivals_s:
            return 0.0
        first, *later = self.arrivals_s
        in_later = sum(since_s < at <= until_s for at in later)
        of_each = (self.num_generated - 1) / len(later) if later else 0.0
        return float(since_s < first <= until_s) + in_later * of_each


def tokens_per_second(answers: Sequence[Answer]) -> float:
    """Return the speed of all together while all of them generated. Raises: RuntimeError when one failed."""
    for answer in answers:
        if answer.error or len(answer.arrivals_s) < 2:
            raise RuntimeError(f"a stream failed: {answer.error or 'it brought no text'}")
    begin = max(answer.arrivals_s[0] for answer in answers)
    end = min(answer.ended_s for answer in answers)
    if end <= begin:
        raise RuntimeError("the streams did not run at the same time")
    return sum(answer.tokens_within(begin, end) for answer in answers) / (end - begin)


class Client:
    """One server and one model name."""

    def __init__(self, base_url: str, model: str) -> None:
        self._base_url = base_url
        self._model = model
        self._session = aiohttp.ClientSession(
            # Some servers close a connection that the next request is already on its way in.
            connector=aiohttp.TCPConnector(limit=0, force_close=True),
            timeout=aiohttp.ClientTimeout(total=600),
        )

    async def close(self) -> None:
        """Close the connections."""
        await self._session.close()

    async def text(self, path: str) -> str:
        """Return what a GET of the path answers."""
        async with self._session.get(self._base_url + path) as response:
            response.raise_for_status()
            return await response.text()

    async def complete(self, prompt: str, max_tokens: int, *, into: Answer | None = None, **fields: Any) -> Answer:
        """Return the streamed answer to a raw prompt; greedy and without end token unless `fields` say otherwise.

        `into` is an answer that others watch while it grows.
        """
        body = {
            "model": self._model,
            "prompt": prompt,
            "max_tokens": max_tokens,
            "temperature": 0,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
        } | fields
        answer = into or Answer()
        answer.started_s = time.monotonic()
        try:
            await self._stream(body, answer)
        except (aiohttp.ClientError, TimeoutError) as error:
            answer.error = f"{type(error).__name__}: {error}"
        return answer

    async def _stream(self, body: dict[str, Any], answer: Answer) -> None:
        async with self._session.post(f"{self._base_url}/v1/completions", json=body) as response:
            if response.status != 200:
                answer.error = f"HTTP {response.status}: {(await response.text())[:200]}"
                return
            async for line in response.content:
                if line.startswith(b"data: ") and line.strip() != b"data: [DONE]":
                    _note(answer, json.loads(line[6:]))

    async def together(self, prompts: Sequence[str], max_tokens: int, **fields: Any) -> list[Answer]:
        """Return the answers to all prompts, sent at the same time."""
        return list(await asyncio.gather(*(self.complete(prompt, max_tokens, **fields) for prompt in prompts)))


def _note(answer: Answer, chunk: dict[str, Any]) -> None:
    if "error" in chunk:
        answer.error = str(chunk["error"])[:200]
    for choice in chunk.get("choices", ()):
        if choice.get("text"):
            answer.arrivals_s.append(time.monotonic())
            answer.text += choice["text"]
        answer.finish_reason = choice.get("finish_reason") or answer.finish_reason
    if usage := chunk.get("usage"):
        answer.num_prompt = usage["prompt_tokens"]
        answer.num_generated = usage["completion_tokens"]
        answer.num_cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens", 0)
