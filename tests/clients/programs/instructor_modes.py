"""Instructor: objects instead of text. Its modes that constrain the model ask for tools or a response format."""

from __future__ import annotations

from typing import Any

import instructor
import openai
from checking import CODER, KEY, QUESTION, SMOL, URL, main, refusal
from counting import Weather
from instructor.core import IncompleteOutputException

sdk = openai.OpenAI(base_url=f"{URL}/v1", api_key=KEY, max_retries=0, timeout=120)
ASKED: list[Any] = [{"role": "user", "content": QUESTION}]
FOR_WEATHER: list[Any] = [{"role": "user", "content": "What is the weather in Oslo for 3 days, in degrees C?"}]


MODES = (instructor.Mode.TOOLS, instructor.Mode.JSON, instructor.Mode.JSON_SCHEMA)


def check_objects_are_made_at_the_first_try_in_every_mode() -> None:
    for mode in MODES:
        client = instructor.from_openai(sdk, mode=mode)
        made = client.chat.completions.create(
            model=CODER, messages=FOR_WEATHER, response_model=Weather, max_tokens=64, max_retries=1, temperature=0
        )
        assert isinstance(made, Weather), mode


def check_objects_grow_while_they_are_streamed() -> None:
    client = instructor.from_openai(sdk, mode=instructor.Mode.TOOLS)
    *_, last = client.chat.completions.create_partial(
        model=CODER, messages=FOR_WEATHER, response_model=Weather, max_tokens=64, temperature=0
    )
    Weather.model_validate(last.model_dump())


def check_a_call_that_is_cut_off_is_told_as_such() -> None:
    client = instructor.from_openai(sdk, mode=instructor.Mode.TOOLS)
    with refusal(IncompleteOutputException):
        client.chat.completions.create(
            model=CODER, messages=FOR_WEATHER, response_model=Weather, max_tokens=3, max_retries=1
        )


def check_a_reply_without_a_model_is_passed_through() -> None:
    client = instructor.from_openai(sdk, mode=instructor.Mode.MD_JSON)
    reply = client.chat.completions.create(model=SMOL, messages=ASKED, response_model=None, max_tokens=8, temperature=0)
    assert reply.choices[0].message.content


if __name__ == "__main__":
    main(globals())
