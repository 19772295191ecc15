"""The request fields that llama-server's `/completion` and `/infill` share, and how they are told back in a reply.

Must not know prompts.
"""

from __future__ import annotations

import math
from typing import Any, Self

from pydantic import Field, field_validator, model_validator

from worker.api.fields import Whole, one_of
from worker.api.format_fields import FormatFields
from worker.api.sampling_fields import SamplingFields
from worker.engine.request import GenerationRequest
from worker.engine.sampling_dry import DEFAULT_BREAKERS

MAX_PROBS = 100
MAX_CHOICES = 16
MAX_RESPONSE_FIELDS = 256

_PARAMS = (
    *("temperature", "dynatemp_range", "dynatemp_exponent", "top_k", "top_p", "min_p", "top_n_sigma"),
    *("xtc_probability", "xtc_threshold", "typical_p", "repeat_last_n", "repeat_penalty", "presence_penalty"),
    *("frequency_penalty", "dry_multiplier", "dry_base", "dry_allowed_length", "dry_penalty_last_n"),
    *("mirostat", "mirostat_tau", "mirostat_eta", "adaptive_target", "adaptive_decay", "ignore_eos", "min_keep"),
)


class LlamaFields(SamplingFields, FormatFields):
    """How llama-server's own routes generate. None = not said."""

    stream: bool | None = Field(None, description="true or false")
    n_predict: Whole | None = Field(
        None, ge=-1, description="an integer of at least 1, 0 to compute the prompt alone, or -1 for no limit"
    )
    max_tokens: Whole | None = Field(None, ge=-1, description="an integer of at least 0, or -1 for no limit")
    n_cmpl: Whole | None = Field(None, ge=1, le=MAX_CHOICES, description=f"an integer from 1 to {MAX_CHOICES}")
    n: Whole | None = Field(None, ge=1, le=MAX_CHOICES, description=f"an integer from 1 to {MAX_CHOICES}")
    n_probs: Whole | None = Field(None, ge=0, le=MAX_PROBS, description=f"an integer from 0 to {MAX_PROBS}")
    n_indent: Whole | None = Field(None, ge=0, le=2**31, description="an integer of at least 0")
    n_keep: Whole | None = Field(None, ge=-1, description="an integer of at least -1")
    return_tokens: bool | None = Field(None, description="true or false")
    response_fields: list[str] | None = Field(
        None, max_length=MAX_RESPONSE_FIELDS, description=f"a list of up to {MAX_RESPONSE_FIELDS} strings"
    )

    @field_validator("n_predict", "max_tokens")
    @classmethod
    def _read_no_limit(cls, value: int | None) -> int | None:
        return None if value == -1 else value

    @model_validator(mode="after")
    def _agree_with_themselves(self) -> Self:
        one_of({"n_predict": self.n_predict, "max_tokens": self.max_tokens})
        one_of({"n_cmpl": self.n_cmpl, "n": self.n})
        return self

    @property
    def max_answer(self) -> int | None:
        """The most tokens that the answer may have; None = nothing is said."""
        return self.max_tokens if self.n_predict is None else self.n_predict

    @property
    def num_choices(self) -> int:
        """Answers to one prompt."""
        return self.n_cmpl or self.n or 1

    @property
    def num_logprobs(self) -> int | None:
        """How many of the most likely tokens are told with each token; None = nothing of the kind."""
        return self.n_probs or None

    def wants_post_sampling(self, num_logprobs: int | None) -> bool:
        """Return which probabilities are meant; without `n_probs` there are none, as with llama-server."""
        return bool(self.post_sampling_probs) and num_logprobs is not None


def generation_settings(request: GenerationRequest, fields: LlamaFields) -> dict[str, Any]:
    """Return what a request has come to, as llama-server tells it: the model's defaults are filled in."""
    sampling = request.sampling
    num_predict = -1 if fields.max_answer is None else fields.max_answer
    breakers = DEFAULT_BREAKERS if fields.dry_sequence_breakers is None else fields.dry_sequence_breakers
    biases = [{"bias": bias if math.isfinite(bias) else False, "token": token} for token, bias in sampling.logit_bias]
    return {name: getattr(sampling, name) for name in _PARAMS} | {
        "seed": fields.told_seed(sampling.seed),
        "dry_sequence_breakers": list(breakers),
        "stop": list(fields.stop),
        "max_tokens": num_predict,
        "n_predict": num_predict,
        "n_keep": fields.n_keep or 0,
        "n_discard": 0,
        "n_indent": fields.n_indent or 0,
        "stream": bool(fields.stream),
        "logit_bias": biases,
        "n_probs": request.num_logprobs or 0,
        "post_sampling_probs": request.post_sampling_logprobs,
        "min_tokens": request.min_tokens,
        "grammar": fields.grammar or "",
        "samplers": [kind.value for kind in sampling.samplers],
        "timings_per_token": request.wants_timings,
        "return_progress": request.wants_progress,
        "t_max_predict_ms": fields.t_max_predict_ms or 0,
        "lora": [{"id": index, "scale": scale} for index, scale in request.adapters],
    }
