"""What a client relies on is held on both generation routes, or refused by name; then nothing runs."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.fakes.engine import FakeEngine, Script
from tests.support.held_answers import may_be
from tests.support.json_bodies import example
from tests.support.worker_client import serve
from tests.worker.api.test_any_body import described_by
from tests.worker.api.test_openai_chat import template
from worker.api.fields import Fields
from worker.app import ROUTES

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"], "additionalProperties": False}
TOOLS = [{"type": "function", "function": {"name": name, "parameters": SCHEMA}} for name in ("f", "g")]
MCP_SCHEMA = {"type": "object", "properties": {"x": {"not": {}}, "y": {"type": "string", "pattern": r"^\d+$"}}}
LARGE_SCHEMA = {"type": "array", "items": {"type": "number"}, "minItems": 10, "maxItems": 1000}


def json_schema(schema: dict[str, Any]) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "t", "strict": True, "schema": schema}}


HELD: list[tuple[str, Any, str, str]] = [
    ("response_format", json_schema(SCHEMA), '{"a": 1}', "{}"),
    ("response_format", json_schema(MCP_SCHEMA), '{"y": "12"}', '{"y": "a"}'),
    ("response_format", json_schema(LARGE_SCHEMA), json.dumps([0.5] * 1000), json.dumps([1] * 1001)),
    ("response_format", {"type": "json_object"}, '{"a": []}', "[]"),
    ("response_format", {"type": "grammar", "grammar": "root ::= [0-9]+"}, "12", "a"),
    ("json_schema", SCHEMA, '{"a": 1}', '{"a": "x"}'),
    ("grammar", 'root ::= "a" | "b" root', "bba", "bb"),
    ("lark", 'start: "a"+', "aa", "ab"),
    ("regex", r"\d+", "12", "a"),
    ("choice", ["a", "b"], "b", "ab"),
    ("structured_outputs", {"json": SCHEMA}, '{"a": 1}', "1"),
    ("guided_json", SCHEMA, '{"a": 1}', "1"),
    ("guided_regex", r"\d+", "12", "a"),
]
NOT_HELD: list[tuple[str, Any]] = [
    ("response_format", json_schema({"type": "array", "uniqueItems": True})),
    ("response_format", json_schema({"type": "string", "pattern": "(?<=a)b("})),
    ("response_format", {"type": "json_schema"}),
    ("response_format", {"type": "structural_tag", "structures": []}),
    ("json_schema", {"type": "nothing"}),
    ("grammar", "root ::= nobody"),
    ("grammar", "x" * 1_000_000),
    ("lark", "start: nobody"),
    ("regex", "(?=a)b"),
    ("structured_outputs", {"json": SCHEMA, "regex": "a"}),
    ("structural_tag", "{}"),
    ("grammar_string", "root ::= [0-9]"),
    ("guided_whitespace_pattern", " "),
]


def asked(path: str) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": "hi"}]} if "chat" in path else {"prompt": "hi"}


async def refusal(path: str, fields: dict[str, Any], *, stream: bool) -> Any:
    on = FakeEngine(answers=[Script([b"never"])])
    body = asked(path) | {"stream": stream} | fields
    async with serve(on, template=template()) as worker:
        error = (await worker.post(path, body)).error
    assert on.submitted == []
    return error


@pytest.mark.parametrize(
    ("name", "value"),
    [("max_output_tokens", 5), ("max_tokens_to_sample", 5), ("num_predict", 5), ("stop_sequences", ["x"])],
)
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
async def test_a_limit_under_the_name_of_another_dialect_is_not_passed_over(path: str, name: str, value: Any) -> None:
    error = await refusal(path, {name: value}, stream=False)
    assert (error.status, error.code, error.param) == (400, "unsupported_parameter", name)
    assert "Use '" in error.message


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("name", "value", "right", "wrong"), HELD, ids=lambda one: str(one)[:40])
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
async def test_an_answer_is_held_to_the_form_that_is_asked_for(
    path: str, name: str, value: Any, right: str, wrong: str, stream: bool
) -> None:
    on = FakeEngine(answers=[Script([b"x"])])
    async with serve(on, template=template()) as worker:
        reply = await worker.post(path, asked(path) | {"stream": stream, name: value})
    assert reply.end["outcome"] == "ok"
    assert may_be(on.submitted[0], right)
    assert not may_be(on.submitted[0], wrong)
    assert not may_be(on.submitted[0], "")


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("name", "value"), NOT_HELD, ids=lambda one: str(one)[:40])
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
async def test_a_form_that_cannot_be_enforced_is_refused_and_never_answered_with_free_text(
    path: str, name: str, value: Any, stream: bool
) -> None:
    error = await refusal(path, {name: value}, stream=stream)
    assert error.status == 400
    assert error.param.partition(".")[0] == name
    assert len(error.message) < 600


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
async def test_every_choice_of_every_prompt_is_held_to_the_form(path: str) -> None:
    on = FakeEngine(answers=[Script([b"x"])])
    body = asked(path) | {"n": 3, "choice": ["a"]} | ({} if "chat" in path else {"prompt": ["p", "q"]})
    async with serve(on, template=template()) as worker:
        await worker.post(path, body)
    assert len(on.submitted) == (3 if "chat" in path else 6)
    assert all(may_be(request, "a") and not may_be(request, "b") for request in on.submitted)


@pytest.mark.parametrize("choice", [{"type": "function", "function": {"name": "f"}}, "required", "auto", None])
async def test_tools_that_a_model_cannot_call_are_refused(choice: Any) -> None:
    error = await refusal("/v1/chat/completions", {"tools": TOOLS, "tool_choice": choice}, stream=False)
    assert (error.status, error.code, error.param) == (400, "unsupported_parameter", "tools")


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
    body = asked(path) | fields
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


@pytest.mark.parametrize("fields", sorted({route.fields for route in ROUTES}, key=str))
def test_null_is_not_said_in_every_field_that_may_be_left_out(fields: type[Fields]) -> None:
    schemas = described_by()
    schema = schemas[fields.__name__]
    needed = {name: example(schema["properties"][name], schemas) for name in schema.get("required", ())}
    optional = {name for name, field in fields.model_fields.items() if not field.is_required()}
    assert fields.model_validate(needed | dict.fromkeys(optional)) == fields.model_validate(needed)
