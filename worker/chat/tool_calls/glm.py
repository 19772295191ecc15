"""Calls with names and values of arguments in tags: GLM 4.5 to 4.7, Ling 3, Laguna, Spark 2.5; in a block: Hunyuan 3.

    <tool_call>get_weather
    <arg_key>city</arg_key>
    <arg_value>Paris</arg_value>
    </tool_call>

Some of the templates write it without line breaks.
Source: the chat templates of these models.
"""

from __future__ import annotations

from worker.chat.tool_calls.tagged import LINE, Layout, TaggedFamily

_OPEN, _CLOSE = "<tool_call>", "</tool_call>"
_KEY, _KEY_END, _VALUE, _VALUE_END = "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"
_SUFFIX = ":opensource"


class Glm(TaggedFamily):
    """Names and values in tags."""

    name = "glm"
    title = "GLM 4.5, 4.6 and 4.7, Ling 3, Laguna, Spark 2.5 and others with `<arg_key>` in `<tool_call>`"
    markers = (_OPEN, _CLOSE, _KEY, _KEY_END, _VALUE, _VALUE_END)
    triggers = (_OPEN,)
    layout = Layout(
        call=_OPEN,
        name_end="",
        call_end=_CLOSE,
        key=_KEY,
        key_end=_KEY_END,
        value=_VALUE,
        value_end=_VALUE_END,
        after_key=LINE,
        may_lack_lines=True,
        before_end=LINE,
    )

    def fits(self, source: str) -> bool:
        """Whether the template shows these tags."""
        return _OPEN in source and _KEY in source


def _hunyuan(name: str) -> str:
    return f"{name[:-1]}{_SUFFIX}>"


class Hunyuan3(TaggedFamily):
    """The same in a block of all calls; each tag's name ends in a word."""

    name = "hunyuan-3"
    title = "Hunyuan 3"
    markers = tuple(_hunyuan(one) for one in ("<tool_calls>", "</tool_calls>", "<tool_sep>", *Glm.markers))
    triggers = (markers[0],)
    holds_many = True
    layout = Layout(
        open=_hunyuan("<tool_calls>"),
        close=_hunyuan("</tool_calls>"),
        call=_hunyuan(_OPEN),
        name_end=_hunyuan("<tool_sep>"),
        call_end=_hunyuan(_CLOSE),
        key=_hunyuan(_KEY),
        key_end=_hunyuan(_KEY_END),
        value=_hunyuan(_VALUE),
        value_end=_hunyuan(_VALUE_END),
        after_key=LINE,
    )

    def fits(self, source: str) -> bool:
        """Whether the template shows these tags, whose last word it puts in."""
        return "<arg_key{}>" in source and _SUFFIX in source
