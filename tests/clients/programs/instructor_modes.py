"""Instructor: objects instead of text.

Its modes that constrain the model ask for tools or a response format.
"""

from __future__ import annotations

from typing import Any

import instructor
import openai
from checking import KEY, QUESTION, SMOL, URL, main, refusal
from instructor.core import InstructorRetryException
from pydantic import BaseModel

sdk = openai.OpenAI(base_url=f"{URL}/v1", api_key=KEY, max_retries=0, timeout=120)
ASKED: list[Any] = [{"role": "user", "content": QUESTION}]


class Animal(BaseModel):
    """What is asked for."""

    name: str


def causes_of(error: BaseException | None) -> list[BaseException]:
    """Return the error, what it came from, and so on."""
    found: list[BaseException] = []
    while error is not None and error not in found:
        found.append(error)
        error = error.__cause__ or error.__context__
    return found


def check_modes_that_constrain_the_model_are_refused_by_name() -> None:
    for mode, param in (
        (instructor.Mode.TOOLS, "tools"),
        (instructor.Mode.JSON, "response_format"),
        (instructor.Mode.JSON_SCHEMA, "response_format"),
    ):
        client = instructor.from_openai(sdk, mode=mode)
        with refusal(InstructorRetryException) as refused:
            client.chat.completions.create(
                model=SMOL, messages=ASKED, response_model=Animal, max_tokens=16, max_retries=1
            )
        errors = [one for one in causes_of(refused.error) if isinstance(one, openai.BadRequestError)]
        assert errors, f"{mode}: {refused.error!r}"
        assert (errors[0].code, errors[0].param) == ("unsupported_parameter", param)


def check_a_reply_without_a_model_is_passed_through() -> None:
    client = instructor.from_openai(sdk, mode=instructor.Mode.MD_JSON)
    reply = client.chat.completions.create(model=SMOL, messages=ASKED, response_model=None, max_tokens=8, temperature=0)
    assert reply.choices[0].message.content


if __name__ == "__main__":
    main(globals())
