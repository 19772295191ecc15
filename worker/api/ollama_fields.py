"""The request fields that Ollama's routes share, and what they mean here.

Owns their types, the limits that `options` sets, and which of Ollama's options are about speed alone. Must not know
prompts, messages or replies.

Ollama's options are the fields of sampling under the same names, in an object of their own.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Annotated, Any, Literal, TypeVar

from pydantic import Field, WithJsonSchema, field_validator
from pydantic_core import PydanticCustomError

from worker.api.fields import Fields, Whole, read_fields
from worker.api.json_schemas import ANY_OBJECT, NULL, any_of
from worker.api.logprobs import MAX_TOP
from worker.api.output_format import OutputFormat, json_object_format, json_schema_format
from worker.api.refusals import refuse_unsupported, show
from worker.api.refused_ollama import ALL_OPTIONS
from worker.api.sampling_fields import SamplingFields
from worker.api.thinking import Thinking
from worker.chat.errors import TEXT_ONLY, UnsupportedContent
from worker.errors import RequestError, UnsupportedParameter

F = TypeVar("F", bound="OllamaFields")

NDJSON = "application/x-ndjson"

SPEED_OPTIONS = (
    "num_keep",
    "num_batch",
    "num_gpu",
    "main_gpu",
    "num_thread",
    "use_mmap",
    "use_mlock",
    "numa",
    "low_vram",
    "f16_kv",
)
"""Options that are passed over: they say how a model is loaded or how fast it runs, and here models.yaml does.

`num_keep` says what stays when a context overflows, which no context does here.
"""


class OllamaOptions(SamplingFields):
    """`options`. None = not said."""

    num_predict: Whole | None = Field(None, ge=-2, description="an integer of at least 1, or -1 or -2 for no limit")
    num_ctx: Whole | None = Field(None, ge=1, description="an integer of at least 1")

    @field_validator("num_predict")
    @classmethod
    def _refuse_zero(cls, value: int | None) -> int | None:
        if value == 0:
            raise PydanticCustomError("zero", "")
        return value

    @property
    def wanted_tokens(self) -> int | None:
        """The most tokens that an answer may have by `num_predict`; None = as many as there is room for."""
        return self.num_predict if self.num_predict is not None and self.num_predict > 0 else None


class OllamaFields(Fields):
    """What the bodies of Ollama's routes have in common. None = not said."""

    model: str | None = Field(None, description="a string")
    options: OllamaOptions | None = Field(None, description="an object")
    truncate: bool | None = Field(None, description="true or false")

    @property
    def chosen(self) -> OllamaOptions:
        """The options; all of them unsaid where there are none."""
        return self.options or OllamaOptions.model_validate({})


class OllamaGenerationFields(OllamaFields):
    """What `/api/generate` and `/api/chat` have in common."""

    stream: bool | None = Field(None, description="true or false")
    think: bool | Literal["low", "medium", "high"] | None = Field(
        None, description='true, false, "low", "medium" or "high"'
    )
    format: Annotated[str | dict[str, Any] | None, WithJsonSchema(any_of({"enum": ["json", ""]}, ANY_OBJECT, NULL))] = (
        Field(None, description='"json" or a JSON schema')
    )
    logprobs: bool | None = Field(None, description="true or false")
    top_logprobs: Whole | None = Field(None, ge=0, le=MAX_TOP, description=f"an integer from 0 to {MAX_TOP}")
    chat_template_kwargs: dict[str, Any] | None = Field(None, description="an object")

    @property
    def thinking(self) -> Thinking:
        """What `think` asks for; a word says how hard as well."""
        if isinstance(self.think, str):
            return Thinking(is_on=True, switch_param="think", effort=self.think, effort_param="think")
        return Thinking(is_on=self.think, switch_param="think")

    def read_format(self) -> OutputFormat | None:
        """Return the form that the text is held to; None = any. Raises: RequestError."""
        match self.format:
            case None | "":
                return None
            case "json":
                return json_object_format("format")
            case dict():
                return json_schema_format(self.format, param="format")
            case other:
                raise RequestError(
                    f"'format' is {show(other)}, but it must be \"json\" or a JSON schema.", param="format"
                )

    @property
    def is_stream(self) -> bool:
        """Whether the answer comes piece by piece, which is the default."""
        return self.stream is not False

    @property
    def num_logprobs(self) -> int | None:
        """Alternatives told for each token; None = no log-probabilities at all. Raises: RequestError."""
        if self.logprobs:
            return self.top_logprobs or 0
        if self.top_logprobs:
            raise RequestError(
                f"'top_logprobs' is {self.top_logprobs}, but log-probabilities are not asked for. "
                "Set 'logprobs' to true as well.",
                param="top_logprobs",
            )
        return None

    def max_tokens(self, num_prompt: int, context: int) -> int | None:
        """Return the most tokens that the answer may have; None = as many as the model's context leaves room for.

        A `num_ctx` bounds prompt and answer together; one above the model's context changes nothing.
        Raises: NumCtxExceeded when there is no room for an answer, and `num_ctx` has to do with it.
        """
        num_ctx, wanted = self.chosen.num_ctx, self.chosen.wanted_tokens
        if num_ctx is None:
            return wanted
        if num_prompt >= min(num_ctx, context):
            raise NumCtxExceeded(num_prompt, num_ctx, context)
        return num_ctx - num_prompt if wanted is None else min(wanted, num_ctx - num_prompt)


class NumCtxExceeded(RequestError):
    """The prompt leaves no room for an answer, in what the request allows itself or in what there is."""

    code = "context_length_exceeded"

    def __init__(self, num_prompt: int, num_ctx: int, context: int) -> None:
        if num_ctx > context:
            why = (
                f"this model's maximum context length is {context} tokens, whatever 'options.num_ctx' says. Shorten "
                "the prompt, or have `context` of this model raised in models.yaml."
            )
        else:
            why = (
                f"'options.num_ctx' allows {num_ctx} for prompt and answer together. Raise it, leave it out to have "
                f"all {context} of this model, or shorten the prompt."
            )
        super().__init__(
            f"The prompt has {num_prompt} tokens and the answer needs at least 1, but {why}", param="options.num_ctx"
        )


def read_ollama_fields(cls: type[F], body: Mapping[str, Any]) -> F:
    """Return the checked fields of `body`. Raises: RequestError that names the first wrong one."""
    options = body.get("options")
    if isinstance(options, dict):
        try:
            refuse_unsupported(options, ALL_OPTIONS)
        except UnsupportedParameter as error:
            raise _in_options(error) from None
    return read_fields(cls, body)


@contextmanager
def options_named_as_written() -> Iterator[None]:
    """Errors about fields of sampling name them as fields of `options`, where Ollama's clients write them."""
    try:
        yield
    except RequestError as error:
        if error.param in OllamaOptions.model_fields:
            raise _in_options(error) from None
        raise


def _in_options(error: RequestError) -> RequestError:
    kind = UnsupportedParameter if isinstance(error, UnsupportedParameter) else RequestError
    return kind(f"In 'options': {error.message}", param=f"options.{error.param}")


def refuse_images(fields: Mapping[str, Any], param: str) -> None:
    """Return if the object has no images. Raises: UnsupportedContent."""
    if fields.get("images"):
        raise UnsupportedContent(f"'{param}' is not empty: {TEXT_ONLY}.", param=param)
