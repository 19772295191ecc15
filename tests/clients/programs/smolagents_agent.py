"""smolagents: an agent that calls tools, over its model for OpenAI's API."""

from __future__ import annotations

import json
from typing import Any

from checking import CODER, KEY, URL, main
from smolagents import OpenAIServerModel, Tool, ToolCallingAgent
from smolagents.memory import ActionStep
from smolagents.utils import AgentError

MODEL: dict[str, Any] = {
    "model_id": CODER,
    "api_base": f"{URL}/v1",
    "api_key": KEY,
    "client_kwargs": {"max_retries": 0, "timeout": 120},
    "max_tokens": 64,
    "temperature": 0,
}
CITIES = ["Paris", "Oslo", "Rome", "Cairo"]


class WeatherTool(Tool):
    """A tool that remembers what it was asked."""

    name = "get_weather"
    description = "Tells how warm it is in a city."
    inputs = {"city": {"type": "string", "enum": CITIES, "description": "The city."}}  # noqa: RUF012
    output_type = "string"

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[str] = []

    def forward(self, city: str) -> str:
        self.asked.append(city)
        return f"It is 3 degrees C in {city}."


ASKED: list[Any] = [{"role": "user", "content": "How warm is it in Oslo? Ask the tool."}]


def check_its_model_demands_a_call_and_gets_one() -> None:
    told = OpenAIServerModel(**MODEL).generate(ASKED, tools_to_call_from=[WeatherTool()], parallel_tool_calls=False)
    (call,) = told.tool_calls or ()
    assert call.function.name == "get_weather"
    assert json.loads(call.function.arguments)["city"] in CITIES


def check_its_stream_has_the_same_call() -> None:
    pieces = [
        delta
        for event in OpenAIServerModel(**MODEL).generate_stream(
            ASKED, tools_to_call_from=[WeatherTool()], parallel_tool_calls=False
        )
        for delta in event.tool_calls or ()
    ]
    assert [piece.function.name for piece in pieces if piece.id] == ["get_weather"]
    assert json.loads("".join(piece.function.arguments or "" for piece in pieces))["city"] in CITIES


def check_an_agent_calls_the_tool_and_every_step_of_it_is_a_call() -> None:
    tool = WeatherTool()
    agent = ToolCallingAgent(
        tools=[tool], model=OpenAIServerModel(**MODEL, parallel_tool_calls=False), max_steps=2, verbosity_level=0
    )
    agent.run("How warm is it in Oslo?")
    steps = [step for step in agent.memory.steps if isinstance(step, ActionStep) and step.tool_calls]
    assert steps
    assert {call.name for step in steps for call in step.tool_calls or ()} <= {"get_weather", "final_answer"}
    assert set(tool.asked) <= set(CITIES)
    assert "get_weather" in {call.name for step in steps for call in step.tool_calls or ()}
    parsing = [step.error for step in steps if isinstance(step.error, AgentError)]
    assert not parsing, parsing


if __name__ == "__main__":
    main(globals())
