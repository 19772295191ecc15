"""What templates are told about thinking, whichever dialect asks, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from worker.api.thinking import Thinking, thinking_kwargs
from worker.errors import RequestError, UnsupportedParameter

SWITCH = "{% if enable_thinking %}x{% endif %}"
EFFORT = "{{ reasoning_effort }}"
OTHER_SWITCH = "{%- if tools %}{%- elif thinking %}x{% endif %}"
BOTH = SWITCH + EFFORT


@pytest.mark.parametrize(
    ("asked", "source", "told"),
    [
        (Thinking(), BOTH, {}),
        (Thinking(is_on=True), SWITCH, {"enable_thinking": True}),
        (Thinking(is_on=False), SWITCH, {"enable_thinking": False}),
        (Thinking(is_on=False), "", {}),
        (Thinking(effort="low"), BOTH, {"reasoning_effort": "low"}),
        (Thinking(effort="none"), BOTH, {"enable_thinking": False, "reasoning_effort": "none"}),
        (Thinking(effort="none"), SWITCH, {"enable_thinking": False}),
        (Thinking(effort="none"), EFFORT, {"reasoning_effort": "none"}),
        (Thinking(effort="none"), "", {}),
        (Thinking(is_on=True), OTHER_SWITCH, {"thinking": True}),
        (Thinking(is_on=False), OTHER_SWITCH, {"thinking": False}),
        (Thinking(is_on=False), OTHER_SWITCH + SWITCH, {"enable_thinking": False}),
        (Thinking(is_on=False), "{% if message.thinking %}{{ message.thinking }}{% endif %}", {}),
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


def test_a_model_that_always_thinks_needs_no_switch() -> None:
    assert thinking_kwargs(Thinking(is_on=True), "", model="m", always_thinks=True) == {}


def test_to_think_without_any_effort_is_a_contradiction() -> None:
    with pytest.raises(RequestError, match="'reasoning_effort' is \"none\"") as caught:
        thinking_kwargs(Thinking(is_on=True, effort="none"), BOTH, model="m")
    assert caught.value.param == "reasoning_effort"


@pytest.mark.parametrize(
    ("asked", "is_off"),
    [
        (Thinking(), False),
        (Thinking(is_on=True, effort="low"), False),
        (Thinking(is_on=False), True),
        (Thinking(effort="none"), True),
    ],
)
def test_a_model_may_be_told_not_to_think_in_two_ways(asked: Thinking, is_off: bool) -> None:
    assert asked.is_off is is_off
