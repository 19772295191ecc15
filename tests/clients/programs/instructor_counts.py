"""Instructor: its share of many calls and many formed replies. It reads each itself, and would ask again."""

from __future__ import annotations

from typing import Any

import instructor
import openai
from checking import CODER, KEY, URL, main
from counting import MAX_TOKENS, SHARES, TEMPERATURE, Form, count, request_for
from instructor.core import IncompleteOutputException

sdk = openai.OpenAI(base_url=f"{URL}/v1", api_key=KEY, max_retries=0, timeout=120)


def made(mode: instructor.Mode, form: type[Form], seed: int) -> tuple[str, bool]:
    """Return the object that it makes at the first try."""
    client = instructor.from_openai(sdk, mode=mode)
    try:
        told = client.chat.completions.create(
            model=CODER,
            messages=[{"role": "user", "content": request_for(form)}],
            response_model=form,
            max_tokens=MAX_TOKENS,
            temperature=TEMPERATURE,
            seed=seed,
            max_retries=1,
        )
    except IncompleteOutputException:
        return "", True
    return told.model_dump_json(), False


def check_calls() -> dict[str, Any]:
    return count(SHARES["instructor"], lambda form, seed: made(instructor.Mode.TOOLS, form, seed))


def check_replies() -> dict[str, Any]:
    return count(SHARES["instructor"], lambda form, seed: made(instructor.Mode.JSON_SCHEMA, form, seed))


if __name__ == "__main__":
    main(globals())
