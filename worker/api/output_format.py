"""What the text of an answer must look like, as requests ask for it: JSON, a pattern, one of some texts, a grammar.

The same for every dialect: each finds these in fields of its own. Must not know models or messages.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from llguidance import LLMatcher

from worker.api.gbnf import NoGbnf, lark_of_gbnf
from worker.api.lark_text import safe_lark
from worker.chat.marks import Markers
from worker.chat.tool_calls.grammar import GrammarWriter
from worker.errors import RequestError
from worker.schemas.closing import close_objects
from worker.schemas.prepare import prepare_schema
from worker.schemas.repetitions import TooManyRepeats, repeats_of

MAX_PATTERN_CHARS = 16 * 1024
MAX_CHOICES = 1024
MAX_CHOICE_CHARS = 4096
MAX_GRAMMAR_CHARS = 256 * 1024
ANY_OBJECT: dict[str, Any] = {"type": "object"}

_LAST_BACKSLASHES = re.compile(r"(\\*)\Z")
_PLACE = re.compile(r"\A(?:at )?(\d+)\(\d+\): *")
_ASCII = {r"\d": "0-9", r"\w": "A-Za-z0-9_"}
_PIECES = re.compile(r"(\\.)|([\[\]])|([^\\\[\]]+|\\)", re.DOTALL)
_SPELT_SLASH = re.compile(r"\\(.)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class OutputFormat:
    """A form that the text of an answer is held to."""

    param: str
    """The field that asked for it."""
    write: Callable[[GrammarWriter], str]
    """Returns the expression of such a text."""
    schema: Any = None
    """The JSON schema as the client sent it, where there is one."""
    relaxed: tuple[str, ...] = ()
    """What of it cannot be enforced, as paths: it is checked when the answer is there."""
    keeps_lines: bool = False
    """The grammar has the client's own lines: what is said of a line is true of the client's."""


def json_object_format(param: str) -> OutputFormat:
    """Return the form of any JSON object."""
    return json_schema_format(ANY_OBJECT, param=param)


def json_schema_format(schema: Any, *, param: str, relaxes: bool = False) -> OutputFormat:
    """Return the form of JSON that is valid under `schema`. With `relaxes` what cannot be enforced is let go.

    Raises: RequestError naming the place in it.
    """
    prepared = prepare_schema(close_objects(schema), param=param, relaxes=relaxes)
    return OutputFormat(
        param,
        lambda write: write.schema(prepared.schema),
        schema,
        tuple(one.path for one in prepared.relaxed),
    )


def regex_format(pattern: str, *, param: str) -> OutputFormat:
    """Return the form of a text that matches `pattern` as a whole. Raises: RequestError with what is wrong."""
    _check_length(pattern, MAX_PATTERN_CHARS, param)
    if len(_LAST_BACKSLASHES.findall(pattern)[0]) % 2:
        raise RequestError(f"'{param}' cannot be used: it ends with a backslash that escapes nothing.", param=param)
    try:
        repeats_of(pattern)
    except TooManyRepeats as error:
        raise RequestError(f"'{param}' cannot be used: {error}.", param=param) from None
    # A slash needs no backslash here, but other languages want one.
    bare = _in_ascii(_SPELT_SLASH.sub(lambda escape: "/" if escape[1] == "/" else escape[0], pattern))
    write = GrammarWriter(Markers())
    is_error, said = LLMatcher.validate_grammar_with_warnings(write.grammar(write.regex(bare)))
    if is_error:
        raise RequestError(f"'{param}' cannot be used: {_regex_problem(said[0])}.", param=param)
    return OutputFormat(param, lambda write: write.regex(bare))


def _in_ascii(pattern: str) -> str:
    """Return the pattern with digits and word characters as nearly everybody means them: those of ASCII."""
    written: list[str] = []
    is_in_class = False
    for escape, bracket, other in _PIECES.findall(pattern):
        if bracket:
            is_in_class = bracket == "["
        meant = _ASCII.get(escape) if is_in_class or not escape else f"[{_ASCII[escape]}]" if escape in _ASCII else None
        written.append(meant or escape or bracket or other)
    return "".join(written)


def choice_format(texts: Sequence[str], *, param: str) -> OutputFormat:
    """Return the form that one of these texts has. Raises: RequestError."""
    if not texts or not all(texts):
        raise RequestError(f"'{param}' must be a list of texts, none of them empty.", param=param)
    if len(texts) > MAX_CHOICES:
        raise RequestError(f"'{param}' has {len(texts)} texts, but at most {MAX_CHOICES} are allowed.", param=param)
    for text in texts:
        _check_length(text, MAX_CHOICE_CHARS, param)
    return OutputFormat(param, lambda write: write.any_of([write.literal(text) for text in dict.fromkeys(texts)]))


def gbnf_format(grammar: str, *, param: str) -> OutputFormat:
    """Return the form of a text that follows a grammar in llama.cpp's notation. Raises: RequestError with the line."""
    _check_length(grammar, MAX_GRAMMAR_CHARS, param)
    try:
        lark = lark_of_gbnf(grammar)
    except NoGbnf as error:
        raise RequestError(f"'{param}' is no grammar in GBNF: {error}.", param=param) from None
    return OutputFormat(param, partial(_nested, lark))


def lark_format(grammar: str, *, param: str) -> OutputFormat:
    """Return the form of a text that follows a grammar in Lark's notation. Raises: RequestError."""
    _check_length(grammar, MAX_GRAMMAR_CHARS, param)
    return OutputFormat(param, partial(_nested, safe_lark(grammar, param=param)), keeps_lines=True)


def told_of(format_: OutputFormat | None, words: str) -> str:
    """Return what the grammar library says, with the line that a client knows or without a place."""
    if not (place := _PLACE.match(words)):
        return words
    rest = words[place.end() :]
    return f"line {place[1]}: {rest}" if format_ is not None and format_.keeps_lines else rest


def _nested(lark: str, write: GrammarWriter) -> str:
    return write.nested(lark)


def _regex_problem(told: str) -> str:
    """Return the one line that matters of what the library says about a pattern."""
    lines = [line.strip() for line in told.splitlines()]
    why = next((line.removeprefix("error:") for line in lines if line.startswith("error:")), lines[0] if lines else "")
    return _PLACE.sub("", why.strip())[:300].rstrip(".")


def _check_length(text: str, maximum: int, param: str) -> None:
    if not text or len(text) > maximum:
        raise RequestError(f"'{param}' has {len(text)} characters; it must have 1 to {maximum}.", param=param)
