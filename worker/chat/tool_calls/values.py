"""Values that a family writes in a notation of its own, and the JSON that they mean.

Python's literals and Gemma's values are such. Reads them and passes JSON on as it comes. Must not know a family.
"""

from __future__ import annotations

import contextlib
import json
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

from worker.chat.marks import BEGIN, unmarked
from worker.chat.tool_calls.scanner import Reading, Scanner

MAX_DEPTH = 64
"""Lists and objects in each other at most."""
MAX_NUMBER = 300
"""Characters of a number at most: few readers of JSON take longer ones."""
_JSON_NUMBER = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?")
_WORDS = {"True": "true", "False": "false", "None": "null", "true": "true", "false": "false", "null": "null"}
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "v": "\v", "a": "\a", "0": "\0", "\n": ""}
_HEX_ESCAPES = {"x": 2, "u": 4, "U": 8}
_HEX = "0123456789abcdefABCDEF"


@dataclass(frozen=True, slots=True)
class Notation:
    """How values are written."""

    quotes: tuple[str, ...]
    """A text stands between two of the same of these; the usual one comes first."""
    has_escapes: bool = False
    """A backslash in a text changes what the next characters mean."""
    words: tuple[str, str, str] = ("true", "false", "null")
    """What the three words of JSON are called."""
    comma: str = ","
    colon: str = ":"
    has_bare_keys: bool = True
    """Keys of objects stand without quotes."""
    are_keys_sorted: bool = False
    """Keys come in the order of the alphabet; else in that of the schema."""


PYTHON = Notation(('"', "'", '"""', "'''"), True, ("True", "False", "None"), ", ", ": ", False)


def read_name(scan: Scanner) -> Reading[str]:
    """Read the name of a function that stands here and return it; empty if none does."""
    name: list[str] = []
    while (char := (yield from scan.peek())) and (char.isalnum() or char in "_-.:/"):
        yield from scan.skip(char)
        name.append(char)
    return "".join(name)


def read_python_call(scan: Scanner) -> Reading[bool]:
    """Read `name(argument=value, ...)`; return whether all of it was a call.

    When false is returned without a call having begun, nothing was made of what was read.
    """
    name = yield from read_name(scan)
    if not scan.knows(name) or (yield from scan.skip("(")) is None:
        return False
    scan.forget()
    scan.start_call(name)
    return (yield from read_arguments(scan, PYTHON, name, "=", ")"))


def read_arguments(scan: Scanner, notation: Notation, name: str, colon: str, close: str) -> Reading[bool]:
    """Read the arguments of the call of `name` that has begun, up to `close`; return whether they were well written.

    Those without a key get their names from the tool, in its order. JSON comes out unless the answer was cut.
    """
    properties = scan.tools.by_name[name].parameters.get("properties")
    unnamed = list(properties) if isinstance(properties, dict) else []
    return (yield from _read_pairs(scan, notation, colon, close, unnamed, 0))


def read_value(scan: Scanner, notation: Notation, depth: int = 0) -> Reading[bool]:
    """Read the value that stands here and pass it on as JSON; return whether it was well written, and whole."""
    quote = yield from scan.skip(*notation.quotes)
    if quote is not None:
        return (yield from _read_text(scan, notation, quote))
    char = yield from scan.peek()
    if depth < MAX_DEPTH and char == "{":
        yield from scan.skip(char)
        return (yield from _read_pairs(scan, notation, ":", "}", [], depth))
    if depth < MAX_DEPTH and char and char in "[(":
        yield from scan.skip(char)
        return (yield from _read_items(scan, notation, "]" if char == "[" else ")", depth))
    word = yield from _read_word(scan, ",]})\n")
    if not word or (scan.is_cut and not (yield from scan.peek())):
        return _close(scan, "null")
    scan.arguments(json_of_word(word))
    return True


def json_of_word(word: str) -> str:
    """Return the JSON of a value that stands without quotes: a number, true, false, null; else it is a text."""
    if word in _WORDS:
        return _WORDS[word]
    if len(word) <= MAX_NUMBER:
        if _JSON_NUMBER.fullmatch(word):
            return word
        for kind in (_whole, float):
            with contextlib.suppress(ValueError, OverflowError):
                number = kind(word)
                if math.isfinite(number):
                    return json.dumps(number)
    return json.dumps(word, ensure_ascii=False)


def escaped(text: str) -> str:
    """Return a piece of a text as it stands between the quotes of JSON."""
    return json.dumps(unmarked(text), ensure_ascii=False)[1:-1]


# --- inside -----------------------------------------------------------------------------------------------


def _whole(word: str) -> int:
    """Raises: ValueError where Python would see no whole number."""
    return int(word, 0)


def _close(scan: Scanner, text: str) -> bool:
    """Close what is open where the model went wrong; what was cut stays cut."""
    if not scan.is_cut:
        scan.arguments(text)
    return False


def _read_word(scan: Scanner, stops: str) -> Reading[str]:
    """Read up to one of the characters `stops`, or a special token; return it without white space around."""
    word: list[str] = []
    while (char := (yield from scan.peek())) and char not in stops and char != BEGIN:
        yield from scan.skip(char)
        word.append(char)
    return "".join(word).strip()


def _read_pairs(
    scan: Scanner, notation: Notation, colon: str, close: str, unnamed: Sequence[str], depth: int
) -> Reading[bool]:
    """Read keys and values behind what opened them."""
    scan.arguments("{")
    left = list(unnamed)
    comma = ""
    while True:
        yield from scan.space()
        if (yield from scan.skip(close)) is not None:
            scan.arguments("}")
            return True
        if not (yield from _read_pair(scan, notation, colon, comma, left, depth)):
            return _close(scan, "}")
        comma = ","
        yield from scan.space()
        if (yield from scan.skip(",")) is None and (yield from scan.peek()) != close:
            return _close(scan, "}")


def _read_pair(scan: Scanner, notation: Notation, colon: str, comma: str, left: list[str], depth: int) -> Reading[bool]:
    """Read a key and its value. `left` are the names for values without one, of which those before are gone."""
    char = yield from scan.peek()
    if char and colon == "=" and (char in "\"'[{(-+." or char.isdigit()):
        if not left:
            return False
        scan.arguments(f"{comma}{json.dumps(left.pop(0), ensure_ascii=False)}:")
        return (yield from read_value(scan, notation, depth + 1))
    key = yield from _read_key(scan, notation, colon)
    yield from scan.space()
    if not key:
        return False
    if (yield from scan.skip(colon)) is None:
        if colon != "=" or not left or scan.is_cut or key not in _WORDS:
            return False
        scan.arguments(f"{comma}{json.dumps(left.pop(0), ensure_ascii=False)}:{json_of_word(key)}")
        return True
    if key in left:
        left.remove(key)
    scan.arguments(f"{comma}{json.dumps(key, ensure_ascii=False)}:")
    yield from scan.space()
    return (yield from read_value(scan, notation, depth + 1))


def _read_key(scan: Scanner, notation: Notation, colon: str) -> Reading[str]:
    quote = yield from scan.skip(*notation.quotes)
    if quote is None:
        return (yield from _read_word(scan, colon + ",{}[]()\n"))
    text, found = yield from scan.collect(quote)
    return unmarked(text) if found is not None else ""


def _read_items(scan: Scanner, notation: Notation, close: str, depth: int) -> Reading[bool]:
    """Read the items of a list behind what opened it."""
    scan.arguments("[")
    comma = ""
    while True:
        yield from scan.space()
        if (yield from scan.skip(close)) is not None:
            scan.arguments("]")
            return True
        if not (yield from scan.peek()):
            return _close(scan, "]")
        scan.arguments(comma)
        comma = ","
        if not (yield from read_value(scan, notation, depth + 1)):
            return _close(scan, "]")
        yield from scan.space()
        if (yield from scan.skip(",")) is None and (yield from scan.peek()) != close:
            return _close(scan, "]")


def _read_text(scan: Scanner, notation: Notation, quote: str) -> Reading[bool]:
    """Read a text behind its first quote."""
    scan.arguments('"')
    marks = (quote, "\\") if notation.has_escapes else (quote,)
    while True:
        mark = yield from scan.until(*marks, emit=lambda text: scan.arguments(escaped(text)))
        if mark is None:
            return _close(scan, '"')
        if mark == quote:
            scan.arguments('"')
            return True
        char = yield from _read_escape(scan)
        scan.arguments(escaped(char))


def _read_escape(scan: Scanner) -> Reading[str]:
    """Return what a backslash and the characters behind it mean."""
    char = yield from scan.peek()
    if not char or char == BEGIN:
        return "" if scan.is_cut else "\\"
    yield from scan.skip(char)
    if char in _ESCAPES:
        return _ESCAPES[char]
    if char not in _HEX_ESCAPES:
        return char if char in "\\'\"" else "\\" + char
    code = ""
    while len(code) < _HEX_ESCAPES[char] and (digit := (yield from scan.peek())) and digit in _HEX:
        yield from scan.skip(digit)
        code += digit
    is_character = len(code) == _HEX_ESCAPES[char] and int(code, 16) <= 0x10FFFF
    if is_character and not 0xD800 <= int(code, 16) <= 0xDFFF:
        return chr(int(code, 16))
    return "" if scan.is_cut and not (yield from scan.peek()) else f"\\{char}{code}"
