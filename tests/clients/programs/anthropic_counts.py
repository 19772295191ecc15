"""Anthropic's Python SDK: its share of many calls and many formed replies."""

from __future__ import annotations

import json
from typing import Any

import anthropic
from checking import CODER, KEY, URL, main
from counting import MAX_TOKENS, SHARES, TEMPERATURE, Form, count, request_for

client = anthropic.Anthropic(base_url=URL, api_key=KEY, max_retries=0, timeout=120)


def message(form: type[Form], seed: int, **fields: Any) -> Any:
    """Return the reply."""
    return client.messages.create(
        model=CODER,
        messages=[{"role": "user", "content": request_for(form)}],
        max_tokens=MAX_TOKENS,
        extra_body={"temperature": TEMPERATURE, "seed": seed},
        **fields,
    )


def call(form: type[Form], seed: int) -> tuple[str, bool]:
    """Return the arguments of a call that is demanded."""
    tool = {"name": form.__name__, "description": form.__doc__, "input_schema": form.model_json_schema()}
    choice: dict[str, Any] = {"type": "any"} if seed % 2 else {"type": "tool", "name": form.__name__}
    choice["disable_parallel_tool_use"] = True
    told = message(form, seed, tools=[tool], tool_choice=choice)
    if told.stop_reason == "max_tokens":
        return "", True
    assert told.stop_reason == "tool_use"
    (block,) = told.content
    assert (block.type, block.name) == ("tool_use", form.__name__)
    return json.dumps(block.input), False


def reply(form: type[Form], seed: int) -> tuple[str, bool]:
    """Return a reply that is held to the schema."""
    told = message(form, seed, output_config={"format": {"type": "json_schema", "schema": form.model_json_schema()}})
    return "".join(block.text for block in told.content), told.stop_reason == "max_tokens"


def check_calls() -> dict[str, Any]:
    return count(SHARES["anthropic"], call)


def check_replies() -> dict[str, Any]:
    return count(SHARES["anthropic"], reply)


if __name__ == "__main__":
    main(globals())
