"""A conversation to prompt tokens, the same for every dialect that has one.

Messages come in OpenAI's form: that is what templates are written for, and other dialects turn theirs into it. Must not
read bodies, nor know how templates work.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from worker.api.json_schemas import ANY_OBJECT, NULL, TEXT, any_of, list_of, object_of
from worker.api.prompt import check_text_length, tokens_of_segments
from worker.api.served import Envelope, ServedModel
from worker.api.speech import Speech, speech_of
from worker.api.thinking import Thinking, switch_of, thinking_kwargs
from worker.chat.messages import ROLES
from worker.chat.reasoning import Tags
from worker.chat.tool_calls.family import Family
from worker.chat.tool_calls.tools import Demand, Tools
from worker.errors import NoChatTemplate, RequestError, UnsupportedParameter

if TYPE_CHECKING:  # Jinja is loaded beside the weights, not before them
    from worker.chat.template import ChatTemplate, Segment

MAX_REQUEST_TEMPLATE_CHARS = 64 * 1024
"""To compile so much takes a second or two; the largest templates of models have 40 thousand."""


_TEXT_PART = any_of(
    object_of(("type", "text"), type={"enum": ["text", "input_text", "output_text"]}, text=TEXT),
    object_of(("type", "refusal"), type={"const": "refusal"}, refusal=TEXT),
    TEXT,
)
_CALLED = object_of(("name",), name=TEXT, arguments=any_of(TEXT, ANY_OBJECT, NULL))
_CALL = object_of(("function",), id=TEXT, type={"const": "function"}, function=_CALLED)
_MESSAGE = object_of(
    ("role",),
    role={"enum": list(ROLES)},
    content=any_of(TEXT, list_of(_TEXT_PART), NULL),
    name=any_of(TEXT, NULL),
    tool_calls=any_of(list_of(_CALL), NULL),
    tool_call_id=any_of(TEXT, NULL),
)
MESSAGES = list_of(_MESSAGE, minItems=1)
"""The form of a conversation, for openapi.json."""


@dataclass(frozen=True, slots=True)
class Conversation:
    """What a template is given."""

    messages: Sequence[Any]
    """As OpenAI's chat has them; checked when they are rendered."""
    tools: Sequence[Mapping[str, Any]] | None = None
    """As OpenAI's chat has them."""
    offered: Tools = field(default_factory=Tools)
    """Those of them that may be called, and whether one must be."""
    adds_generation_prompt: bool = True
    continues: bool = False
    """The answer goes on with the last message, which is the assistant's."""
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    """The template's own variables; they replace those of `thinking` and those that models.yaml sets."""
    thinking: Thinking = field(default_factory=Thinking)
    template: str | None = None
    """Source of a template that the request brings; None = the model's own."""
    param: str = "messages"
    """The field that the messages came in."""


def continues_last(
    messages: Sequence[Any], *, continue_final_message: bool | None = None, add_generation_prompt: bool | None = None
) -> bool:
    """Return whether the answer continues the last message: when asked to, or when that is the assistant's own.

    Raises: RequestError when both are asked for.
    """
    if continue_final_message is None and add_generation_prompt is None:
        last = messages[-1] if messages else None
        return isinstance(last, dict) and last.get("role") == "assistant" and not last.get("tool_calls")
    if continue_final_message and add_generation_prompt:
        raise RequestError(
            "'continue_final_message' and 'add_generation_prompt' cannot both be true: one continues the last "
            "message, the other begins a new one.",
            param="continue_final_message",
        )
    return bool(continue_final_message)


def render(model: ServedModel, conversation: Conversation, envelope: Envelope) -> list[Segment]:
    """Return the prompt's text. Raises: RequestError, with the template's own message where there is one."""
    kwargs = _template_kwargs(model, conversation)
    with model.template_lock:
        template = _template_of(model) if conversation.template is None else _compiled(model, conversation.template)
        return template.render(
            _with_instructions(conversation, _speech(model, conversation).family, template),
            # Templates may print a date: the router's, so that another worker would print the same.
            now=datetime.fromtimestamp(envelope.created, UTC),
            add_generation_prompt=conversation.adds_generation_prompt,
            tools=conversation.tools,
            continue_final_message=conversation.continues,
            kwargs=kwargs,
        )


@dataclass(frozen=True, slots=True)
class ChatPrompt:
    """A conversation as the model gets it."""

    tokens: tuple[int, ...]
    """At least one."""
    speech: Speech = field(default_factory=Speech)
    """How answers to its template are read."""
    is_in_thought: bool = False
    """It ends within a thought, which the answer goes on with."""
    ends_thoughts: bool = False
    """The model shall not think, and its template has no switch for that: a thought is ended as soon as it begins."""
    has_thought: bool = False
    """The model shall not think any more: it is told so, or the prompt ends with the end of a thought."""


def make_chat_prompt(model: ServedModel, conversation: Conversation, envelope: Envelope) -> ChatPrompt:
    """Return the prompt. Raises: RequestError, as `render`; ContextLengthExceeded when huge."""
    segments = render(model, conversation, envelope)
    speech = _speech(model, conversation)
    tags = speech.thought_tags
    return ChatPrompt(
        _tokens(model, segments, conversation.param),
        speech,
        tags is not None and _is_in_thought(tags, segments, conversation),
        conversation.thinking.is_off and switch_of(_source(model, conversation)) is None,
        conversation.thinking.is_off or (tags is not None and segments[-1].text.rstrip().endswith(tags.close)),
    )


def _with_instructions(conversation: Conversation, family: Family | None, template: ChatTemplate) -> Sequence[Any]:
    """Return the messages; the first tells of the tools where the template does not."""
    messages = conversation.messages
    if family is None or conversation.offered.demand is Demand.NONE:
        return messages
    if template.expectations.shows_tools and not family.needs_instructions:
        return messages
    told = family.instructions(conversation.offered)
    if not told:
        return messages
    first = messages[0] if messages else None
    if (
        isinstance(first, dict)
        and first.get("role") in ("system", "developer")
        and isinstance(first.get("content"), str)
    ):
        return [{**first, "content": f"{first['content']}\n\n{told}"}, *messages[1:]]
    return [{"role": "system", "content": told}, *messages]


def _is_in_thought(tags: Tags, segments: Sequence[Segment], conversation: Conversation) -> bool:
    if conversation.continues:
        content = conversation.messages[-1].get("content")
        if isinstance(content, str) and content.strip():
            return tags.leaves_open(content)
    return bool(segments) and tags.are_open(segments[-1].text)


def _speech(model: ServedModel, conversation: Conversation) -> Speech:
    if conversation.template is None:
        return model.speech
    return speech_of(conversation.template, model.speech.markers)


def _tokens(model: ServedModel, segments: Sequence[Segment], param: str) -> tuple[int, ...]:
    check_text_length(sum(len(segment.text) for segment in segments), context=model.context, param=param)
    tokens = tuple(tokens_of_segments(model.vocabulary, segments, model.speech.markers))
    if not tokens:
        raise RequestError("The chat template made an empty prompt of these messages.", param=param)
    return tokens


def _compiled(model: ServedModel, source: str) -> ChatTemplate:
    """Return the template that the request brings. Raises: RequestError: it is not allowed, or the line that is wrong.

    It is compiled for this request alone, and all that it does together may cost what one rendering may.
    """
    if not model.allows_request_templates:
        raise UnsupportedParameter(
            f"'chat_template' in requests is not allowed for model '{model.name}'. Leave the field out; whoever runs "
            "the server may set `allow_request_templates: true` for this model in models.yaml.",
            param="chat_template",
        )
    if len(source) > MAX_REQUEST_TEMPLATE_CHARS:
        raise RequestError(
            f"'chat_template' has {len(source)} characters, but at most {MAX_REQUEST_TEMPLATE_CHARS} are allowed.",
            param="chat_template",
        )
    from worker.chat.limits import Budget
    from worker.chat.template import ChatTemplate, TemplateError

    vocabulary = model.vocabulary
    try:
        return ChatTemplate(
            source,
            bos_text=vocabulary.bos_text,
            eos_text=vocabulary.eos_text,
            control_texts=vocabulary.control_texts,
            marker_texts=model.speech.markers.tokens.keys(),
            budget=Budget(),
        )
    except TemplateError as error:
        raise RequestError(f"'chat_template' cannot be used. {error.message}", param="chat_template") from None


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


def _template_kwargs(model: ServedModel, conversation: Conversation) -> dict[str, Any]:
    thinking = thinking_kwargs(
        conversation.thinking,
        _source(model, conversation),
        model=model.name,
        always_thinks=_speech(model, conversation).thought_tags is not None,
    )
    return {**model.template_kwargs, **thinking, **conversation.kwargs}


def _source(model: ServedModel, conversation: Conversation) -> str:
    return model.template_source if conversation.template is None else conversation.template
