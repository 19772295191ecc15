"""One answer while it grows: tokens to text, text to what it consists of, and when its text says that it is over.

Owns which tokens and picks belong to which piece. Must not know a dialect, nor talk to the engine; no clock of its own.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace

from worker.api.answer_wishes import Check
from worker.api.formatter import Answer, Ending, Piece, join_pieces
from worker.api.logprobs import PickQueue, PlacedPick
from worker.api.text_limits import TextLimit
from worker.api.usage import ChoiceTotals
from worker.chat.deltas import CallArguments, CallStart, Delta, OutputParser, PlainText, ReasoningDelta
from worker.engine.detokenizer import TextStream
from worker.engine.request import FinishReason, GenerationRequest, Output, Pick, RequestId, RequestTimings


class Choice:
    """One choice of a reply. A token that shows nothing by itself belongs to what is shown next."""

    def __init__(
        self,
        index: int,
        request: GenerationRequest,
        text: TextStream,
        parser: OutputParser,
        picks: PickQueue | None = None,
        limits: Sequence[TextLimit] = (),
        check: Check | None = None,
    ) -> None:
        self.index = index
        self.request = request
        self.request_id: RequestId | None = None
        self.finish: FinishReason | None = None
        self.timings: RequestTimings | None = None
        """As the engine told them last."""
        self.slot: int | None = None
        self.is_opened = False
        self._text = text
        self._parser = parser
        self._is_all_text = isinstance(parser, PlainText)
        self._picks = picks
        self._limits = limits
        self._is_over_limit = False
        self._is_held = request.constraint is not None
        self._calls: list[list[str]] = []
        """The text of the arguments of each call, in pieces."""
        self._num_reasoning = 0
        self._untold: list[int] = []
        self._kept: list[Piece] = []
        self._check = check
        self._checked: list[Delta] = []
        """All of the answer, where it is to be checked."""

    @property
    def num_tokens(self) -> int:
        """Tokens of the answer; what came after its end was clear does not count."""
        return self._text.num_tokens

    @property
    def totals(self) -> ChoiceTotals:
        """What it has used so far."""
        return ChoiceTotals(len(self.request.prompt), self.num_tokens, self.timings, self._num_reasoning)

    @property
    def is_cut(self) -> bool:
        """Whether its text says that it is over: a stop string was found, or a limit of its text is reached."""
        return self._text.is_stopped or self._is_over_limit

    def push(self, output: Output) -> list[Piece]:
        """Take over one output and return what of the answer may be shown now.

        Mutates: `finish` when the output is the last one.
        """
        self.timings = output.timings or self.timings
        self.slot = self.slot if output.slot is None else output.slot
        tokens, picks = output.tokens, output.picks
        assert self._picks is None or len(picks) == len(tokens), "every token of such a request comes with its pick"
        if self._is_all_text or len(tokens) < 2:
            return self._advance(tokens, picks, output.finish)
        pieces: list[Piece] = []
        for place, token in enumerate(tokens, 1):  # one by one, so that each belongs to what its own text shows
            finish = output.finish if place == len(tokens) else None
            pieces += self._advance((token,), picks[place - 1 : place], finish)
        return join_pieces(pieces)

    def _advance(self, tokens: Sequence[int], picks: Sequence[Pick], finish: FinishReason | None) -> list[Piece]:
        num_before = self._text.num_tokens
        text = "" if self._is_over_limit else self._text.push(tokens)
        num_new = self._text.num_tokens - num_before
        self._untold += tokens[:num_new]
        if finish is not None:
            # What is cut off is the beginning of a text that fits: half a character is none.
            text += self._text.flush(drops_unfinished=self._is_held and finish is FinishReason.LENGTH)
        if self._limits and (num_new or finish is not None):
            for limit in self._limits:
                text = limit.take(text, is_last=finish is not None)
                self._is_over_limit = self._is_over_limit or limit.is_over
        if finish is not None:
            self.finish = self._reason(finish)
        if self._picks is not None:
            self._picks.push(picks[:num_new])
            self._picks.show(len(text), is_over=self._text.is_stopped or self.finish is not None)
        deltas = self._parser.push(text) if text else []
        if self.finish is not None:
            deltas += self._parser.flush(is_cut=self.finish is not FinishReason.STOP or self._text.is_stopped)
        if self._check is not None:
            self._checked += deltas
        return self._pieces(deltas) if deltas else []

    def _reason(self, told: FinishReason) -> FinishReason:
        """Return why it ended: its end counts from the token that made it clear, whatever the engine did meanwhile."""
        if self._text.is_stopped:
            return FinishReason.STOP
        return FinishReason.LENGTH if self._is_over_limit else told

    def _pieces(self, deltas: Sequence[Delta]) -> list[Piece]:
        if not self._is_all_text:
            if isinstance(deltas[0], ReasoningDelta):
                self._num_reasoning += len(self._untold)
            for delta in deltas:
                if isinstance(delta, CallStart):
                    self._calls.append([])
                elif isinstance(delta, CallArguments):
                    self._calls[-1].append(delta.text)
        tokens, self._untold = tuple(self._untold), []
        picks: Sequence[PlacedPick] = () if self._picks is None else self._picks.take()
        pieces = [Piece(deltas[0], tokens, picks, None, self.slot)]
        if len(deltas) > 1:
            pieces += [Piece(delta, slot=self.slot) for delta in deltas[1:]]
        return pieces

    def keep(self, pieces: Sequence[Piece]) -> None:
        """Have them in the `answer`."""
        self._kept += pieces

    def ending(self) -> Ending:
        """Return how the choice ended, with all tokens and picks that came with no piece."""
        assert self.finish is not None
        return Ending(
            self.finish,
            self._text.stop_string,
            bool(self._calls) and all(map(_is_object, self._calls)),
            tuple(self._untold),
            [] if self._picks is None else self._picks.take(),
            self.slot,
            self.num_tokens,
            self.timings,
            None if self._check is None else self._check(self._checked),
        )

    def answer(self) -> Answer:
        """Return all of the finished choice, of which every piece was kept."""
        pieces, rest = join_pieces(self._kept), self.ending()
        tokens = (*(token for piece in pieces for token in piece.tokens), *rest.tokens)
        picks = [*(pick for piece in pieces for pick in piece.picks), *rest.picks]
        deltas = tuple(piece.delta for piece in pieces)
        return Answer(deltas, replace(rest, tokens=tokens, picks=picks), tuple(piece.picks for piece in pieces))


def _is_object(pieces: Sequence[str]) -> bool:
    """Return whether arguments are whole; those of a call that was cut off are not."""
    try:
        return isinstance(json.loads("".join(pieces)), dict)
    except (ValueError, RecursionError):
        return False
