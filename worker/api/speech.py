"""How one model speaks: by which tags it marks its thoughts, how it calls tools, and which of these are tokens.

Found out once from its chat template and its vocabulary. Must not know requests.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from worker.chat.marks import Markers
from worker.chat.reasoning import KNOWN_TAGS, Tags, find_tags
from worker.chat.tool_calls.families import FAMILIES, choose_family
from worker.chat.tool_calls.family import Family


@dataclass(frozen=True, slots=True)
class Speech:
    """What a chat template tells about the answers to it."""

    family: Family | None = None
    """How tools are called; None = they cannot be."""
    tags: Tags | None = None
    """What stands around thoughts; None = the model has none, or its family reads them."""
    markers: Markers = field(default_factory=Markers)
    """All markers of this vocabulary that are tokens, whatever the template."""

    @property
    def thought_tags(self) -> Tags | None:
        """What stands around thoughts, whoever reads them; None = the model has none."""
        return self.tags or (None if self.family is None else self.family.tags)

    def shown(self) -> dict[str, int]:
        """Return those markers, text to token, that a reader of answers wants to see."""
        wanted = () if self.family is None else self.family.markers
        wanted += () if self.tags is None else self.tags.markers
        return {text: token for text in wanted if (token := self.markers.tokens.get(text)) is not None}


def speech_of(source: str, markers: Markers) -> Speech:
    """Return how the model behind a template with this source speaks; without a template nothing is known."""
    if not source:
        return Speech(markers=markers)
    return Speech(choose_family(source), find_tags(source), markers)


def find_markers(marker: Callable[[str], int | None]) -> Markers:
    """Return which markers of all families are tokens; `marker` tells the token of a text, if it is a special one."""
    texts = [text for family in FAMILIES for text in family.markers]
    texts += [text for tags in KNOWN_TAGS for text in tags.markers]
    return Markers({text: token for text in dict.fromkeys(texts) if (token := marker(text)) is not None})
