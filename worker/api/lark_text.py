"""Grammars in Lark's notation as requests send them: what of them goes to the grammar library, and what does not.

What would leave the bounds of an answer is refused: tokens, which are no text; rules of the grammar around it; options
of the library. JSON schemas in it are prepared as everywhere. Must not compile.
Source: llguidance's docs/syntax.md.
"""

from __future__ import annotations

import json
import re
from typing import Any, Final

from worker.errors import RequestError
from worker.schemas.prepare import prepare_schema
from worker.schemas.problems import CannotEnforce
from worker.schemas.repetitions import Repeats, TooManyRepeats, largest_count, repeats_of

MAX_RULES: Final = 2_000
MAX_SCHEMAS: Final = 16

_PARTS: Final = re.compile(
    r"""
    (?P<space> [ \t]+ | (?: \# | // ) [^\n]* )
  | (?P<newline> \r?\n )
  | (?P<string> " (?: [^"\\\n] | \\. )*+ " i? )
  | (?P<regex> / (?P<inside> (?: [^/\\] | \\. )++ ) / [imslux]* )
  | (?P<directive> % [A-Za-z_]* )
  | (?P<name> [!?]? _? [A-Za-z] [A-Za-z0-9_-]* )
  | (?P<count> \{ \s* (?P<least> \d* ) \s* (?: , \s* (?P<most> \d* ) \s* )? \} )
  | (?P<counted> ~ [ ]* (?P<from> \d+ ) (?: \.\. (?P<to> \d+ ) )? )
  | (?P<token> < )
  | (?P<grammar> @ )
  | (?P<number> [+-]? \d [0-9A-Za-z.]* )
  | (?P<sign> :: | -> | [][(){}:=,.|*+?&~!_-] )
    """,
    re.VERBOSE,
)
_COMMON: Final = re.compile(r"[ \t]+common\b")
_JSON_SPACE: Final = re.compile(r"[ \t\r\n]*")
_ATTRIBUTES: Final = frozenset({"lazy", "stop", "suffix", "max_tokens"})
_LONGEST_SHOWN: Final = 20


def safe_lark(grammar: str, *, param: str) -> str:
    """Return the grammar as the library gets it, with the same lines. `param` is the field that is blamed.

    Raises: RequestError with the line and what is wrong there.
    """
    return _Reading(grammar, param).run()


class _Reading:
    """One grammar, read once from its beginning to its end."""

    def __init__(self, grammar: str, param: str) -> None:
        self._grammar = grammar
        self._param = param
        self._at = 0
        self._line = 1
        self._out: list[str] = []
        self._repeats = Repeats()
        self._num_rules = 0
        self._num_schemas = 0
        self._before = "\n"
        """The last part that was no space."""
        self._names_rule = False
        """It is the name at the beginning of a line."""
        self._in_attributes = False

    def run(self) -> str:
        while self._at < len(self._grammar):
            found = _PARTS.match(self._grammar, self._at)
            if found is None:
                rest = self._grammar[self._at : self._at + _LONGEST_SHOWN].split("\n")[0]
                raise self._wrong(f"has {rest!r} where a rule, a text or a pattern is expected")
            self._at = found.end()
            if found.lastgroup == "directive":
                self._directive(found[0])
            else:
                self._out.append(found[0])
                if found.lastgroup != "space":
                    self._take(found)
                self._line += found[0].count("\n")
        return "".join(self._out)

    def _take(self, part: re.Match[str]) -> None:
        text, before, named = part[0], self._before, self._names_rule
        self._before, self._names_rule = text, False
        match part.lastgroup:
            case "token":
                raise self._wrong(
                    "names a special token, which a grammar cannot do here: it would be a control token in the answer, "
                    "or end it. Write texts and patterns alone; an answer ends by itself where the grammar does"
                )
            case "grammar":
                raise self._wrong("refers to another grammar with '@', but there is none beside this one")
            case "name":
                self._names_rule = before.endswith("\n")
                if self._in_attributes and before in ("[", ",") and text not in _ATTRIBUTES:
                    raise self._wrong(f"has the attribute '{text}', which has no effect here. Leave it out")
                self._repeats.atom()
            case "regex":
                try:
                    self._repeats.atom(repeats_of(part["inside"]))
                except TooManyRepeats as error:
                    raise self._wrong(f"has a pattern that is too complex: {error}") from None
            case "string":
                self._repeats.atom()
            case "count":
                self._repeat(largest_count(part["least"], part["most"]))
            case "counted":
                self._repeat(largest_count(part["from"], part["to"]))
            case "sign":
                self._sign(text, after_name=named)

    def _sign(self, sign: str, *, after_name: bool) -> None:
        match sign:
            case ":":
                self._num_rules += 1
                if self._num_rules > MAX_RULES:
                    raise self._wrong(f"begins one rule more than the {MAX_RULES:,} that a grammar may have")
                self._repeats = Repeats()
            case "[" if after_name:
                self._in_attributes = True
            case "]" if self._in_attributes:
                self._in_attributes = False
            case "(" | "[":
                self._repeats.group()
            case ")" | "]":
                self._repeats.end_group()
            case "*" | "+" | "?":
                self._repeat(1)

    def _repeat(self, count: int) -> None:
        try:
            self._repeats.repeat(count)
        except TooManyRepeats as error:
            raise self._wrong(f"is too complex: {error}") from None

    def _directive(self, name: str) -> None:
        self._out.append(name)
        match name:
            case "%ignore":
                pass
            case "%import":
                if not _COMMON.match(self._grammar, self._at):
                    raise self._wrong("imports from somewhere else than 'common', which alone is there")
            case "%json":
                self._schema()
            case "%llguidance":
                if self._object(name) != {}:
                    raise self._wrong("sets options of the grammar library, which requests cannot. Leave them out")
            case "%regex":
                self._object(name)
            case _:
                raise self._wrong(f"has '{name}', which is not available here")
        self._before, self._names_rule = name, False
        self._repeats.atom()

    def _schema(self) -> None:
        self._num_schemas += 1
        if self._num_schemas > MAX_SCHEMAS:
            raise self._wrong(f"has one more '%json' than the {MAX_SCHEMAS} that a grammar may have")
        self._object("%json")

    def _object(self, name: str) -> Any:
        """Read the JSON object that stands here and pass it on, a schema as it is prepared; return it."""
        begin = self._at
        value = self._json(name)
        if name == "%json":
            prepared = prepare_schema(value, param=self._param)
            if prepared.relaxed:
                first = prepared.relaxed[0]
                raise CannotEnforce(first.path, first.why, param=self._param)
            written = prepared.for_lark()
        elif isinstance(value, dict):
            written = json.dumps(value)
        else:
            raise self._wrong(f"has no JSON object behind '{name}'")
        # Lines are kept, so that what the library says of a line is true of the client's.
        num_lines = self._grammar.count("\n", begin, self._at)
        self._out.append(" {" + "\n" * num_lines + written[1:])
        self._line += num_lines
        return value

    def _json(self, name: str) -> Any:
        """Return the JSON value that stands here, and read it."""
        space = _JSON_SPACE.match(self._grammar, self._at)
        assert space is not None, "it matches nothing, too"
        try:
            value, self._at = json.JSONDecoder().raw_decode(self._grammar, space.end())
        except RecursionError:
            raise self._wrong(f"has JSON behind '{name}' that is nested too deeply") from None
        except ValueError as error:
            raise self._wrong(f"has no JSON behind '{name}': {str(error).partition(': line')[0]}") from None
        return value

    def _wrong(self, why: str) -> RequestError:
        return RequestError(f"'{self._param}' cannot be used as a grammar: line {self._line} {why}.", param=self._param)
