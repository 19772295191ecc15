"""Calls with parameters in tags that carry the names behind `=`: Qwen3-Coder, Qwen 3.5, Nemotron 3, Step 3.5, Seed-OSS.

    <tool_call>
    <function=get_weather>
    <parameter=city>
    Paris
    </parameter>
    </function>
    </tool_call>

Source: the chat templates of these models.
"""

from __future__ import annotations

from worker.chat.tool_calls.tagged import LINE, Layout, TaggedFamily

_CALL, _KEY = "<function=", "<parameter="


class QwenCoder(TaggedFamily):
    """The form of Qwen3-Coder: values on lines of their own."""

    name = "qwen3-coder"
    title = "Qwen3-Coder, Qwen 3.5, Nemotron 3, Step 3.5 and others with `<function=NAME>` in `<tool_call>`"
    markers = ("<tool_call>", "</tool_call>")
    triggers = ("<tool_call>",)
    layout = Layout(
        open="<tool_call>",
        close="</tool_call>",
        call=_CALL,
        name_end=">",
        call_end="</function>",
        key=_KEY,
        key_end=">",
        value_end="</parameter>",
        after_key=LINE,
        has_lines=True,
        in_python=True,
    )

    def fits(self, source: str) -> bool:
        """Whether the template shows these tags."""
        return "<tool_call>" in source and _CALL in source and _KEY in source


class SeedOss(TaggedFamily):
    """The form of Seed-OSS: values beside their tags."""

    name = "seed-oss"
    title = "Seed-OSS"
    markers = ("<seed:tool_call>", "</seed:tool_call>")
    triggers = ("<seed:tool_call>",)
    layout = Layout(
        open="<seed:tool_call>",
        close="</seed:tool_call>",
        call=_CALL,
        name_end=">",
        call_end="</function>",
        key=_KEY,
        key_end=">",
        value_end="</parameter>",
        in_python=True,
    )

    def fits(self, source: str) -> bool:
        """Whether the template shows these tags."""
        return "<seed:tool_call>" in source
