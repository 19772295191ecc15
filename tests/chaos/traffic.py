"""Clients of many kinds that ask without end, each of whose answers is checked to the last token.

Owns what a whole and valid answer is. A client that asks for what it may have and stays is owed one: whatever else it
gets is a lost request. Clients never try again by themselves. Must not inject faults.
"""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import Any

import aiohttp

ANSWER_WITHIN_S = 90.0
TOKENS = 32
MAX_FAULTS = 2
"""The default of `limits.max_resumes`: a request that has lost more workers than that is beyond its limits."""
WORDS = ("red", "story", "world")
SCHEMA = {
    "type": "object",
    "properties": {"done": {"type": "boolean"}, "word": {"enum": list(WORDS)}},
    "required": ["done", "word"],
    "additionalProperties": False,
}
ALL_KINDS = ("stream", "whole", "chat", "schema", "pair", "stop", "messages", "embedding", "cancel")
_GREEDY = {"temperature": 0, "seed": 1, "ignore_eos": True}


class Traffic:
    """A number of clients, each with one request after another."""

    def __init__(
        self, url: str, *, seed: int, num_clients: int = 6, tokens: int = TOKENS, kinds: Collection[str] = ALL_KINDS
    ) -> None:
        self.num_done: Counter[str] = Counter()
        self.lost: list[str] = []
        self._running: dict[int, int] = {}
        """Requests that are owed an answer now, each with the faults that it has seen."""
        self._num_asked = 0
        self._url = url
        self._dice = random.Random(seed)
        self._num_clients = num_clients
        self._tokens = tokens
        self._session = aiohttp.ClientSession(
            timeout=aiohttp.ClientTimeout(total=ANSWER_WITHIN_S), connector=aiohttp.TCPConnector(limit=0)
        )
        self._clients: list[asyncio.Task[None]] = []
        self._is_over = False
        self._expected: dict[str, str] = {}
        every: dict[str, Callable[[], Awaitable[None]]] = {
            "stream": self._stream,
            "whole": self._whole,
            "chat": self._chat,
            "schema": self._schema,
            "pair": self._pair,
            "stop": self._stop,
            "messages": self._messages,
            "embedding": self._embedding,
            "cancel": self._cancel,
        }
        self._kinds = {kind: every[kind] for kind in ALL_KINDS if kind in kinds}

    async def learn(self) -> None:
        """It is known what undisturbed answers say, and connections are open as they will be for so many clients.

        To be called once, before all else.
        """
        self._expected = {
            "completion": await self._greedy_text(),
            "chat": (await self._ask("/v1/chat/completions", self._chat_body()))["choices"][0]["message"]["content"],
        }
        assert len(self._expected["completion"]) > self._tokens // 2, "the text is long enough to find a stop string in"
        times = -(-self._num_clients // len(self._kinds))
        await asyncio.gather(*(ask() for ask in self._kinds.values() for _ in range(times)))

    def start(self) -> None:
        """The clients begin."""
        self._is_over = False
        self._clients = [asyncio.create_task(self._run(number)) for number in range(self._num_clients)]

    async def stop(self) -> None:
        """Every client has got its last answer."""
        self._is_over = True
        await asyncio.gather(*self._clients)

    async def close(self) -> None:
        await self._session.close()

    async def probe(self, model: str = "text") -> float:
        """Return how many seconds a normal request to the model has taken."""
        start_s = time.monotonic()
        await self._owed("probe", self._probe if model == "text" else self._embedding)
        return time.monotonic() - start_s

    @property
    def in_flight(self) -> int:
        """Requests that are owed an answer now."""
        return len(self._running)

    def note_fault(self) -> None:
        """Something is done to all requests that are in flight."""
        self._running = {number: num_faults + 1 for number, num_faults in self._running.items()}

    async def until_ripe(self, at_least: int = 2) -> None:
        """So many requests are in flight, and none of them has seen more faults yet than it may outlive."""
        async with asyncio.timeout(ANSWER_WITHIN_S):
            while self.in_flight < at_least or max(self._running.values()) >= MAX_FAULTS:  # noqa: ASYNC110
                await asyncio.sleep(0.005)

    async def _run(self, number: int) -> None:
        """One client: the kinds in turns, so that no kind is left to chance, with pauses that are."""
        kinds = list(self._kinds)
        turn = number
        while not self._is_over:
            kind = kinds[turn % len(kinds)]
            turn += 1
            if kind == "cancel":
                await self._cancel()
            else:
                await self._owed(kind, self._kinds[kind])
            await asyncio.sleep(self._dice.uniform(0.0, 0.05))

    async def _owed(self, kind: str, ask: Callable[[], Awaitable[None]]) -> None:
        self._num_asked += 1
        number = self._num_asked
        self._running[number] = 0
        try:
            await ask()
            self.num_done[kind] += 1
        except (AssertionError, aiohttp.ClientError, ConnectionError, TimeoutError, ValueError, LookupError) as error:
            self.lost.append(f"{kind}: {error!r}"[:600])
        finally:
            del self._running[number]

    # --- the kinds --------------------------------------------------------------------------------------------

    def _completion_body(self, **fields: Any) -> dict[str, Any]:
        return {"model": "text", "prompt": "tell the story", "max_tokens": self._tokens} | _GREEDY | fields

    def _chat_body(self, **fields: Any) -> dict[str, Any]:
        messages = [{"role": "user", "content": "hello world"}]
        return {"model": "text", "messages": messages, "max_tokens": self._tokens} | _GREEDY | fields

    async def _greedy_text(self) -> str:
        answer = await self._ask("/v1/completions", self._completion_body())
        return str(answer["choices"][0]["text"])

    async def _probe(self) -> None:
        answer = await self._ask("/v1/completions", self._completion_body(max_tokens=4))
        assert answer["usage"]["completion_tokens"] == 4, answer

    async def _stream(self) -> None:
        events = await self._events("/v1/completions", self._completion_body(stream=True, **_WITH_USAGE))
        check_ids(events)
        assert texts_of(events) == {0: self._expected["completion"]}, texts_of(events)
        assert finishes_of(events) == {0: "length"}, events[-3:]
        assert events[-1]["usage"]["completion_tokens"] == self._tokens, events[-1]

    async def _whole(self) -> None:
        answer = await self._ask("/v1/completions", self._completion_body())
        (choice,) = answer["choices"]
        assert (choice["text"], choice["finish_reason"]) == (self._expected["completion"], "length"), answer
        assert answer["usage"]["completion_tokens"] == self._tokens, answer

    async def _chat(self) -> None:
        events = await self._events("/v1/chat/completions", self._chat_body(stream=True, **_WITH_USAGE))
        check_ids(events)
        assert texts_of(events) == {0: self._expected["chat"]}, texts_of(events)
        assert events[-1]["usage"]["completion_tokens"] == self._tokens, events[-1]

    async def _schema(self) -> None:
        form = {"type": "json_schema", "json_schema": {"name": "answer", "schema": SCHEMA, "strict": True}}
        body = self._chat_body(response_format=form, max_tokens=100, temperature=1, ignore_eos=False)
        answer = await self._ask("/v1/chat/completions", body | {"seed": self._dice.randrange(2**31)})
        (choice,) = answer["choices"]
        value = json.loads(choice["message"]["content"])
        assert choice["finish_reason"] == "stop", answer
        assert set(value) == {"done", "word"}, value
        assert isinstance(value["done"], bool), value
        assert value["word"] in WORDS, value

    async def _pair(self) -> None:
        fields = {"n": 2, "temperature": 1, "seed": self._dice.randrange(2**31), "stream": True} | _WITH_USAGE
        events = await self._events("/v1/completions", self._completion_body(**fields))
        check_ids(events)
        assert finishes_of(events) == {0: "length", 1: "length"}, events[-3:]
        assert events[-1]["usage"]["completion_tokens"] == 2 * self._tokens, events[-1]

    async def _stop(self) -> None:
        whole = self._expected["completion"]
        at = len(whole) // 2
        mark = whole[at : at + 4]
        events = await self._events("/v1/completions", self._completion_body(stop=[mark], stream=True))
        check_ids(events)
        assert texts_of(events) == {0: whole[: whole.index(mark)]}, (texts_of(events), mark)
        assert finishes_of(events) == {0: "stop"}, events[-3:]

    async def _messages(self) -> None:
        messages = [{"role": "user", "content": "hello world"}]
        body = {"model": "text", "messages": messages, "max_tokens": self._tokens, "temperature": 0, "stream": True}
        events = await self._events("/v1/messages", body, ends_with="message_stop")
        kinds = [event["type"] for event in events if event["type"] != "ping"]
        assert kinds[:2] == ["message_start", "content_block_start"], kinds[:4]
        assert kinds[-3:] == ["content_block_stop", "message_delta", "message_stop"], kinds[-4:]
        text = "".join(event["delta"]["text"] for event in events if event["type"] == "content_block_delta")
        assert text == self._expected["chat"], text
        assert events[-2]["usage"]["output_tokens"] == self._tokens, events[-2]

    async def _embedding(self) -> None:
        answer = await self._ask("/v1/embeddings", {"model": "embed", "input": ["hello", "the sea"]})
        vectors = [one["embedding"] for one in answer["data"]]
        assert [len(vector) for vector in vectors] == [32, 32], answer

    async def _cancel(self) -> None:
        """A client that leaves at some moment is owed nothing; that it has left must not harm others."""
        body = self._completion_body(stream=self._dice.random() < 0.5)
        try:
            async with asyncio.timeout(self._dice.uniform(0.0, 0.4)):
                await self._ask("/v1/completions", body, is_read=False)
        except (TimeoutError, aiohttp.ClientError, AssertionError):
            pass

    # --- asking -----------------------------------------------------------------------------------------------

    async def _ask(self, path: str, body: Mapping[str, Any], *, is_read: bool = True) -> dict[str, Any]:
        async with self._session.post(self._url + path, json=body) as reply:
            text = await reply.text()
            assert reply.status == 200, f"HTTP {reply.status}: {text[:400]}"
        found: dict[str, Any] = json.loads(text) if is_read else {}
        return found

    async def _events(self, path: str, body: Mapping[str, Any], *, ends_with: str = "[DONE]") -> list[dict[str, Any]]:
        """Return what a stream has told; it has ended as it should, and with no error."""
        async with self._session.post(self._url + path, json=body) as reply:
            text = await reply.text()
            assert reply.status == 200, f"HTTP {reply.status}: {text[:400]}"
        payloads = [line.removeprefix("data: ") for line in text.split("\n") if line.startswith("data: ")]
        assert payloads, "the stream is empty"
        if ends_with == "[DONE]":
            assert payloads.pop() == "[DONE]", f"the stream breaks off: {text[-300:]}"
        events: list[dict[str, Any]] = [json.loads(payload) for payload in payloads]
        errors = [event for event in events if "error" in event]
        assert not errors, errors
        assert ends_with == "[DONE]" or events[-1]["type"] == ends_with, f"the stream breaks off: {text[-300:]}"
        return events


_WITH_USAGE = {"stream_options": {"include_usage": True}}


def check_ids(events: list[dict[str, Any]]) -> None:
    """All parts belong to one answer. Raises: AssertionError."""
    assert len({(event["id"], event["created"], event["model"]) for event in events}) == 1, events[:3]


def texts_of(events: list[dict[str, Any]]) -> dict[int, str]:
    """Return the text of every choice."""
    found: dict[int, str] = {}
    for choice in (choice for event in events for choice in event["choices"]):
        piece = (choice["delta"].get("content") if "delta" in choice else choice["text"]) or ""
        found[choice["index"]] = found.get(choice["index"], "") + piece
    return found


def finishes_of(events: list[dict[str, Any]]) -> dict[int, str]:
    """Return why every choice has ended; each has, and once."""
    reasons = [
        (choice["index"], choice["finish_reason"])
        for event in events
        for choice in event["choices"]
        if choice["finish_reason"]
    ]
    assert len(dict(reasons)) == len(reasons), f"a choice ends twice: {reasons}"
    return dict(reasons)
