"""Tools as Anthropic's Messages API offers them, and which of them may or must be called.

Must not know messages. Tools that Anthropic's own service runs or describes are refused: only a client's own are known.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from worker.api.anthropic_fields import ToolChoice
from worker.api.function_fields import read_strict
from worker.api.refusals import show
from worker.api.tool_fields import NO_TOOLS, OfferedTools, check_num_tools, choose_tools, make_tool
from worker.chat.tool_calls.tools import NO_PARAMETERS, Demand, Tool
from worker.errors import RequestError, UnsupportedParameter

_DEMANDS = {"auto": Demand.AUTO, "any": Demand.REQUIRED, "tool": Demand.REQUIRED, "none": Demand.NONE}


def read_tools(tools: Sequence[Mapping[str, Any]] | None, choice: ToolChoice | None) -> OfferedTools:
    """Return what is offered and demanded. Raises: RequestError naming the field.

    Tools of which none may be called ask for nothing, whatever they are.
    """
    demand = Demand.AUTO if choice is None else _DEMANDS[choice.type]
    if demand is Demand.NONE:
        return NO_TOOLS
    only = None
    if choice is not None and choice.type == "tool":
        if choice.name is None:
            raise RequestError(
                "'tool_choice.name' is missing: with the type \"tool\" it must name the tool.", param="tool_choice.name"
            )
        only = [choice.name]
    check_num_tools(len(tools or ()))
    made = [_read_tool(tool, f"tools[{index}]") for index, tool in enumerate(tools or ())]
    is_parallel = choice is None or not choice.disable_parallel_tool_use
    return choose_tools(made, demand, only=only, is_parallel=is_parallel)


def shown_tools(tools: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return tools that have been read as templates get them, which is OpenAI's form."""
    return [{"type": "function", "function": _function_of(tool)} for tool in tools]


def _function_of(tool: Mapping[str, Any]) -> dict[str, Any]:
    description, schema = tool.get("description"), tool.get("input_schema")
    described = {} if description is None else {"description": description}
    return {"name": tool["name"], **described, "parameters": dict(NO_PARAMETERS) if schema is None else schema}


def _read_tool(tool: Mapping[str, Any], place: str) -> tuple[Tool, tuple[str, ...]]:
    kind, callers = tool.get("type"), tool.get("allowed_callers")
    if kind not in (None, "custom"):
        raise UnsupportedParameter(
            f"'{place}.type' is {show(kind)}, a tool of Anthropic's own service, which this server does not have. "
            "Offer a tool of your own instead, with a 'name', a 'description' and an 'input_schema'.",
            param=place,
        )
    if callers is not None and not (isinstance(callers, list) and "direct" in callers):
        raise UnsupportedParameter(
            f"'{place}.allowed_callers' leaves out \"direct\", but here nobody else can call a tool than the model.",
            param=f"{place}.allowed_callers",
        )
    return make_tool(
        tool.get("name"),
        tool.get("description"),
        tool.get("input_schema"),
        is_strict=read_strict(tool.get("strict"), f"{place}.strict"),
        place=place,
        schema_place=f"{place}.input_schema",
    )
