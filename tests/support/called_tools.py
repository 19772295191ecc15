"""Chat templates of models that call tools and of models that think, and what such models write; for any dialect."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from tests.fakes.engine import FakeEngine
from worker.engine.constraint import Constraint

TURNS = (
    "{%- for m in messages %}<|im_start|>{{ m.role }}\n"
    "{% if m.reasoning_content %}<think>{{ m.reasoning_content }}</think>{% endif %}{{ m.content or '' }}"
    "{% for call in m.tool_calls or [] %}<tool_call>{{ call.function | tojson }}</tool_call>{% endfor %}"
    "<|im_end|>\n{%- endfor %}{%- if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
CALLING = "{% for tool in tools or [] %}{{ tool | tojson }}\n{% endfor %}" + TURNS
"""A model that calls tools as JSON in tags, and that thinks if it likes."""
SWITCHED = CALLING + "{% if enable_thinking is defined %}[{{ 'on' if enable_thinking else 'off' }}]{% endif %}"
"""The same; it can be told whether to think."""
ALWAYS = CALLING + "{%- if add_generation_prompt %}<think>\n{% endif %}"
"""A model whose prompt begins its thought."""
WITHOUT_TOOLS = (
    "{%- for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{%- endfor %}"
    "{%- if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
"""A model that has learnt neither."""
PLAIN = "{% for tool in tools or [] %}{{ tool | tojson }}<tool_call>\n{% endfor %}" + WITHOUT_TOOLS
"""A model that calls tools and never thinks."""

CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
ZONE = {"type": "object", "properties": {"zone": {"enum": ["UTC", "CET"]}}, "required": ["zone"]}


def call(name: str, arguments: Any) -> str:
    """Return a call as the model writes it."""
    return f'<tool_call>\n{{"name": "{name}", "arguments": {json.dumps(arguments)}}}\n</tool_call>'


def one_by_one(text: str) -> Sequence[bytes]:
    """Return the text in steps of one token each, a byte."""
    return [bytes([byte]) for byte in text.encode()]


def constraint_of(on: FakeEngine) -> Constraint:
    """Return what the only answer is held to."""
    [request] = on.submitted
    assert request.constraint is not None, "the answer is held to nothing"
    return request.constraint()


def allows(on: FakeEngine, text: str) -> bool:
    """Return whether an answer may begin with all of `text`."""
    return constraint_of(on).num_allowed([*text.encode()]) == len(text.encode())


def forced_after(on: FakeEngine, text: str) -> str:
    """Return what must come behind `text`, up to a hundred tokens; empty = there is a choice."""
    constraint = constraint_of(on)
    for byte in text.encode():
        constraint.accept(byte)
    return on.vocabulary.text(constraint.forced(100))
