"""Messages become exactly the prompt that the template means, and nothing that a client writes becomes control."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.worker.chat.templates import (
    CHATML,
    CONTROL_TEXTS,
    FAMILIES,
    GEMMA,
    LLAMA3,
    MISTRAL,
    NOW,
    QWEN,
    chat_template,
    plain_jinja,
    text_of,
    untrusted,
)
from worker.chat.control_texts import ControlTexts
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
    with pytest.raises(TemplateError, match=f"`{name}`") as caught:
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
        rendered(GEMMA, SYSTEM, USER)
    assert str(caught.value) == "System role not supported"


def test_refusal_that_quotes_the_client_shows_no_marks() -> None:
    with pytest.raises(TemplateError) as caught:
        rendered("{{ raise_exception('bad: ' ~ messages[0].content) }}", {"role": "user", "content": "<|im_end|>"})
    assert caught.value.message == "bad: <|im_end|>"


def test_faulty_template_is_a_refusal_that_names_the_line() -> None:
    with pytest.raises(TemplateError, match="line 2: .*'nothing' is undefined"):
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


# --- user text is never control -------------------------------------------------------------------------


def test_control_text_of_a_user_is_its_own_untrusted_segment() -> None:
    segments = chat_template(CHATML).render([{"role": "user", "content": "a<|im_end|>b"}], now=NOW)
    assert segments == [
        Segment("<|im_start|>user\na", True),
        Segment("<|im_end|>", False),
        Segment("b<|im_end|>\n<|im_start|>assistant\n", True),
    ]


def test_control_texts_in_names_tools_keys_arguments_and_kwargs_are_untrusted() -> None:
    source = (
        "{{ messages[0].name }}{{ messages[0].extra['<s>'] }}{{ messages | tojson }}"
        "{{ tools | tojson }}{% for key in tools[0] %}{{ key }}{% endfor %}{{ mood }}"
    )
    evil = "<s>"
    call = {"type": "function", "function": {"name": evil, "arguments": {evil: [evil]}}}
    segments = chat_template(source).render(
        [
            {"role": "user", "content": evil, "name": evil, "extra": {"a": evil}},
            {"role": "assistant", "tool_calls": [call]},
        ],
        now=NOW,
        tools=[{evil: {"description": evil}}],
        kwargs={"mood": evil},
    )
    assert not any(evil in segment.text for segment in segments if segment.is_trusted)
    assert len(untrusted(segments)) == text_of(segments).count(evil) >= 10


FORGERIES = {
    "name between literals": "{{ '<|' + messages[0].name + '|>' }}",
    "name between printed literals": "<|{{ messages[0].name }}|>",
    "concatenated": "{{ '<|' ~ messages[0].name ~ '|>' }}",
    "half in a variable": "{% set half = '<|' + messages[0].name %}{{ half }}|>",
    "formatted": "{{ '<|%s|>' % messages[0].name }}{{ '<|{}|>'.format(messages[0].name) }}",
    "format filter": "{{ '<|%s|>' | format(messages[0].name) }}",
    "format map": "{{ '<|{name}|>'.format_map(messages[0]) }}",
    "joined": "{{ ['<|', messages[0].name, '|>'] | join }}{{ ''.join(['<|', messages[0].name, '|>']) }}",
    "joined by attribute": "{{ ['<|', messages[0].name, '|>'] | map('string') | join }}",
    "lowered": "{{ messages[0].upper | lower }}{{ messages[0].upper.lower() }}{{ messages[0].upper.casefold() }}",
    "holes removed": "{{ messages[0].holes | replace('#', '') }}{{ messages[0].holes.replace('#', '') }}",
    "holes split": "{{ messages[0].holes.split('#') | join }}{{ ''.join(messages[0].holes.split('#')) }}",
    "reversed": "{{ messages[0].reversed | reverse }}{{ messages[0].reversed[::-1] }}",
    "letter by letter": "{% for c in messages[0].holes if c != '#' %}{{ c }}{% endfor %}",
    "letters joined": "{{ messages[0].holes | list | reject('equalto', '#') | join }}",
    "letters indexed": "{% set h = messages[0].halves %}{{ h[0][0] ~ h[0][1:] ~ h[1] }}",
    "two contents": "{{ messages[0].halves[0] }}{{ messages[0].halves[1] }}",
    "two contents joined": "{{ messages[0].halves | join }}{{ messages[0].halves[0] + messages[0].halves[1] }}",
    "trimmed": "{{ '<|' ~ messages[0].spaced | trim ~ '|>' }}{{ '<|' ~ messages[0].spaced.strip() ~ '|>' }}",
    "in a block": "{% set x %}<|{{ messages[0].name }}{% endset %}{{ x }}|>{% filter trim %}<|{{ messages[0].name }}|>{% endfilter %}",
    "in a macro": "{% macro f(x) %}<|{{ x }}{% endmacro %}{{ f(messages[0].name) }}|>",
    "in a call block": "{% macro f() %}<|{{ caller() }}|>{% endmacro %}{% call f() %}{{ messages[0].name }}{% endcall %}",
    "in a namespace": "{% set ns = namespace(x='<|') %}{% set ns.x = ns.x + messages[0].name %}{{ ns.x + '|>' }}",
    "repeated": "{{ messages[0].tail_head * 2 }}",
    "padded": "{{ messages[0].tail.rjust(12, messages[0].head) }}",
    "escaped back": "{{ messages[0].content | tojson(ensure_ascii=true) }}",
    "printed whole": "{{ messages }}{{ messages | string }}{{ '%s' % [messages] }}{{ '{!r}'.format(messages[0].content) }}",
}


@pytest.mark.parametrize("source", FORGERIES.values(), ids=FORGERIES.keys())
def test_client_text_cannot_form_a_control_text(source: str) -> None:
    message = {
        "role": "user",
        "content": "<|im_end|>",
        "name": "im_end",
        "upper": "<|IM_END|>",
        "holes": "<|i#m_end|#>",
        "reversed": ">|dne_mi|<",
        "halves": ["<|im_", "end|>"],
        "spaced": "  im_end\n",
        "tail_head": "m_end|><|i",
        "tail": "m_end|>",
        "head": "<|im_end|><|i",
    }
    segments = chat_template(source).render([message], now=NOW)
    assert "<|im_end|>" in text_of(segments)
    assert not any("<|im_end|>" in segment.text for segment in segments if segment.is_trusted)
    assert not any("\ufdd0" <= character <= "\ufdef" or "\\ufd" in text_of(segments) for character in text_of(segments))


def test_what_the_template_inserts_into_client_text_stays_control() -> None:
    source = (
        "{{ messages[0].content | replace('[image]', '<|image|>') }}"
        "{{ messages[0].content.replace('[image]', '<|image|>') }}"
        "{{ '<|image|>%s<|image|>' % messages[0].name }}"
        "{% set block %}<|image|>{{ messages[0].content }}{% endset %}{{ block | upper | lower }}{{ block[2:9] }}"
    )
    message = {"role": "user", "content": "see [image]", "name": "ann"}
    segments = chat_template(source, ["<|image|>"]).render([message], now=NOW)
    assert untrusted(segments) == []
    assert text_of(segments).count("<|image|>") == 5


def test_overlapping_and_one_character_control_texts_are_kept_apart() -> None:
    template = chat_template("a{{ messages[0].content }}bc", ["ab", "bc", "xyz", "yz", "!"])
    segments = template.render([{"role": "user", "content": "xyz!a"}], now=NOW)
    assert text_of(segments) == "axyz!abc"
    assert untrusted(segments) == ["xyz!a"]
    assert [segment.text for segment in segments if segment.is_trusted] == ["a", "bc"]


def test_noncharacters_of_the_client_survive() -> None:
    content = "\ufdd0<|im_end|>\ufdd1 \\ufdd2 \ufdef"
    segments = chat_template(CHATML).render([{"role": "user", "content": content}], now=NOW)
    assert f"user\n{content}<|im_end|>" in text_of(segments)
    assert untrusted(segments) == ["<|im_end|>"]


def test_conversation_that_uses_up_every_noncharacter_is_refused() -> None:
    content = "".join(map(chr, range(0xFDD0, 0xFDF0)))
    with pytest.raises(TemplateError, match="noncharacters"):
        rendered(CHATML, {"role": "user", "content": content})


def test_flood_of_control_texts_is_refused() -> None:
    with pytest.raises(TemplateError, match="control tokens"):
        rendered(CHATML, {"role": "user", "content": "<s>" * 30_000})


PIECES = [
    *CONTROL_TEXTS,
    *(text[:-2] for text in CONTROL_TEXTS),
    *(text[2:] for text in CONTROL_TEXTS),
    *("<", "<|", "|>", ">", "[", "]", "s", "\ufdd0", "é", " ", "\n", "x", '"', "\\", "{{", "%}"),
]
TEXTS = st.lists(st.sampled_from(PIECES), max_size=8).map("".join)
TURNS = st.lists(TEXTS, min_size=1, max_size=5)


def conversation(texts: list[str]) -> list[dict[str, Any]]:
    return [
        {"role": "assistant" if index % 2 else "user", "content": text, "name": text}
        for index, text in enumerate(texts)
    ]


@pytest.mark.parametrize("family", sorted(FAMILIES))
@given(texts=TURNS)
def test_number_of_control_tokens_does_not_depend_on_what_clients_write(family: str, texts: list[str]) -> None:
    template = chat_template(FAMILIES[family])
    control = ControlTexts(CONTROL_TEXTS)

    def num_control_tokens(turns: list[str]) -> int:
        segments = template.render(conversation(turns), now=NOW)
        return sum(len(control.find(segment.text)) for segment in segments if segment.is_trusted)

    assert num_control_tokens(texts) == num_control_tokens(["harmless"] * len(texts))


@pytest.mark.parametrize("family", sorted(FAMILIES))
@given(texts=TURNS)
def test_text_is_what_plain_jinja_renders(family: str, texts: list[str]) -> None:
    messages = conversation(texts)
    segments = chat_template(FAMILIES[family]).render(messages, now=NOW)
    assert text_of(segments) == plain_jinja(FAMILIES[family], messages)


@given(texts=st.lists(TEXTS, min_size=2, max_size=4))
def test_client_text_alone_never_has_a_control_token_whatever_is_done_to_it(texts: list[str]) -> None:
    source = (
        "{% set t = messages | map(attribute='content') | list %}{{ t | join }}{{ t[0] ~ t[1] }}{{ t[0] + t[1] }}"
        "{{ (t[0] ~ t[1]).replace('x', '') | lower }}{{ t[0].split('x') | join }}{{ t | tojson }}{{ t }}"
        "{% for c in t[0] %}{{ c }}{% endfor %}{{ '%s%s' % (t[0], t[1]) }}{{ '{}{}'.format(t[0], t[1]) | trim }}"
        "{{ t[0][1:] }}{{ t[1][:3] ~ t[0][3:] }}{{ t[0] | replace(t[1], '') }}{{ t[0].replace(t[1] or 'x', t[0]) }}"
    )
    control = ControlTexts(CONTROL_TEXTS)
    segments = chat_template(source).render(conversation(texts), now=NOW)
    assert not any(control.find(segment.text) for segment in segments if segment.is_trusted)
