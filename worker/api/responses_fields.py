"""The fields of OpenAI's `/v1/responses`: their types, and what of them is honoured.

Must not know what an item of `input` means (`responses_items.py` does), nor replies.
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field, WithJsonSchema, field_validator

from worker.api.fields import Fields, Whole, one_of, refused, unsupported, wrong
from worker.api.json_schemas import NULL, TEXT, any_of, list_of
from worker.api.logprobs import MAX_TOP
from worker.api.refusals import STRUCTURED, choice_refused, show, tools_refused, way_out
from worker.api.refused_responses import LOGPROBS
from worker.api.responses_items import ITEMS
from worker.api.sampling_fields import SamplingFields
from worker.api.stream_options import StreamOptions
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


class TextFormat(Fields):
    """`text.format`."""

    type: Annotated[str, WithJsonSchema({"const": "text"})] = Field(description='"text"')

    @field_validator("type")
    @classmethod
    def _only_text(cls, value: str) -> str:
        if value != "text":
            raise refused(f"{STRUCTURED}. {way_out('text')}".removesuffix("."))
        return value


class TextOptions(Fields):
    """`text`."""

    format: TextFormat | None = Field(None, description='an object such as {"type": "text"}')
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
    summary: Annotated[str | None, WithJsonSchema(NULL)] = Field(None, description="null")
    generate_summary: Annotated[str | None, WithJsonSchema(NULL)] = Field(None, description="null")

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


class CountFields(Fields):
    """What decides over the prompt. None = not said."""

    input: Annotated[str | list[Any], WithJsonSchema(any_of(TEXT | {"minLength": 1}, ITEMS))] = Field(
        description="a string or a list of items that is not empty"
    )
    instructions: str | None = Field(None, description="a string")
    previous_response_id: str | None = Field(None, description="a string")
    tools: list[FunctionTool] | None = Field(None, description="a list of functions")
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
    def _said_effort(self) -> str | None:
        return None if self.reasoning is None else self.reasoning.effort


class ResponsesFields(SamplingFields, CountFields):
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


def refuse_tools(fields: CountFields) -> None:
    """Return when no tool can be called: none is offered, or the client forbids it.

    Tools that may not be called are not shown to the model either. Raises: UnsupportedParameter.
    """
    choice = fields.tool_choice
    if fields.tools and choice != "none":
        raise tools_refused("'tool_choice': \"none\"")
    if choice not in (None, "none", "auto"):
        raise choice_refused('"none" or "auto"')
