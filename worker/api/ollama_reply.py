"""The bytes of Ollama's replies: lines of JSON, or one object.

Owns their shape, and that a call of a tool is told in one piece. Must not read requests. There is no clock: all lines
of a reply have the time at which its request came.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, assert_never

import orjson

from worker.api.formatter import Answer, Ending, Formatter, Piece, told_verdict
from worker.api.logprobs import Shape
from worker.api.usage import Totals
from worker.chat.deltas import CallArguments, CallStart, Delta, ReasoningDelta, TextDelta
from worker.engine.request import FinishReason
from worker.errors import GenerationFailed


@dataclass(frozen=True, slots=True)
class OllamaHead:
    """The fields in front of every line."""

    model: str
    """As the client has named it."""
    created: int
    """Unix seconds."""
    load_ms: int = 0
    """How long the request has waited for the model to load."""

    def fields(self) -> dict[str, Any]:
        """Return them."""
        return {"model": self.model, "created_at": created_at(self.created)}


def created_at(unix_s: int) -> str:
    """Return the time as RFC 3339 has it, with the nine digits that Ollama's clients are used to."""
    return datetime.fromtimestamp(unix_s, UTC).strftime("%Y-%m-%dT%H:%M:%S.000000000Z")


@dataclass(frozen=True, slots=True)
class Said:
    """What a line, or a whole reply, has of the answer."""

    text: str = ""
    thinking: str = ""
    calls: Sequence[Mapping[str, Any]] = ()

    @property
    def extras(self) -> dict[str, Any]:
        """What is only told where there is any."""
        told: dict[str, Any] = {"thinking": self.thinking} if self.thinking else {}
        return told | {"tool_calls": list(self.calls)} if self.calls else told


Layout = Callable[[Said], dict[str, Any]]
"""Where a route has what was said."""


def as_message(said: Said) -> dict[str, Any]:
    """Return it as `/api/chat` has it."""
    return {"message": {"role": "assistant", "content": said.text, **said.extras}}


def as_response(said: Said) -> dict[str, Any]:
    """Return it as `/api/generate` has it."""
    return {"response": said.text, **said.extras}


class OllamaFormatter(Formatter):
    """Replies of one choice, streamed or whole."""

    def __init__(
        self,
        head: OllamaHead,
        layout: Layout,
        *,
        logprobs: Shape | None = None,
        context: Sequence[int] | None = None,
    ) -> None:
        """With a `context`, the prompt's tokens, the reply ends with these and the answer's."""
        self._head = head.fields()
        self._load_ms = head.load_ms
        self._layout = layout
        self._logprobs = logprobs
        self._context = None if context is None else list(context)
        self._calls = CallGatherer()
        start, end = self._line({"done": False}, Said("\0")).rsplit(orjson.dumps("\0"), 1)  # a name may be the same
        self._affixes = start, end

    def piece(self, choice: int, piece: Piece) -> bytes:
        """Return the line with one more piece; none for a part of a call."""
        if self._context is not None:
            self._context += piece.tokens
        said = self._said([piece.delta])
        picks = {} if self._logprobs is None else {"logprobs": self._logprobs(piece.picks)["content"]}
        if not said.calls and not said.thinking and not picks:
            start, end = self._affixes
            return start + orjson.dumps(said.text) + end if said.text else b""
        return self._line({"done": False, **picks}, said)

    def last(self, choice: int, ending: Ending, totals: Totals | None) -> bytes:
        """Return the line that ends the answer, after one with the last call if there is any."""
        assert totals is not None, "there is one choice alone"
        if self._context is not None:
            self._context += ending.tokens
        calls = self._calls.end(ending)
        before = self._line({"done": False}, Said(calls=calls)) if calls else b""
        picks = {"logprobs": self._logprobs(ending.picks)["content"]} if self._logprobs and ending.picks else {}
        return before + self._line(picks | self._end(ending, totals), Said())

    def closing(self, totals: Totals) -> bytes:
        """Return nothing: the last line has said that it is the last."""
        return b""

    def whole(self, answers: Sequence[Answer], totals: Totals) -> bytes:
        """Return the reply in one piece."""
        (answer,) = answers
        if self._context is not None:
            self._context += answer.ending.tokens
        said = self._said(answer.deltas)
        said = Said(said.text, said.thinking, [*said.calls, *self._calls.end(answer.ending)])
        picks = {} if self._logprobs is None else {"logprobs": self._logprobs(answer.ending.picks)["content"]}
        return self._line(picks | self._end(answer.ending, totals), said).removesuffix(b"\n")

    def _said(self, deltas: Sequence[Delta]) -> Said:
        text, thinking = "", ""
        calls: list[Mapping[str, Any]] = []
        for delta in deltas:
            match delta:
                case TextDelta(more):
                    calls += self._calls.take()
                    text += more
                case ReasoningDelta(more):
                    calls += self._calls.take()
                    thinking += more
                case CallStart() | CallArguments():
                    calls += self._calls.push(delta)
                case _:
                    assert_never(delta)
        return Said(text, thinking, calls)

    def _end(self, ending: Ending, totals: Totals) -> dict[str, Any]:
        context = {} if self._context is None else {"context": self._context}
        reason = "length" if ending.finish is FinishReason.LENGTH else "stop"
        told = durations(totals, self._load_ms)
        return {"done": True, "done_reason": reason, **context, **told, **told_verdict(ending)}

    def _line(self, fields: dict[str, Any], said: Said) -> bytes:
        return orjson.dumps(self._head | self._layout(said) | fields) + b"\n"


class CallGatherer:
    """Puts calls of tools together, which models write piece by piece and Ollama tells at once.

    A call is complete when anything else begins: nothing comes between its start and the last of its arguments.
    """

    def __init__(self) -> None:
        self._start: CallStart | None = None
        self._arguments = ""

    def push(self, delta: CallStart | CallArguments) -> list[dict[str, Any]]:
        """Return the call that is complete now, if another one begins."""
        match delta:
            case CallStart():
                complete = self.take()
                self._start = delta
                return complete
            case CallArguments():
                self._arguments += delta.text
                return []
            case _:
                assert_never(delta)

    def take(self) -> list[dict[str, Any]]:
        """Return the call that has not been returned yet. Raises: GenerationFailed when it is broken."""
        start, arguments = self._start, self._arguments
        self._start, self._arguments = None, ""
        if start is None:
            return []
        value = _object(arguments or "{}")
        if value is None:
            raise GenerationFailed(
                f"The model called the tool '{start.name[:100]}' with arguments that are not a JSON object. "
                "Please try again."
            )
        return [{"id": start.id, "function": {"index": start.index, "name": start.name, "arguments": value}}]

    def end(self, ending: Ending) -> list[dict[str, Any]]:
        """Return the last call if there is one. One that was cut off is none that could be made.

        Raises: GenerationFailed when it is broken although the model has ended it.
        """
        is_cut = ending.finish is FinishReason.LENGTH or ending.stop_string is not None
        if is_cut and _object(self._arguments) is None:
            self._start, self._arguments = None, ""
        return self.take()


def durations(totals: Totals, load_ms: int) -> dict[str, int]:
    """Return counts, and times in nanoseconds. The wait for a place is in none of them."""
    load_ns = load_ms * 1_000_000
    prompt_ns, predicted_ns = round(totals.prompt_ms * 1e6), round(totals.predicted_ms * 1e6)
    return {
        "total_duration": load_ns + prompt_ns + predicted_ns,
        "load_duration": load_ns,
        "prompt_eval_count": totals.prompt_tokens,
        "prompt_eval_duration": prompt_ns,
        "eval_count": totals.completion_tokens,
        "eval_duration": predicted_ns,
    }


def _object(text: str) -> dict[str, Any] | None:
    """Return the JSON object in `text`; None = there is none."""
    try:
        value = orjson.loads(text)
    except orjson.JSONDecodeError:
        return None
    return value if isinstance(value, dict) else None
