"""OpenAI's Python SDK: its share of many calls and many formed replies."""

from __future__ import annotations

from typing import Any

import openai
from checking import CODER, KEY, URL, main
from counting import MAX_TOKENS, SHARES, TEMPERATURE, Form, count, request_for

client = openai.OpenAI(base_url=f"{URL}/v1", api_key=KEY, max_retries=0, timeout=120)


def choice_of(form: type[Form], seed: int, **fields: Any) -> Any:
    """Return the one choice of the reply."""
    messages: list[Any] = [{"role": "user", "content": request_for(form)}]
    (choice,) = client.chat.completions.create(
        model=CODER, messages=messages, max_tokens=MAX_TOKENS, temperature=TEMPERATURE, seed=seed, **fields
    ).choices
    return choice


def call(form: type[Form], seed: int) -> tuple[str, bool]:
    """Return the arguments of a call that is demanded."""
    tools = [openai.pydantic_function_tool(form)]
    demand = "required" if seed % 2 else named(form)
    choice = choice_of(form, seed, tools=tools, tool_choice=demand, parallel_tool_calls=False)
    if choice.finish_reason == "length":
        return "", True
    assert choice.finish_reason == "tool_calls"
    (one,) = choice.message.tool_calls
    assert one.function.name == form.__name__
    return one.function.arguments, False


def named(form: type[Form]) -> dict[str, Any]:
    """Return the choice that demands this tool."""
    return {"type": "function", "function": {"name": form.__name__}}


def reply(form: type[Form], seed: int) -> tuple[str, bool]:
    """Return a reply that is held to the schema."""
    schema = {"name": form.__name__, "strict": True, "schema": form.model_json_schema()}
    choice = choice_of(form, seed, response_format={"type": "json_schema", "json_schema": schema})
    return choice.message.content, choice.finish_reason == "length"


def check_calls() -> dict[str, Any]:
    return count(SHARES["openai"], call)


def check_replies() -> dict[str, Any]:
    return count(SHARES["openai"], reply)


if __name__ == "__main__":
    main(globals())
