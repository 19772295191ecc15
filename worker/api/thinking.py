"""What a chat template is told about thinking, and refusals where it would not listen, for every dialect.

Owns the variables that templates know for it. A dialect says what its request asks for, and the fields that it came in.
Must not know messages or replies.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from worker.errors import UnsupportedParameter

SWITCH = "enable_thinking"
"""The variable by which templates are told whether the model shall think before it answers."""
EFFORT = "reasoning_effort"
"""The variable by which they are told how hard."""


@dataclass(frozen=True, slots=True)
class Thinking:
    """What a request asks for. None = nothing is said."""

    is_on: bool | None = None
    switch_param: str = "thinking"
    """The field that `is_on` came in."""
    effort: str | None = None
    effort_param: str = EFFORT
    """The field that `effort` came in."""
    usual_effort: str | None = None
    """The one that holds where none is said: it is no promise to a template that knows of none."""


def thinking_kwargs(asked: Thinking, source: str, *, model: str, always_thinks: bool = False) -> dict[str, Any]:
    """Return what a template with this source is told. One that `always_thinks` does so without a switch.

    False is no promise to a model that does not think, and one that is told how hard to think needs no switch.
    Raises: UnsupportedParameter where it would not listen.
    """
    kwargs: dict[str, Any] = {}
    knows_effort = EFFORT in source
    if asked.is_on is not None and SWITCH in source:
        kwargs[SWITCH] = asked.is_on
    elif asked.is_on and not always_thinks and not (knows_effort and asked.effort is not None):
        raise UnsupportedParameter(
            f"'{asked.switch_param}' asks model '{model}' to think before it answers, but its chat template has no "
            f"switch for that (`{SWITCH}`). Leave the field out.",
            param=asked.switch_param,
        )
    if asked.effort is not None and knows_effort:
        kwargs[EFFORT] = asked.effort
    elif asked.effort not in (None, asked.usual_effort):
        raise UnsupportedParameter(
            f"'{asked.effort_param}' has no effect on model '{model}': its chat template does not know it "
            f"(`{EFFORT}`). Leave the field out.",
            param=asked.effort_param,
        )
    return kwargs
