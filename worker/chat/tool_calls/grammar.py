"""Writes grammars in llguidance's dialect of Lark, piece by piece.

Pure: text in, text out. Must not compile.
Source: llguidance's docs/syntax.md.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from worker.chat.marks import Markers
from worker.schemas.prepare import JSON_OPTIONS

TEXT = "TEXT"
"""The rule of any text: it may be empty, and holds no special tokens."""


class GrammarWriter:
    """One grammar under construction. What its methods return are expressions that may stand in others."""

    def __init__(self, markers: Markers) -> None:
        self.markers = markers
        self._rules: list[str] = []
        self._nested: list[str] = []

    def literal(self, text: str) -> str:
        """Return the expression of exactly this text."""
        return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")

    def marker(self, text: str) -> str:
        """Return the expression of a marker: its token, or its text where the vocabulary has no such token."""
        token = self.markers.tokens.get(text)
        return self.literal(text) if token is None else f"<[{token}]>"

    def schema(self, schema: Mapping[str, Any] | bool) -> str:
        """Return the expression of JSON that is valid under a schema which was prepared for this."""
        options = {"x-guidance": JSON_OPTIONS}
        whole = {**options, **schema, **options} if isinstance(schema, Mapping) else schema
        return f"%json {json.dumps(whole, ensure_ascii=False)}"

    def regex(self, pattern: str) -> str:
        """Return the expression of text that matches a pattern in Rust's syntax, as a whole."""
        return "/" + pattern.replace("/", "\\/") + "/"

    def nested(self, lark: str) -> str:
        """Return the expression of a whole grammar of its own, which has a rule `start`."""
        self._nested.append(lark)
        return f"@nested{len(self._nested) - 1}"

    def rule(self, body: str, *, options: str = "") -> str:
        """Return the expression of a new rule with this body; `options` such as `lazy` stand in brackets."""
        is_terminal = bool(options)
        name = f"{'T' if is_terminal else 'r'}{len(self._rules)}"
        name = name.lower()
        self._rules.append(f"{name}{f'[{options}]' if options else ''}: {body}")
        return name

    def any_of(self, bodies: Iterable[str]) -> str:
        """Return the expression of one of these, of which there is at least one."""
        return self.rule(" | ".join(bodies))

    def text_before(self, trigger: str) -> str:
        """Return the expression of any text up to the first `trigger`, a marker, and that."""
        if self.markers.is_token(trigger):
            return f"{TEXT} {self.marker(trigger)}"
        return self.rule(f"{TEXT} {self.literal(trigger)}", options="lazy")

    def grammar(self, start: str) -> str:
        """Return the whole grammar, which begins with the expression `start`."""
        lark = "\n".join(["%llguidance {}", f"start: {start}", *self._rules, f"{TEXT}: /(.|\\n)*/", ""])
        if not self._nested:
            return lark
        grammars = [{"lark_grammar": lark}]
        grammars += [{"name": f"nested{place}", "lark_grammar": one} for place, one in enumerate(self._nested)]
        return json.dumps({"grammars": grammars}, ensure_ascii=False)
