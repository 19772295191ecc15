"""Answers in sections, calls with parameters in tags whose brackets are tokens: Kimi K3.

    They want the weather.<|close|>think<|sep|>
    <|open|>response<|sep|>I look.<|close|>response<|sep|>
    <|open|>tools<|sep|><|open|>call tool="get_weather" index="1"<|sep|>
    <|open|>argument key="city" type="string"<|sep|>Paris<|close|>argument<|sep|>
    <|close|>call<|sep|><|close|>tools<|sep|><|close|>message<|sep|>

(without the line breaks). The prompt has opened the first section, that of thoughts or the response. Which of them it
is its end tells, so that it comes out as a whole.
Source: the chat template of Kimi K3.
"""

from __future__ import annotations

import re
from typing import Final

from worker.chat.marks import unmarked
from worker.chat.tool_calls.grammar import GrammarWriter
from worker.chat.tool_calls.scanner import Reading, Scanner
from worker.chat.tool_calls.spelling import spelled, written, written_up_to
from worker.chat.tool_calls.tagged import LINE, Layout, TaggedFamily
from worker.chat.tool_calls.tools import Tools

OPEN, CLOSE, SEPARATOR = "<|open|>", "<|close|>", "<|sep|>"
THINK, THINK_END = f"{OPEN}think{SEPARATOR}", f"{CLOSE}think{SEPARATOR}"
RESPONSE, RESPONSE_END = f"{OPEN}response{SEPARATOR}", f"{CLOSE}response{SEPARATOR}"
MESSAGE_END = f"{CLOSE}message{SEPARATOR}"
_JSON, _JSON_END = f'{OPEN}json type="object"{SEPARATOR}', f"{CLOSE}json{SEPARATOR}"
_CALL_HEAD = re.compile(r'([^"]+)"(?: index="\d*")?')
_KEY_HEAD = re.compile(r'([^"]+)"(?: type="(\w*)")?')
_INDEX: Final = '" index="'
_OTHER_TYPES: Final = '("number" | "boolean" | "null" | "array" | "object")'


class KimiK3(TaggedFamily):
    """Thoughts, response and tools in sections."""

    name = "kimi-k3"
    title = "Kimi K3"
    markers = (OPEN, CLOSE, SEPARATOR)
    triggers = ()
    holds_many = True
    layout = Layout(
        open=f"{OPEN}tools{SEPARATOR}",
        close=f"{CLOSE}tools{SEPARATOR}",
        call=f'{OPEN}call tool="',
        name_end=SEPARATOR,
        call_end=f"{CLOSE}call{SEPARATOR}",
        key=f'{OPEN}argument key="',
        key_end=SEPARATOR,
        value_end=f"{CLOSE}argument{SEPARATOR}",
        after_open="",
        after_name="",
        after_value="",
        after_call="",
    )

    def fits(self, source: str) -> bool:
        """Whether the template puts such tags together."""
        return OPEN in source and CLOSE in source and "close_tag(" in source

    def holds_name(self, name: str) -> bool:
        """Whether an argument's tag with this name is read as what it is."""
        return super().holds_name(name) and '"' not in name and _unescaped(name) == name

    # --- reading ------------------------------------------------------------------------------------------

    def read(self, scan: Scanner) -> Reading[None]:
        """Read sections. An answer that is cut in the first of them was cut in its thoughts, as far as one knows."""
        think, think_end, response, response_end, tools, message_end = (
            spelled(scan.markers, one)
            for one in (THINK, THINK_END, RESPONSE, RESPONSE_END, self.layout.open, MESSAGE_END)
        )
        found = yield from scan.leading(think, response, tools)
        if found is None:
            # In plain text the words of a tag may be part of what is said.
            sure = [tools] if tools != self.layout.open else []
            said, end = yield from scan.collect(think_end, response_end, *sure)
            is_thought = end == think_end or (end is None and scan.is_cut)
            (scan.reasoning if is_thought else scan.text)(said)
            found = tools if end == tools else None
        while True:
            if found == think:
                yield from scan.until(think_end, emit=scan.reasoning)
            elif found == tools:
                yield from self._read_tools(scan)
            elif found is not None:
                yield from scan.until(response_end)
            found = yield from scan.until(think, response, tools, message_end)
            if found is None:
                return
            found = None if found == message_end else found

    def _read_tools(self, scan: Scanner) -> Reading[None]:
        call, close = spelled(scan.markers, self.layout.call), spelled(scan.markers, self.layout.close)
        while (found := (yield from scan.leading(call, close))) == call:
            scan.remember(call)
            yield from self.read_call(scan)
            scan.give_back()
        if found is None:
            scan.skip_cut(call, close)

    def read_call(self, scan: Scanner) -> Reading[None]:
        """Read what stands behind the beginning of a call, with an argument in each tag or all in one of JSON."""
        head, found = yield from scan.collect(SEPARATOR, LINE)
        match = _CALL_HEAD.fullmatch(unmarked(head))
        tool = None if match is None else scan.tools.by_name.get(_unescaped(match[1]))
        if tool is None or found != SEPARATOR:
            return
        scan.forget()
        scan.start_call(tool.name)
        if (yield from scan.leading(spelled(scan.markers, _JSON))) is None:
            yield from self._read_parameters(scan, tool, None)
            return
        yield from scan.space()
        if (yield from scan.json_arguments()):
            yield from scan.leading(spelled(scan.markers, _JSON_END))
            yield from scan.leading(spelled(scan.markers, self.layout.call_end))

    def read_key(self, scan: Scanner) -> Reading[tuple[str, bool | None] | None]:
        """Read the rest of an argument's tag; return its name, and whether the model says that it is a string."""
        head, found = yield from scan.collect(SEPARATOR, LINE)
        match = _KEY_HEAD.fullmatch(unmarked(head))
        if match is None or found != SEPARATOR:
            return None
        return _unescaped(match[1]), match[2] == "string" if match[2] else None

    # --- writing ------------------------------------------------------------------------------------------

    def required_calls(self, write: GrammarWriter, tools: Tools) -> str:
        """Return the expression of thoughts and calls."""
        before = f"{self._thoughts(write)} {written(write, RESPONSE_END)}"
        return f"{before} {self._tools(write, tools)} {self._end(write)}"

    def free_calls(self, write: GrammarWriter, tools: Tools) -> str:
        """Return the expression of thoughts, the response, and perhaps calls."""
        response = write.rule(written_up_to(write, RESPONSE_END))
        calls = write.rule(self._tools(write, tools))
        return f"{self._thoughts(write)} {response} {calls}? {self._end(write)}"

    def answer(self, write: GrammarWriter, body: str) -> str:
        """Return the expression of thoughts, and of `body` as the response."""
        return f"{self._thoughts(write)} {body} {written(write, RESPONSE_END)} {self._end(write)}"

    def write_key(self, write: GrammarWriter, name: str, is_string: bool) -> str:
        """Return the expression of what stands in front of a value."""
        type_ = write.literal("string") if is_string else _OTHER_TYPES
        middle, end = write.literal('" type="'), written(write, f'"{SEPARATOR}')
        return f"{written(write, self.layout.key)} {name} {middle} {type_} {end}"

    def _thoughts(self, write: GrammarWriter) -> str:
        """Return the expression of thoughts and the beginning of the response.

        There may be none where the tags hold tokens. In plain text they could not be told apart from what follows.
        """
        thoughts = write.rule(f"{written_up_to(write, THINK_END)} {written(write, RESPONSE)}")
        return f"{thoughts}?" if write.markers.is_token(CLOSE) else thoughts

    def _end(self, write: GrammarWriter) -> str:
        return f"({written(write, MESSAGE_END)})?"

    def _tools(self, write: GrammarWriter, tools: Tools) -> str:
        return f"{written(write, self.layout.open)} {self.block(write, tools, self.layout.open)}"

    def _calls(self, write: GrammarWriter, tools: Tools, beginning: str) -> str:
        grammar = self.parameter_grammar(write)
        index, separator = write.regex("[0-9]{1,3}"), written(write, f'"{SEPARATOR}')
        return write.any_of(
            f"{written(write, f'{beginning}{_escaped(tool.name)}')} {write.literal(_INDEX)} {index} {separator}"
            f" {' '.join(grammar.parameters(tool.grammar_schema))} {written(write, self.layout.call_end)}"
            for tool in tools.offered
        )


def _escaped(name: str) -> str:
    return name.replace("&", "&amp;").replace('"', "&quot;")


def _unescaped(name: str) -> str:
    return name.replace("&quot;", '"').replace("&amp;", "&")
