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

from worker.schemas.repetitions import Repeats, TooManyRepeats, largest_count

MAX_CHARS: Final = 8192

_SURROGATES: Final = re.compile(r"\\u([dD][89abAB][0-9a-fA-F]{2})\\u([dD][c-fC-F][0-9a-fA-F]{2})")
_COUNTED: Final = re.compile(r"\{(\d+)(?:(,)(\d*))?\}")
_BRACES: Final = re.compile(r"\{[^{}]*\}")
_HEX: Final = re.compile(r"[0-9a-fA-F]*")
_HEX_DIGITS: Final = {"x": 2, "u": 4, "U": 8}
_NUMBERED: Final = re.compile(r"\\[xuU]\{?([0-9a-fA-F]+)\}?")
_NAMED: Final = {"a": 7, "b": 8, "t": 9, "n": 10, "v": 11, "f": 12, "r": 13}
_END: Final = 256
_WRITABLE_CONTROLS: Final = frozenset("\n\r\b\t\f")
_UNWRITABLE: Final = "it has control characters, which cannot be written"


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


def is_writable(text: str) -> bool:
    """Return whether an answer can have this text."""
    return not any(map(_is_unwritable, text))


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
        self._repeats = Repeats()

    def run(self) -> str:
        while self._at < len(self._rest):
            char = self._rest[self._at]
            if char in "{*+?":
                self._quantifier(char)
            elif char in "()":
                self._repeats.group() if char == "(" else self._repeats.end_group()
                self._take(char)
            else:
                self._atom(char)
                self._repeats.atom()
        return "".join(self._out)

    def _atom(self, char: str) -> None:
        begin = len(self._out)
        if char == "[":
            self._class()
            written = self._out[begin + 1 : -1]
            if any(map(_is_unwritable, written)):
                if _are_unwritable(written):
                    raise _Untranslatable(_UNWRITABLE)
                # The library drops a class of one character that it cannot write, but not one of several.
                self._out[begin:] = ["(?:", *self._out[begin:], "|[\\x01\\x02])"]
            return
        if char == "\\":
            self._escape(in_class=False)
        else:
            self._take(char)
        if any(map(_is_unwritable, self._out[begin:])):
            raise _Untranslatable(_UNWRITABLE)

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
                self._repeats.atom()
                return
            count = largest_count(found[1], found[3])
            self._take(found[0])
        else:
            group_opens = char == "?" and self._out[-1:] == ["("]
            self._take(char)
            if group_opens:
                return
        if self._rest[self._at : self._at + 1] == "+":
            raise _Untranslatable("it has a possessive quantifier")
        try:
            self._repeats.repeat(count)
        except TooManyRepeats as error:
            raise _Untranslatable(str(error)) from None
        if self._rest[self._at : self._at + 1] == "?":
            self._take("?")

    def _escape(self, *, in_class: bool) -> None:
        following = self._rest[self._at + 1 : self._at + 2]
        if following == "c" and self._rest[self._at + 2 : self._at + 3].isalpha():
            self._take(f"\\x{ord(self._rest[self._at + 2]) % 32:02x}", 3)
        elif following == "0" and not self._rest[self._at + 2 : self._at + 3].isdigit():
            self._take("\\x00", 2)
        elif following == "b" and in_class:
            self._take("\\x08", 2)
        elif following and following in "uUxpP" and (braces := _BRACES.match(self._rest, self._at + 2)):
            self._take(f"\\{following}{braces[0]}")
        elif digits := _HEX_DIGITS.get(following):
            found = _HEX.match(self._rest, self._at + 2, self._at + 2 + digits)
            self._take(f"\\{following}{found[0] if found else ''}")
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


def _code(part: str) -> int | None:
    """Return the character that a part of a pattern stands for, None if it is none or more than one."""
    if number := _NUMBERED.fullmatch(part):
        return int(number[1], 16)
    if len(part) == 2 and part[0] == "\\":
        return _NAMED.get(part[1], None if part[1].isalnum() else ord(part[1]))
    return ord(part) if len(part) == 1 else None


def _is_unwritable(part: str) -> bool:
    code = _code(part)
    return code == 0x7F or (code is not None and code < 0x20 and chr(code) not in _WRITABLE_CONTROLS)


def _are_unwritable(parts: list[str]) -> bool:
    """Return whether this is inside of a class that has no character which can be written."""
    if not all(part == "-" or _is_unwritable(part) for part in parts):
        return False
    for place, part in enumerate(parts[1:-1], 1):
        if part == "-" and any(
            (_code(parts[place - 1]) or 0) < ord(char) < (_code(parts[place + 1]) or 0) for char in _WRITABLE_CONTROLS
        ):
            return False
    return parts[0] != "-" and parts[-1] != "-"


def _joined(pair: re.Match[str]) -> str:
    high, low = int(pair[1], 16), int(pair[2], 16)
    return f"\\u{{{0x10000 + ((high - 0xD800) << 10) + (low - 0xDC00):X}}}"
