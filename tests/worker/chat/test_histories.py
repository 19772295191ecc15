"""Valid-looking histories of agents become a prompt with all of their texts, on every family of templates."""

from __future__ import annotations

from typing import Any

import pytest

from tests.worker.chat.templates import FAMILIES, NOW, chat_template, text_of
from worker.chat.errors import UnsupportedContent

CALL = {"id": "call00001", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Köln"}'}}


def user(content: Any = "question", **more: Any) -> dict[str, Any]:
    return {"role": "user", "content": content, **more}


def assistant(content: Any = "answer", **more: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": content, **more}


def system(content: str = "rules", role: str = "system") -> dict[str, Any]:
    return {"role": role, "content": content}


HISTORIES: dict[str, tuple[list[dict[str, Any]], list[str]]] = {
    "developer": ([system(role="developer"), user()], ["rules", "question"]),
    "two system messages": ([system(), system("more"), user()], ["rules", "more", "question"]),
    "system in the middle": ([user(), assistant(), system("later"), user("next")], ["question", "later", "next"]),
    "consecutive users": ([user(), user("and this")], ["question", "and this"]),
    "consecutive assistants": ([user(), assistant(), assistant("also"), user("next")], ["answer", "also", "next"]),
    "parts": ([user([{"type": "text", "text": "part"}, {"type": "input_text", "text": "other"}])], ["part", "other"]),
    "name": ([user(name="Ann"), assistant(name="Bot"), user("next", name="Ann")], ["question", "answer", "next"]),
    "empty content": ([user(), assistant(""), user("next")], ["question", "next"]),
    "null content": ([user(), assistant(None), user("next")], ["question", "next"]),
    "thinking and a call": (
        [
            user(),
            assistant("Let me see.", reasoning_content="hm", tool_calls=[CALL]),
            {"role": "tool", "tool_call_id": "call00001", "content": "sunny"},
            assistant("It is sunny."),
            user("thanks"),
        ],
        ["Let me see.", "weather", "Köln", "sunny", "It is sunny.", "thanks"],
    ),
    "a call without content": (
        [user(), assistant(None, tool_calls=[CALL]), {"role": "tool", "tool_call_id": "call00001", "content": "sunny"}],
        ["question", "weather", "Köln", "sunny"],
    ),
    "two results": (
        [
            user(),
            assistant(None, tool_calls=[CALL, CALL | {"id": "call00002"}]),
            {"role": "tool", "tool_call_id": "call00001", "content": "sunny"},
            {"role": "tool", "tool_call_id": "call00002", "content": [{"type": "text", "text": "windy"}]},
        ],
        ["sunny", "windy"],
    ),
    "an old function call": (
        [
            user(),
            assistant(None, function_call={"name": "weather", "arguments": '{"city": "Köln"}'}),
            {"role": "tool", "content": "sunny"},
        ],
        ["weather", "Köln", "sunny"],
    ),
}


@pytest.mark.parametrize("history", sorted(HISTORIES))
@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_every_text_of_a_history_is_in_the_prompt_and_in_order(family: str, history: str) -> None:
    messages, texts = HISTORIES[history]
    template = chat_template(FAMILIES[family])
    shown = text_of(template.render(messages, now=NOW))
    assert "None" not in shown
    for text in texts:
        assert text in shown
    if history != "system in the middle":  # which some want in front
        places = [shown.index(text) for text in texts]
        assert places == sorted(places)


@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_answer_goes_on_with_the_assistants_last_message(family: str) -> None:
    shown = text_of(
        chat_template(FAMILIES[family]).render(
            [user(), assistant("It all began")], now=NOW, continue_final_message=True
        )
    )
    assert shown.endswith("It all began")


@pytest.mark.parametrize("family", sorted(FAMILIES))
@pytest.mark.parametrize(
    "part",
    [
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}},
        {"type": "input_image", "image_url": "data:image/png;base64,AA=="},
        {"type": "image", "source": {"type": "base64"}},
        {"type": "input_audio", "input_audio": {"data": "AA==", "format": "wav"}},
        {"type": "audio_url", "audio_url": {"url": "x"}},
        {"type": "video_url", "video_url": {"url": "x"}},
        {"type": "file", "file": {"file_id": "f"}},
        {"type": "input_file", "file_id": "f"},
    ],
    ids=lambda part: str(part["type"]),
)
def test_what_is_no_text_is_refused_by_its_place(family: str, part: dict[str, Any]) -> None:
    with pytest.raises(UnsupportedContent) as caught:
        chat_template(FAMILIES[family]).render([user("x"), user([{"type": "text", "text": "see"}, part])], now=NOW)
    assert (caught.value.status, caught.value.code) == (400, "unsupported_content")
    assert caught.value.param == "messages[1].content[1]"
    assert f'"{part["type"]}"' in caught.value.message
