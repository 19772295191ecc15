"""What a model thinks before it answers: by which tags its chat template marks it, and whether a prompt has opened one.

Must not know tokens or dialects. Harmony's channels are read by their family.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Tags:
    """What stands in front of thoughts and behind them."""

    open: str
    close: str
    sign: str = ""
    """What tells of them in a template that puts them together from pieces; empty = `close` does."""
    behind: str = "\n\n"
    """What a model writes behind them before it goes on."""

    @property
    def markers(self) -> tuple[str, ...]:
        """What may be tokens of their own."""
        return (self.open, self.close)

    def are_open(self, prompt_end: str) -> bool:
        """Whether a prompt that ends so has begun a thought, which the answer goes on with."""
        return prompt_end.rstrip().endswith(self.open)

    def leaves_open(self, text: str) -> bool:
        """Whether `text`, which the answer goes on with, has begun a thought and not ended it."""
        return text.lstrip().startswith(self.open) and self.close not in text

    @property
    def ending(self) -> str:
        """What ends a thought for a model that has thought enough."""
        return f"\n{self.close}{self.behind}"


KNOWN_TAGS = (
    Tags("<think>", "</think>"),
    Tags("[THINK]", "[/THINK]"),
    Tags("<|START_THINKING|>", "<|END_THINKING|>"),
    Tags("<seed:think>", "</seed:think>"),
    Tags("<|begin_of_thought|>", "<|end_of_thought|>"),
    Tags("<reasoning>", "</reasoning>"),
    Tags("<mm:think>", "</mm:think>"),
    Tags("<think:opensource>", "</think:opensource>", sign="'</think{}>'.format("),
    Tags("Here are my reasoning steps:", "[BEGIN FINAL RESPONSE]"),
    Tags("Here is my thought process:", "Here is my response:"),
)
"""As the templates of models show them."""


def find_tags(source: str) -> Tags | None:
    """Return the tags of a chat template with this source; None if its model does not think in tags."""
    return next((tags for tags in KNOWN_TAGS if (tags.sign or tags.close) in source), None)
