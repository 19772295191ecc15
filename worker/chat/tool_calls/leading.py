"""Calls that no marker announces: an answer that begins with one is calls, any other is text.

Must not know a family.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

_ANY = r"(.|\n)*"
_Tree = Mapping[str, "_Tree"]


def not_beginning_with(beginnings: Iterable[str]) -> str:
    """Return the pattern of any text that begins with none of these. A part of one may be all of the text.

    In a grammar, what may come instead must begin with one of them in one piece: pieces that are shorter are taken for
    text as long as this pattern goes on.
    """
    tree: dict[str, dict] = {}  # type: ignore[type-arg]
    for beginning in beginnings:
        node = tree
        for char in beginning[:-1]:
            node = node.setdefault(char, {})
        node[beginning[-1]] = {}
    return _pattern(tree)


def _pattern(tree: _Tree) -> str:
    others = "".join(re.escape(char) for char in tree)
    ways = [f"[^{others}]{_ANY}", *(re.escape(char) + _pattern(node) for char, node in tree.items() if node)]
    return f"({'|'.join(ways)})?"
