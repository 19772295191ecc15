"""A small model that speaks: a fake vocabulary whose markers are tokens, and whether its answers may be a text.

Markers are written in « and ».
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Final

from tests.fakes.engine import EOS, FakeVocabulary
from worker.api.speech import find_markers, speech_of
from worker.engine.constraint import MakeConstraint
from worker.engine.request import GenerationRequest

TOOL_MARKERS: Final = ("<tool_call>", "</tool_call>")
THOUGHT_MARKERS: Final = ("<think>", "</think>")
HERMES: Final = "{# <tool_call>{{ tools }} #}"
"""Makes of any template one whose model calls tools in Hermes' form."""
THINKS: Final = "{# </think> #}"
"""Makes of any template one whose model thinks."""
_MARKER: Final = re.compile("«(.*?)»")


class SpeakingVocabulary(FakeVocabulary):
    """The fake vocabulary with more special tokens, behind all others."""

    def __init__(self, markers: Sequence[str] = (*TOOL_MARKERS, *THOUGHT_MARKERS)) -> None:
        super().__init__()
        self.markers = {text: self.num_vocab + place for place, text in enumerate(markers)}
        self._special_pieces |= {token: text.encode() for text, token in self.markers.items()}
        self.num_vocab += len(markers)

    def tokenize(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]:
        """Return the tokens as the fake does, markers included where control tokens are."""
        if not parse_special:
            return super().tokenize(text, add_special=add_special, parse_special=False)
        tokens: list[int] = []
        for part in re.split(f"({'|'.join(map(re.escape, self.markers))})", text) if self.markers else [text]:
            if part in self.markers:
                tokens.append(self.markers[part])
            else:
                tokens += super().tokenize(part, add_special=add_special and not tokens, parse_special=True)
        return tokens

    def tokens(self, written: str) -> list[int]:
        """Return the bytes of a text, with its markers as what they are here: tokens or text."""
        tokens: list[int] = []
        place = 0
        for match in _MARKER.finditer(written):
            tokens += written[place : match.start()].encode()
            token = self.markers.get(match[1])
            tokens += match[1].encode() if token is None else [token]
            place = match.end()
        return [*tokens, *written[place:].encode()]

    def speaks(self, source: str) -> dict[str, Any]:
        """Return what `serve` needs to know of a model with this template."""
        return {"template_source": source, "speech": speech_of(source, find_markers(self.marker))}


def may_be(
    asked: GenerationRequest | MakeConstraint | None, written: str, vocabulary: SpeakingVocabulary | None = None
) -> bool:
    """Return whether the whole answer to a request may be this; its constraint must be there."""
    make = asked.constraint if isinstance(asked, GenerationRequest) else asked
    assert make is not None, "nothing holds this answer"
    constraint = make()
    tokens = (vocabulary or SpeakingVocabulary()).tokens(written)
    if constraint.num_allowed(tokens) < len(tokens):
        return False
    for token in tokens:
        constraint.accept(token)
    if constraint.is_over:
        return True
    allowed = constraint.allowed([])[0]
    return allowed is None or allowed == EOS if isinstance(allowed, int | None) else bool(allowed[EOS])
