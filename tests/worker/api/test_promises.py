"""What a client relies on and this release cannot do is refused by name on both generation routes; nothing runs."""

from __future__ import annotations

from typing import Any

import pytest

from tests.fakes.engine import FakeEngine, Script
from tests.support.worker_client import serve
from tests.worker.api.test_openai_chat import template

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"], "additionalProperties": False}
TOOLS = [{"type": "function", "function": {"name": name, "parameters": SCHEMA}} for name in ("f", "g")]
MCP_SCHEMA = {"type": "object", "properties": {"x": {"not": {}}, "y": {"type": "string", "pattern": r"^\d+$"}}}
LARGE_SCHEMA = {"type": "array", "items": {"type": "number"}, "minItems": 10, "maxItems": 1000}


def json_schema(schema: dict[str, Any]) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "t", "strict": True, "schema": schema}}


CONSTRAINTS: list[tuple[str, Any]] = [
    ("response_format", json_schema(SCHEMA)),
    ("response_format", json_schema(MCP_SCHEMA)),
    ("response_format", json_schema(LARGE_SCHEMA)),
    ("response_format", json_schema({"type": "string", "pattern": "(?<=a)b("})),
    ("response_format", {"type": "json_object"}),
    ("response_format", {"type": "grammar", "grammar": "root ::= [0-9]+"}),
    ("json_schema", SCHEMA),
    ("grammar", "root ::= root"),
    ("grammar", "x" * 1_000_000),
    ("structured_outputs", {"json": SCHEMA}),
    ("guided_json", SCHEMA),
    ("guided_regex", r"\d+"),
]


async def refusal(path: str, fields: dict[str, Any], *, stream: bool) -> Any:
    on = FakeEngine(answers=[Script([b"never"])])
    body = {"messages": [{"role": "user", "content": "hi"}], "prompt": "hi", "stream": stream} | fields
    async with serve(on, template=template()) as worker:
        error = (await worker.post(path, body)).error
    assert on.submitted == []
    return error


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("name", "value"), CONSTRAINTS)
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
async def test_a_constraint_is_refused_and_never_answered_with_free_text(
    path: str, name: str, value: Any, stream: bool
) -> None:
    error = await refusal(path, {name: value}, stream=stream)
    assert (error.status, error.code, error.param) == (400, "unsupported_parameter", name)
    assert len(error.message) < 300


@pytest.mark.parametrize(
    ("choice", "param"),
    [
        ({"type": "function", "function": {"name": "f"}}, "tools"),
        ({"type": "function", "function": {"name": "nobody"}}, "tools"),
        ("required", "tools"),
        ("auto", "tools"),
        (None, "tools"),
    ],
)
async def test_tools_that_might_be_called_are_refused(choice: Any, param: str) -> None:
    error = await refusal("/v1/chat/completions", {"tools": TOOLS, "tool_choice": choice}, stream=False)
    assert (error.status, error.code, error.param) == (400, "unsupported_parameter", param)


async def test_tools_that_may_not_be_called_are_not_shown_to_the_model() -> None:
    on = FakeEngine(answers=[Script([b"ok"])])
    async with serve(on, template=template("{{ tools }}{{ messages[0].content }}")) as worker:
        reply = await worker.chat(("user", "hi"), tools=TOOLS, tool_choice="none")
    assert reply.json["choices"][0]["finish_reason"] == "stop"
    assert on.vocabulary.text(on.submitted[0].prompt) == "Nonehi"


@pytest.mark.parametrize(
    "fields",
    [
        {"user": "u", "safety_identifier": "s", "prompt_cache_key": "k", "prompt_cache_retention": "24h"},
        {"metadata": {"a": "b"}, "store": False, "service_tier": "auto"},
        {"service_tier": "default", "store": None},
        {"stream_options": {"include_usage": True, "include_obfuscation": False}},
        {"n": 2, "max_completion_tokens": 5, "max_tokens": 5},
        {"max_tokens": None, "stop": None, "logit_bias": None, "seed": None},
    ],
)
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
async def test_fields_that_break_no_promise_pass(path: str, fields: dict[str, Any]) -> None:
    on = FakeEngine(answers=[Script([b"ok"])])
    body = {"messages": [{"role": "user", "content": "hi"}], "prompt": "hi"} | fields
    async with serve(on, template=template()) as worker:
        reply = await worker.post(path, body)
    assert reply.end["outcome"] == "ok"
    assert len(reply.json["choices"]) == fields.get("n", 1)
    assert {request.max_tokens for request in on.submitted} == {fields.get("max_tokens") or on.submitted[0].max_tokens}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("store", True),
        ("service_tier", "flex"),
        ("service_tier", "priority"),
        ("prediction", {"type": "content", "content": "x"}),
        ("audio", {"voice": "alloy", "format": "wav"}),
        ("stream_options", {"include_obfuscation": True}),
        ("n", 17),
        ("max_completion_tokens", 0),
        ("max_tokens", 0),
    ],
)
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
async def test_fields_that_would_break_one_are_refused(path: str, name: str, value: Any) -> None:
    error = await refusal(path, {name: value}, stream=True)
    assert error.status == 400
    assert error.param.partition(".")[0] == name


@pytest.mark.parametrize(("name", "value"), [("modalities", ["text", "audio"]), ("verbosity", "low")])
async def test_other_forms_of_an_answer_are_refused(name: str, value: Any) -> None:
    assert (await refusal("/v1/chat/completions", {name: value}, stream=False)).param == name
