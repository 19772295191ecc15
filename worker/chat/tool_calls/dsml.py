"""Calls with parameters in tags that hold a token, all calls in one block: DeepSeek V3.2 and V4.

    <｜DSML｜function_calls>
    <｜DSML｜invoke name="get_weather">
    <｜DSML｜parameter name="city" string="true">Paris</｜DSML｜parameter>
    <｜DSML｜parameter name="days" string="false">2</｜DSML｜parameter>
    </｜DSML｜invoke>
    </｜DSML｜function_calls>

V4 calls the block `tool_calls`. Both may be read of both. What is no string stands as JSON.
Source: DeepSeek's encoding of messages for V3.2, and the chat templates.
"""

from __future__ import annotations

from dataclasses import replace

from worker.chat.marks import unmarked
from worker.chat.tool_calls.grammar import GrammarWriter
from worker.chat.tool_calls.scanner import Reading, Scanner
from worker.chat.tool_calls.spelling import written
from worker.chat.tool_calls.tagged import Layout, TaggedFamily

_DSML = "｜DSML｜"
_STRING, _OTHER = '" string="true">', '" string="false">'


class DeepSeekV32(TaggedFamily):
    """Parameters in tags that say whether the value is a string."""

    name = "deepseek-v3.2"
    title = "DeepSeek V3.2"
    markers = (_DSML,)
    triggers = ()
    holds_many = True
    layout = Layout(
        open=f"<{_DSML}function_calls>",
        close=f"</{_DSML}function_calls>",
        call=f'<{_DSML}invoke name="',
        name_end='">',
        call_end=f"</{_DSML}invoke>",
        key=f'<{_DSML}parameter name="',
        key_end='">',
        value_end=f"</{_DSML}parameter>",
    )

    def fits(self, source: str) -> bool:
        """Whether the template shows these tags."""
        return _DSML in source and "function_calls>" in source

    def read_key(self, scan: Scanner) -> Reading[tuple[str, bool | None] | None]:
        """Read the rest of a parameter's tag; return its name, and whether the model says that it is a string."""
        name, found = yield from scan.collect(_STRING, _OTHER, self.layout.key_end, "\n")
        if found is None or found == "\n":
            return None
        return unmarked(name), {_STRING: True, _OTHER: False}.get(found)

    def write_key(self, write: GrammarWriter, name: str, is_string: bool) -> str:
        """Return the expression of what stands in front of a value."""
        return f"{written(write, self.layout.key)} {name} {write.literal(_STRING if is_string else _OTHER)}"


class DeepSeekV4(DeepSeekV32):
    """The same in a block of another name."""

    name = "deepseek-v4"
    title = "DeepSeek V4"
    layout = replace(DeepSeekV32.layout, open=f"<{_DSML}tool_calls>", close=f"</{_DSML}tool_calls>", before_end="\n")

    def fits(self, source: str) -> bool:
        """Whether the template shows these tags."""
        return _DSML in source and "tool_calls>" in source
