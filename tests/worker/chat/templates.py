"""Short templates in the manner of the common families, written for these tests, and a plain Jinja to compare with."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import cache
from typing import Any, NoReturn

from jinja2.exceptions import TemplateError as JinjaError
from jinja2.sandbox import ImmutableSandboxedEnvironment

from worker.chat.template import ChatTemplate, Segment

NOW = datetime(2024, 7, 26, 12, 30)

CHATML = """\
{%- for message in messages %}
    {{- '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}
"""

LLAMA3 = """\
{{- bos_token }}
{%- if messages[0]['role'] == 'system' %}
    {%- set system = messages[0]['content'] | trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system = '' %}
{%- endif %}
{{- '<|start_header_id|>system<|end_header_id|>\\n\\nToday: ' ~ strftime_now('%d %b %Y') }}
{{- '\\n\\n' ~ system ~ '<|eot_id|>' }}
{%- for message in messages %}
    {{- '<|start_header_id|>' + message.role + '<|end_header_id|>\\n\\n' + message.content | trim + '<|eot_id|>' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}
{%- endif %}
"""

MISTRAL = """\
{%- if messages[0].role == 'system' %}{% set system = messages[0].content %}{% set loop_messages = messages[1:] %}
{%- else %}{% set loop_messages = messages %}{% endif %}
{{- bos_token }}
{%- for message in loop_messages %}
    {%- if (message.role == 'user') != (loop.index0 % 2 == 0) %}
        {{- raise_exception('Roles must alternate user/assistant/user/assistant') }}
    {%- endif %}
    {%- if message.role == 'user' %}
        {{- '[INST] ' }}{% if loop.last and system is defined %}{{ system + '\\n\\n' }}{% endif %}
        {{- message.content + ' [/INST]' }}
    {%- else %}
        {{- ' ' + message.content + eos_token }}
    {%- endif %}
{%- endfor %}
"""

GEMMA = """\
{{- bos_token }}
{%- if messages[0]['role'] == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}
{%- for message in messages %}
    {%- set role = 'model' if message['role'] == 'assistant' else message['role'] %}
    {{- '<start_of_turn>' + role + '\\n' + message['content'] | trim + '<end_of_turn>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<start_of_turn>model\\n' }}{% endif %}
"""

QWEN = """\
{%- macro shown(content) %}{% if content is string %}{{ content }}{% endif %}{% endmacro %}
{%- if tools %}
    {{- '<|im_start|>system\\n# Tools\\n' }}
    {%- for tool in tools %}{{ tool | tojson }}{{ '\\n' }}{% endfor %}
    {{- '<|im_end|>\\n' }}
{%- endif %}
{%- for message in messages %}
    {%- set content = shown(message.content) | trim %}
    {%- if message.role == 'tool' %}
        {{- '<|im_start|>user\\n<tool_response>\\n' ~ content ~ '\\n</tool_response><|im_end|>\\n' }}
    {%- else %}
        {%- if message.role == 'assistant' and '</think>' in content %}
            {%- set content = content.split('</think>')[-1].lstrip('\\n') %}
        {%- endif %}
        {{- '<|im_start|>' + message.role + '\\n' + content }}
        {%- for call in message.tool_calls or [] %}
            {{- '\\n<tool_call>\\n{"name": "' + call.function.name + '", "arguments": ' }}
            {{- call.function.arguments | tojson }}
            {{- '}\\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}{{ '<think>\\n\\n</think>\\n\\n' }}{% endif %}
{%- endif %}
"""

FAMILIES = {"chatml": CHATML, "llama3": LLAMA3, "mistral": MISTRAL, "gemma": GEMMA, "qwen": QWEN}

CONTROL_TEXTS = (
    "<|start_header_id|>",
    "<|end_header_id|>",
    "<start_of_turn>",
    "<|im_start|>",
    "<end_of_turn>",
    "<|im_end|>",
    "<|eot_id|>",
    "[/INST]",
    "[INST]",
    "<bos>",
    "</s>",
    "<s>",
)


def chat_template(source: str, control_texts: Sequence[str] = CONTROL_TEXTS) -> ChatTemplate:
    return _compiled(source, tuple(control_texts))


@cache
def _compiled(source: str, control_texts: tuple[str, ...]) -> ChatTemplate:
    return ChatTemplate(source, bos_text="<s>", eos_text="</s>", control_texts=control_texts)


def text_of(segments: Sequence[Segment]) -> str:
    return "".join(segment.text for segment in segments)


def untrusted(segments: Sequence[Segment]) -> list[str]:
    return [segment.text for segment in segments if not segment.is_trusted]


def plain_jinja(source: str, messages: Sequence[Mapping[str, Any]], **variables: Any) -> str:
    """Return what Jinja alone renders, set up as for any chat template."""

    def raise_exception(message: str) -> NoReturn:
        raise JinjaError(message)

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = lambda value, **options: json.dumps(value, ensure_ascii=False, **options)
    environment.globals |= {"raise_exception": raise_exception, "strftime_now": NOW.strftime}
    return environment.from_string(source).render(
        messages=messages,
        **{"tools": None, "add_generation_prompt": True, "bos_token": "<s>", "eos_token": "</s>"} | variables,
    )
