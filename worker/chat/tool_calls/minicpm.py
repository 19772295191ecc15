"""Calls with parameters in tags, texts with signs of tags in CDATA: MiniCPM 5.

    <function name="get_weather"><param name="city">Paris</param></function>
    <function name="search"><param name="query"><![CDATA[a < b]]></param></function>

Source: the chat template of the model.
"""

from __future__ import annotations

from typing import Final

from worker.chat.tool_calls.grammar import GrammarWriter
from worker.chat.tool_calls.parameter_grammar import ParameterGrammar
from worker.chat.tool_calls.parameters import Arguments
from worker.chat.tool_calls.scanner import Reading, Scanner
from worker.chat.tool_calls.spelling import spelled, written, written_up_to
from worker.chat.tool_calls.tagged import Layout, TaggedFamily

_OPEN, _CLOSE, _PARAM, _PARAM_END = "<function", "</function>", "<param", "</param>"
_RAW, _RAW_END = "<![CDATA[", "]]>"
_PLAIN: Final = "[^<&\\n]*"
"""What need not stand in CDATA."""


class MiniCpm5(TaggedFamily):
    """Tags with names as attributes."""

    name = "minicpm5"
    title = "MiniCPM 5"
    markers = (_OPEN, _CLOSE, _PARAM, _PARAM_END, _RAW, _RAW_END)
    triggers = (f'{_OPEN} name="',)
    layout = Layout(
        call=f'{_OPEN} name="',
        name_end='">',
        call_end=_CLOSE,
        key=f'{_PARAM} name="',
        key_end='">',
        value_end=_PARAM_END,
        in_python=True,
        after_name="",
        after_value="",
    )

    def fits(self, source: str) -> bool:
        """Whether the template shows these tags."""
        return self.triggers[0] in source

    def read_value(
        self, scan: Scanner, arguments: Arguments, name: str, is_string: bool | None, ends: tuple[str, ...]
    ) -> Reading[str | None]:
        """Read a value, which may stand in CDATA."""
        if (yield from scan.skip(spelled(scan.markers, _RAW))) is None:
            return (yield from arguments.read(name, *ends, is_string=is_string))
        found = yield from arguments.read(name, spelled(scan.markers, _RAW_END), is_string=is_string)
        if found is not None:
            _, found = yield from scan.collect(*ends)
        return found

    def parameter_grammar(self, write: GrammarWriter) -> ParameterGrammar:
        """Return what writes the parameters."""

        def tag(name: str, is_string: bool) -> str:
            return self.write_key(write, name, is_string)

        return _Parameters(write, tag, _PARAM_END, in_python=True)


class _Parameters(ParameterGrammar):
    def text(self) -> str:
        """Return the expression of a text, as it is or in CDATA, and the end of its tag."""
        write = self._write
        plain = f"{write.regex(_PLAIN)} {written(write, _PARAM_END)}"
        raw = f"{written(write, _RAW)} {written_up_to(write, _RAW_END)} {written(write, _PARAM_END)}"
        return f"({plain} | {raw})"
