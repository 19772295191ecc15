"""What a reply says about tokens and time: OpenAI's `usage` and llama-server's `timings`.

Pure arithmetic over what the engine measured; must not read a clock.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from worker.engine.request import PrefillProgress, RequestTimings


@dataclass(frozen=True, slots=True)
class Totals:
    """Tokens and milliseconds of one client request, over all of its choices."""

    prompt_tokens: int = 0
    """Each prompt once, however many choices it has."""
    cached_tokens: int = 0
    completion_tokens: int = 0
    prompt_ms: float = 0.0
    predicted_ms: float = 0.0
    drafted_tokens: int = 0
    accepted_tokens: int = 0
    reasoning_tokens: int = 0
    """Of the completion's."""

    @property
    def usage(self) -> dict[str, Any]:
        """Return OpenAI's `usage`."""
        return {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "total_tokens": self.prompt_tokens + self.completion_tokens,
            "prompt_tokens_details": {"cached_tokens": self.cached_tokens, "audio_tokens": 0},
            "completion_tokens_details": {
                "reasoning_tokens": self.reasoning_tokens,
                "audio_tokens": 0,
                "accepted_prediction_tokens": 0,
                "rejected_prediction_tokens": 0,
            },
        }

    @property
    def timings(self) -> dict[str, Any]:
        """Return `timings` under llama-server's names. `prompt_n` leaves out what came from the cache.

        As there, `draft_n` and `draft_n_accepted` are in it only where tokens were drafted.
        """
        prompt_n = self.prompt_tokens - self.cached_tokens
        drafts = {"draft_n": self.drafted_tokens, "draft_n_accepted": self.accepted_tokens}
        return {
            "cache_n": self.cached_tokens,
            "prompt_n": prompt_n,
            "prompt_ms": round(self.prompt_ms, 3),
            "prompt_per_token_ms": _ratio(self.prompt_ms, prompt_n),
            "prompt_per_second": _ratio(1e3 * prompt_n, self.prompt_ms),
            "predicted_n": self.completion_tokens,
            "predicted_ms": round(self.predicted_ms, 3),
            "predicted_per_token_ms": _ratio(self.predicted_ms, self.completion_tokens),
            "predicted_per_second": _ratio(1e3 * self.completion_tokens, self.predicted_ms),
            **(drafts if self.drafted_tokens else {}),
        }


@dataclass(frozen=True, slots=True)
class ChoiceTotals:
    """What one choice used. `timings` is None while it runs."""

    prompt_tokens: int
    completion_tokens: int
    timings: RequestTimings | None
    reasoning_tokens: int = 0


def add_up(choices: Sequence[ChoiceTotals], *, choices_per_prompt: int) -> Totals:
    """Return the totals of a request whose choices are ordered by prompt.

    Choices of one prompt share its computation, so the one that found least in the cache tells what was
    cached before the request, and times are those of the slowest choice, as they run side by side.
    """
    timings = [one.timings for one in choices if one.timings is not None]
    cached = 0
    for start in range(0, len(choices), choices_per_prompt):
        group = choices[start : start + choices_per_prompt]
        cached += min((one.timings.cached_tokens for one in group if one.timings is not None), default=0)
    return Totals(
        prompt_tokens=sum(one.prompt_tokens for one in choices[::choices_per_prompt]),
        cached_tokens=cached,
        completion_tokens=sum(one.completion_tokens for one in choices),
        prompt_ms=1e3 * max((one.prompt_s for one in timings), default=0.0),
        predicted_ms=1e3 * max((one.generation_s for one in timings), default=0.0),
        drafted_tokens=sum(one.drafted_tokens for one in timings),
        accepted_tokens=sum(one.accepted_tokens for one in timings),
        reasoning_tokens=sum(one.reasoning_tokens for one in choices),
    )


def prompt_progress(progress: PrefillProgress) -> dict[str, Any]:
    """Return how far a prompt is, under llama-server's names."""
    return {
        "total": progress.total_tokens,
        "cache": progress.cached_tokens,
        "processed": progress.processed_tokens,
        "time_ms": round(1e3 * progress.elapsed_s),
    }


def _ratio(above: float, below: float) -> float:
    return round(above / below, 3) if below else 0.0
