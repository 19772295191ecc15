"""The fields of OpenAI's `/v1/responses`: their types, and what of them is honoured and told as holding.

Must not know what an item of `input` means (`responses_items.py` does), nor replies.
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field, WithJsonSchema, field_validator

from worker.api.fields import FIRST_ONLY, Fields, Whole, one_of, unsupported, wrong
from worker.api.format_fields import read_response_format
from worker.api.function_fields import read_choice
from worker.api.json_schemas import NULL, TEXT, any_of, list_of
from worker.api.logprobs import MAX_TOP
from worker.api.output_format import OutputFormat
from worker.api.refusals import show
from worker.api.refused_responses import LOGPROBS
from worker.api.responses_items import ITEMS
from worker.api.sampling_fields import SamplingFields
from worker.api.stream_options import StreamOptions
from worker.api.thinking import Thinking
from worker.api.thought_fields import BudgetFields
from worker.api.tool_fields import OfferedTools, check_num_tools, choose_tools, make_tool
from worker.errors import RequestError

SEALED = "reasoning.encrypted_content"
_OF_OTHER_ITEMS = (
    "code_interpreter_call.outputs",
    "computer_call_output.output.image_url",
    "file_search_call.results",
    "message.input_image.image_url",
    "web_search_call.action.sources",
    "web_search_call.results",
)
"""Values of `include` about items that no reply of this server has: they ask for nothing."""

MAX_COUNT = 2**31
MAX_METADATA = 16
MAX_METADATA_NAME = 64
MAX_METADATA_TEXT = 512


_FORMAT: dict[str, Any] = {
    "type": "object",
    "properties": {
        "type": {"enum": ["text", "json_object", "json_schema", "regex", "choice", "grammar"]},
        "name": TEXT,
        "schema": {"type": "object"},
        "strict": any_of({"type": "boolean"}, NULL),
    },
    "required": ["type"],
}


class TextOptions(Fields):
    """`text`."""

    format: Annotated[dict[str, Any] | None, WithJsonSchema(any_of(_FORMAT, NULL))] = Field(
        None, description='an object such as {"type": "json_schema", "name": "...", "schema": {...}}'
    )
    verbosity: Annotated[str | None, WithJsonSchema({"enum": ["medium", None]})] = Field(None, description='"medium"')

    @field_validator("verbosity")
    @classmethod
    def _only_medium(cls, value: str | None) -> str | None:
        if value not in (None, "medium"):
            raise unsupported("is not available in this release. Leave the field out")
        return value


class Reasoning(Fields):
    """`reasoning`."""

    effort: str | None = Field(None, description="a string")
    context: Annotated[str | None, WithJsonSchema({"enum": ["auto", None]})] = Field(None, description='"auto"')
    mode: Annotated[str | None, WithJsonSchema({"enum": ["standard", None]})] = Field(None, description='"standard"')
    summary: Annotated[str | None, WithJsonSchema(NULL)] = Field(None, description="null")
    generate_summary: Annotated[str | None, WithJsonSchema(NULL)] = Field(None, description="null")

    @field_validator("context", "mode")
    @classmethod
    def _usual_alone(cls, value: str | None) -> str | None:
        if value not in (None, "auto", "standard"):
            raise unsupported("is not available on this server. Leave the field out")
        return value

    @field_validator("summary", "generate_summary")
    @classmethod
    def _refuse_summaries(cls, value: str | None) -> str | None:
        if value is not None:
            raise unsupported("is not available: reasoning is shown as it is, never summed up. Leave the field out")
        return value


class FunctionTool(Fields):
    """One of `tools`."""

    type: Annotated[str, WithJsonSchema({"const": "function"})] = Field(description='"function"')
    name: str = Field(min_length=1, description="a string that is not empty")
    description: str | None = Field(None, description="a string")
    parameters: dict[str, Any] | None = Field(None, description="a JSON schema, which is an object")
    strict: bool | None = Field(None, description="true or false")

    @field_validator("type")
    @classmethod
    def _only_functions(cls, value: str) -> str:
        if value != "function":
            raise unsupported('is not available on this server: only "function" is')
        return value

    @property
    def as_chat_has_it(self) -> dict[str, Any]:
        """The tool as templates get it."""
        said = {"name": self.name, "description": self.description, "parameters": self.parameters}
        return {"type": "function", "function": {name: one for name, one in said.items() if one is not None}}


class CountFields(Fields):
    """What decides over the prompt. None = not said."""

    input: Annotated[str | list[Any], WithJsonSchema(any_of(TEXT | {"minLength": 1}, ITEMS))] = Field(
        description="a string or a list of items that is not empty"
    )
    instructions: str | None = Field(None, description="a string")
    previous_response_id: str | None = Field(None, description="a string")
    tools: Annotated[list[FunctionTool], FIRST_ONLY] | None = Field(None, description="a list of functions")
    tool_choice: str | dict[str, Any] | None = Field(None, description="a string or an object")
    parallel_tool_calls: bool | None = Field(None, description="true or false")
    reasoning: Reasoning | None = Field(None, description="an object")
    reasoning_effort: str | None = Field(None, description="a string")
    text: TextOptions | None = Field(None, description="an object")
    chat_template: str | None = Field(None, min_length=1, description="a string that is not empty")
    chat_template_kwargs: dict[str, Any] | None = Field(None, description="an object")

    @field_validator("input")
    @classmethod
    def _not_empty(cls, value: str | list[Any]) -> str | list[Any]:
        if not value:
            raise wrong("is empty: send a text or at least one item")
        return value

    @property
    def effort(self) -> str | None:
        """How hard the model shall think, if it is said. Raises: RequestError when two things are said."""
        return one_of({self.effort_param: self._said_effort, "reasoning_effort": self.reasoning_effort})

    @property
    def effort_param(self) -> str:
        """The field that says so."""
        return "reasoning_effort" if self._said_effort is None else "reasoning.effort"

    @property
    def thinking(self) -> Thinking:
        """What the template is told."""
        return Thinking(effort=self.effort, effort_param=self.effort_param)

    def read_tools(self) -> OfferedTools:
        """Return what is offered and demanded. Raises: RequestError naming the field."""
        check_num_tools(len(self.tools or ()))
        made = [
            make_tool(
                tool.name,
                tool.description,
                tool.parameters,
                is_strict=tool.strict is True,
                place=f"tools[{index}]",
                schema_place=f"tools[{index}].parameters",
            )
            for index, tool in enumerate(self.tools or ())
        ]
        demand, only = read_choice(self.tool_choice, "tool_choice")
        return choose_tools(made, demand, only=only, is_parallel=self.parallel_tool_calls is not False)

    @property
    def shown_tools(self) -> list[dict[str, Any]]:
        """The tools as templates get them."""
        return [tool.as_chat_has_it for tool in self.tools or ()]

    def read_format(self) -> OutputFormat | None:
        """Return the form that is asked for; None = any text. Raises: RequestError naming the field."""
        if self.text is None or self.text.format is None:
            return None
        return read_response_format(self.text.format, "text.format")

    @property
    def _said_effort(self) -> str | None:
        return None if self.reasoning is None else self.reasoning.effort


class ResponsesFields(SamplingFields, BudgetFields, CountFields):
    """The body of a request for a response. None = not said."""

    stream: bool | None = Field(None, description="true or false")
    stream_options: StreamOptions | None = Field(None, description="an object")
    max_output_tokens: Whole | None = Field(None, ge=1, le=MAX_COUNT, description="an integer of at least 1")
    max_tokens: Whole | None = Field(None, ge=1, le=MAX_COUNT, description="an integer of at least 1")
    max_completion_tokens: Whole | None = Field(None, ge=1, le=MAX_COUNT, description="an integer of at least 1")
    max_tool_calls: Whole | None = Field(None, ge=1, le=MAX_COUNT, description="an integer of at least 1")
    top_logprobs: Whole | None = Field(None, ge=0, le=MAX_TOP, description=f"an integer from 0 to {MAX_TOP}")
    include: Annotated[
        list[str] | None, WithJsonSchema(any_of(list_of({"enum": [LOGPROBS, SEALED, *_OF_OTHER_ITEMS]}), NULL))
    ] = Field(None, description="a list of strings")
    store: bool | None = Field(None, description="true or false")
    metadata: dict[str, str] | None = Field(None, description="an object whose values are strings")
    user: str | None = Field(None, description="a string")
    safety_identifier: str | None = Field(None, description="a string")
    prompt_cache_key: str | None = Field(None, description="a string")

    @field_validator("include")
    @classmethod
    def _known_includes(cls, value: list[str] | None) -> list[str] | None:
        for one in value or ():
            if one not in (LOGPROBS, SEALED, *_OF_OTHER_ITEMS):
                raise wrong(f"has {show(one)}, which is nothing that can be included")
        return value

    @field_validator("metadata")
    @classmethod
    def _small_metadata(cls, value: dict[str, str] | None) -> dict[str, str] | None:
        if value is None:
            return None
        if len(value) > MAX_METADATA:
            raise wrong(f"has {len(value)} entries, but at most {MAX_METADATA} are allowed")
        for name, text in value.items():
            if len(name) > MAX_METADATA_NAME or len(text) > MAX_METADATA_TEXT:
                raise wrong(
                    f"has the entry {show(name)} that is too long: names may have {MAX_METADATA_NAME} characters, "
                    f"texts {MAX_METADATA_TEXT}"
                )
        return value

    @property
    def max_answer(self) -> int | None:
        """The most tokens that the answer may have; None = nothing is said. Raises: RequestError."""
        names = ("max_output_tokens", "max_tokens", "max_completion_tokens")
        return one_of({name: getattr(self, name) for name in names})

    @property
    def num_logprobs(self) -> int | None:
        """How many alternatives are told for each token; None = no log-probabilities at all.

        Raises: RequestError when only their number is asked for.
        """
        if LOGPROBS in (self.include or ()):
            return self.top_logprobs or 0
        if self.top_logprobs:
            raise RequestError(
                f"'top_logprobs' is {self.top_logprobs}, but log-probabilities are not asked for. "
                f"Set 'include' to [\"{LOGPROBS}\"] as well.",
                param="top_logprobs",
            )
        return None

    @property
    def is_stored(self) -> bool:
        """Whether the response is kept, so that others can go on from it; it is unless the client says no."""
        return self.store is not False


# --- what is told as holding ------------------------------------------------------------------------------


def told_format(fields: CountFields, held: OutputFormat | None) -> dict[str, Any]:
    """Return `text.format` as replies have it."""
    said = {} if fields.text is None else fields.text.format or {}
    if held is None:
        return {"type": "text"}
    if said.get("type") != "json_schema":
        return said
    inner = said.get("json_schema")
    said = inner if isinstance(inner, dict) and ("schema" in inner or "name" in inner) else said
    return {
        "type": "json_schema",
        "name": said.get("name") or "answer",
        "description": said.get("description"),
        "schema": held.schema,
        "strict": not held.relaxed if said.get("strict") is None else said["strict"],
    }


def told_tools(fields: CountFields, offered: OfferedTools) -> list[dict[str, Any]]:
    """Return the tools as replies have them: one that nothing is said of is strict if all of it is enforced."""
    told = []
    for index, tool in enumerate(fields.tools or ()):
        is_relaxed = any(path.startswith(f"tools[{index}].") for path in offered.relaxed)
        told.append(tool.model_dump() | {"strict": not is_relaxed if tool.strict is None else tool.strict})
    return told


def told_choice(fields: CountFields) -> str | dict[str, Any]:
    """Return `tool_choice` as replies have it, also where it came in chat's form."""
    choice = fields.tool_choice
    if not isinstance(choice, dict):
        return choice or "auto"
    kind = choice.get("type", "function")
    inner = choice.get(kind)
    return {"type": kind, **(inner if isinstance(inner, dict) else choice)}
