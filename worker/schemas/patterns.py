"""Regular expressions of JSON Schemas in the dialect of the grammar library, and what they say of texts.

Schemas write patterns in JavaScript's dialect, the library reads Rust's. Owns the translation of what differs, the
bounds on repetition, and a match that is linear in the text. Must never run a pattern in an engine that backtracks.
"""

from __future__ import annotations

import functools
import json
import re
from dataclasses import dataclass
from typing import Any, Final

from llguidance import LLMatcher, LLTokenizer, TokenizerWrapper

MAX_CHARS: Final = 8192
MAX_REPEATS: Final = 300
"""Of counted repetitions inside counted repetitions, multiplied: with 400 the library gives up inside an answer."""

_SURROGATES: Final = re.compile(r"\\u([dD][89abAB][0-9a-fA-F]{2})\\u([dD][c-fC-F][0-9a-fA-F]{2})")
_COUNTED: Final = re.compile(r"\{(\d+)(?:(,)(\d*))?\}")
_BRACES: Final = re.compile(r"\{[^{}]*\}")
_END: Final = 256


@dataclass(frozen=True, slots=True)
class Pattern:
    """A pattern as the library wants it, or why it cannot have it."""

    translated: str
    problem: str | None = None
    is_mistake: bool = False
    """The pattern is no regular expression at all, in no dialect."""


def translate(pattern: str) -> Pattern:
    """Return `pattern` in the library's dialect, tried out."""
    if len(pattern) > MAX_CHARS:
        return Pattern(pattern, f"it is longer than {MAX_CHARS:,} characters")
    return _translated(pattern)


@functools.lru_cache(maxsize=512)
def _translated(pattern: str) -> Pattern:
    try:
        translated = _Translator(pattern).run()
    except _Untranslatable as error:
        return Pattern(pattern, str(error))
    said = compile_problem({"type": "string", "pattern": translated})
    if said is None:
        return Pattern(translated)
    for word, meaning in _FOREIGN.items():
        if word in said:
            return Pattern(pattern, meaning)
    if said.startswith("Unsatisfiable"):
        return Pattern(pattern, "no text matches it", is_mistake=True)
    reason = said.rsplit("error: ", 1)[-1].strip().splitlines()[0]
    return Pattern(pattern, reason, is_mistake=not _compiles_in_python(pattern))


_FOREIGN: Final = {
    "look-around": "it looks ahead or behind ('(?=', '(?!', '(?<')",
    "lookarounds": "it has a word boundary, or an anchor that is not at an end",
    "backreferences": "it refers back to a group",
}


def _compiles_in_python(pattern: str) -> bool:
    try:
        re.compile(pattern)
    except (re.error, OverflowError, RecursionError):
        return False
    return True


def compile_problem(schema: dict[str, Any]) -> str | None:
    """Return what the library says against `schema`, None if it makes a grammar of it."""
    is_error, messages = LLMatcher.validate_grammar_with_warnings(
        LLMatcher.grammar_from_json_schema(json.dumps(schema))
    )
    return messages[0] if is_error else None


def quoted_names(names: list[str]) -> str:
    """Return the pattern of exactly these texts."""
    return "^(?:" + "|".join(re.sub(r"([^A-Za-z0-9_ \x80-\U0010ffff])", r"\\\1", name) for name in names) + ")$"


def matches(pattern: str, text: str) -> bool | None:
    """Return whether `pattern` is found in `text`; None where the library cannot tell.

    Takes time in proportion to the text, for every pattern: the library's automata do not backtrack.
    """
    if len(pattern) > MAX_CHARS or (prototype := _matcher(pattern)) is None:
        return None
    try:
        written = json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f").encode()
    except UnicodeEncodeError:
        return None
    matcher = prototype.deep_copy()
    if matcher.try_consume_tokens(list(written)) < len(written):
        return None if "error:" in matcher.get_error().lower() else False
    return matcher.is_accepting()


@functools.lru_cache(maxsize=256)
def _matcher(pattern: str) -> LLMatcher | None:
    found = translate(pattern)
    if found.problem is not None:
        return None
    grammar = LLMatcher.grammar_from_json_schema(json.dumps({"type": "string", "pattern": found.translated}))
    matcher = LLMatcher(_byte_tokenizer(), grammar, log_level=0)
    return None if matcher.is_error() else matcher


class ByteVocabulary:
    """The smallest vocabulary: one token a byte, and an end."""

    eos_token_id = _END
    bos_token_id = None
    unk_token_id = None
    special_token_ids = (_END,)
    tokens = (*(bytes([value]) for value in range(_END)), b"<end>")

    def __call__(self, text: bytes | str) -> list[int]:
        return list(text.encode() if isinstance(text, str) else text)


@functools.cache
def _byte_tokenizer() -> LLTokenizer:
    return LLTokenizer(TokenizerWrapper(ByteVocabulary()))


class _Untranslatable(Exception):
    """The pattern means something else, or nothing, in the library's dialect."""


class _Translator:
    """Walks over a pattern once."""

    def __init__(self, pattern: str) -> None:
        self._rest = _SURROGATES.sub(_joined, pattern)
        self._at = 0
        self._out: list[str] = []
        self._repeats: list[int] = [1]
        """For each open group: the largest count that stands inside it."""
        self._closed = 1
        """The same for the atom that has just ended."""

    def run(self) -> str:
        while self._at < len(self._rest):
            char = self._rest[self._at]
            if char == "\\":
                self._escape(in_class=False)
            elif char == "[":
                self._class()
            elif char in "{*+?":
                self._quantifier(char)
                continue
            else:
                if char == "(":
                    self._repeats.append(1)
                elif char == ")" and len(self._repeats) > 1:
                    self._closed = self._repeats.pop()
                    self._repeats[-1] = max(self._repeats[-1], self._closed)
                    self._take(char)
                    continue
                self._take(char)
            self._closed = 1
        return "".join(self._out)

    def _take(self, text: str, num: int | None = None) -> None:
        self._out.append(text)
        self._at += len(text) if num is None else num

    def _quantifier(self, char: str) -> None:
        count = 1
        if char == "{":
            found = _COUNTED.match(self._rest, self._at)
            if found is None:
                if self._rest.startswith("{,", self._at):
                    raise _Untranslatable("'{,n}' means different things in different dialects; write '{0,n}'")
                self._take("\\{", 1)
                self._closed = 1
                return
            count = max(int(found[1]), int(found[3] or 0), 1)
            self._take(found[0])
        else:
            group_opens = char == "?" and self._out[-1:] == ["("]
            self._take(char)
            if group_opens:
                return
        if self._rest[self._at : self._at + 1] == "+":
            raise _Untranslatable("it has a possessive quantifier")
        total = count * self._closed
        if self._closed > 1 and total > MAX_REPEATS:
            raise _Untranslatable(f"its repetitions inside repetitions make more than {MAX_REPEATS}")
        self._repeats[-1] = max(self._repeats[-1], total)
        if self._rest[self._at : self._at + 1] == "?":
            self._take("?")
        self._closed = total

    def _escape(self, *, in_class: bool) -> None:
        following = self._rest[self._at + 1 : self._at + 2]
        if following == "c" and self._rest[self._at + 2 : self._at + 3].isalpha():
            self._take(f"\\x{ord(self._rest[self._at + 2]) % 32:02x}", 3)
        elif following == "0" and not self._rest[self._at + 2 : self._at + 3].isdigit():
            self._take("\\x00", 2)
        elif following == "b" and in_class:
            self._take("\\x08", 2)
        elif following in "uxpP" and (braces := _BRACES.match(self._rest, self._at + 2)):
            self._take(f"\\{following}{braces[0]}")
        else:
            self._take(f"\\{following}")

    def _class(self) -> None:
        if self._rest.startswith("[^]", self._at):
            self._take("[\\s\\S]", 3)
            return
        if self._rest.startswith("[]", self._at):
            raise _Untranslatable("'[]' means different things in different dialects; write '[\\]' for the bracket")
        self._take("[")
        if self._rest[self._at : self._at + 1] == "^":
            self._take("^")
        while self._at < len(self._rest) and self._rest[self._at] != "]":
            char = self._rest[self._at]
            if char == "\\":
                self._escape(in_class=True)
            elif self._rest.startswith("--", self._at):
                raise _Untranslatable("'--' inside brackets means different things in different dialects")
            else:
                self._take(f"\\{char}" if char in "[&~" else char, 1)
        if self._at < len(self._rest):
            self._take("]")


def _joined(pair: re.Match[str]) -> str:
    high, low = int(pair[1], 16), int(pair[2], 16)
    return f"\\u{{{0x10000 + ((high - 0xD800) << 10) + (low - 0xDC00):X}}}"
