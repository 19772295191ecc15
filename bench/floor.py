"""How few prompt tokens a server can do with: each distinct token once. Pure.

A token is distinct by all that stands before it. What was generated is in the cache too, except for the last token
of an answer, whose KV was never computed.
"""

from __future__ import annotations

from collections.abc import Sequence


class Floor:
    """Counts the tokens of prompts that nobody can have computed before."""

    def __init__(self) -> None:
        self._nodes: dict[tuple[int, int], int] = {}
        """By (the node before it, token); 0 is the beginning."""
        self.num_tokens = 0

    def add_prompt(self, tokens: Sequence[int]) -> int:
        """Count one prompt; return how many of its tokens must be computed: at least the last."""
        num_new = max(1, self._add(tokens))
        self.num_tokens += num_new
        return num_new

    def add_answer(self, prompt: Sequence[int], answer: Sequence[int]) -> None:
        """Note what generating the answer has computed: all of it but its last token."""
        self._add([*prompt, *answer[:-1]])

    def _add(self, tokens: Sequence[int]) -> int:
        """Add a path to the trie; return how many of its nodes are new."""
        num_before = len(self._nodes)
        node = 0
        for token in tokens:
            node = self._nodes.setdefault((node, token), len(self._nodes) + 1)
        return len(self._nodes) - num_before


def distinct_tokens(prompts: Sequence[Sequence[int]]) -> int:
    """Return how many tokens of prompts that arrive together have to be computed."""
    floor = Floor()
    for prompt in prompts:
        floor.add_prompt(prompt)
    return floor.num_tokens
