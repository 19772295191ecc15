"""Many requests at once, each in a thread of its own, with a clock on every piece of their answers.

Owns the prompts and the threads. What the times mean is `bench_figures`'. Must not print.
"""

from __future__ import annotations

import itertools
import random
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from router.cli.bench_figures import Level, Shot
from router.cli.output import CommandFailed
from router.cli.server import Refused
from router.cli.shapes import CHUNK, fits

if TYPE_CHECKING:
    from router.cli.server import Event, Server

_WORDS = (
    *("river", "stone", "harbour", "winter", "letter", "garden", "engine", "silver", "window", "market", "shepherd"),
    *("candle", "bridge", "orchard", "thunder", "meadow", "copper", "lantern", "valley", "feather", "castle"),
    *("marble", "kettle", "pepper", "timber", "saddle", "violin", "anchor", "basket", "cellar"),
)
_ENOUGH_WORDS = 2
"""For each token that is wanted: every word has at least one, and what is too much is cut off."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What every request asks for."""

    model: str
    prompt_tokens: int
    answer_tokens: int
    is_same_prompt: bool = False
    """All have one prompt, which the server computes once."""


class Prompts:
    """Prompts of one length. As token ids, so that the length is exact; as text where the server makes none."""

    def __init__(self, server: Server, plan: Plan) -> None:
        self._server = server
        self._plan = plan
        self._is_exact = True

    def make(self, number: int) -> list[int] | str:
        """Return prompt `number`: it begins with other words than every other. Raises: CommandFailed."""
        chance = random.Random(0 if self._plan.is_same_prompt else number)
        text = " ".join(chance.choice(_WORDS) for _ in range(_ENOUGH_WORDS * self._plan.prompt_tokens))
        if self._is_exact:
            try:
                found = self._server.post("/tokenize", {"model": self._plan.model, "content": text})
                return list(found["tokens"][: self._plan.prompt_tokens])
            except (Refused, KeyError, TypeError):  # a model of another server, an older server
                self._is_exact = False
        return " ".join(text.split()[: self._plan.prompt_tokens])


class Range:
    """Fires requests at a server."""

    def __init__(self, server: Server, plan: Plan) -> None:
        self._server = server
        self._plan = plan
        self._prompts = Prompts(server, plan)
        self._num_made = 0
        self._extra: dict[str, Any] = {"ignore_eos": True}
        """That the answer goes on to its limit, so that all are equally long."""

    def warm_up(self) -> None:
        """The model is loaded and has answered once; what it does not understand is left out from here on.

        Raises: CommandFailed when it does not answer.
        """
        try:
            self._ask(self._next_body())
        except Refused as refusal:
            if refusal.status != 400 or "ignore_eos" not in refusal.message:
                raise
            self._extra = {}
            self._ask(self._next_body())

    def fire(self, concurrency: int, num_requests: int, max_s: float, on_shot: Callable[[Shot], None]) -> Level:
        """Return what became of `num_requests` with so many at the same time; after `max_s` no more begin."""
        bodies = iter([self._next_body() for _ in range(num_requests)])
        lock = threading.Lock()
        shots: list[Shot] = []
        is_over = threading.Event()
        until_s = time.monotonic() + max_s

        def work() -> None:
            while time.monotonic() < until_s and not is_over.is_set():
                with lock:
                    body = next(bodies, None)
                if body is None:
                    return
                try:
                    shot = self._ask(body)
                except CommandFailed as failed:
                    shot = Shot(failure=failed.message)
                except (RuntimeError, OSError, ValueError):  # the connections are closed below a request
                    if is_over.is_set():
                        return
                    raise
                with lock:
                    shots.append(shot)
                    on_shot(shot)

        threads = [threading.Thread(target=work, daemon=True) for _ in range(concurrency)]
        began_s = time.monotonic()
        try:
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        except BaseException:  # Ctrl-C: nobody waits for the answers that are on their way
            is_over.set()
            raise
        return Level(concurrency, shots, time.monotonic() - began_s)

    def _next_body(self) -> dict[str, Any]:
        self._num_made += 1
        return {
            "model": self._plan.model,
            "prompt": self._prompts.make(self._num_made),
            "max_tokens": self._plan.answer_tokens,
            # With chance: an answer that repeats itself would be guessed ahead, and be faster than others.
            "temperature": 1.0,
            "seed": self._num_made,
            "stream": True,
            "stream_options": {"include_usage": True},
            **self._extra,
        }

    def _ask(self, body: dict[str, Any]) -> Shot:
        """Return one request's times. Raises: CommandFailed."""
        began_s = time.monotonic()
        at_s: list[float] = []
        usage: dict[str, Any] = {}
        with self._server.events("POST", "/v1/completions", body=body) as events:
            for chunk in _chunks(events):
                if any(choice.get("text") for choice in chunk.get("choices") or ()):
                    at_s.append(time.monotonic())
                usage = chunk.get("usage") or usage
        details = usage.get("prompt_tokens_details") or {}
        return Shot(
            ttft_s=at_s[0] - began_s if at_s else None,
            gaps_s=tuple(after - before for before, after in itertools.pairwise(at_s)),
            prompt_tokens=usage.get("prompt_tokens"),
            cached_tokens=details.get("cached_tokens"),
            generated_tokens=usage.get("completion_tokens"),
        )


def _chunks(events: Iterator[Event]) -> Iterator[dict[str, Any]]:
    for event in events:
        if not isinstance(event.data, dict):
            continue
        if "error" in event.data:
            error = event.data["error"]
            raise CommandFailed(str(error.get("message") if isinstance(error, dict) else error))
        if not fits(event.data, CHUNK):
            raise CommandFailed("the server sent something that is no part of an answer")
        yield event.data
