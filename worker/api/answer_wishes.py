"""What a request wants of the form of its answers, in no dialect; how they come about; what is said of a checked one.

Plain data.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from worker.api.output_format import OutputFormat
from worker.chat.deltas import Delta, OutputParser, PlainText
from worker.chat.tool_calls.tools import Tools
from worker.engine.constraint import MakeConstraint


@dataclass(frozen=True, slots=True)
class AnswerWishes:
    """What a request wants."""

    format: OutputFormat | None = None
    """What the visible text is held to."""
    tools: Tools = field(default_factory=Tools)
    tools_param: str = "tools"
    """The field that they came in."""
    relaxed: tuple[str, ...] = ()
    """What of the tools' schemas cannot be enforced, as paths."""
    splits_thoughts: bool = True
    """Thoughts are told apart from the answer."""
    thought_budget: int | None = None
    """Tokens of thoughts, after which they are ended; None = as many as the model likes."""
    budget_param: str = "thinking_budget_tokens"
    """The field that it came in."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether an answer is what was asked for, where not all of it could be enforced."""

    relaxed: tuple[str, ...]
    """What could not be, as paths."""
    problem: str | None
    """What is wrong with the answer; None = nothing is."""

    @property
    def told(self) -> dict[str, Any]:
        """Return it as replies say it."""
        return {"not_enforced": list(self.relaxed), "is_valid": self.problem is None, "problem": self.problem}


Check = Callable[[Sequence[Delta]], Verdict | None]
"""Says nothing of an answer that is as it should be where nothing that the request demands was left to the model."""


@dataclass(frozen=True, slots=True)
class AnswerPlan:
    """How the answers to one request come about."""

    parser: Callable[[int], OutputParser] = lambda choice: PlainText()
    """Makes what reads one choice."""
    markers: Mapping[str, int] = field(default_factory=dict)
    """Special tokens that it wants to see."""
    constraint: MakeConstraint | None = None
    check: Check | None = None
    """Checks the whole of a choice, where not all of what was asked for could be enforced."""
