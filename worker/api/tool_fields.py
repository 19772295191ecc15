"""Tools as requests offer them, checked and ready for a grammar: the part that is the same for every dialect.

A dialect finds names, schemas and the choice in fields of its own. Must not know templates.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

from worker.chat.tool_calls.tools import NO_PARAMETERS, Demand, Tool, Tools
from worker.errors import RequestError
from worker.schemas.closing import close_objects
from worker.schemas.prepare import prepare_schema

MAX_TOOLS = 512
_NAME = re.compile(r"[a-zA-Z0-9_.:/-]{1,128}")


@dataclass(frozen=True, slots=True)
class OfferedTools:
    """What a request offers and demands."""

    tools: Tools
    relaxed: tuple[str, ...] = ()
    """What of their schemas cannot be enforced, as paths that begin with the tool's place."""


NO_TOOLS = OfferedTools(Tools())


def check_num_tools(num: int, param: str = "tools") -> None:
    """Return if so many may be offered; each costs time until it is made. Raises: RequestError."""
    if num > MAX_TOOLS:
        raise RequestError(f"'{param}' has {num} tools, but at most {MAX_TOOLS} are allowed.", param=param)


def make_tool(
    name: Any, description: Any, schema: Any, *, is_strict: bool, place: str, schema_place: str
) -> tuple[Tool, tuple[str, ...]]:
    """Return the tool, and what of its schema cannot be enforced. `place` is where the request has it.

    Without a schema a tool takes no arguments. Raises: RequestError naming the place; for a schema that a strict tool
    has and that cannot be enforced, too.
    """
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise RequestError(
            f"'{place}.name' must be 1 to 128 letters, digits and any of _ - . : /.", param=f"{place}.name"
        )
    if not isinstance(description, str | None):
        raise RequestError(f"'{place}.description' must be a string.", param=f"{place}.description")
    if schema is None:
        schema = NO_PARAMETERS
    if not isinstance(schema, dict):
        raise RequestError(f"'{schema_place}' must be a JSON schema of an object.", param=schema_place)
    if schema.get("type", "object") != "object":
        raise RequestError(f"'{schema_place}.type' must be \"object\": arguments have names.", param=schema_place)
    whole = {"type": "object", **schema}
    prepared = prepare_schema(close_objects(whole), param=schema_place, relaxes=not is_strict)
    relaxed = tuple(schema_place + one.path.removeprefix("$") for one in prepared.relaxed)
    tool = Tool(name, description, whole, prepared.schema, is_strict=is_strict, place=schema_place)
    return tool, relaxed


def choose_tools(
    made: Sequence[tuple[Tool, tuple[str, ...]]],
    demand: Demand,
    *,
    only: Collection[str] | None = None,
    is_parallel: bool = True,
    tools_param: str = "tools",
    choice_param: str = "tool_choice",
) -> OfferedTools:
    """Return what may and must be called; `only` are the names that the choice leaves. One that must be called by its
    name is called once.

    Raises: RequestError for two tools of one name, for names that are not offered, and for a demand without tools. That
    they are not too many `check_num_tools` has seen to, before any was made.
    """
    names = [tool.name for tool, _ in made]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise RequestError(f"'{tools_param}' has more than one tool with the name {twice!r}.", param=tools_param)
    unknown = next((name for name in only or () if name not in names), None)
    if unknown is not None:
        known = f"Offered are: {', '.join(names)[:300]}." if names else f"'{tools_param}' offers none."
        raise RequestError(
            f"'{choice_param}' names the tool {unknown!r}, which is not offered. {known}", param=choice_param
        )
    left = [one for one in made if only is None or one[0].name in only]
    if demand is Demand.REQUIRED and not left:
        why = "it allows no tool" if made else f"'{tools_param}' offers no tool"
        raise RequestError(f"'{choice_param}' demands a call, but {why}.", param=choice_param)
    if demand is Demand.NONE or not left:
        return NO_TOOLS
    relaxed = tuple(path for _, paths in left for path in paths)
    is_parallel = is_parallel and not (demand is Demand.REQUIRED and only is not None and len(left) == 1)
    return OfferedTools(Tools(tuple(tool for tool, _ in left), demand, is_parallel), relaxed)
