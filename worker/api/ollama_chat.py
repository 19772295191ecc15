"""Ollama's `/api/chat`: messages in, one message of the assistant out.

Owns how Ollama's messages become OpenAI's, which templates are written for. When the last message is the assistant's
own, the answer continues it, as with Ollama.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Annotated, Any

from pydantic import Field, WithJsonSchema

from worker.api.answer_plan import plan_answer
from worker.api.answer_wishes import AnswerWishes
from worker.api.body import read_object
from worker.api.chat_prompt import Conversation, continues_last, make_chat_prompt
from worker.api.engine_requests import held_to, make_requests
from worker.api.function_fields import ToolFields
from worker.api.json_schemas import ANY_OBJECT, NULL, TEXT, any_of, list_of, object_of
from worker.api.logprobs import chat_logprobs
from worker.api.ollama_fields import (
    NDJSON,
    OllamaGenerationFields,
    options_named_as_written,
    read_ollama_fields,
    refuse_images,
)
from worker.api.ollama_reply import OllamaFormatter, OllamaHead, as_message
from worker.api.refusals import refuse_unsupported, show
from worker.api.refused_ollama import OLLAMA_CHAT
from worker.api.served import Envelope, Job, ServedModel
from worker.api.text_limits import TextLimits
from worker.errors import RequestError

_CALL = object_of(("function",), function=object_of(("name",), name=TEXT, arguments=any_of(ANY_OBJECT, NULL)))
_MESSAGE = object_of(
    ("role",),
    role={"enum": ["system", "user", "assistant", "tool"]},
    content=any_of(TEXT, NULL),
    thinking=any_of(TEXT, NULL),
    tool_calls=any_of(list_of(_CALL), NULL),
    tool_name=any_of(TEXT, NULL),
)


class OllamaChatFields(OllamaGenerationFields, ToolFields):
    """The body of a chat request. Tools have the same form as in OpenAI's chat."""

    messages: Annotated[list[Any], WithJsonSchema(list_of(_MESSAGE, minItems=1))] = Field(
        description="a list of messages"
    )


def read_ollama_chat(model: ServedModel, body: bytes, envelope: Envelope) -> Job:
    """Return the job that `body` describes. Raises: RequestError that names the field."""
    raw = read_object(body)
    refuse_unsupported(raw, OLLAMA_CHAT)
    fields = read_ollama_fields(OllamaChatFields, raw)
    offered = fields.read_tools()
    messages = [_message(one, f"messages[{index}]") for index, one in enumerate(fields.messages)]
    conversation = Conversation(
        messages,
        tools=fields.shown_tools if offered.tools.offered else None,
        offered=offered.tools,
        continues=continues_last(messages),
        kwargs=fields.chat_template_kwargs or {},
        thinking=fields.thinking,
    )
    prompt = make_chat_prompt(model, conversation, envelope)
    wishes = AnswerWishes(
        fields.read_format(),
        offered.tools,
        tools_param=fields.tools_param,
        relaxed=offered.relaxed,
    )
    with options_named_as_written():
        requests = make_requests(
            model,
            envelope,
            fields.chosen,
            [prompt.tokens],
            param="messages",
            max_tokens=fields.max_tokens(len(prompt.tokens), model.context),
            num_logprobs=fields.num_logprobs,
        )
    plan = plan_answer(model, wishes, prompt, envelope)
    requests = held_to(requests, plan.constraint)
    shape = None if fields.num_logprobs is None else partial(chat_logprobs, model.vocabulary)
    formatter = OllamaFormatter(
        OllamaHead(fields.model or model.name, envelope.created, envelope.load_ms), as_message, logprobs=shape
    )
    options = fields.chosen
    return Job(
        requests,
        1,
        options.stop,
        fields.is_stream,
        formatter,
        plan,
        stream_type=NDJSON,
        limits=TextLimits(options.max_predict_s),
    )


def _message(message: Any, where: str) -> Any:
    """Return the message as OpenAI's chat has it; what is wrong with it otherwise is told when it is rendered."""
    if not isinstance(message, Mapping):
        return message
    refuse_images(message, f"{where}.images")
    turn = {key: value for key, value in message.items() if key not in ("images", "thinking", "tool_name")}
    if (thinking := message.get("thinking")) is not None:
        turn["reasoning_content"] = _text(thinking, f"{where}.thinking")
    if (tool_name := message.get("tool_name")) is not None:
        turn["name"] = _text(tool_name, f"{where}.tool_name")
    return turn


def _text(value: Any, where: str) -> str:
    if not isinstance(value, str):
        raise RequestError(f"'{where}' is {show(value)}, but it must be a string.", param=where)
    return value
