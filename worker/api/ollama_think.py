"""Ollama's field `think`: whether a model thinks before it answers, told to its chat template.

Owns what the field's values mean to a template. Must not know messages or replies.
"""

from __future__ import annotations

from typing import Any, Literal

from worker.api.served import ServedModel
from worker.errors import UnsupportedParameter

SWITCH = "enable_thinking"
"""The variable by which templates of thinking models are told."""

Think = bool | Literal["low", "medium", "high"] | None


def thinking_kwargs(model: ServedModel, think: Think) -> tuple[dict[str, Any], str | None]:
    """Return the template's variables and its reasoning effort.

    False is no promise to a model that does not think. Raises: UnsupportedParameter when thoughts are asked of one.
    """
    if think is None:
        return {}, None
    has_switch = SWITCH in model.template_source
    if isinstance(think, str):
        return ({SWITCH: True} if has_switch else {}), think
    if think and not has_switch:
        raise UnsupportedParameter(
            f"'think' is true, but model '{model.name}' does not think before it answers, as far as its chat template "
            "knows. Leave the field out.",
            param="think",
        )
    return ({SWITCH: think} if has_switch else {}), None
