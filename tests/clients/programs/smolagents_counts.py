"""smolagents' model for OpenAI's API: its share of many calls and many formed replies."""

from __future__ import annotations

from typing import Any

from checking import CODER, KEY, URL, main
from counting import FLAT, MAX_TOKENS, SHARES, TEMPERATURE, Form, count, request_for
from smolagents import OpenAIModel, Tool

model = OpenAIModel(
    CODER,
    api_base=f"{URL}/v1",
    api_key=KEY,
    client_kwargs={"max_retries": 0, "timeout": 120},
    max_tokens=MAX_TOKENS,
    temperature=TEMPERATURE,
)


def tool_of(form: type[Form]) -> Tool:
    """Return a tool whose inputs are the fields of the form."""

    class FormTool(Tool):
        name = form.__name__.lower()
        description = form.__doc__ or ""
        inputs = {field: {"description": field, "type": "any"} | told for field, told in _fields(form).items()}  # noqa: RUF012
        output_type = "string"
        skip_forward_signature_validation = True

        def forward(self, **inputs: Any) -> str:
            return "done"

    return FormTool()


def _fields(form: type[Form]) -> dict[str, Any]:
    return dict(form.model_json_schema()["properties"])


def call(form: type[Form], seed: int) -> tuple[str, bool]:
    """Return the arguments of a call, which it always demands where there are tools."""
    told = model.generate(
        [{"role": "user", "content": request_for(form)}],
        tools_to_call_from=[tool_of(form)],
        parallel_tool_calls=False,
        seed=seed,
    )
    if told.raw.choices[0].finish_reason == "length":
        return "", True
    assert told.tool_calls is not None
    (one,) = (one.function for one in told.tool_calls)
    assert one.name == form.__name__.lower()
    return one.arguments, False


def reply(form: type[Form], seed: int) -> tuple[str, bool]:
    """Return a reply that is held to the schema."""
    schema = {"name": form.__name__, "strict": True, "schema": form.model_json_schema()}
    format_: Any = {"type": "json_schema", "json_schema": schema}
    told = model.generate([{"role": "user", "content": request_for(form)}], response_format=format_, seed=seed)
    return told.content, told.raw.choices[0].finish_reason == "length"


def check_calls() -> dict[str, Any]:
    return count(SHARES["smolagents"], call, FLAT, extra="ignore")  # the schemas that it makes allow more


def check_replies() -> dict[str, Any]:
    return count(SHARES["smolagents"], reply)


if __name__ == "__main__":
    main(globals())
