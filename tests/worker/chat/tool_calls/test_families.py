"""Every family against the chat templates of real models: which fits which, and whether what they print is read again.

The templates are those that llama.cpp's source carries.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import pytest

from tests.support.answer_vectors import WEATHER, Part, parts_of, read
from tests.support.byte_tokenizer import Grammar
from tests.support.public_templates import public_templates
from worker.chat.answer_reader import AnswerForm
from worker.chat.marks import Markers
from worker.chat.reasoning import find_tags
from worker.chat.template import ChatTemplate
from worker.chat.tool_calls.families import FAMILIES, choose_family
from worker.chat.tool_calls.grammar import GrammarWriter
from worker.chat.tool_calls.tools import Demand, Tools

FAMILY_OF = {
    "Apertus-8B-Instruct": "apertus",
    "Apriel-1.6-15b-Thinker-fixed": "tool-calls-list",
    "Bielik-11B-v3.0-Instruct": "hermes",
    "ByteDance-Seed-OSS": "seed-oss",
    "Cohere2MoE": "cohere2",
    "CohereForAI-c4ai-command-r-plus-tool_use": "command-r-plus",
    "CohereForAI-c4ai-command-r7b-12-2024-tool_use": "command-r",
    "GLM-4.6": "glm",
    "GLM-4.7-Flash": "glm",
    "GigaChat3-10B-A1.8B": "gigachat3",
    "GigaChat3.1-10B-A1.8B": "gigachat3.1",
    "HuggingFaceTB-SmolLM3-3B": "generic",
    "Kimi-K2-Instruct": "kimi-k2",
    "Kimi-K2-Thinking": "kimi-k2",
    "Kimi-K3": "kimi-k3",
    "LFM2-8B-A1B": "lfm2",
    "LFM2.5-8B-A1B": "lfm2",
    "LFM2.5-Instruct": "lfm2",
    "MiMo-VL": "hermes",
    "MiniMax-M1": "minimax-m1",
    "MiniMax-M2": "minimax-m2",
    "MiniMax-M3": "minimax-m3",
    "Mistral-Small-3.2-24B-Instruct-2506": "mistral",
    "NVIDIA-Nemotron-3-Nano-30B-A3B-BF16": "qwen3-coder",
    "NVIDIA-Nemotron-Nano-v2": "nemotron2",
    "NousResearch-Hermes-2-Pro-Llama-3-8B-tool_use": "hermes",
    "NousResearch-Hermes-3-Llama-3.1-8B-tool_use": "hermes",
    "Qwen-QwQ-32B": "hermes",
    "Qwen-Qwen2.5-7B-Instruct": "hermes",
    "Qwen-Qwen3-0.6B": "hermes",
    "Qwen3-Coder": "qwen3-coder",
    "Qwen3.5-4B": "qwen3-coder",
    "Reka-Edge": "hermes",
    "Spark2.5": "glm",
    "StepFun3.5-Flash": "qwen3-coder",
    "deepseek-ai-DeepSeek-R1-Distill-Llama-8B": "deepseek-r1",
    "deepseek-ai-DeepSeek-R1-Distill-Qwen-32B": "deepseek-r1",
    "deepseek-ai-DeepSeek-V3.1": "deepseek-v3.1",
    "deepseek-ai-DeepSeek-V3.2": "deepseek-v3.2",
    "deepseek-ai-DeepSeek-V4": "deepseek-v4",
    "deepseek-ai-DeepSeek-V4-Flash-0731": "deepseek-v4",
    "fireworks-ai-llama-3-firefunction-v2": "functools",
    "google-gemma-2-2b-it": "generic",
    "google-gemma-4-31B-it": "gemma4",
    "google-gemma-4-31B-it-interleaved": "gemma4",
    "ibm-granite-granite-3.3-2B-Instruct": "granite3",
    "ibm-granite-granite-4.0": "hermes",
    "ibm-granite-granite-4.1": "hermes",
    "inclusionai-ling-3.0-flash": "glm",
    "llama-cpp-deepseek-r1": "deepseek-r1",
    "llama-cpp-rwkv-world": "generic",
    "meetkai-functionary-medium-v3.1": "functionary-v3.1",
    "meetkai-functionary-medium-v3.2": "functionary-v3.2",
    "meta-llama-Llama-3.1-8B-Instruct": "llama3",
    "meta-llama-Llama-3.2-3B-Instruct": "llama3",
    "meta-llama-Llama-3.3-70B-Instruct": "llama3",
    "microsoft-Phi-3.5-mini-instruct": "generic",
    "mistralai-Ministral-3-14B-Reasoning-2512": "mistral",
    "mistralai-Mistral-Nemo-Instruct-2407": "mistral-list",
    "moonshotai-Kimi-K2": "kimi-k2",
    "muse-glimmer": "muse",
    "openai-gpt-oss-120b": "harmony",
    "openbmb-MiniCPM5-1B": "minicpm5",
    "poolside-Laguna-S-2.1": "glm",
    "poolside-Laguna-XS-2.1": "glm",
    "poolside-Laguna-XS.2": "glm",
    "tencent-Hy3": "hunyuan-3",
    "unsloth-Apriel-1.5": "tool-calls-list",
    "unsloth-mistral-Devstral-Small-2507": "mistral",
    "upstage-Solar-Open-100B": "solar",
}

KNOWS_NO_TOOLS = {
    "HuggingFaceTB-SmolLM3-3B",
    "deepseek-ai-DeepSeek-R1-Distill-Llama-8B",
    "deepseek-ai-DeepSeek-R1-Distill-Qwen-32B",
    "deepseek-ai-DeepSeek-V3.1",
    "google-gemma-2-2b-it",
    "llama-cpp-rwkv-world",
    "microsoft-Phi-3.5-mini-instruct",
}
"""The templates that print no tools."""

NOW = datetime(2024, 7, 26)
TOOL = {
    "type": "function",
    "function": {
        "name": WEATHER.name,
        "description": WEATHER.description,
        "parameters": {
            "type": "object",
            "properties": {
                name: {**one, "description": name} for name, one in WEATHER.parameters["properties"].items()
            },
            "required": ["city"],
        },
    },
}
PARIS, ROME = {"city": "Paris", "days": 2}, {"city": "Rome"}
ID, SECOND_ID = "call_0123456789abcdef01234500", "call_0123456789abcdef01234501"
USER = {"role": "user", "content": "How is it?"}
ANSWER = {"role": "assistant", "content": "It rains."}


def call(arguments: Any, id_: str | None = ID) -> dict[str, Any]:
    return {"id": id_, "type": "function", "function": {"name": WEATHER.name, "arguments": arguments}}


def calling(*calls: Any, content: str | None = None, **more: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": content, "tool_calls": list(calls), **more}


def result(text: str, id_: str | None = ID) -> dict[str, Any]:
    return {"role": "tool", "content": text, "tool_call_id": id_}


Case = tuple[Sequence[Mapping[str, Any]], Sequence[str]]
CASES: Mapping[str, Case] = {
    "arguments as text": ([USER, calling(call(json.dumps(PARIS))), result("Sun")], ["Paris", "Sun"]),
    "arguments as an object": ([USER, calling(call(PARIS), content=""), result("Sun")], ["Paris", "Sun"]),
    "no ids": ([USER, calling(call(PARIS, None)), result("Sun", None)], ["Paris", "Sun"]),
    "two calls": (
        [USER, calling(call(PARIS), call(ROME, SECOND_ID)), result("Sun"), result("Fog", SECOND_ID)],
        ["Paris", "Rome", "Sun", "Fog"],
    ),
    "words beside a call": ([USER, calling(call(PARIS), content="Let me see."), result("Sun")], ["Paris", "Sun"]),
    "thoughts before a call": (
        [USER, calling(call(PARIS), reasoning_content="They ask."), result("Sun")],
        ["Paris", "Sun"],
    ),
    "thoughts and words before a call": (
        [USER, calling(call(PARIS), content="Let me see.", reasoning_content="They ask."), result("Sun")],
        ["Paris", "Sun"],
    ),
    "a call of an older answer": (
        [USER, calling(call(PARIS)), result("Sun"), ANSWER, USER],
        ["Paris", "Sun", "It rains."],
    ),
    "words beside a call of an older answer": (
        [USER, calling(call(PARIS), content="Let me see."), result("Sun"), ANSWER, USER],
        ["Paris", "Sun", "It rains."],
    ),
    "thoughts of an older answer": ([USER, ANSWER | {"reasoning_content": "They ask."}, USER], ["It rains."]),
    "an instruction": ([{"role": "system", "content": "Be brief."}, USER], ["Be brief."]),
}
"""Conversations, and what must be in the prompt, once each."""

SHOWS_THOUGHTS = {
    "openai-gpt-oss-120b",
    "Qwen-Qwen3-0.6B",
    "mistralai-Ministral-3-14B-Reasoning-2512",
    "upstage-Solar-Open-100B",
    "LFM2.5-8B-A1B",
    "Kimi-K2-Thinking",
    "muse-glimmer",
    "MiniMax-M2",
    "GLM-4.6",
}
"""Some that print the thoughts which led to a call that is being answered, under different names for them."""


@functools.cache
def template_of(name: str) -> ChatTemplate:
    return ChatTemplate(public_templates()[name], bos_text="<s>", eos_text="</s>", control_texts=())


def shown(name: str, messages: Sequence[Mapping[str, Any]], **options: Any) -> str:
    return "".join(segment.text for segment in template_of(name).render(messages, now=NOW, **options))


@pytest.mark.models
def test_every_public_template_is_of_the_family_that_is_said_here() -> None:
    assert {name: choose_family(source).name for name, source in public_templates().items()} == FAMILY_OF


@pytest.mark.models
def test_the_templates_that_print_no_tools_are_known() -> None:
    assert {name for name in public_templates() if not template_of(name).expectations.shows_tools} == KNOWS_NO_TOOLS


@pytest.mark.models
@pytest.mark.parametrize("tools", [[TOOL], None], ids=["tools", "no tools"])
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("name", FAMILY_OF)
def test_conversations_come_out_as_they_were(name: str, case: str, tools: Any) -> None:
    messages, wanted = CASES[case]
    text = shown(name, messages, tools=tools)
    without = shown(name, [USER], tools=tools)
    assert [text.count(one) - without.count(one) for one in wanted] == [1] * len(wanted), text
    assert text.count("None") == without.count("None")


@pytest.mark.models
@pytest.mark.parametrize("name", FAMILY_OF)
def test_results_come_in_the_order_of_their_calls(name: str) -> None:
    messages, _ = CASES["two calls"]
    text = shown(name, messages, tools=[TOOL])
    assert text.rindex("Paris") < text.rindex("Rome")
    assert text.rindex("Paris") < text.rindex("Sun") < text.rindex("Fog")
    assert text.rindex("Rome") < text.rindex("Fog")


@pytest.mark.models
@pytest.mark.parametrize("name", sorted(SHOWS_THOUGHTS))
def test_thoughts_that_led_to_a_call_are_printed(name: str) -> None:
    messages, _ = CASES["thoughts before a call"]
    assert "They ask." in shown(name, messages, tools=[TOOL])


@pytest.mark.models
@pytest.mark.parametrize("name", FAMILY_OF)
def test_tools_are_printed(name: str) -> None:
    text = shown(name, [USER], tools=[TOOL])
    assert (WEATHER.name in text) is (name not in KNOWS_NO_TOOLS)


@pytest.mark.models
@pytest.mark.parametrize("name", FAMILY_OF)
def test_calls_are_read_as_the_templates_print_them(name: str) -> None:
    written = _as_written(name, [calling(call(PARIS))])
    assert _calls(_read(name, written)) == [("call", WEATHER.name, json.dumps(PARIS, sort_keys=True))], written


@pytest.mark.models
@pytest.mark.parametrize("name", FAMILY_OF)
def test_two_calls_are_read_as_the_templates_print_them(name: str) -> None:
    if not template_of(name).expectations.takes_many_calls:
        return  # they are never in one answer
    written = _as_written(name, [calling(call(PARIS), call(ROME, SECOND_ID))])
    wanted = [("call", WEATHER.name, json.dumps(one, sort_keys=True)) for one in (PARIS, ROME)]
    assert _calls(_read(name, written)) == wanted, written


@pytest.mark.models
@pytest.mark.parametrize("name", FAMILY_OF)
def test_the_grammar_lets_calls_through_as_the_templates_print_them(name: str) -> None:
    written = _as_written(name, [calling(call(PARIS, "a1b2c3d4e5"))])
    family = choose_family(public_templates()[name])
    write = GrammarWriter(Markers())
    refused = Grammar(write.grammar(family.free_calls(write, _tools()))).refused_at(written)
    assert "Paris" not in refused, f"{refused!r} of {written!r}"


def test_every_family_has_a_name_of_its_own() -> None:
    names = [family.name for family in FAMILIES]
    assert len(set(names)) == len(names)


def test_the_last_family_takes_what_no_other_does() -> None:
    assert choose_family("{{ messages }}") is FAMILIES[-1]
    assert [family.name for family in FAMILIES if family.fits("{{ messages }}")] == ["generic"]


def _tools() -> Tools:
    return Tools((WEATHER,), Demand.AUTO)


def _as_written(name: str, answer: Sequence[Mapping[str, Any]]) -> str:
    """Return what the model would have written for the template to print this answer."""
    prompt = shown(name, [USER], tools=[TOOL])
    text = shown(name, [USER, *answer], tools=[TOOL], add_generation_prompt=False)
    if text.startswith(prompt):
        return text.removeprefix(prompt)
    return text[text.rindex(USER["content"]) + len(USER["content"]) :]


def _read(name: str, written: str) -> list[Part]:
    source = public_templates()[name]
    form = AnswerForm(tags=find_tags(source), family=choose_family(source), tools=_tools())
    return parts_of(read(form, [written]))


def _calls(parts: Sequence[Part]) -> list[Part]:
    return [part for part in parts if part[0] == "call"]
