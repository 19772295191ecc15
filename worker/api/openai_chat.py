"""OpenAI's `/v1/chat/completions`: messages in, one assistant message for each choice out.

When the last message is the assistant's own, the answer continues it. Must not know how templates work.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Annotated, Any, assert_never

import orjson
from pydantic import Field, WithJsonSchema

from worker.api.answer_plan import plan_answer
from worker.api.answer_wishes import AnswerWishes
from worker.api.body import read_object
from worker.api.chat_prompt import MESSAGES, Conversation, continues_last, make_chat_prompt
from worker.api.engine_requests import held_to, make_requests
from worker.api.fields import Whole, read_fields
from worker.api.format_fields import FormatFields
from worker.api.formatter import Answer, Ending, Formatter, Piece, told_verdict
from worker.api.function_fields import ToolFields
from worker.api.logprobs import MAX_TOP, Shape, chat_logprobs
from worker.api.openai_fields import GenerationFields
from worker.api.openai_reply import ChunkStream, Head, fingerprint, finish_reason, whole_reply
from worker.api.refusals import refuse_unsupported
from worker.api.refused_openai import CHAT
from worker.api.served import Envelope, Job, ReadyJob, ServedModel
from worker.api.text_limits import TextLimits
from worker.api.thought_fields import ThoughtFields
from worker.api.usage import Totals
from worker.chat.deltas import CallArguments, CallStart, Delta, ReasoningDelta, TextDelta
from worker.chat.tool_calls.tools import Tools
from worker.engine.request import PrefillProgress
from worker.errors import RequestError


class ChatFields(GenerationFields, FormatFields, ToolFields, ThoughtFields):
    """The body of a chat request."""

    messages: Annotated[list[Any], WithJsonSchema(MESSAGES)] = Field(description="a list of messages")
    chat_template: str | None = Field(None, min_length=1, description="a string that is not empty")
    chat_template_kwargs: dict[str, Any] | None = Field(None, description="an object")
    add_generation_prompt: bool | None = Field(None, description="true or false")
    logprobs: bool | None = Field(None, description="true or false")
    top_logprobs: Whole | None = Field(None, ge=0, le=MAX_TOP, description=f"an integer from 0 to {MAX_TOP}")
    continue_final_message: bool | None = Field(None, description="true or false")


def read_chat(model: ServedModel, body: bytes, envelope: Envelope) -> Job:
    """Return the job that `body` describes. Raises: RequestError that names the field."""
    raw = read_object(body)
    refuse_unsupported(raw, CHAT)
    fields = read_fields(ChatFields, raw)
    num_logprobs = _num_logprobs(fields)
    offered = fields.read_tools()
    wishes = AnswerWishes(
        fields.read_format(),
        offered.tools,
        tools_param=fields.tools_param,
        relaxed=offered.relaxed,
        splits_thoughts=fields.splits_thoughts,
        thought_budget=fields.thought_budget,
        budget_param=fields.budget_param,
    )
    prompt = make_chat_prompt(model, _conversation(fields, offered.tools), envelope)
    requests = make_requests(
        model,
        envelope,
        fields,
        [prompt.tokens],
        param="messages",
        num_choices=fields.num_choices,
        max_tokens=fields.max_answer,
        num_logprobs=num_logprobs,
    )
    plan = plan_answer(model, wishes, prompt, envelope)
    requests = held_to(requests, plan.constraint)
    head = Head(
        f"chatcmpl-{envelope.request_id}",
        envelope.created,
        model.name,
        fingerprint(model.engine.facts),
        fields.told_seed(requests[0].sampling.seed),
    )
    shape = None if num_logprobs is None else partial(chat_logprobs, model.vocabulary)
    formatter = ChatFormatter(
        head, includes_usage=fields.includes_usage, logprobs=shape, has_function_call=fields.is_legacy
    )
    return Job(
        requests,
        fields.num_choices,
        fields.stop,
        bool(fields.stream),
        formatter,
        plan,
        limits=TextLimits(fields.max_predict_s),
    )


def read_chat_count(model: ServedModel, body: bytes, envelope: Envelope) -> ReadyJob:
    """Return the number of tokens that the prompt of such a request has. Raises: RequestError that names the field."""
    raw = read_object(body)
    refuse_unsupported(raw, CHAT)
    fields = read_fields(ChatFields, raw)
    conversation = _conversation(fields, fields.read_tools().tools)
    num_tokens = len(make_chat_prompt(model, conversation, envelope).tokens)
    return ReadyJob(orjson.dumps({"object": "response.input_tokens", "input_tokens": num_tokens}), num_tokens)


def _conversation(fields: ChatFields, tools: Tools) -> Conversation:
    """Return what the template gets. Tools that may not be called are not shown to the model either."""
    return Conversation(
        fields.messages,
        tools=fields.shown_tools if tools.offered else None,
        offered=tools,
        adds_generation_prompt=fields.add_generation_prompt is not False,
        continues=continues_last(
            fields.messages,
            continue_final_message=fields.continue_final_message,
            add_generation_prompt=fields.add_generation_prompt,
        ),
        kwargs=fields.chat_template_kwargs or {},
        thinking=fields.thinking,
        template=fields.chat_template,
    )


def _num_logprobs(fields: ChatFields) -> int | None:
    """Return how many alternatives are told for each token; None = no log-probabilities at all."""
    if fields.logprobs:
        return fields.top_logprobs or 0
    if fields.top_logprobs:
        raise RequestError(
            f"'top_logprobs' is {fields.top_logprobs}, but log-probabilities are not asked for. "
            "Set 'logprobs' to true as well.",
            param="top_logprobs",
        )
    return None


class ChatFormatter(Formatter):
    """Replies of kind `chat.completion`, streamed or whole."""

    def __init__(
        self, head: Head, *, includes_usage: bool, logprobs: Shape | None = None, has_function_call: bool = False
    ) -> None:
        self._head = head
        self._logprobs = logprobs
        self._has_function_call = has_function_call
        """A call is told in the older way: one, and without an id."""
        self._chunks = ChunkStream(head, "chat.completion.chunk", includes_usage=includes_usage)
        self._affixes: dict[int, tuple[bytes, bytes]] = {}

    def first(self, choice: int, totals: Totals) -> bytes:
        """Return the chunk that names the role."""
        return self._chunks.chunk(_chunk(choice, {"role": "assistant", "content": "", "refusal": None}))

    def progress(self, choice: int, progress: PrefillProgress) -> bytes:
        """Return the chunk that tells how far the prompt is."""
        return self._chunks.progress(_chunk(choice, {}), progress)

    def piece(self, choice: int, piece: Piece) -> bytes:
        """Return one more piece of the message."""
        if not isinstance(piece.delta, TextDelta) or self._logprobs is not None or piece.totals is not None:
            logprobs = self._logprobs(piece.picks) if self._logprobs is not None else None
            return self._chunks.chunk(_chunk(choice, self._delta(piece.delta), logprobs), piece.totals)
        if choice not in self._affixes:
            before = b'{"index":%d,"delta":{"content":' % choice
            self._affixes[choice] = self._chunks.affixes(before, b'},"logprobs":null,"finish_reason":null}')
        before, after = self._affixes[choice]
        return before + orjson.dumps(piece.delta.text) + after

    def last(self, choice: int, ending: Ending, totals: Totals | None) -> bytes:
        """Return the chunk with the finish reason."""
        logprobs = self._logprobs(ending.picks) if self._logprobs and ending.picks else None
        chunk = _chunk(choice, {}, logprobs, self._finish_reason(ending)) | told_verdict(ending)
        return self._chunks.last_chunk(chunk, totals)

    def closing(self, totals: Totals) -> bytes:
        """Return what ends the stream."""
        return self._chunks.closing(totals)

    def whole(self, answers: Sequence[Answer], totals: Totals) -> bytes:
        """Return the reply in one piece."""
        choices = [
            {
                "index": index,
                "message": self._message(one),
                "logprobs": self._logprobs(one.ending.picks) if self._logprobs else None,
                "finish_reason": self._finish_reason(one.ending),
                **told_verdict(one.ending),
            }
            for index, one in enumerate(answers)
        ]
        return whole_reply(self._head, "chat.completion", choices, totals)

    def _finish_reason(self, ending: Ending) -> str:
        """Return OpenAI's word. A call that was cut off is none that could be made."""
        reason = finish_reason(ending.finish)
        if not ending.has_calls or reason != "stop":
            return reason
        return "function_call" if self._has_function_call else "tool_calls"

    def _delta(self, delta: Delta) -> dict[str, Any]:
        told = _delta(delta)
        if self._has_function_call and "tool_calls" in told:
            return {"function_call": told["tool_calls"][0]["function"]}
        return told

    def _message(self, answer: Answer) -> dict[str, Any]:
        message = _message(answer)
        if self._has_function_call and "tool_calls" in message:
            message["function_call"] = message.pop("tool_calls")[0]["function"]
        return message


def _delta(delta: Delta) -> dict[str, Any]:
    match delta:
        case TextDelta(text):
            return {"content": text}
        case ReasoningDelta(text):
            return {"reasoning_content": text}
        case CallStart(index, id_, name):
            function = {"name": name, "arguments": ""}
            return {"tool_calls": [{"index": index, "id": id_, "type": "function", "function": function}]}
        case CallArguments(index, text):
            return {"tool_calls": [{"index": index, "function": {"arguments": text}}]}
        case _:
            assert_never(delta)


def _message(answer: Answer) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": answer.text, "refusal": None}
    if reasoning := "".join(one.text for one in answer.deltas if isinstance(one, ReasoningDelta)):
        message["reasoning_content"] = reasoning
    calls: dict[int, dict[str, Any]] = {}
    for delta in answer.deltas:
        if isinstance(delta, CallStart):
            function = {"name": delta.name, "arguments": ""}
            calls[delta.index] = {"id": delta.id, "type": "function", "function": function}
        elif isinstance(delta, CallArguments):
            calls[delta.index]["function"]["arguments"] += delta.text
    if calls:
        message["content"] = answer.text or None
        message["tool_calls"] = list(calls.values())
    return message


def _chunk(
    choice: int, delta: Mapping[str, Any], logprobs: Mapping[str, Any] | None = None, reason: str | None = None
) -> dict[str, Any]:
    return {"index": choice, "delta": delta, "logprobs": logprobs, "finish_reason": reason}
