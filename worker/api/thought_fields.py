"""The fields that say how a model thinks before it answers, as OpenAI's and llama-server's clients send them.

Must not know templates: `thinking.py` tells them.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, WithJsonSchema, field_validator

from worker.api.fields import Fields, Whole, one_of, unsupported
from worker.api.json_schemas import NULL, any_of
from worker.api.thinking import Thinking

_BUDGET = any_of({"type": "integer", "minimum": -1}, NULL)


class BudgetFields(Fields):
    """What they call the limit of a thought. None = not said."""

    thinking_budget_tokens: Annotated[Whole | None, WithJsonSchema(_BUDGET)] = Field(
        None, ge=-1, description="an integer of at least 0, or -1 for no limit"
    )
    reasoning_budget_tokens: Annotated[Whole | None, WithJsonSchema(_BUDGET)] = Field(
        None, ge=-1, description="an integer of at least 0, or -1 for no limit"
    )

    @property
    def thought_budget(self) -> int | None:
        """Tokens of a thought; None = no limit. Raises: RequestError when two limits are said."""
        budget = one_of(
            {
                "thinking_budget_tokens": self.thinking_budget_tokens,
                "reasoning_budget_tokens": self.reasoning_budget_tokens,
            }
        )
        return None if budget == -1 else budget

    @property
    def budget_param(self) -> str:
        """The field that limits them."""
        return "thinking_budget_tokens" if self.thinking_budget_tokens is not None else "reasoning_budget_tokens"


class ThoughtFields(BudgetFields):
    """What they call it. None = not said."""

    reasoning_effort: str | None = Field(None, description="a string")
    reasoning_format: Annotated[str | None, WithJsonSchema({"enum": ["auto", "none", "deepseek", None]})] = Field(
        None, description='"auto", "none" or "deepseek"'
    )
    enable_thinking: bool | None = Field(None, description="true or false")

    @field_validator("reasoning_format")
    @classmethod
    def _known_format(cls, value: str | None) -> str | None:
        if value not in (None, "auto", "none", "deepseek"):
            raise unsupported('is not available: "auto", "none" and "deepseek" are')
        return value

    @property
    def splits_thoughts(self) -> bool:
        """Whether thoughts are told apart from the answer."""
        return self.reasoning_format != "none"

    @property
    def thinking(self) -> Thinking:
        """What the template is told."""
        return Thinking(self.enable_thinking, "enable_thinking", self.reasoning_effort)
