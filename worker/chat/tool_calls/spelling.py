"""Markers inside longer texts: how such a text stands in what parsers read, and in grammars.

`<｜DSML｜invoke name="` holds one marker, `｜DSML｜`, which is a token of its own in some vocabularies. Must not know
families.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from worker.chat.marks import Markers, marked
from worker.chat.tool_calls.grammar import TEXT, GrammarWriter


def spelled(markers: Markers, text: str) -> str:
    """Return `text` as it stands in what a parser reads; the methods of a scanner take it as it is."""
    return "".join(marked(piece) if is_token else piece for piece, is_token in _pieces(markers.tokens, text))


def written(write: GrammarWriter, text: str) -> str:
    """Return the expression of exactly this text."""
    pieces = _pieces(write.markers.tokens, text)
    return " ".join(write.marker(piece) if is_token else write.literal(piece) for piece, is_token in pieces) or '""'


def written_up_to(write: GrammarWriter, end: str) -> str:
    """Return the expression of any text up to the first `end`, and that."""
    pieces = _pieces(write.markers.tokens, end)
    if not any(is_token for _, is_token in pieces):
        return write.rule(f"{TEXT} {write.literal(end)}", options="lazy")
    before, is_token = pieces[0]
    if is_token:
        return f"{TEXT} {written(write, end)}"
    # Text has no tokens in it, so that the last of `before` is the one that stands in front of the first token.
    text = write.regex(r"(.|\n)*" + _escaped(before))
    return f"{text} {written(write, end.removeprefix(before))}"


def written_text(write: GrammarWriter, patterns: Sequence[str], line: str, end: str) -> str:
    """Return the expression of a text that the patterns match, each as a whole, and of `line` and `end` behind it.

    `end` is not in it. Where that holds tokens only the first of the patterns counts: a rule of its kind has one.
    """
    pieces = _pieces(write.markers.tokens, end)
    if not any(is_token for _, is_token in pieces):
        without_end = f"~{write.regex(f'(?s:.*){_escaped(end)}(?s:.*)')}"
        text = " & ".join([*(write.regex(one) for one in patterns), without_end])
        return write.rule(f"({text}) {write.literal(line + end)}", options="lazy")
    before = "" if pieces[0][1] else pieces[0][0]
    return f"{write.regex(f'(?:{patterns[0]}){_escaped(line + before)}')} {written(write, end.removeprefix(before))}"


def _escaped(text: str) -> str:
    """Return the pattern of exactly this text."""
    return re.escape(text).replace("\\\n", "\\n")


def _pieces(tokens: Mapping[str, int], text: str) -> list[tuple[str, bool]]:
    """Return the pieces of `text`, and which of them are tokens of their own."""
    if not tokens:
        return [(text, False)] if text else []
    longest_first = sorted(tokens, key=len, reverse=True)
    pieces = re.split(f"({'|'.join(re.escape(one) for one in longest_first)})", text)
    return [(piece, place % 2 == 1) for place, piece in enumerate(pieces) if piece]
