"""Grammars in llama.cpp's notation, to those that the grammar library reads.

The library has a converter; this brings a grammar into the part of the notation that it knows. Pure: text in, text out.
Source: llama.cpp's grammars/README.md.
"""

from __future__ import annotations

import re
from typing import Final

from llguidance.gbnf_to_lark import GbnfToLarkError, gbnf_to_lark

_PARTS: Final = re.compile(
    r"""
    (?P<comment> \#[^\n]* )
  | (?P<literal> " (?: [^"\\\n] | \\. )* (?: " | (?=\n) | \\?\Z ) )
  | (?P<chars> \[ (?: [^\]\\] | \\. )* (?: \] | \\?\Z ) )
  | (?P<name> [A-Za-z0-9_-]+ )
  | (?P<token> !? < )
  | (?P<any> \. )
    """,
    re.VERBOSE | re.DOTALL,
)
"""What may hold anything is read to its end, or to that of the grammar: so that all of it is read once."""
_MAKES: Final = re.compile(r"\s*::=")
_ESCAPES: Final = re.compile(r"\\(?:u([0-9A-Fa-f]{4})|U([0-9A-Fa-f]{8})|.)", re.DOTALL)
_ANY: Final = '([^\\n] | "\\n")'
_RESERVED: Final = "start"
"""The library begins with a rule of this name."""
_LONGEST_SPACE: Final = 20
_LONGEST_PROBLEM: Final = 500


class NoGbnf(ValueError):
    """The text is no such grammar. The message says why."""


def lark_of_gbnf(grammar: str) -> str:
    """Return the grammar in Lark's notation. Raises: NoGbnf."""
    names = _check_names(grammar)
    renamed = next(name for number in range(len(names) + 1) if (name := f"{_RESERVED}-{number}") not in names)

    def rewrite(match: re.Match[str]) -> str:
        text = match[0]
        match match.lastgroup:
            case "comment":
                return ""
            case "any":
                return _ANY
            case "literal":
                return _ESCAPES.sub(_spelt_out, text)
            case "name" if text == _RESERVED:
                return renamed
            case _:
                return text

    rewritten = _PARTS.sub(rewrite, grammar)
    try:
        lark: str = gbnf_to_lark(rewritten)
    except RecursionError:
        raise NoGbnf("it is nested too deeply") from None
    except GbnfToLarkError as error:
        raise NoGbnf(str(error)[:_LONGEST_PROBLEM].rstrip(".")) from None
    except (IndexError, ValueError):  # what the converter comes to where an escape is cut off or no number
        raise NoGbnf("it has an escape that is none") from None
    return lark


def _check_names(grammar: str) -> set[str]:
    """Return the names of all rules. Raises: NoGbnf for one that is missing or there twice."""
    used: dict[str, int] = {}
    made: set[str] = set()
    for match in _PARTS.finditer(grammar):
        name = match["name"]
        if match["token"]:
            line = _line_at(grammar, match.start())
            raise NoGbnf(f"line {line} names a token, which is not available here: use 'lark' for that")
        if not name or _is_number(grammar, match):
            continue
        if not _MAKES.match(grammar, match.end()):
            used.setdefault(name, match.start())
        elif name in made:
            raise NoGbnf(f"it has more than one rule '{name}'")
        else:
            made.add(name)
    if "root" not in made:
        raise NoGbnf("it has no rule 'root', with which answers begin")
    if missing := next((name for name in used if name not in made), None):
        raise NoGbnf(f"line {_line_at(grammar, used[missing])} uses the rule '{missing}', which is not there")
    return made


def _is_number(grammar: str, match: re.Match[str]) -> bool:
    """Return whether it is one of how often something comes, as in `{2,3}`."""
    before = grammar[max(0, match.start() - _LONGEST_SPACE) : match.start()]
    return match[0].isdigit() and before.rstrip()[-1:] in ("{", ",")


def _line_at(grammar: str, place: int) -> int:
    return grammar.count("\n", 0, place) + 1


def _spelt_out(escape: re.Match[str]) -> str:
    """Return a character that is written by its number in a literal, as the converter reads it."""
    number = escape[1] or escape[2]
    if number is None:
        return escape[0]
    code = int(number, 16)
    if code > 0x10FFFF or 0xD800 <= code < 0xE000:
        raise NoGbnf(f"{escape[0]} is no character")
    char = chr(code)
    if char in '"\\':
        return f"\\{char}"
    return char if code >= 0x80 or char.isprintable() else f"\\x{code:02x}"
