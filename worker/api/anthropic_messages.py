"""Anthropic's `/v1/messages`: messages in, one message of content blocks out; and `/v1/messages/count_tokens`.

When the last message is the assistant's own, the answer continues it. Must not know how templates work, nor how blocks
look in bytes (`anthropic_reply.py`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import orjson

from worker.api.anthropic_fields import COUNTING, MESSAGE_HINTS, MESSAGES, MessageFields, PromptFields
from worker.api.anthropic_reply import BlockStream, blocks_of, event, message_usage, usage_of
from worker.api.anthropic_turns import make_turns
from worker.api.body import read_object
from worker.api.chat_prompt import Conversation, chat_tokens, continues_last
from worker.api.engine_requests import make_requests
from worker.api.fields import read_fields
from worker.api.refusals import refuse_unsupported
from worker.api.served import Answer, Ending, Envelope, Formatter, Job, Piece, ReadyJob, ServedModel
from worker.api.usage import Totals
from worker.engine.request import FinishReason
from worker.errors import ContextLengthExceeded, RequestError, UnsupportedParameter

_SWITCH = "enable_thinking"
"""The variable by which templates are told whether the model shall think."""


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
    refuse_unsupported(raw, MESSAGES, MESSAGE_HINTS)
    fields = read_fields(MessageFields, raw)
    with _overflow_in_their_words():
        requests = make_requests(
            model,
            envelope,
            fields,
            [chat_tokens(model, _conversation(model, fields), envelope)],
            param="messages",
            max_tokens=fields.max_tokens,
        )
    shows_thoughts = fields.thinking is None or fields.thinking.display != "omitted"
    seed = requests[0].sampling.seed
    formatter = MessageFormatter(f"msg_{envelope.request_id}", model.name, seed, shows_thoughts=shows_thoughts)
    return Job(requests, 1, fields.stop_texts, bool(fields.stream), formatter, max_predict_s=fields.max_predict_s)


def read_token_count(model: ServedModel, body: bytes, envelope: Envelope) -> ReadyJob:
    """Return the number of tokens that `read_messages` would make of the prompt. Raises: RequestError, as it would."""
    raw = read_object(body)
    refuse_unsupported(raw, COUNTING, MESSAGE_HINTS)
    fields = read_fields(PromptFields, raw)
    with _overflow_in_their_words():
        num_tokens = len(chat_tokens(model, _conversation(model, fields), envelope))
    return ReadyJob(orjson.dumps({"input_tokens": num_tokens}), num_tokens)


def _conversation(model: ServedModel, fields: PromptFields) -> Conversation:
    _refuse_tools(fields)
    turns = make_turns(fields.messages, fields.system, drops_billing_header=model.drops_billing_header)
    source = model.template_source if fields.chat_template is None else fields.chat_template
    return Conversation(
        turns,
        continues=continues_last(turns),
        kwargs={**_thinking_kwargs(model, source, fields), **(fields.chat_template_kwargs or {})},
        template=fields.chat_template,
    )


def _thinking_kwargs(model: ServedModel, source: str, fields: PromptFields) -> Mapping[str, Any]:
    """Return what the template is told about thinking. Raises: UnsupportedParameter where it would not listen."""
    kwargs: dict[str, Any] = {}
    # "adaptive" leaves it to the model, as if nothing were said.
    if fields.thinking is not None and fields.thinking.type != "adaptive":
        if _SWITCH in source:
            kwargs[_SWITCH] = fields.thinking.type == "enabled"
        elif fields.thinking.type == "enabled":
            raise UnsupportedParameter(
                f"'thinking' cannot be enabled: the chat template of model '{model.name}' has no switch for it "
                f'(`{_SWITCH}`). Leave the field out, or use {{"type": "adaptive"}}.',
                param="thinking",
            )
    effort = None if fields.output_config is None else fields.output_config.effort
    if effort is not None:
        if "reasoning_effort" in source:
            kwargs["reasoning_effort"] = effort
        elif effort != "high":  # which is what holds without it
            raise UnsupportedParameter(
                f"'output_config.effort' has no effect on model '{model.name}': its chat template does not know it. "
                "Leave the field out.",
                param="output_config.effort",
            )
    return kwargs


def _refuse_tools(fields: PromptFields) -> None:
    """Return when no tool can be called: none is offered, or the client forbids it.

    Tools that may not be called are not shown to the model either.
    """
    choice = None if fields.tool_choice is None else fields.tool_choice.type
    if fields.tools and choice != "none":
        raise UnsupportedParameter(
            "'tools' are not available in this release. Leave them out or set 'tool_choice' to {\"type\": \"none\"}.",
            param="tools",
        )
    if choice not in (None, "none", "auto"):
        raise UnsupportedParameter(
            '\'tool_choice\' can only be of type "none" or "auto", as tool calls are not available in this release.',
            param="tool_choice",
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
            "message_delta", delta=_stop(ending), usage=usage_of(totals), **self._told(totals)
        )

    def closing(self, totals: Totals) -> bytes:
        """Return what ends the stream."""
        return event("message_stop")

    def whole(self, answers: Sequence[Answer], totals: Totals) -> bytes:
        """Return the message in one piece."""
        (answer,) = answers
        content = blocks_of(answer.deltas, shows_thoughts=self._shows_thoughts)
        said = {"content": content, **_stop(answer.ending), "usage": message_usage(totals)}
        return orjson.dumps(self._head | said | self._told(totals))

    def _told(self, totals: Totals) -> dict[str, Any]:
        return {"seed": self._seed, "timings": totals.timings}


def _stop(ending: Ending) -> dict[str, Any]:
    """Return `stop_reason` and `stop_sequence`. A call that was cut off is none that could be made."""
    if ending.finish is FinishReason.LENGTH:
        reason = "max_tokens"
    elif ending.stop_string is not None:
        reason = "stop_sequence"
    else:
        reason = "tool_use" if ending.has_calls else "end_turn"
    return {"stop_reason": reason, "stop_sequence": ending.stop_string if reason == "stop_sequence" else None}
