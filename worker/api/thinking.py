"""What a chat template is told about thinking, and refusals where it would not listen, for every dialect.

Owns the variables that templates know for it. A dialect says what its request asks for, and the fields that it came in.
Must not know messages or replies.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from worker.errors import RequestError, UnsupportedParameter

SWITCH = "enable_thinking"
"""The variable by which templates are told whether the model shall think before it answers."""
EFFORT = "reasoning_effort"
"""The variable by which they are told how hard."""
NO_EFFORT = "none"
"""The effort that means that the model shall not think."""

_OTHER_SWITCH = "thinking"
_ASKS_OTHER_SWITCH = re.compile(r"\b(?:if|elif|not) thinking\b(?!\s*[.\[])")
"""Some templates have this name for the switch; others have it for parts of messages."""


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

    @property
    def is_off(self) -> bool:
        """Whether the model shall not think."""
        return self.is_on is False or self.effort == NO_EFFORT


def switch_of(source: str) -> str | None:
    """Return the variable by which a template with this source is told to think or not; None = there is none."""
    if SWITCH in source:
        return SWITCH
    return _OTHER_SWITCH if _ASKS_OTHER_SWITCH.search(source) else None


def thinking_kwargs(asked: Thinking, source: str, *, model: str, always_thinks: bool = False) -> dict[str, Any]:
    """Return what a template with this source is told. One that `always_thinks` does so without a switch.

    That a model shall not think is no promise to one that does not, and the thoughts of one without a switch are ended
    at once. One that is told how hard to think needs no switch.
    Raises: UnsupportedParameter where it would not listen; RequestError for two things that contradict each other.
    """
    kwargs: dict[str, Any] = {}
    if asked.is_on and asked.effort == NO_EFFORT:
        raise RequestError(
            f"'{asked.switch_param}' asks the model to think, and '{asked.effort_param}' is \"{NO_EFFORT}\". "
            "Set only one of them.",
            param=asked.effort_param,
        )
    is_on = False if asked.is_off else asked.is_on
    knows_effort = EFFORT in source
    if is_on is not None and (switch := switch_of(source)) is not None:
        kwargs[switch] = is_on
    elif is_on and not always_thinks and not (knows_effort and asked.effort is not None):
        raise UnsupportedParameter(
            f"'{asked.switch_param}' asks model '{model}' to think before it answers, but its chat template has no "
            f"switch for that (`{SWITCH}`). Leave the field out.",
            param=asked.switch_param,
        )
    if asked.effort is not None and knows_effort:
        kwargs[EFFORT] = asked.effort
    elif asked.effort not in (None, asked.usual_effort, NO_EFFORT):
        raise UnsupportedParameter(
            f"'{asked.effort_param}' has no effect on model '{model}': its chat template does not know it "
            f"(`{EFFORT}`). Leave the field out.",
            param=asked.effort_param,
        )
    return kwargs
