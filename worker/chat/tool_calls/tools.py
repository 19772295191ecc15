"""The tools that a request offers, and how much of a choice the model has. Plain data, in no dialect."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

NO_PARAMETERS: Mapping[str, Any] = {"type": "object", "properties": {}, "additionalProperties": False}
"""The schema of a tool that takes no arguments."""


@dataclass(frozen=True, slots=True)
class Tool:
    """One function that the model may call."""

    name: str
    description: str | None = None
    parameters: Mapping[str, Any] = field(default_factory=lambda: NO_PARAMETERS)
    """JSON schema of the arguments, an object; as the client wrote it."""
    enforced: Mapping[str, Any] | bool | None = None
    """What of it a grammar can enforce; None = all of it."""
    is_strict: bool = field(default=False, compare=False)
    """The client demands that all of it is enforced."""
    place: str = field(default="", compare=False)
    """Where the request has the schema; empty = unknown."""

    @property
    def grammar_schema(self) -> Mapping[str, Any] | bool:
        """The schema that the arguments are held to while they are written."""
        return self.parameters if self.enforced is None else self.enforced

    def type_of(self, parameter: str) -> str | None:
        """Return the JSON type of one argument if the schema names exactly one (beside null), else None."""
        properties = self.parameters.get("properties")
        schema = properties.get(parameter) if isinstance(properties, Mapping) else None
        kind = schema.get("type") if isinstance(schema, Mapping) else None
        if isinstance(kind, list):
            named = [one for one in kind if one != "null"]
            kind = named[0] if len(named) == 1 else None
        return kind if isinstance(kind, str) else None


class Demand(StrEnum):
    """Whether calls may or must come."""

    NONE = "none"
    """No call: what looks like one is text."""
    AUTO = "auto"
    """As the model likes."""
    REQUIRED = "required"
    """At least one, and nothing else but thoughts before."""


@dataclass(frozen=True, slots=True)
class Tools:
    """What a request says about tools. The tools are those that may be called: others are not among them."""

    offered: tuple[Tool, ...] = ()
    demand: Demand = Demand.NONE
    is_parallel: bool = True
    """More than one call in one answer."""

    @property
    def by_name(self) -> dict[str, Tool]:
        """The tools by their names."""
        return {tool.name: tool for tool in self.offered}
