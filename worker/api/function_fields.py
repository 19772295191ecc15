"""Tools as OpenAI's clients and their kin offer them, with the older `functions`; and which may or must be called.

Must not know messages.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from pydantic import Field

from worker.api.fields import FIRST_ONLY, Fields
from worker.api.refusals import show
from worker.api.tool_fields import OfferedTools, check_num_tools, choose_tools, make_tool
from worker.chat.tool_calls.tools import Demand
from worker.errors import RequestError, UnsupportedParameter

_DEMANDS = {"none": Demand.NONE, "auto": Demand.AUTO, "required": Demand.REQUIRED, "any": Demand.REQUIRED}


class ToolFields(Fields):
    """What chat calls it. None = not said."""

    tools: Annotated[list[dict[str, Any]], FIRST_ONLY] | None = Field(None, description="a list of objects")
    tool_choice: str | dict[str, Any] | None = Field(None, description="a string or an object")
    parallel_tool_calls: bool | None = Field(None, description="true or false")
    functions: Annotated[list[dict[str, Any]], FIRST_ONLY] | None = Field(None, description="a list of objects")
    function_call: str | dict[str, Any] | None = Field(None, description="a string or an object")

    def read_tools(self) -> OfferedTools:
        """Return what is offered and demanded. Raises: RequestError naming the field."""
        if self.tools and self.functions:
            raise RequestError("'tools' and 'functions' both offer tools. Set only 'tools'.", param="functions")
        if self.tool_choice is not None and self.function_call is not None:
            raise RequestError(
                "'tool_choice' and 'function_call' both choose tools. Set only 'tool_choice'.", param="function_call"
            )
        check_num_tools(len(self.shown_tools), self.tools_param)
        made = []
        for index, tool in enumerate(self.shown_tools):
            place = f"tools[{index}].function" if self.tools else f"functions[{index}]"
            function = _function_of(tool, f"tools[{index}]")
            is_strict = read_strict(function.get("strict", tool.get("strict")), f"{place}.strict")
            schema, schema_place = function.get("parameters"), f"{place}.parameters"
            made.append(
                make_tool(
                    function.get("name"),
                    function.get("description"),
                    schema,
                    is_strict=is_strict,
                    place=place,
                    schema_place=schema_place,
                )
            )
        choice, param = self.tool_choice, "tool_choice"
        if choice is None and self.function_call is not None:
            choice, param = self.function_call, "function_call"
        demand, only = read_choice(choice, param)
        is_parallel = self.parallel_tool_calls is not False and not self.is_legacy
        return choose_tools(
            made, demand, only=only, is_parallel=is_parallel, tools_param=self.tools_param, choice_param=param
        )

    @property
    def is_legacy(self) -> bool:
        """Whether tools come under their older name, so that the reply has one call at most, as `function_call`."""
        return bool(self.functions) and not self.tools

    @property
    def tools_param(self) -> str:
        """The field that offers them."""
        return "functions" if self.is_legacy else "tools"

    @property
    def shown_tools(self) -> Sequence[Mapping[str, Any]]:
        """The tools as templates get them."""
        if self.is_legacy:
            return [{"type": "function", "function": function} for function in self.functions or ()]
        return self.tools or ()


def read_strict(value: Any, place: str) -> bool:
    """Return whether a tool is strict, which nothing said does not mean. Raises: RequestError."""
    if not isinstance(value, bool | None):
        raise RequestError(f"'{place}' is {show(value)}, but it must be true or false.", param=place)
    return bool(value)


def read_choice(choice: str | dict[str, Any] | None, param: str) -> tuple[Demand, list[str] | None]:
    """Return what is demanded, and the names that are left of the tools; None = all.

    Raises: RequestError for what is no choice.
    """
    match choice:
        case None:
            return Demand.AUTO, None
        case str() if choice in _DEMANDS:
            return _DEMANDS[choice], None
        case {"type": "function", "function": {"name": str(name)}} | {"type": "function", "name": str(name)}:
            return Demand.REQUIRED, [name]
        case {"name": str(name), **rest} if not rest:
            return Demand.REQUIRED, [name]
        case {"type": "allowed_tools", **rest}:
            return _read_allowed(rest.get("allowed_tools", rest), param)
        case {"type": "auto" | "none" | "required" as kind}:
            return _DEMANDS[str(kind)], None
        case {"type": str(kind)} if kind not in ("function", "allowed_tools"):
            raise UnsupportedParameter(
                f"'{param}' demands a tool of the type {show(kind)}, which is not available on this server: only "
                "functions are.",
                param=param,
            )
        case _:
            raise RequestError(
                f'\'{param}\' is {show(choice)}, but it must be "none", "auto", "required", a function such as '
                '{"type": "function", "function": {"name": "..."}}, or {"type": "allowed_tools", ...}.',
                param=param,
            )


def _read_allowed(allowed: Any, param: str) -> tuple[Demand, list[str]]:
    mode = allowed.get("mode", "auto") if isinstance(allowed, Mapping) else None
    tools = allowed.get("tools") if isinstance(allowed, Mapping) else None
    if mode not in ("auto", "required") or not isinstance(tools, list):
        raise RequestError(
            f"'{param}' of type \"allowed_tools\" must have a 'mode', \"auto\" or \"required\", and a list of 'tools'.",
            param=param,
        )
    names = [tool.get("name") or _mapping(tool.get("function")).get("name") for tool in map(_mapping, tools)]
    if not all(isinstance(name, str) for name in names):
        raise RequestError(f"'{param}.tools' must be a list of functions with their names.", param=param)
    return _DEMANDS[mode], [str(name) for name in names]


def _function_of(tool: Mapping[str, Any], place: str) -> Mapping[str, Any]:
    kind = tool.get("type", "function")
    if kind != "function":
        raise UnsupportedParameter(
            f"'{place}.type' is {show(kind)}, which is not available on this server: only \"function\" is.", param=place
        )
    function = tool.get("function")
    if not isinstance(function, Mapping):
        raise RequestError(f"'{place}.function' is missing: it must be an object with a 'name'.", param=place)
    return function


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}
