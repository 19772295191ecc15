"""Messages become exactly the prompt that the template means, or it is told why not."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import pytest

from tests.worker.chat.templates import (
    CHATML,
    FAMILIES,
    GEMMA,
    LLAMA3,
    MISTRAL,
    NOW,
    QWEN,
    chat_template,
    text_of,
    untrusted,
)
from worker.chat.template import Segment, TemplateError, UnsupportedContent

USER = {"role": "user", "content": "Hi"}
SYSTEM = {"role": "system", "content": "Be brief."}
ASSISTANT = {"role": "assistant", "content": "Hello!"}
CALL = {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Köln"}'}}


def rendered(source: str, *messages: dict[str, Any], **options: Any) -> str:
    return text_of(chat_template(source).render(messages, now=NOW, **options))


# --- the text -------------------------------------------------------------------------------------------


def test_chatml_conversation_is_rendered() -> None:
    assert rendered(CHATML, SYSTEM, USER) == (
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    )


def test_llama3_conversation_is_rendered_with_the_date_of_the_request() -> None:
    assert rendered(LLAMA3, {"role": "user", "content": "  Hi\n"}) == (
        "<s><|start_header_id|>system<|end_header_id|>\n\nToday: 26 Jul 2024\n\n<|eot_id|>"
        "<|start_header_id|>user<|end_header_id|>\n\nHi<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n"
    )


def test_mistral_conversation_is_rendered() -> None:
    assert rendered(MISTRAL, USER, ASSISTANT, USER) == "<s>[INST] Hi [/INST] Hello!</s>[INST] Hi [/INST]"


def test_gemma_conversation_is_rendered() -> None:
    assert rendered(GEMMA, USER, ASSISTANT, USER) == (
        "<s><start_of_turn>user\nHi<end_of_turn>\n<start_of_turn>model\nHello!<end_of_turn>\n"
        "<start_of_turn>user\nHi<end_of_turn>\n<start_of_turn>model\n"
    )


def test_qwen_conversation_with_tools_is_rendered() -> None:
    tools = [{"type": "function", "function": {"name": "weather", "description": "Wetter für <b>alle</b> & 'jeden'"}}]
    calling = {"role": "assistant", "content": None, "tool_calls": [CALL]}
    answer = {"role": "tool", "tool_call_id": "c1", "content": "sunny"}
    assert rendered(QWEN, USER, calling, answer, tools=tools) == (
        "<|im_start|>system\n# Tools\n"
        '{"type": "function", "function": {"name": "weather", "description": "Wetter für <b>alle</b> & \'jeden\'"}}\n'
        "<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n"
        '<|im_start|>assistant\n\n<tool_call>\n{"name": "weather", "arguments": {"city": "Köln"}}\n</tool_call>'
        "<|im_end|>\n<|im_start|>user\n<tool_response>\nsunny\n</tool_response><|im_end|>\n<|im_start|>assistant\n"
    )


def test_prompt_without_user_control_texts_is_one_trusted_segment() -> None:
    assert chat_template(CHATML).render([USER], now=NOW) == [
        Segment("<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n", True)
    ]


def test_generation_prompt_is_left_out_when_asked() -> None:
    assert rendered(CHATML, USER, add_generation_prompt=False) == "<|im_start|>user\nHi<|im_end|>\n"


def test_kwargs_reach_the_template() -> None:
    assert rendered(QWEN, USER, kwargs={"enable_thinking": False}).endswith("assistant\n<think>\n\n</think>\n\n")


@pytest.mark.parametrize("name", ["messages", "tools", "add_generation_prompt", "bos_token", "strftime_now", "range"])
def test_kwargs_cannot_replace_what_the_template_is_given(name: str) -> None:
    with pytest.raises(TemplateError, match=f"'{name}'") as caught:
        rendered(CHATML, USER, kwargs={name: "x"})
    assert caught.value.param == "chat_template_kwargs"


def test_documents_and_absent_tools_are_none() -> None:
    assert rendered("{{ documents is none }} {{ tools is none }}", USER, tools=[]) == "True True"


def test_documents_can_be_given() -> None:
    assert rendered("{{ documents[0].title }}", USER, kwargs={"documents": [{"title": "A"}]}) == "A"


def test_date_comes_from_the_request_alone() -> None:
    source = "{{ strftime_now('%Y-%m-%d %H:%M') }}"
    first, second = (chat_template(source).render([USER], now=datetime(year, 1, 2, 3, 4)) for year in (2001, 2002))
    assert (text_of(first), text_of(second)) == ("2001-01-02 03:04", "2002-01-02 03:04")


def test_content_parts_are_joined_with_newlines() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "input_text", "text": "b"}]
    assert rendered("{{ messages[0].content }}", {"role": "user", "content": parts}) == "a\nb"


def test_generation_blocks_and_loop_controls_are_understood() -> None:
    source = (
        "{% for m in messages %}{% if loop.index == 2 %}{% break %}{% endif %}"
        "{% generation %}{{ m.content }}{% endgeneration %}{% endfor %}"
    )
    assert rendered(source, USER, ASSISTANT) == "Hi"


# --- refusals -------------------------------------------------------------------------------------------


def test_template_refuses_in_its_own_words() -> None:
    with pytest.raises(TemplateError) as caught:
        rendered(GEMMA, SYSTEM, ASSISTANT, USER)
    assert str(caught.value) == "System role not supported"


def test_refusal_that_quotes_the_client_shows_no_marks() -> None:
    with pytest.raises(TemplateError) as caught:
        rendered("{{ raise_exception('bad: ' ~ messages[0].content) }}", {"role": "user", "content": "<|im_end|>"})
    assert caught.value.message == "bad: <|im_end|>"


def test_faulty_template_is_a_refusal_that_names_the_line() -> None:
    with pytest.raises(TemplateError, match=r"line 2: .*'nothing' is undefined"):
        rendered("{{ 1 }}\n{{ nothing.at_all }}", USER)


def test_template_that_cannot_be_compiled_is_refused_with_the_line() -> None:
    with pytest.raises(TemplateError, match="line 3"):
        chat_template("a\nb\n{% if %}")


def test_unknown_role_is_refused() -> None:
    with pytest.raises(TemplateError) as caught:
        rendered(CHATML, USER, {"role": "<|im_start|>", "content": "x"})
    assert caught.value.param == "messages[1].role"


def test_image_is_refused_by_name() -> None:
    image = {"type": "image_url", "image_url": {"url": "data:"}}
    with pytest.raises(UnsupportedContent) as caught:
        rendered(CHATML, {"role": "user", "content": [{"type": "text", "text": "a"}, image]})
    assert caught.value.param == "messages[0].content[1]"
    assert caught.value.status == 400


def test_tools_nested_beyond_reason_are_refused() -> None:
    tool: dict[str, Any] = {}
    for _ in range(5000):
        tool = {"a": tool}
    with pytest.raises(TemplateError, match="nested too deeply"):
        rendered(QWEN, USER, tools=[tool])


# --- second attempt -------------------------------------------------------------------------------------


def test_conversation_that_the_template_refuses_is_merged_and_tried_again() -> None:
    user = [{"role": "user", "content": text} for text in ("one", "two")]
    assert rendered(MISTRAL, SYSTEM, *user, {"role": "developer", "content": "Be kind."}) == (
        "<s>[INST] Be brief.\n\nBe kind.\n\none\n\ntwo [/INST]"
    )


def test_system_message_that_the_template_refuses_stands_in_front_of_the_first_user_text() -> None:
    assert rendered(GEMMA, SYSTEM, USER, ASSISTANT, USER).startswith(
        "<s><start_of_turn>user\nBe brief.\n\nHi<end_of_turn>\n<start_of_turn>model\nHello!<end_of_turn>"
    )
    later = [USER, SYSTEM | {"content": "Later."}]
    assert "user\nBe brief.\n\nLater.\n\nHi<end_of_turn>" in rendered(GEMMA, SYSTEM, *later)


def test_conversation_that_the_template_takes_is_not_merged() -> None:
    assert rendered(CHATML, USER, USER).count("<|im_start|>user") == 2


def test_first_refusal_is_the_one_that_is_told() -> None:
    source = "{{ raise_exception(messages | length ~ ' messages') }}"
    with pytest.raises(TemplateError) as caught:
        rendered(source, USER, USER)
    assert str(caught.value) == "2 messages"


# --- continuing a message -------------------------------------------------------------------------------


@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_final_message_is_continued(family: str) -> None:
    final = {"role": "assistant", "content": "Once upon"}
    prompt = rendered(FAMILIES[family], USER, final, continue_final_message=True)
    assert prompt.endswith("Once upon")
    whole = rendered(FAMILIES[family], USER, final, add_generation_prompt=False)
    assert whole.startswith(prompt)


@pytest.mark.parametrize(
    ("source", "expected"),
    [(CHATML, "assistant\nOnce upon \n"), (QWEN, "assistant\nOnce upon"), (GEMMA, "model\nOnce upon")],
)
def test_trailing_space_of_a_continued_message_is_kept_unless_the_template_trims(source: str, expected: str) -> None:
    final = {"role": "assistant", "content": "Once upon \n"}
    assert rendered(source, USER, final, continue_final_message=True).endswith(expected)


@pytest.mark.parametrize("content", ["", "\n"])
def test_empty_message_is_continued_after_its_header(content: str) -> None:
    final = {"role": "assistant", "content": content}
    assert rendered(GEMMA, USER, final, continue_final_message=True).endswith("<start_of_turn>model\n")


def test_continued_message_printed_twice_is_cut_in_the_last_copy() -> None:
    source = "{{ messages[-1].content }}|{{ messages[-1].content }}|"
    final = {"role": "assistant", "content": "ab "}
    assert rendered(source, final, continue_final_message=True) == "ab |ab "


def test_control_text_in_a_continued_message_is_untrusted() -> None:
    final = {"role": "assistant", "content": "a<|im_end|>b<|im_"}
    segments = chat_template(CHATML).render([USER, final], now=NOW, continue_final_message=True)
    assert untrusted(segments) == ["<|im_end|>"]
    assert text_of(segments).endswith("a<|im_end|>b<|im_")


@pytest.mark.parametrize("final", [USER, {"role": "assistant", "content": None, "tool_calls": [CALL]}])
def test_only_a_plain_assistant_message_can_be_continued(final: dict[str, Any]) -> None:
    with pytest.raises(TemplateError, match="continued"):
        rendered(CHATML, USER, final, continue_final_message=True)


def test_template_that_drops_the_final_message_cannot_continue_it() -> None:
    with pytest.raises(TemplateError, match="drops the last message"):
        rendered("{{ messages[0].content }}", USER, ASSISTANT, continue_final_message=True)
