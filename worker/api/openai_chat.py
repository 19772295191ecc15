"""OpenAI's `/v1/chat/completions`: messages in, one assistant message for each choice out.

When the last message is the assistant's own, the answer continues it. Must not know how templates work.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any

import orjson
from pydantic import Field

from worker.api.body import read_object
from worker.api.logprobs import MAX_TOP, PlacedPick, Shape, chat_logprobs
from worker.api.loras import choose_adapters
from worker.api.openai_reply import ChunkStream, Head, finish_reason, whole_reply
from worker.api.params import GenerationFields, Whole, read_fields
from worker.api.prompt import check_length, check_text_length, tokens_of_segments
from worker.api.refusals import CHAT, refuse_unsupported
from worker.api.served import Answer, Envelope, Job, ServedModel, fingerprint
from worker.api.usage import Totals
from worker.engine.request import FinishReason, GenerationRequest
from worker.errors import NoChatTemplate, RequestError, UnsupportedParameter

if TYPE_CHECKING:  # Jinja is loaded beside the weights, not before them
    from worker.chat.template import ChatTemplate, Segment


class ChatFields(GenerationFields):
    """The body of a chat request."""

    messages: list[Any] = Field(description="a list of messages")
    tools: list[dict[str, Any]] | None = Field(None, description="a list of objects")
    tool_choice: str | dict[str, Any] | None = Field(None, description="a string or an object")
    parallel_tool_calls: bool | None = Field(None, description="true or false")
    reasoning_effort: str | None = Field(None, description="a string")
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
    _refuse_tools(fields)
    num_logprobs = _num_logprobs(fields)
    is_post_sampling = fields.wants_post_sampling(num_logprobs)
    vocabulary = model.vocabulary
    adapters = choose_adapters(model.loras, fields.lora, envelope.loras)
    sampling = fields.sampling(vocabulary, fallback_seed=envelope.seed)
    segments = _render(_template_of(model), model, fields, envelope)
    check_text_length(sum(len(segment.text) for segment in segments), context=model.context, param="messages")
    tokens = tuple(tokens_of_segments(vocabulary, segments))
    if not tokens:
        raise RequestError("The chat template made an empty prompt of these messages.", param="messages")
    room = check_length(tokens, context=model.context, param="messages")
    requests = tuple(
        GenerationRequest(
            prompt=tokens,
            max_tokens=fields.clip_max_tokens(room=room, cap=model.max_tokens),
            sampling=replace(sampling, choice=choice),
            external_id=envelope.request_id,
            priority=envelope.priority,
            cache_prompt=fields.cache_prompt is not False,
            cache_salt=envelope.cache_salt,
            num_logprobs=num_logprobs,
            post_sampling_logprobs=is_post_sampling,
            adapters=adapters,
            itl_target_ms=fields.itl_target_ms,
            reproducible=bool(fields.reproducible),
        )
        for choice in range(fields.num_choices)
    )
    head = Head(f"chatcmpl-{envelope.request_id}", envelope.created, model.name, fingerprint(model.engine.facts))
    shape = None if num_logprobs is None else partial(chat_logprobs, vocabulary)
    formatter = ChatFormatter(head, includes_usage=fields.includes_usage, logprobs=shape)
    return Job(requests, fields.num_choices, fields.stop, bool(fields.stream), formatter)


def _template_of(model: ServedModel) -> ChatTemplate:
    if model.template is not None:
        return model.template
    if model.template_problem is not None:
        raise NoChatTemplate(
            f"The chat template of model '{model.name}' cannot be used: {model.template_problem}. "
            "Set a working `chat_template` for it in models.yaml, or use /v1/completions."
        )
    raise NoChatTemplate(
        f"Model '{model.name}' has no chat template. Use /v1/completions with a prompt that you format yourself, "
        "or set `chat_template` for this model in models.yaml."
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


def _refuse_tools(fields: ChatFields) -> None:
    """Return when no tool can be called: none is offered, or the client forbids it.

    Tools that may not be called are not shown to the model either.
    """
    choice = fields.tool_choice
    if fields.tools and choice != "none":
        raise UnsupportedParameter(
            "'tools' are not available in this release. Leave them out or set 'tool_choice' to \"none\".",
            param="tools",
        )
    if choice not in (None, "none", "auto"):
        raise UnsupportedParameter(
            '\'tool_choice\' can only be "none" or "auto", as tool calls are not available in this release.',
            param="tool_choice",
        )


def _render(template: ChatTemplate, model: ServedModel, fields: ChatFields, envelope: Envelope) -> list[Segment]:
    """Return the prompt's text. Raises: RequestError, with the template's own message where there is one."""
    with model.template_lock:
        return template.render(
            fields.messages,
            # Templates may print a date: the router's, so that another worker would print the same.
            now=datetime.fromtimestamp(envelope.created, UTC),
            add_generation_prompt=fields.add_generation_prompt is not False,
            continue_final_message=_continues(fields),
            kwargs=_template_kwargs(model, fields),
        )


def _continues(fields: ChatFields) -> bool:
    """Return whether the answer continues the last message: when asked to, or when that is the assistant's own."""
    if fields.continue_final_message is None and fields.add_generation_prompt is None:
        last = fields.messages[-1] if fields.messages else None
        return isinstance(last, dict) and last.get("role") == "assistant" and not last.get("tool_calls")
    if fields.continue_final_message and fields.add_generation_prompt:
        raise RequestError(
            "'continue_final_message' and 'add_generation_prompt' cannot both be true: one continues the last "
            "message, the other begins a new one.",
            param="continue_final_message",
        )
    return bool(fields.continue_final_message)


def _template_kwargs(model: ServedModel, fields: ChatFields) -> dict[str, Any]:
    """Return the template's own variables: the model's, replaced by the request's."""
    kwargs = {**model.template_kwargs, **(fields.chat_template_kwargs or {})}
    if fields.reasoning_effort is not None:
        if "reasoning_effort" not in model.template_source:
            raise UnsupportedParameter(
                f"'reasoning_effort' has no effect on model '{model.name}': its chat template does not know it. "
                "Leave the field out.",
                param="reasoning_effort",
            )
        kwargs["reasoning_effort"] = fields.reasoning_effort
    return kwargs


class ChatFormatter:
    """Replies of kind `chat.completion`, streamed or whole."""

    def __init__(self, head: Head, *, includes_usage: bool, logprobs: Shape | None = None) -> None:
        self._head = head
        self._logprobs = logprobs
        self._chunks = ChunkStream(head, "chat.completion.chunk", includes_usage=includes_usage)
        self._affixes: dict[int, tuple[bytes, bytes]] = {}

    def first(self, choice: int) -> bytes:
        """Return the chunk that names the role."""
        return self._chunks.chunk(_chunk(choice, {"role": "assistant", "content": "", "refusal": None}))

    def delta(self, choice: int, text: str, picks: Sequence[PlacedPick]) -> bytes:
        """Return one more piece of text."""
        if self._logprobs is not None:
            return self._chunks.chunk(_chunk(choice, {"content": text}, self._logprobs(picks)))
        if choice not in self._affixes:
            before = b'{"index":%d,"delta":{"content":' % choice
            self._affixes[choice] = self._chunks.affixes(before, b'},"logprobs":null,"finish_reason":null}')
        before, after = self._affixes[choice]
        return before + orjson.dumps(text) + after

    def last(self, choice: int, finish: FinishReason, totals: Totals | None, picks: Sequence[PlacedPick]) -> bytes:
        """Return the chunk with the finish reason."""
        logprobs = self._logprobs(picks) if self._logprobs and picks else None
        return self._chunks.last_chunk(_chunk(choice, {}, logprobs, finish_reason(finish)), totals)

    def closing(self, totals: Totals) -> bytes:
        """Return what ends the stream."""
        return self._chunks.closing(totals)

    def whole(self, answers: Sequence[Answer], totals: Totals) -> bytes:
        """Return the reply in one piece."""
        choices = [
            {
                "index": index,
                "message": {"role": "assistant", "content": one.text, "refusal": None},
                "logprobs": self._logprobs(one.picks) if self._logprobs else None,
                "finish_reason": finish_reason(one.finish),
            }
            for index, one in enumerate(answers)
        ]
        return whole_reply(self._head, "chat.completion", choices, totals)


def _chunk(
    choice: int, delta: Mapping[str, Any], logprobs: Mapping[str, Any] | None = None, reason: str | None = None
) -> dict[str, Any]:
    return {"index": choice, "delta": delta, "logprobs": logprobs, "finish_reason": reason}
