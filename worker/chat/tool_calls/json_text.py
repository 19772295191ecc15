"""Whether characters that come one after another are the text of one JSON value.

Strict, as RFC 8259 has it. Must not build values: `json` does that where they are needed.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum

SPACE = " \t\n\r"
_DIGITS = frozenset("0123456789")
_HEX = frozenset("0123456789abcdefABCDEF")
_WORDS = {"t": "true", "f": "false", "n": "null"}
_NUMBER: dict[str, dict[str, str]] = {
    "-": {"0": "zero", "d": "int"},
    "zero": {".": ".", "e": "e", "E": "e"},
    "int": {"0": "int", "d": "int", ".": ".", "e": "e", "E": "e"},
    ".": {"0": "frac", "d": "frac"},
    "frac": {"0": "frac", "d": "frac", "e": "e", "E": "e"},
    "e": {"0": "exp", "d": "exp", "+": "e+", "-": "e+"},
    "e+": {"0": "exp", "d": "exp"},
    "exp": {"0": "exp", "d": "exp"},
}
"""What of a number was read last, to what may follow; `d` is a digit but 0."""
_MAY_END = frozenset({"zero", "int", "frac", "exp"})


class _At(StrEnum):
    """Where in an open object or list the next character stands."""

    FIRST_KEY = "{"
    KEY = "{,"
    COLON = "{k"
    VALUE = "{k:"
    AFTER_VALUE = "{k:v"
    FIRST_ITEM = "["
    ITEM = "[,"
    AFTER_ITEM = "[v"


class JsonText:
    """A reader of one value, which begins without white space.

    A number at the top ends where something follows that is none of it; `end` tells that nothing does.
    """

    def __init__(self) -> None:
        self._open: list[_At] = []
        self._scalar = ""
        """What is being read: "string", "escape", "hex", "word", a part of a number; empty = nothing."""
        self._word = ""
        """What is left of a word, or the digits of an escape so far."""
        self.is_complete = False
        """The value has ended; no further character belongs to it."""

    def take(self, text: str) -> tuple[int, bool]:
        """Return how many characters of `text` belong to the value, and whether all is well so far.

        It is not when the next character can be none of any JSON text. Fewer than all belong to it when it ends.
        """
        for place, char in enumerate(text):
            if self.is_complete:
                return place, True
            is_taken = self._take(char)
            if is_taken is None:
                return place, False
            if not is_taken:
                return place, True
        return len(text), True

    def end(self) -> bool:
        """Return whether the value is whole when nothing follows."""
        if not self._open and self._scalar in _MAY_END:
            self.is_complete = True
        return self.is_complete

    @property
    def closing(self) -> str:
        """What makes a JSON value of the characters so far, put behind them; short, but nothing is taken back."""
        if self.is_complete:
            return ""
        pieces = [self._rest_of_scalar()]
        if not self._open and not self._scalar:
            pieces.append("null")
        for depth, at in enumerate(reversed(self._open)):
            has_value = depth > 0 or bool(self._scalar)
            pieces.append(_REST[at][has_value])
        return "".join(pieces)

    # --- inside -------------------------------------------------------------------------------------------

    def _take(self, char: str) -> bool | None:
        """Take one character: True = it belongs to the value, False = the value ended before it, None = wrong."""
        return _READERS.get(self._scalar, JsonText._in_number)(self, char)

    def _in_escape(self, char: str) -> bool | None:
        if char not in '"\\/bfnrtu':
            return None  # and it stays open: `closing` ends what there is without it
        self._scalar, self._word = ("hex" if char == "u" else "string"), ""
        return True

    def _in_hex(self, char: str) -> bool | None:
        if char not in _HEX:
            return None
        self._word += char
        if len(self._word) == 4:
            self._scalar = "string"
        return True

    def _in_word(self, char: str) -> bool | None:
        if not self._word.startswith(char):
            return None
        self._word = self._word[1:]
        if not self._word:
            self._end_scalar()
        return True

    def _in_number(self, char: str) -> bool | None:
        kind = "d" if char in _DIGITS and char != "0" else char
        if (following := _NUMBER[self._scalar].get(kind)) is not None:
            self._scalar = following
            return True
        if self._scalar not in _MAY_END:
            return None
        self._end_scalar()
        return False if self.is_complete else self._outside(char)

    def _in_string(self, char: str) -> bool | None:
        if char == '"':
            self._end_scalar()
        elif char == "\\":
            self._scalar = "escape"
        elif char < " ":
            return None
        return True

    def _outside(self, char: str) -> bool | None:
        if not self._open:
            return self._begin(char)
        if char in SPACE:
            return True
        at = self._open[-1]
        match at, char:
            case (_At.FIRST_KEY | _At.KEY, '"'):
                self._scalar = "string"
            case (_At.COLON, ":"):
                self._open[-1] = _At.VALUE
            case (_At.AFTER_VALUE, ","):
                self._open[-1] = _At.KEY
            case (_At.AFTER_ITEM, ","):
                self._open[-1] = _At.ITEM
            case (_At.FIRST_KEY | _At.AFTER_VALUE, "}") | (_At.FIRST_ITEM | _At.AFTER_ITEM, "]"):
                self._open.pop()
                self._end_value()
            case (_At.VALUE | _At.FIRST_ITEM | _At.ITEM, _):
                return self._begin(char)
            case _:
                return None
        return True

    def _begin(self, char: str) -> bool | None:
        if char in "{[":
            self._open.append(_At(char))
        elif char == '"':
            self._scalar = "string"
        elif char in _WORDS:
            self._scalar, self._word = "word", _WORDS[char][1:]
        elif char == "-" or char in _DIGITS:
            self._scalar = {"-": "-", "0": "zero"}.get(char, "int")
        else:
            return None
        return True

    def _end_scalar(self) -> None:
        self._scalar = ""
        if self._open and self._open[-1] in (_At.FIRST_KEY, _At.KEY):
            self._open[-1] = _At.COLON
        else:
            self._end_value()

    def _end_value(self) -> None:
        if not self._open:
            self.is_complete = True
        else:
            self._open[-1] = _At.AFTER_VALUE if self._open[-1] == _At.VALUE else _At.AFTER_ITEM

    def _rest_of_scalar(self) -> str:
        match self._scalar:
            case "string":
                return '"'
            case "escape":
                return '\\"'
            case "hex":
                return "0" * (4 - len(self._word)) + '"'
            case "word":
                return self._word
            case "-" | "." | "e" | "e+":
                return "0"
            case _:
                return ""


_READERS: dict[str, Callable[[JsonText, str], bool | None]] = {
    "": JsonText._outside,
    "string": JsonText._in_string,
    "escape": JsonText._in_escape,
    "hex": JsonText._in_hex,
    "word": JsonText._in_word,
}
"""What is being read to who takes the next character of it; the rest are parts of numbers."""

_REST = {
    _At.FIRST_KEY: ("}", ":null}"),
    _At.KEY: ('"":null}', ":null}"),
    _At.COLON: (":null}", ":null}"),
    _At.VALUE: ("null}", "}"),
    _At.AFTER_VALUE: ("}", "}"),
    _At.FIRST_ITEM: ("]", "]"),
    _At.ITEM: ("null]", "]"),
    _At.AFTER_ITEM: ("]", "]"),
}
"""What ends an object or list; the second where a key or a value has begun at this place."""
