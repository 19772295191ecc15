"""The request fields that OpenAI's chat and completions share beside the sampling.

Must not know messages, prompts or replies.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Self

from pydantic import Field, WithJsonSchema, field_validator, model_validator
from pydantic_core import PydanticCustomError

from worker.api.fields import Whole, one_of
from worker.api.json_schemas import NULL, any_of
from worker.api.sampling_fields import SamplingFields
from worker.api.stream_options import StreamOptions

MAX_CHOICES = 16


class UsageOptions(StreamOptions):
    """`stream_options`, in which usage is asked for."""

    include_usage: bool | None = Field(None, description="true or false")


class GenerationFields(SamplingFields):
    """What chat and completions have in common. None = not said."""

    stream: bool | None = Field(None, description="true or false")
    stream_options: UsageOptions | None = Field(None, description="an object")
    n: Whole | None = Field(None, ge=1, le=MAX_CHOICES, description=f"an integer from 1 to {MAX_CHOICES}")
    max_tokens: Whole | None = Field(None, ge=1, description="an integer of at least 1")
    max_completion_tokens: Whole | None = Field(None, ge=1, description="an integer of at least 1")
    n_predict: Annotated[
        Whole | None, WithJsonSchema(any_of({"type": "integer", "minimum": 1}, {"const": -1}, NULL))
    ] = Field(None, ge=-1, description="an integer of at least 1, or -1 for no limit")

    @field_validator("n_predict")
    @classmethod
    def _refuse_zero(cls, value: int | None) -> int | None:
        if value == 0:
            raise PydanticCustomError("zero", "")
        return value

    @model_validator(mode="after")
    def _agree_on_the_maximum(self) -> Self:
        one_of(self._maxima)
        return self

    @property
    def _maxima(self) -> Mapping[str, int | None]:
        return {
            "max_tokens": self.max_tokens,
            "max_completion_tokens": self.max_completion_tokens,
            "n_predict": None if self.n_predict == -1 else self.n_predict,
        }

    @property
    def num_choices(self) -> int:
        """Answers to one prompt."""
        return self.n or 1

    @property
    def includes_usage(self) -> bool:
        """Whether a stream ends with a chunk of usage."""
        return bool(self.stream_options and self.stream_options.include_usage)

    @property
    def max_answer(self) -> int | None:
        """The most tokens that the answer may have; None = nothing is said."""
        return one_of(self._maxima)
