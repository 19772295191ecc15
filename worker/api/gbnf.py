"""Grammars in llama.cpp's notation, to the one that the grammar library reads.

A rule that leads to no recursion becomes a terminal, which is one pattern: the library follows these a hundred times as
fast as rules. It takes the longest text that fits a terminal and never less of it afterwards; so texts in other rules
become single characters. Pure: text in, text out.
Source: llama.cpp's grammars/README.md.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import Final

from worker.schemas.repetitions import Repeats, TooManyRepeats, largest_count

MAX_RULES: Final = 2_000
MAX_PARTS: Final = 20_000
"""Characters of texts, classes, and uses of rules, all rules together: compiling 100,000 takes seconds."""
MAX_DEPTH: Final = 200
"""Brackets inside one another."""

_TOKENS: Final = re.compile(
    r"""
    (?P<space> [ \t]+ | \#[^\n\r]* )
  | (?P<newline> \r?\n | \r )
  | (?P<literal> " (?P<text> (?: [^"\\\n] | \\. )*+ ) (?P<end> "? ) )
  | (?P<chars> \[ (?P<negated> \^? ) (?P<inside> (?: [^\]\\\n] | \\. )*+ ) (?P<closed> \]? ) )
  | (?P<makes> ::= )
  | (?P<name> [A-Za-z0-9_-]+ )
  | (?P<count> \{ \s* (?P<least> \d+ ) \s* (?P<range> , \s* (?P<most> \d* ) )? \s* \} )
  | (?P<sign> [()|*+?] )
  | (?P<any> \. )
  | (?P<token> !? < )
    """,
    re.VERBOSE,
)
_CHARACTER: Final = re.compile(
    r"\\(?:x([0-9A-Fa-f]{2})|u([0-9A-Fa-f]{4})|U([0-9A-Fa-f]{8})|([nrt\"\\\[\]]))|([^\\])", re.DOTALL
)
_NAMED: Final = {"n": "\n", "r": "\r", "t": "\t"}
_USE, _TEXT = "\0", "\1"
"""What parts of a body begin with that are written in one way in terminals and in another in rules."""
_ANY: Final = "/[\\s\\S]/"
_LONGEST_SHOWN: Final = 20
_MAX_DIGITS: Final = 7


class NoGbnf(ValueError):
    """The text is no such grammar, or goes beyond a limit. The message says why."""


def lark_of_gbnf(grammar: str) -> str:
    """Return the grammar in Lark's notation. Raises: NoGbnf."""
    return _Conversion(grammar).run()


@dataclass(slots=True)
class _Conversion:
    """One grammar, read once from its beginning to its end."""

    grammar: str
    _numbers: dict[str, int] = field(default_factory=dict)
    """The rules that were named so far."""
    _made: set[str] = field(default_factory=set)
    _used: dict[str, int] = field(default_factory=dict)
    """The line where each is used first."""
    _bodies: dict[str, list[str]] = field(default_factory=dict)
    _uses: dict[str, set[str]] = field(default_factory=dict)
    """By rule: the rules that it uses."""
    _terminals: set[str] = field(default_factory=set)
    _num_parts: int = 0

    def run(self) -> str:
        tokens = self._tokens()
        place = 0
        while place < len(tokens):
            if tokens[place][0].lastgroup == "newline":
                place += 1
            else:
                place = self._rule(tokens, place)
        if "root" not in self._made:
            raise NoGbnf("it has no rule 'root', with which answers begin")
        for name, line in self._used.items():
            if name not in self._made:
                raise NoGbnf(f"line {line} uses the rule '{name}', which is not there")
        self._find_terminals()
        rules = [f"{self._name(name)}:{self._written(name, body)}" for name, body in self._bodies.items()]
        return "\n".join(["%llguidance {}", f"start: {self._name('root')}", *rules, ""])

    def _find_terminals(self) -> None:
        """Find the rules that use terminals alone, from those on that use none."""
        left = {name: len(used) for name, used in self._uses.items()}
        users: dict[str, list[str]] = {}
        for name, used in self._uses.items():
            for one in used:
                users.setdefault(one, []).append(name)
        pending = [name for name, num in left.items() if num == 0]
        while pending:
            self._terminals.add(name := pending.pop())
            for user in users.get(name, ()):
                left[user] -= 1
                if left[user] == 0:
                    pending.append(user)

    def _written(self, name: str, body: list[str]) -> str:
        is_terminal = name in self._terminals
        return "".join(self._part(part, is_terminal=is_terminal) for part in body)

    def _part(self, part: str, *, is_terminal: bool) -> str:
        if part.startswith(_USE):
            return f" {self._name(part[1:])}"
        if not part.startswith(_TEXT):
            return part
        text = part[1:]
        if is_terminal or len(text) < 2:
            return f" {_quoted(text)}"
        return f" ({' '.join(map(_quoted, text))})"

    def _tokens(self) -> list[tuple[re.Match[str], int]]:
        """Return all of the grammar but white space, each with its line. Raises: NoGbnf for what is nothing."""
        tokens: list[tuple[re.Match[str], int]] = []
        at, line = 0, 1
        while at < len(self.grammar):
            found = _TOKENS.match(self.grammar, at)
            if found is None:
                rest = self.grammar[at : at + _LONGEST_SHOWN].split("\n")[0]
                raise NoGbnf(f"line {line} has {rest!r} where a rule, a text or a class is expected")
            _check(found, line)
            if found.lastgroup != "space":
                tokens.append((found, line))
            line += found[0].count("\n")
            at = found.end()
        return tokens

    def _rule(self, tokens: list[tuple[re.Match[str], int]], place: int) -> int:
        """Read the rule that begins here; return where it ends."""
        first, line = tokens[place]
        name = first[0]
        if first.lastgroup != "name" or place + 1 >= len(tokens) or tokens[place + 1][0].lastgroup != "makes":
            raise NoGbnf(f"line {line} is no rule: one begins with its name and '::='")
        if name in self._made:
            raise NoGbnf(f"it has more than one rule '{name}'")
        self._made.add(name)
        self._uses[name] = set()
        if len(self._made) > MAX_RULES:
            raise NoGbnf(f"it has more than {MAX_RULES:,} rules")
        body = _Body(self, name, line)
        place += 2
        while place < len(tokens):
            token, line = tokens[place]
            if token.lastgroup == "newline":
                if body.is_over:
                    break
            else:
                body.take(token, line)
            place += 1
        self._bodies[name] = body.end()
        return place

    def use(self, name: str, rule: str, line: int) -> None:
        """`rule` uses the rule `name`."""
        self._used.setdefault(name, line)
        self._uses[rule].add(name)

    def count(self, num: int) -> None:
        """There are so many parts more. Raises: NoGbnf."""
        self._num_parts += num
        if self._num_parts > MAX_PARTS:
            raise NoGbnf(f"it has more than {MAX_PARTS:,} characters, classes and names of rules")

    def _name(self, name: str) -> str:
        return f"{'T' if name in self._terminals else 'r'}{self._numbers.setdefault(name, len(self._numbers))}"


class _Body:
    """What a rule is made of."""

    def __init__(self, conversion: _Conversion, rule: str, line: int) -> None:
        self._conversion = conversion
        self._rule = rule
        self._out: list[str] = []
        self._repeats = Repeats()
        self._depth = 0
        self._line = line
        self._is_new = True
        """An alternative begins here."""
        self._can_repeat = False
        self._goes_on = True

    @property
    def is_over(self) -> bool:
        """Whether the end of a line ends the rule."""
        return self._depth == 0 and not self._goes_on

    def take(self, token: re.Match[str], line: int) -> None:
        """Take the next part over. Raises: NoGbnf."""
        self._line, self._goes_on = line, False
        match token.lastgroup:
            case "literal":
                self._literal(token)
            case "chars":
                self._add(*_class(token, line))
            case "any":
                self._add(f" {_ANY}", 1)
            case "name":
                self._conversion.use(token[0], self._rule, line)
                self._add(f"{_USE}{token[0]}", 1)
            case "count":
                least, most = token["least"], token["most"]
                self._repeat(f"{{{least}}}" if token["range"] is None else f"{{{least},{most}}}", least, most)
            case "sign":
                self._sign(token[0])
            case _:
                raise NoGbnf(f"line {line} has {token[0]!r} where it cannot stand")

    def end(self) -> list[str]:
        """Return the whole body, in parts."""
        if self._depth:
            raise NoGbnf(f"line {self._line} has a bracket that is not closed")
        self._fill()
        return self._out

    def _sign(self, sign: str) -> None:
        match sign:
            case "(":
                self._depth += 1
                if self._depth > MAX_DEPTH:
                    raise NoGbnf(f"line {self._line} is nested too deeply: more than {MAX_DEPTH} brackets")
                self._repeats.group()
                self._out.append(" (")
                self._is_new, self._can_repeat = True, False
            case ")":
                if self._depth == 0:
                    raise NoGbnf(f"line {self._line} closes a bracket that is not open")
                self._depth -= 1
                self._fill()
                self._repeats.end_group()
                self._out.append(")")
                self._is_new, self._can_repeat = False, True
            case "|":
                self._fill()
                self._out.append(" |")
                self._is_new, self._can_repeat, self._goes_on = True, False, True
            case _:
                self._repeat(sign, "1", None)

    def _fill(self) -> None:
        """Write an alternative that is empty."""
        if self._is_new:
            self._out.append(' ""')

    def _add(self, part: str, num_parts: int) -> None:
        self._conversion.count(num_parts)
        self._out.append(part)
        self._repeats.atom()
        self._is_new, self._can_repeat = False, True

    def _literal(self, token: re.Match[str]) -> None:
        text = "".join(_characters(token["text"], self._line))
        self._add(f"{_TEXT}{text}", len(text))

    def _repeat(self, written: str, least: str, most: str | None) -> None:
        if not self._can_repeat:
            raise NoGbnf(f"line {self._line} has {written!r} where nothing stands before it that can be repeated")
        if max(len(least), len(most or "")) > _MAX_DIGITS:
            raise NoGbnf(f"line {self._line} has a count that is too large")
        if most and int(most) < int(least):
            raise NoGbnf(f"line {self._line} has a count that ends before it begins: {written}")
        try:
            self._repeats.repeat(largest_count(least, most))
        except TooManyRepeats as error:
            raise NoGbnf(f"line {self._line} is too complex: {error}") from None
        self._out.append(written)
        self._can_repeat = False


def _check(token: re.Match[str], line: int) -> None:
    """Return if the token can be read on from. Raises: NoGbnf."""
    if token["literal"] and not token["end"]:
        raise NoGbnf(f"line {line} has a text that does not end")
    if token["chars"] and not token["closed"]:
        raise NoGbnf(f"line {line} has a class of characters that does not end")
    if token["token"]:
        raise NoGbnf(f"line {line} names a token: an answer has text alone, so tokens are not available here")


def _characters(text: str, line: int) -> list[str]:
    """Return the characters of a text or class that has escapes. Raises: NoGbnf."""
    chars: list[str] = []
    at = 0
    while at < len(text):
        found = _CHARACTER.match(text, at)
        if found is None:
            raise NoGbnf(f"line {line} has the escape {text[at : at + 2]!r}, which is none")
        number = found[1] or found[2] or found[3]
        if number is None:
            chars.append(found[5] if found[4] is None else _NAMED.get(found[4], found[4]))
        else:
            code = int(number, 16)
            if code > 0x10FFFF or 0xD800 <= code < 0xE000:
                raise NoGbnf(f"line {line} has {found[0]}, which is no character")
            chars.append(chr(code))
        at = found.end()
    return chars


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def _class(token: re.Match[str], line: int) -> tuple[str, int]:
    """Return the pattern of one character of a class, and how many parts that has. Raises: NoGbnf."""
    ranges: list[str] = []
    inside = token["inside"]
    escaped = [found[0] for found in _CHARACTER.finditer(inside)]
    chars = _characters(inside, line)
    place = 0
    while place < len(chars):
        first = last = chars[place]
        if place + 2 < len(chars) and escaped[place + 1] == "-":
            last = chars[place + 2]
            place += 2
        if last < first:
            raise NoGbnf(f"line {line} has a range that ends before it begins: {first!r} to {last!r}")
        ranges.append(f"\\x{{{ord(first):x}}}" + (f"-\\x{{{ord(last):x}}}" if last > first else ""))
        place += 1
    if not ranges:
        if token["negated"]:
            return f" {_ANY}", 1
        raise NoGbnf(f"line {line} has a class without characters, which nothing fits")
    return f" /[{token['negated']}{''.join(ranges)}]/", len(ranges)
