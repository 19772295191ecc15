"""OpenAI's `/v1/responses`: items in, one response with items out, and the counting of its input.

What is kept of a response, so that another request can go on from it, is lines of JSON: what the response is, the
response itself, and every item of the conversation. Must not know how templates work, nor where responses are kept.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import repeat
from typing import Any

import orjson

from worker.api.answer_plan import plan_answer
from worker.api.answer_wishes import AnswerWishes
from worker.api.body import read_object
from worker.api.chat_prompt import Conversation, make_chat_prompt
from worker.api.engine_requests import held_to, make_requests
from worker.api.fields import read_fields
from worker.api.formatter import Answer, Ending, Formatter, Piece, told_verdict
from worker.api.logprobs import chat_logprobs
from worker.api.refusals import refuse_unsupported
from worker.api.refused_responses import RESPONSES
from worker.api.responses_events import Event, EventStream, Output
from worker.api.responses_fields import (
    SEALED,
    CountFields,
    ResponsesFields,
    told_choice,
    told_format,
    told_tools,
)
from worker.api.responses_items import Item, is_unfinished, read_history, read_input, to_lines, to_messages
from worker.api.served import Envelope, Job, ReadyJob, ServedModel
from worker.api.text_limits import TextLimits
from worker.api.usage import Totals
from worker.chat.tool_calls.tools import Tools
from worker.engine.request import FinishReason, SamplingParams
from worker.errors import RequestError

MAX_STORED_BYTES = 48 * 2**20
"""Of a conversation: what is kept of it goes to the router in one frame, with the answer."""


@dataclass(frozen=True, slots=True)
class Turn:
    """One request's place in its conversation."""

    history: bytes
    """Lines of the items before it."""
    earlier: Sequence[Item]
    """The same items."""
    new: Sequence[Item]

    @property
    def items(self) -> list[Item]:
        """The conversation so far."""
        return [*self.earlier, *self.new]


def read_response(model: ServedModel, body: bytes, envelope: Envelope) -> Job:
    """Return the job that `body` describes. Raises: RequestError that names the field."""
    raw = read_object(body)
    refuse_unsupported(raw, RESPONSES)
    fields = read_fields(ResponsesFields, raw)
    num_logprobs = fields.num_logprobs
    turn = _turn(fields, envelope)
    offered, format_ = fields.read_tools(), fields.read_format()
    prompt = make_chat_prompt(model, _conversation(fields, turn, offered.tools), envelope)
    wishes = AnswerWishes(
        format_,
        offered.tools,
        relaxed=offered.relaxed,
        thought_budget=fields.thought_budget,
        budget_param=fields.budget_param,
    )
    requests = make_requests(
        model,
        envelope,
        fields,
        [prompt.tokens],
        param="input",
        max_tokens=fields.max_answer,
        num_logprobs=num_logprobs,
    )
    plan = plan_answer(model, wishes, prompt, envelope)
    requests = held_to(requests, plan.constraint)
    stored = _Stored.of(turn) if fields.is_stored else None
    shape = None if num_logprobs is None else partial(chat_logprobs, model.vocabulary)
    formatter = ResponsesFormatter(
        _settings(fields, requests[0].sampling, model.name, envelope)
        | {
            "text": {"format": told_format(fields, format_), "verbosity": "medium"},
            "tool_choice": told_choice(fields),
            "tools": told_tools(fields, offered),
        },
        fields.told_seed(requests[0].sampling.seed),
        Output(envelope.request_id, logprobs=shape, is_sealed=SEALED in (fields.include or ())),
        stored,
    )
    return Job(requests, 1, fields.stop, bool(fields.stream), formatter, plan, limits=TextLimits(fields.max_predict_s))


def read_input_count(model: ServedModel, body: bytes, envelope: Envelope) -> ReadyJob:
    """Return the number of tokens that the input of such a request has. Raises: RequestError that names the field."""
    raw = read_object(body)
    refuse_unsupported(raw, RESPONSES)
    fields = read_fields(CountFields, raw)
    conversation = _conversation(fields, _turn(fields, envelope), fields.read_tools().tools)
    num_tokens = len(make_chat_prompt(model, conversation, envelope).tokens)
    return ReadyJob(orjson.dumps({"object": "response.input_tokens", "input_tokens": num_tokens}), num_tokens)


def _turn(fields: CountFields, envelope: Envelope) -> Turn:
    if fields.previous_response_id is not None and not envelope.history:
        raise RequestError(
            "'previous_response_id' is set, but nothing is known of that response here. Send the whole conversation "
            "in 'input'.",
            param="previous_response_id",
        )
    earlier = read_history(envelope.history)
    return Turn(envelope.history, earlier, read_input(fields.input, envelope.request_id, earlier))


def _conversation(fields: CountFields, turn: Turn, tools: Tools) -> Conversation:
    """Return what the template gets. Tools that may not be called are not shown to the model either."""
    return Conversation(
        to_messages(fields.instructions, turn.items),
        tools=fields.shown_tools if tools.offered else None,
        offered=tools,
        continues=is_unfinished(turn.new),
        kwargs=fields.chat_template_kwargs or {},
        thinking=fields.thinking,
        template=fields.chat_template,
        param="input",
    )


def _settings(fields: ResponsesFields, used: SamplingParams, model: str, envelope: Envelope) -> dict[str, Any]:
    """Return what of a response is known before its answer, with the values that really hold."""
    return {
        "id": f"resp_{envelope.request_id}",
        "object": "response",
        "created_at": envelope.created,
        "background": False,
        "error": None,
        "instructions": fields.instructions,
        "max_output_tokens": fields.max_answer,
        "max_tool_calls": fields.max_tool_calls,
        "metadata": fields.metadata or {},
        "model": model,
        "parallel_tool_calls": fields.parallel_tool_calls is not False,
        "previous_response_id": fields.previous_response_id,
        "prompt_cache_key": fields.prompt_cache_key,
        "reasoning": {"effort": fields.effort, "summary": None},
        "safety_identifier": fields.safety_identifier,
        "service_tier": "default",
        "store": fields.is_stored,
        "temperature": used.temperature,
        "top_logprobs": fields.top_logprobs or 0,
        "top_p": used.top_p,
        "truncation": "disabled",
        "user": fields.user,
    }


@dataclass(frozen=True, slots=True)
class _Stored:
    """The beginning of what is kept: all of the conversation but the answer."""

    items: bytes
    """Lines."""
    num_items: int

    @classmethod
    def of(cls, turn: Turn) -> _Stored:
        """Return it. Raises: RequestError when it is too long to be kept."""
        new = to_lines(turn.new)
        items = turn.history + b"\n" + new if turn.history else new
        if len(items) > MAX_STORED_BYTES:
            raise RequestError(
                f"This conversation has {len(items)} bytes, but at most {MAX_STORED_BYTES} can be kept. "
                "Set 'store' to false.",
                param="store",
            )
        return cls(items, len(turn.earlier) + len(turn.new))

    def with_answer(self, response_id: str, response: bytes, answer: Sequence[Item]) -> bytes:
        """Return all that is kept."""
        head = orjson.dumps({"id": response_id, "num_input_items": self.num_items})
        return b"\n".join((head, response, self.items, to_lines([_without_logprobs(item) for item in answer])))


def _without_logprobs(item: Item) -> Item:
    """Return the item as later turns need it; the response keeps all of it."""
    if item["type"] != "message":
        return item
    return item | {"content": [part | {"logprobs": []} for part in item["content"]]}


class ResponsesFormatter(Formatter):
    """Objects of kind `response`, streamed event by event or whole."""

    def __init__(self, settings: dict[str, Any], seed: int, output: Output, stored: _Stored | None) -> None:
        self._settings = settings
        self._seed = seed
        self._output = output
        self._stored = stored
        self._stream = EventStream()
        self._is_incomplete = False
        self._verdict: dict[str, Any] = {}
        self._final = b""
        """The response as the client gets it."""

    def first(self, choice: int, totals: Totals) -> bytes:
        """Return the events that open the stream."""
        response = self._response("in_progress", None)
        return self._stream.encode(
            ("response.created", {"response": response}), ("response.in_progress", {"response": response})
        )

    def piece(self, choice: int, piece: Piece) -> bytes:
        """Return the events for one more piece of the answer."""
        return self._stream.encode(*self._output.push(piece.delta, piece.picks))

    def last(self, choice: int, ending: Ending, totals: Totals | None) -> bytes:
        """Return the events that finish the items."""
        return self._stream.encode(*self._end(ending))

    def closing(self, totals: Totals) -> bytes:
        """Return the event that has the whole response."""
        status = self._finish(totals)
        return self._stream.encode((f"response.{status}", {"response": orjson.Fragment(self._final)}))

    def whole(self, answers: Sequence[Answer], totals: Totals) -> bytes:
        """Return the response."""
        (answer,) = answers
        num_placed = 0
        for delta, picks in zip(answer.deltas, answer.picks or repeat(()), strict=False):
            self._output.push(delta, picks)
            num_placed += len(picks)
        self._end(replace(answer.ending, picks=answer.ending.picks[num_placed:]))
        self._finish(totals)
        return self._final

    def stored(self) -> bytes | None:
        """Return what is kept of the response and its conversation, unless the client does not want it."""
        if self._stored is None:
            return None
        return self._stored.with_answer(self._settings["id"], self._final, self._output.items)

    def _end(self, ending: Ending) -> list[Event]:
        self._is_incomplete = ending.finish is FinishReason.LENGTH
        self._verdict = told_verdict(ending)
        items = self._output.items
        # A stop string that was found in a call has cut that off, though the response is as whole as it was to be.
        is_cut = bool(items) and items[-1]["type"] == "function_call" and not ending.has_calls
        return self._output.end(ending.picks, is_incomplete=self._is_incomplete or is_cut)

    def _finish(self, totals: Totals) -> str:
        """Make the final response and return its status."""
        status = "incomplete" if self._is_incomplete else "completed"
        self._final = orjson.dumps(self._response(status, totals))
        return status

    def _response(self, status: str, totals: Totals | None) -> dict[str, Any]:
        details = {"reason": "max_output_tokens"} if status == "incomplete" else None
        response = self._settings | {"status": status, "incomplete_details": details, "completed_at": None}
        if totals is None:
            return response | {"output": [], "usage": None}
        if status == "completed":
            # There is no clock here, as everywhere in replies: the wait for a place is not in it.
            took_s = (totals.prompt_ms + totals.predicted_ms) / 1000
            response["completed_at"] = self._settings["created_at"] + math.ceil(took_s)
        told = {"output": self._output.items, "usage": _usage(totals), "seed": self._seed, "timings": totals.timings}
        return response | told | self._verdict


def _usage(totals: Totals) -> dict[str, Any]:
    """Return the tokens under the names of this dialect. Nothing is counted as written to a cache: it costs nothing."""
    usage = totals.usage
    return {
        "input_tokens": usage["prompt_tokens"],
        "input_tokens_details": {
            "cached_tokens": usage["prompt_tokens_details"]["cached_tokens"],
            "cache_write_tokens": 0,
        },
        "output_tokens": usage["completion_tokens"],
        "output_tokens_details": {"reasoning_tokens": usage["completion_tokens_details"]["reasoning_tokens"]},
        "total_tokens": usage["total_tokens"],
    }
