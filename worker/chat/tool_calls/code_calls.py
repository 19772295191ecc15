"""Calls whose only argument is code, which stands as it is: what a model writes for an interpreter.

Must not know a family.
"""

from __future__ import annotations

import json

from worker.chat.tool_calls.scanner import Scanner
from worker.chat.tool_calls.tools import Tool, Tools
from worker.chat.tool_calls.values import escaped

NAMES = ("python", "code_interpreter", "ipython")
"""How the tool that runs code is called, of which there is one at most."""


def code_tool(tools: Tools) -> Tool | None:
    """Return the tool that runs code; None if there is none."""
    return next((tool for tool in tools.offered if tool.name in NAMES), None)


class CodeCall:
    """A call of the tool that runs code, piece by piece."""

    def __init__(self, scan: Scanner, tool: Tool) -> None:
        self._scan = scan
        properties = tool.parameters.get("properties")
        names = list(properties) if isinstance(properties, dict) else []
        texts = [name for name in names if tool.type_of(name) == "string"]
        key = "code" if "code" in names or not texts else texts[0]
        scan.forget()
        scan.start_call(tool.name)
        scan.arguments("{" + json.dumps(key, ensure_ascii=False) + ':"')

    def write(self, code: str) -> None:
        """There is more code."""
        self._scan.arguments(escaped(code))

    def end(self) -> None:
        """That was all; an answer that was cut stays cut."""
        if not self._scan.is_cut:
            self._scan.arguments('"}')
