"""What templates are told about thinking, whichever dialect asks, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from worker.api.thinking import Thinking, thinking_kwargs
from worker.errors import UnsupportedParameter

SWITCH = "{% if enable_thinking %}x{% endif %}"
EFFORT = "{{ reasoning_effort }}"
BOTH = SWITCH + EFFORT


@pytest.mark.parametrize(
    ("asked", "source", "told"),
    [
        (Thinking(), BOTH, {}),
        (Thinking(is_on=True), SWITCH, {"enable_thinking": True}),
        (Thinking(is_on=False), SWITCH, {"enable_thinking": False}),
        (Thinking(is_on=False), "", {}),
        (Thinking(effort="low"), BOTH, {"reasoning_effort": "low"}),
        (Thinking(effort="none"), BOTH, {"reasoning_effort": "none"}),
        (Thinking(is_on=True, effort="low"), BOTH, {"enable_thinking": True, "reasoning_effort": "low"}),
        (Thinking(is_on=False, effort="low"), BOTH, {"enable_thinking": False, "reasoning_effort": "low"}),
        (Thinking(is_on=True, effort="low"), EFFORT, {"reasoning_effort": "low"}),
        (Thinking(effort="high", usual_effort="high"), EFFORT, {"reasoning_effort": "high"}),
        (Thinking(effort="high", usual_effort="high"), "", {}),
    ],
)
def test_a_template_is_told_what_it_knows(asked: Thinking, source: str, told: dict[str, Any]) -> None:
    assert thinking_kwargs(asked, source, model="m") == told


@pytest.mark.parametrize(
    ("asked", "source", "param"),
    [
        (Thinking(is_on=True, switch_param="think"), EFFORT, "think"),
        (Thinking(is_on=True), "", "thinking"),
        (Thinking(is_on=True, effort="high", usual_effort="high"), "", "thinking"),
        (Thinking(effort="low"), SWITCH, "reasoning_effort"),
        (Thinking(effort="low", effort_param="reasoning.effort"), "", "reasoning.effort"),
        (Thinking(effort="low", usual_effort="high"), "", "reasoning_effort"),
    ],
)
def test_a_template_that_would_not_listen_is_a_reason_to_refuse(asked: Thinking, source: str, param: str) -> None:
    with pytest.raises(UnsupportedParameter, match=f"'{param}' .*model 'm'.*Leave the field out") as caught:
        thinking_kwargs(asked, source, model="m")
    assert caught.value.param == param
