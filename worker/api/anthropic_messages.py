"""Anthropic's `/v1/messages`: messages in, one message of content blocks out; and `/v1/messages/count_tokens`.

When the last message is the assistant's own, the answer continues it. Must not know how templates work, nor how blocks
look in bytes (`anthropic_reply.py`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import orjson

from worker.api.answer_plan import plan_answer
from worker.api.answer_wishes import AnswerWishes
from worker.api.anthropic_fields import MessageFields, PromptFields
from worker.api.anthropic_reply import BlockStream, blocks_of, event, message_usage, usage_of
from worker.api.anthropic_tools import read_tools, shown_tools
from worker.api.anthropic_turns import make_turns
from worker.api.body import read_object
from worker.api.chat_prompt import Conversation, continues_last, make_chat_prompt
from worker.api.engine_requests import held_to, make_requests
from worker.api.fields import read_fields
from worker.api.formatter import Answer, Ending, Formatter, Piece, told_verdict
from worker.api.output_format import OutputFormat
from worker.api.refusals import refuse_unsupported
from worker.api.refused_anthropic import COUNTING, MESSAGES
from worker.api.served import Envelope, Job, ReadyJob, ServedModel
from worker.api.text_limits import TextLimits
from worker.api.thinking import Thinking
from worker.api.tool_fields import OfferedTools
from worker.api.usage import Totals
from worker.engine.request import FinishReason
from worker.errors import ContextLengthExceeded, RequestError


class PromptTooLong(RequestError):
    """The prompt leaves no room for a single token of an answer."""

    code = "context_length_exceeded"

    def __init__(self, num_prompt: int, maximum: int, *, is_at_least: bool) -> None:
        more = " (and more: it was not counted to its end)" if is_at_least else ""
        # Agents recognise an overflow by these words and compact their history.
        super().__init__(f"prompt is too long: {num_prompt} tokens > {maximum} maximum{more}", param="messages")


def read_messages(model: ServedModel, body: bytes, envelope: Envelope) -> Job:
    """Return the job that `body` describes. Raises: RequestError that names the field."""
    raw = read_object(body)
    refuse_unsupported(raw, MESSAGES)
    fields = read_fields(MessageFields, raw)
    offered, format_ = read_tools(fields.tools, fields.tool_choice), fields.read_format()
    conversation = _conversation(model, fields, offered, format_)
    with _overflow_in_their_words():
        prompt = make_chat_prompt(model, conversation, envelope)
        wishes = AnswerWishes(
            format_,
            offered.tools,
            relaxed=offered.relaxed,
            thought_budget=fields.thought_budget,
            budget_param="thinking.budget_tokens",
        )
        requests = make_requests(
            model,
            envelope,
            fields,
            [prompt.tokens],
            param="messages",
            max_tokens=fields.max_tokens,
        )
    plan = plan_answer(model, wishes, prompt, envelope)
    requests = held_to(requests, plan.constraint)
    shows_thoughts = fields.thinking is None or fields.thinking.display != "omitted"
    seed = fields.told_seed(requests[0].sampling.seed)
    formatter = MessageFormatter(f"msg_{envelope.request_id}", model.name, seed, shows_thoughts=shows_thoughts)
    limits = TextLimits(fields.max_predict_s)
    return Job(requests, 1, fields.stop_texts, bool(fields.stream), formatter, plan, limits=limits)


def read_token_count(model: ServedModel, body: bytes, envelope: Envelope) -> ReadyJob:
    """Return the number of tokens that `read_messages` would make of the prompt. Raises: RequestError, as it would."""
    raw = read_object(body)
    refuse_unsupported(raw, COUNTING)
    fields = read_fields(PromptFields, raw)
    offered = read_tools(fields.tools, fields.tool_choice)
    conversation = _conversation(model, fields, offered, fields.read_format())
    with _overflow_in_their_words():
        num_tokens = len(make_chat_prompt(model, conversation, envelope).tokens)
    return ReadyJob(orjson.dumps({"input_tokens": num_tokens}), num_tokens)


def _conversation(
    model: ServedModel, fields: PromptFields, offered: OfferedTools, format_: OutputFormat | None
) -> Conversation:
    """Return what the template gets. Tools that may not be called are not shown to the model either."""
    turns = make_turns(fields.messages, fields.system, drops_billing_header=model.drops_billing_header)
    continues = continues_last(turns)
    if continues and format_ is not None:
        param = format_.param.removesuffix(".schema")
        raise RequestError(
            f"'{param}' holds a whole answer to a form, but this one would go on with the last message, which "
            "is the assistant's. Leave that message out.",
            param=param,
        )
    return Conversation(
        turns,
        tools=shown_tools(fields.tools or ()) if offered.tools.offered else None,
        offered=offered.tools,
        continues=continues,
        kwargs=fields.chat_template_kwargs or {},
        thinking=_thinking(fields),
        template=fields.chat_template,
    )


def _thinking(fields: PromptFields) -> Thinking:
    """Return what is asked for. "adaptive" leaves it to the model, as if nothing were said."""
    said = None if fields.thinking is None else fields.thinking.type
    return Thinking(
        is_on=None if said in (None, "adaptive") else said == "enabled",
        effort=None if fields.output_config is None else fields.output_config.effort,
        effort_param="output_config.effort",
        usual_effort="high",
    )


@contextmanager
def _overflow_in_their_words() -> Iterator[None]:
    try:
        yield
    except ContextLengthExceeded as error:
        raise PromptTooLong(error.num_prompt, error.context - 1, is_at_least=error.is_at_least) from None


class MessageFormatter(Formatter):
    """Replies of type `message`, streamed or whole."""

    def __init__(self, id_: str, model: str, seed: int, *, shows_thoughts: bool = True) -> None:
        self._seed = seed
        self._head = {"id": id_, "type": "message", "role": "assistant", "model": model}
        self._shows_thoughts = shows_thoughts
        self._blocks = BlockStream(shows_thoughts=shows_thoughts)

    def first(self, choice: int, totals: Totals) -> bytes:
        """Return the event that opens the message, and tells what its prompt took."""
        empty: dict[str, Any] = {
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": message_usage(totals),
        }
        return event("message_start", message=self._head | empty)

    def piece(self, choice: int, piece: Piece) -> bytes:
        """Return one more piece of a block, and what begins or ends one."""
        return self._blocks.add(piece.delta)

    def last(self, choice: int, ending: Ending, totals: Totals | None) -> bytes:
        """Return the end of the last block, and the event that tells why the message ended."""
        assert totals is not None, "a message has one choice"
        return self._blocks.close() + event(
            "message_delta", delta=_stop(ending), usage=usage_of(totals), **self._told(ending, totals)
        )

    def closing(self, totals: Totals) -> bytes:
        """Return what ends the stream."""
        return event("message_stop")

    def whole(self, answers: Sequence[Answer], totals: Totals) -> bytes:
        """Return the message in one piece."""
        (answer,) = answers
        content = blocks_of(answer.deltas, shows_thoughts=self._shows_thoughts)
        said = {"content": content, **_stop(answer.ending), "usage": message_usage(totals)}
        return orjson.dumps(self._head | said | self._told(answer.ending, totals))

    def _told(self, ending: Ending, totals: Totals) -> dict[str, Any]:
        return {"seed": self._seed, "timings": totals.timings, **told_verdict(ending)}


def _stop(ending: Ending) -> dict[str, Any]:
    """Return `stop_reason` and `stop_sequence`. A call that was cut off is none that could be made."""
    if ending.finish is FinishReason.LENGTH:
        reason = "max_tokens"
    elif ending.stop_string is not None:
        reason = "stop_sequence"
    else:
        reason = "tool_use" if ending.has_calls else "end_turn"
    return {"stop_reason": reason, "stop_sequence": ending.stop_string if reason == "stop_sequence" else None}
