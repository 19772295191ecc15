"""The bytes of llama-server's own replies, streamed or whole: one object for each answer, under its field names.

Must not know where prompts come from.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson

from worker.api.formatter import Answer, Ending, Formatter, Piece, told_verdict
from worker.api.llama_fields import LlamaFields, generation_settings
from worker.api.logprobs import LEAST, PlacedPick
from worker.api.prompt import text_of_tokens
from worker.api.served import ServedModel
from worker.api.usage import ChoiceTotals, Totals, add_up, prompt_progress
from worker.chat.deltas import text_of
from worker.engine.request import FinishReason, GenerationRequest, PrefillProgress

Object = dict[str, Any]


@dataclass(slots=True)
class LlamaFormatter(Formatter):
    """Replies of `/completion` and `/infill`. A stream has an index in each event, and no `[DONE]`."""

    model: ServedModel
    fields: LlamaFields
    requests: Sequence[GenerationRequest]
    is_truncated: bool = False
    """Whether something that belongs to the prompt was left out."""
    _prompts: Sequence[str] = field(init=False)
    """Texts of the prompts, made where requests are read: replies are written on the event loop."""
    _num_tokens: Counter[int] = field(default_factory=Counter)
    _with_new_line: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        first_ones = self.requests[:: self.fields.num_choices]
        self._prompts = [text_of_tokens(self.model.vocabulary, one.prompt) for one in first_ones]

    def progress(self, choice: int, progress: PrefillProgress) -> bytes:
        """Return the event that tells how far the prompt is."""
        return _event(self._part(choice, "", (), None) | {"prompt_progress": prompt_progress(progress)})

    def piece(self, choice: int, piece: Piece) -> bytes:
        """Return one more piece of text."""
        text = text_of([piece.delta])
        self._num_tokens[choice] += len(piece.tokens)
        if "\n" in text:
            self._with_new_line.add(choice)
        shown = self._part(choice, text, piece.tokens, piece.slot)
        if piece.totals is not None:
            shown["timings"] = piece.totals.timings
        if piece.picks:
            shown["completion_probabilities"] = self._probabilities(piece.picks)
        return _event(shown)

    def last(self, choice: int, ending: Ending, totals: Totals | None) -> bytes:
        """Return the event that closes a choice, with everything that there is to tell."""
        return _event(self._final(choice, "", choice in self._with_new_line, ending, ending.tokens))

    def closing(self, totals: Totals) -> bytes:
        """Return nothing: the last event of the last choice is the end."""
        return b""

    def whole(self, answers: Sequence[Answer], totals: Totals) -> bytes:
        """Return the one answer, or a list of all."""
        shown = [
            self._final(index, one.text, "\n" in one.text, one.ending, self._returned(one.ending))
            for index, one in enumerate(answers)
        ]
        return orjson.dumps(shown[0] if len(shown) == 1 else shown)

    def _returned(self, ending: Ending) -> Sequence[int]:
        return ending.tokens if self.fields.return_tokens else ()

    def _part(self, choice: int, text: str, tokens: Sequence[int], slot: int | None) -> Object:
        return {
            "index": choice,
            "content": text,
            "tokens": list(tokens),
            "stop": False,
            "id_slot": -1 if slot is None else slot,
            "tokens_predicted": self._num_tokens[choice],
            "tokens_evaluated": len(self.requests[choice].prompt),
        }

    def _final(self, choice: int, text: str, has_new_line: bool, ending: Ending, tokens: Sequence[int]) -> Object:
        request = self.requests[choice]
        timings = add_up([ChoiceTotals(len(request.prompt), ending.num_tokens, ending.timings)], choices_per_prompt=1)
        shown: Object = {
            "index": choice,
            "content": text,
            "tokens": list(tokens),
            "id_slot": -1 if ending.slot is None else ending.slot,
            "stop": True,
            "model": self.model.name,
            "tokens_predicted": ending.num_tokens,
            "tokens_evaluated": len(request.prompt),
            "generation_settings": generation_settings(request, self.fields),
            "prompt": self._prompts[choice // self.fields.num_choices],
            "has_new_line": has_new_line,
            "truncated": self.is_truncated,
            "stop_type": _stop_type(ending),
            "stopping_word": ending.stop_string or "",
            "tokens_cached": timings.cached_tokens,
            "timings": timings.timings,
        }
        if ending.picks:
            shown["completion_probabilities"] = self._probabilities(ending.picks)
        shown |= told_verdict(ending)
        return _only(shown, self.fields.response_fields)

    def _probabilities(self, picks: Sequence[PlacedPick]) -> list[Object]:
        is_post = self.requests[0].post_sampling_logprobs
        top = "top_probs" if is_post else "top_logprobs"
        return [
            self._chance(one.pick.token, one.pick.logprob, is_post=is_post)
            | {top: [self._chance(*other, is_post=is_post) for other in one.pick.top]}
            for one in picks
        ]

    def _chance(self, token: int, logprob: float | None, *, is_post: bool) -> Object:
        assert logprob is not None, "picks have log-probabilities when the request asks for them"
        raw = self.model.vocabulary.piece(token, special=True)
        shown: Object = {"id": token, "token": raw.decode("utf-8", "replace"), "bytes": list(raw)}
        return shown | ({"prob": math.exp(logprob)} if is_post else {"logprob": max(LEAST, logprob)})


def _stop_type(ending: Ending) -> str:
    if ending.stop_string is not None:
        return "word"
    return "limit" if ending.finish is FinishReason.LENGTH else "eos"


def _only(shown: Object, paths: Sequence[str] | None) -> Object:
    """Return what `response_fields` name, each under its whole path; what there is not is left out."""
    if not paths:
        return shown
    chosen: Object = {}
    for path in paths:
        value: Any = shown
        for key in path.split("/"):
            if not isinstance(value, dict) or key not in value:
                break
            value = value[key]
        else:
            chosen[path] = value
    return chosen


def _event(shown: Object) -> bytes:
    return b"data: " + orjson.dumps(shown) + b"\n\n"
