"""The request fields of Anthropic's Messages API.

Owns types and ranges. Must not read the blocks of messages (`anthropic_turns.py` does).
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, StringConstraints, WithJsonSchema

from worker.api.fields import FIRST_ONLY, Fields, Whole
from worker.api.format_fields import read_response_format
from worker.api.json_schemas import ANY_OBJECT, NULL, TEXT, any_of, list_of, object_of
from worker.api.output_format import OutputFormat
from worker.api.sampling_fields import MAX_STOP_CHARS, MAX_STOP_STRINGS, SamplingFields
from worker.errors import RequestError

_TEXT_BLOCK = object_of(("type", "text"), type={"const": "text"}, text=TEXT)
_RESULT = object_of(
    ("type", "tool_use_id"),
    type={"const": "tool_result"},
    tool_use_id=TEXT,
    content=any_of(TEXT, list_of(_TEXT_BLOCK), NULL),
    is_error=any_of({"type": "boolean"}, NULL),
)
_THOUGHT = object_of(("type", "thinking"), type={"const": "thinking"}, thinking=TEXT, signature=TEXT)
_REDACTED = object_of(("type",), type={"const": "redacted_thinking"}, data=TEXT)
_USE = object_of(("type", "id", "name", "input"), type={"const": "tool_use"}, id=TEXT, name=TEXT, input=ANY_OBJECT)
_SYSTEM = any_of(TEXT, list_of(_TEXT_BLOCK))
_MESSAGES = list_of(
    any_of(
        object_of(
            ("role", "content"),
            role={"const": "user"},
            content=any_of(TEXT, list_of(any_of(_TEXT_BLOCK, _RESULT))),
        ),
        object_of(
            ("role", "content"),
            role={"const": "assistant"},
            content=any_of(TEXT, list_of(any_of(_TEXT_BLOCK, _THOUGHT, _REDACTED, _USE))),
        ),
        object_of(("role", "content"), role={"const": "system"}, content=_SYSTEM),
    ),
    minItems=1,
)
_TOOL = object_of(
    ("name", "input_schema"),
    name=TEXT,
    type=any_of({"const": "custom"}, NULL),
    description=any_of(TEXT, NULL),
    input_schema=ANY_OBJECT,
    strict=any_of({"type": "boolean"}, NULL),
)
_FORMAT = any_of(object_of(("type", "schema"), type={"const": "json_schema"}, schema=ANY_OBJECT), NULL)
_FORMAT_FORM = 'an object such as {"type": "json_schema", "schema": {...}}'
_EFFORTS = '"low", "medium", "high", "xhigh" or "max"'


class Thinking(Fields):
    """`thinking`."""

    type: Literal["enabled", "disabled", "adaptive"] = Field(description='"enabled", "disabled" or "adaptive"')
    budget_tokens: Whole | None = Field(None, ge=1, description="an integer of at least 1")
    display: Literal["summarized", "omitted"] | None = Field(None, description='"summarized" or "omitted"')


class ToolChoice(Fields):
    """`tool_choice`."""

    type: Literal["auto", "any", "tool", "none"] = Field(description='"auto", "any", "tool" or "none"')
    name: str | None = Field(None, description="a string")
    disable_parallel_tool_use: bool | None = Field(None, description="true or false")


class OutputConfig(Fields):
    """`output_config`."""

    effort: Literal["low", "medium", "high", "xhigh", "max"] | None = Field(None, description=_EFFORTS)
    format: Annotated[dict[str, Any] | None, WithJsonSchema(_FORMAT)] = Field(None, description=_FORMAT_FORM)


class Metadata(Fields):
    """`metadata`."""

    user_id: str | None = Field(None, description="a string")


class PromptFields(Fields):
    """What the prompt is made of: all that counting its tokens takes."""

    model: str | None = Field(None, description="a string")
    messages: Annotated[list[Any], WithJsonSchema(_MESSAGES)] = Field(description="a list of messages")
    system: Annotated[str | list[Any] | None, WithJsonSchema(any_of(_SYSTEM, NULL))] = Field(
        None, description="a text or a list of text blocks"
    )
    tools: Annotated[
        Annotated[list[dict[str, Any]], FIRST_ONLY] | None, WithJsonSchema(any_of(list_of(_TOOL), NULL))
    ] = Field(None, description="a list of objects")
    tool_choice: ToolChoice | None = Field(None, description="an object with a `type`")
    thinking: Thinking | None = Field(None, description="an object with a `type`")
    output_config: OutputConfig | None = Field(None, description="an object")
    output_format: Annotated[dict[str, Any] | None, WithJsonSchema(_FORMAT)] = Field(None, description=_FORMAT_FORM)
    chat_template: str | None = Field(None, min_length=1, description="a string that is not empty")
    chat_template_kwargs: dict[str, Any] | None = Field(None, description="an object")

    def read_format(self) -> OutputFormat | None:
        """Return the form that the text is held to; None = any. Raises: RequestError naming the field."""
        newer = None if self.output_config is None else self.output_config.format
        if newer is None:
            return None if self.output_format is None else read_response_format(self.output_format, "output_format")
        if self.output_format not in (None, newer):
            raise RequestError(
                "'output_config.format' and 'output_format' ask for different forms of the answer. Set only "
                "'output_config.format'.",
                param="output_format",
            )
        return read_response_format(newer, "output_config.format")

    @property
    def thought_budget(self) -> int | None:
        """Tokens of a thought; None = no limit."""
        said = self.thinking
        return None if said is None or said.type == "disabled" else said.budget_tokens


_StopSequence = Annotated[str, StringConstraints(min_length=1, max_length=MAX_STOP_CHARS)]


class MessageFields(PromptFields, SamplingFields):
    """The body of a request for a message."""

    max_tokens: Whole = Field(ge=0, description="an integer of at least 0")
    stop_sequences: Annotated[list[_StopSequence], FIRST_ONLY] | None = Field(
        None,
        max_length=MAX_STOP_STRINGS,
        description=f"a list of at most {MAX_STOP_STRINGS} strings of 1 to {MAX_STOP_CHARS} characters",
    )
    stream: bool | None = Field(None, description="true or false")
    metadata: Metadata | None = Field(None, description="an object")

    @property
    def stop_texts(self) -> tuple[str, ...]:
        """All texts at which the answer ends, each once."""
        return tuple(dict.fromkeys((*(self.stop_sequences or ()), *self.stop)))
