"""Tools, forms and thoughts in the Responses API: what is asked of the engine, what comes back, and how it goes on."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.fakes.engine import FakeEngine
from tests.support.held_answers import HERMES, THINKS, SpeakingVocabulary, may_be
from tests.support.openai_types import response_events, strict_event, strict_response
from tests.support.worker_client import WorkerReply, serve
from tests.worker.api.test_openai_chat import CHATML, template
from tests.worker.api.test_openai_responses import COUNT, PATH, items_of
from tests.worker.api.test_openai_tools import call_of, scripts
from worker.contract import Header
from worker.engine.request import FinishReason

SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
WEATHER: dict[str, Any] = {"type": "function", "name": "weather", "description": "Of a city", "parameters": SCHEMA}
NOW: dict[str, Any] = {"type": "function", "name": "now"}
TOOLS = [WEATHER, NOW]
CALL = call_of("weather", {"city": "Paris"})
NOW_CALL = call_of("now", {})
SOURCE = HERMES + THINKS + CHATML
SHOWS = (
    "{{ tools | tojson }}\n{% for m in messages %}{{ m.role }}:{{ m.content }}"
    "{% for c in m.tool_calls or [] %}[{{ c.id }} {{ c.function.name }} {{ c.function.arguments | tojson }}]"
    "{% endfor %}"
    "{% if m.tool_call_id %}({{ m.tool_call_id }}){% endif %};{% endfor %}"
)
UNENFORCED = {"type": "object", "properties": {"a": {"type": "array", "uniqueItems": True}}}


async def ask(
    on: FakeEngine, input_: Any = "hi", *, source: str = SOURCE, history: bytes = b"", path: str = PATH, **fields: Any
) -> WorkerReply:
    assert isinstance(on.vocabulary, SpeakingVocabulary)
    body = history + json.dumps({"input": input_, **fields}).encode()
    headers = {Header.HISTORY_BYTES.value: str(len(history))} if history else {}
    made = template(source, on.vocabulary)
    async with serve(on, template=made, **on.vocabulary.speaks(HERMES + THINKS + source)) as worker:
        return await worker.post(path, body, **headers)


async def asked(**fields: Any) -> Any:
    on = scripts("x")
    reply = await ask(on, **fields)
    assert reply.end["outcome"] == "ok", reply.frames
    return on.submitted[0]


def shown(on: FakeEngine) -> str:
    return on.vocabulary.text(on.submitted[-1].prompt)


# --- calls ----------------------------------------------------------------------------------------------


async def test_thoughts_text_and_calls_are_items_of_their_own() -> None:
    output = "«<think>»Hm.«</think>»Look:" + CALL + "\n" + NOW_CALL
    reply = await ask(scripts(output), tools=TOOLS)
    strict_response(reply.json)
    thought, message, first, second = reply.json["output"]
    assert thought["content"] == [{"type": "reasoning_text", "text": "Hm."}]
    assert message["content"][0]["text"] == "Look:"
    assert (first["type"], first["name"], first["arguments"]) == ("function_call", "weather", '{"city": "Paris"}')
    assert (second["name"], second["arguments"], second["status"]) == ("now", "{}", "completed")
    assert len({first["call_id"], second["call_id"], first["id"], second["id"]}) == 4
    assert reply.json["status"] == "completed"
    assert reply.json["usage"]["output_tokens_details"]["reasoning_tokens"] > 0


async def test_a_stream_with_calls_ends_with_the_response_that_a_whole_reply_is() -> None:
    output = "«<think>»Hm.«</think>»Look:" + CALL
    whole = await ask(scripts(output), tools=TOOLS)
    events = response_events((await ask(scripts(output), tools=TOOLS, stream=True)).body)
    for event in events:
        strict_event(event)
    assert events[-1]["response"]["output"] == whole.json["output"]
    arguments = [event["delta"] for event in events if event["type"] == "response.function_call_arguments.delta"]
    assert "".join(arguments) == '{"city": "Paris"}'


async def test_a_call_alone_needs_no_message() -> None:
    [item] = (await ask(scripts(CALL), tools=TOOLS)).json["output"]
    assert item["type"] == "function_call"


async def test_a_call_that_is_cut_off_is_incomplete() -> None:
    reply = await ask(scripts(CALL[:52], finish=FinishReason.LENGTH), tools=TOOLS)
    response = strict_response(reply.json)
    assert response.status == "incomplete"
    assert response.output[-1].status == "incomplete"


@pytest.mark.parametrize(
    ("choice", "right", "wrong"),
    [
        (None, ["Hello", CALL, CALL + "\n" + NOW_CALL], [call_of("nobody", {})]),
        ("auto", ["Hello", CALL], [call_of("weather", {})]),
        ("required", [CALL, CALL + "\n" + NOW_CALL], ["Hello"]),
        ({"type": "function", "name": "now"}, [NOW_CALL], [CALL, "Hello", NOW_CALL + "\n" + NOW_CALL]),
        ({"type": "function", "function": {"name": "now"}}, [NOW_CALL], [CALL]),
        (
            {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "now"}]},
            ["x", NOW_CALL],
            [CALL],
        ),
        ({"type": "allowed_tools", "mode": "required", "tools": [NOW]}, [NOW_CALL], ["x", CALL]),
    ],
    ids=str,
)
async def test_choices_of_tools_hold_and_are_told(choice: Any, right: list[str], wrong: list[str]) -> None:
    on = scripts(NOW_CALL)
    reply = await ask(on, tools=TOOLS, tool_choice=choice)
    response = strict_response(reply.json)
    for output in right:
        assert may_be(on.submitted[0], output), output
        assert may_be(on.submitted[0], "«<think>»Hm«</think>»" + output), output
    for output in wrong:
        assert not may_be(on.submitted[0], output), output
    told = response.tool_choice if isinstance(response.tool_choice, str) else response.tool_choice.type
    assert told == (choice["type"] if isinstance(choice, dict) else choice or "auto")


async def test_calls_side_by_side_may_be_forbidden() -> None:
    request = await asked(tools=TOOLS, parallel_tool_calls=False)
    assert may_be(request, CALL)
    assert not may_be(request, CALL + "\n" + NOW_CALL)


async def test_tools_that_may_not_be_called_are_not_shown() -> None:
    on = scripts(CALL)
    reply = await ask(on, tools=TOOLS, tool_choice="none", source=SHOWS)
    assert shown(on).startswith("null\n")
    assert [item["type"] for item in reply.json["output"]] == ["message"]
    assert [tool["name"] for tool in reply.json["tools"]] == ["weather", "now"]


async def test_templates_get_tools_in_chats_form() -> None:
    on = scripts("x")
    await ask(on, tools=[WEATHER | {"strict": True}], source=SHOWS)
    function = {name: WEATHER[name] for name in ("name", "description", "parameters")}
    assert json.loads(shown(on).partition("\n")[0]) == [{"type": "function", "function": function}]


@pytest.mark.parametrize(
    ("schema", "said", "told"),
    [(SCHEMA, None, True), (SCHEMA, True, True), (SCHEMA, False, False), (UNENFORCED, None, False), (None, None, True)],
)
async def test_a_tool_of_which_nothing_is_said_is_strict_if_it_can_be(schema: Any, said: Any, told: bool) -> None:
    tool = {"type": "function", "name": "f", "parameters": schema, "strict": said}
    reply = await ask(scripts(call_of("f", {"a": [1, 1], "city": "x"} if schema else {})), tools=[NOW, tool])
    strict_response(reply.json)
    assert reply.json["tools"][1]["strict"] is told
    if schema is UNENFORCED:
        assert reply.json["corral_format"]["not_enforced"] == ["tools[1].parameters.properties.a.uniqueItems"]
        assert reply.json["corral_format"]["is_valid"] is False
    else:
        assert "corral_format" not in reply.json


async def test_a_strict_tool_that_cannot_be_enforced_is_refused() -> None:
    tool = {"type": "function", "name": "f", "parameters": UNENFORCED, "strict": True}
    error = (await ask(scripts("x"), tools=[tool])).error
    assert (error.status, error.code, error.param) == (400, "unsupported_parameter", "tools[0].parameters")


# --- going on -------------------------------------------------------------------------------------------


async def test_a_conversation_goes_on_behind_its_calls() -> None:
    first = await ask(scripts("«<think>»Hm.«</think>»" + CALL), tools=TOOLS)
    call_id = first.json["output"][-1]["call_id"]
    result = {"type": "function_call_output", "call_id": call_id, "output": "sunny"}
    on = scripts("Sunny.")
    options: dict[str, Any] = {"tools": TOOLS, "source": SHOWS, "previous_response_id": "resp_r1"}
    second = await ask(on, [result], history=items_of(first), **options)
    assert second.json["output"][0]["content"][0]["text"] == "Sunny."
    assert shown(on).partition("\n")[2] == (
        f'user:hi;assistant:[{call_id} weather {{"city": "Paris"}}];tool:sunny({call_id});'
    )
    counted = await ask(scripts("x"), [result], history=items_of(first), path=COUNT, **options)
    assert counted.json["input_tokens"] == len(on.submitted[0].prompt)
    on = scripts("Yes.")
    await ask(on, "Sure?", history=items_of(second), **options)
    assert f"tool:sunny({call_id});assistant:Sunny.;user:Sure?;" in shown(on)


async def test_calls_may_be_sent_back_by_the_client_itself() -> None:
    first = (await ask(scripts(CALL), tools=TOOLS, store=False)).json["output"]
    result = {"type": "function_call_output", "call_id": first[-1]["call_id"], "output": "sunny"}
    on = scripts("Sunny.")
    await ask(on, [{"role": "user", "content": "hi"}, *first, result], tools=TOOLS, source=SHOWS)
    assert "weather" in shown(on)
    assert "tool:sunny" in shown(on)


# --- forms ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("form", "told", "right", "wrong"),
    [
        (
            {"type": "json_schema", "name": "t", "schema": SCHEMA},
            {"type": "json_schema", "name": "t", "schema": SCHEMA, "strict": True, "description": None},
            '{"city": "x"}',
            "{}",
        ),
        (
            {"type": "json_schema", "json_schema": {"name": "t", "schema": SCHEMA, "strict": False}},
            {"type": "json_schema", "name": "t", "schema": SCHEMA, "strict": False, "description": None},
            '{"city": "x"}',
            "{}",
        ),
        ({"type": "json_object"}, {"type": "json_object"}, "{}", "[]"),
        ({"type": "regex", "pattern": "a+"}, {"type": "regex", "pattern": "a+"}, "aa", "b"),
    ],
    ids=lambda one: str(one)[:50],
)
async def test_a_form_holds_and_is_told(form: Any, told: Any, right: str, wrong: str) -> None:
    on = scripts(right)
    reply = await ask(on, text={"format": form})
    assert reply.json["text"] == {"format": told, "verbosity": "medium"}
    if form["type"] != "regex":
        strict_response(reply.json)
    assert may_be(on.submitted[0], right)
    assert may_be(on.submitted[0], "«<think>»Hm«</think>»\n" + right)
    assert not may_be(on.submitted[0], wrong)


async def test_what_of_a_form_could_only_be_checked_is_told_with_the_response() -> None:
    form = {"type": "json_schema", "name": "t", "schema": UNENFORCED, "strict": False}
    for stream in (False, True):
        reply = await ask(scripts('{"a": [1, 1]}'), text={"format": form}, stream=stream)
        response = response_events(reply.body)[-1]["response"] if stream else reply.json
        assert response["corral_format"]["not_enforced"] == ["$.properties.a.uniqueItems"]
        assert response["corral_format"]["is_valid"] is False


async def test_no_effort_means_no_thoughts() -> None:
    request = await asked(reasoning={"effort": "none"})
    constraint = request.constraint()
    vocabulary = SpeakingVocabulary()
    constraint.accept(vocabulary.markers["<think>"])
    assert constraint.allowed([])[0] == ord("\n")
    assert vocabulary.text(constraint.forced(9)) == "\n</think>\n\n"


async def test_log_probabilities_are_those_of_the_message_alone() -> None:
    output = "«<think>»Hm.«</think>»Sí!" + CALL
    reply = await ask(scripts(output), tools=TOOLS, include=["message.output_text.logprobs"], top_logprobs=1)
    strict_response(reply.json)
    _, message, _ = reply.json["output"]
    logprobs = message["content"][0]["logprobs"]
    assert b"".join(bytes(one["bytes"]) for one in logprobs).decode() == "Sí!"
