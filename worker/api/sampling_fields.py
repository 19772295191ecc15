"""The request fields that say how tokens are picked, under the same names in every dialect that has them.

Owns their types and ranges, and what they mean for the engine. Must not know messages, prompts or replies.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any

from pydantic import Field, WithJsonSchema, field_validator

from worker.api.fields import Fields, Whole, one_of, wrong
from worker.api.json_schemas import NULL, TEXT, any_of, list_of, object_of
from worker.api.logit_bias import MAX_BIASES, MAX_TEXT_CHARS, Bias, read_biases, resolve_biases
from worker.api.loras import MAX_ASKED, MAX_SCALE, AskedLora, read_loras
from worker.api.ports import Vocabulary
from worker.api.refusals import show
from worker.api.samplers import MAX_SAMPLERS, read_samplers
from worker.engine.request import SamplerKind, SamplingParams
from worker.engine.sampling_dry import DEFAULT_BREAKERS, MAX_BREAKER_BYTES, find_breakers
from worker.errors import RequestError

MAX_STOP_STRINGS = 16
MAX_STOP_CHARS = 500
MAX_BREAKERS = 32

_SAMPLING_FIELDS = (
    "temperature",
    "top_k",
    "top_p",
    "min_p",
    "repeat_penalty",
    "repeat_last_n",
    "presence_penalty",
    "frequency_penalty",
    "ignore_eos",
    "typical_p",
    "top_n_sigma",
    "xtc_probability",
    "xtc_threshold",
    "min_keep",
    "dry_multiplier",
    "dry_base",
    "dry_allowed_length",
    "dry_penalty_last_n",
    "dynatemp_range",
    "dynatemp_exponent",
    "mirostat",
    "mirostat_tau",
    "mirostat_eta",
    "adaptive_target",
    "adaptive_decay",
    "samplers",
)
"""Fields that have the same name and meaning in the engine."""

_OTHER_NAMES = {"typ_p": "typical_p", "repetition_penalty": "repeat_penalty"}

_STOP = {"type": "string", "minLength": 1, "maxLength": MAX_STOP_CHARS}
_BREAKER = {"type": "string", "minLength": 1, "maxLength": MAX_BREAKER_BYTES}
_BIAS = any_of({"type": "number", "minimum": -100, "maximum": 100}, {"const": False})
_BIASED = {"type": "string", "minLength": 1, "maxLength": MAX_TEXT_CHARS}
_BIAS_PAIR = {
    "type": "array",
    "prefixItems": [any_of({"type": "integer"}, _BIASED), _BIAS],
    "minItems": 2,
    "maxItems": 2,
}
_SCALE = {"type": "number", "minimum": -MAX_SCALE, "maximum": MAX_SCALE}
_LORA = any_of(
    object_of(("id",), id={"type": "integer", "minimum": 0}, scale=_SCALE),
    object_of(("name",), name=TEXT, scale=_SCALE),
)


class SamplingFields(Fields):
    """How tokens are picked, and what else the engine does for a request. None = not said."""

    stop: Annotated[tuple[str, ...], WithJsonSchema(any_of(_STOP, list_of(_STOP, maxItems=MAX_STOP_STRINGS), NULL))] = (
        Field((), description=f"text, or a list of up to {MAX_STOP_STRINGS} texts of up to {MAX_STOP_CHARS} characters")
    )
    seed: Whole | None = Field(None, description="an integer")
    temperature: float | None = Field(None, ge=0, le=1e6, allow_inf_nan=False, description="a number from 0 to 1000000")
    top_k: Whole | None = Field(None, ge=-1, description="an integer of at least 0, or -1 for off")
    top_p: float | None = Field(None, ge=0, le=1, description="a number from 0 to 1")
    min_p: float | None = Field(None, ge=0, le=1, description="a number from 0 to 1")
    repeat_penalty: float | None = Field(
        None, gt=0, le=1000, allow_inf_nan=False, description="a number greater than 0, at most 1000 (1 = off)"
    )
    repeat_last_n: Whole | None = Field(
        None, ge=-1, description="an integer of at least 0, or -1 for the whole context"
    )
    presence_penalty: float | None = Field(None, ge=-2, le=2, description="a number from -2 to 2")
    frequency_penalty: float | None = Field(None, ge=-2, le=2, description="a number from -2 to 2")
    repetition_penalty: float | None = Field(
        None, gt=0, le=1000, allow_inf_nan=False, description="a number greater than 0, at most 1000 (1 = off)"
    )
    dry_multiplier: float | None = Field(
        None, ge=0, le=1e6, allow_inf_nan=False, description="a number from 0 to 1000000 (0 = off)"
    )
    dry_base: float | None = Field(None, ge=1, le=1000, allow_inf_nan=False, description="a number from 1 to 1000")
    dry_allowed_length: Whole | None = Field(None, ge=0, le=2**31, description="an integer of at least 0")
    dry_penalty_last_n: Whole | None = Field(
        None, ge=-1, description="an integer of at least 0, or -1 for the whole context"
    )
    dry_sequence_breakers: Annotated[
        tuple[str, ...] | None, WithJsonSchema(any_of(list_of(_BREAKER, maxItems=MAX_BREAKERS), NULL))
    ] = Field(None, description=f"list of up to {MAX_BREAKERS} texts of up to {MAX_BREAKER_BYTES} bytes")
    top_n_sigma: float | None = Field(None, allow_inf_nan=False, description="a number (0 or less = off)")
    typical_p: float | None = Field(None, ge=0, le=1, description="a number from 0 to 1 (1 = off)")
    typ_p: float | None = Field(None, ge=0, le=1, description="a number from 0 to 1 (1 = off)")
    xtc_probability: float | None = Field(None, ge=0, le=1, description="a number from 0 to 1 (0 = off)")
    xtc_threshold: float | None = Field(None, ge=0, le=1, description="a number from 0 to 1 (over 0.5 = off)")
    dynatemp_range: float | None = Field(
        None, ge=0, le=1e6, allow_inf_nan=False, description="a number from 0 to 1000000 (0 = off)"
    )
    dynatemp_exponent: float | None = Field(
        None, ge=0, le=1000, allow_inf_nan=False, description="a number from 0 to 1000"
    )
    min_keep: Whole | None = Field(None, ge=0, le=2**31, description="an integer of at least 0")
    mirostat: Whole | None = Field(None, ge=0, le=2, description="0 (off), 1 or 2")
    mirostat_tau: float | None = Field(None, ge=0, le=1000, allow_inf_nan=False, description="a number from 0 to 1000")
    mirostat_eta: float | None = Field(None, ge=0, le=1000, allow_inf_nan=False, description="a number from 0 to 1000")
    adaptive_target: float | None = Field(
        None, le=1, allow_inf_nan=False, description="a number of at most 1 (less than 0 = off)"
    )
    adaptive_decay: float | None = Field(None, ge=0, le=0.99, description="a number from 0 to 0.99")
    samplers: Annotated[
        tuple[SamplerKind, ...] | None,
        WithJsonSchema(
            any_of(
                list_of({"enum": list(SamplerKind)}, maxItems=MAX_SAMPLERS),
                {"type": "string", "pattern": "^[edskypmxtia]*$", "maxLength": MAX_SAMPLERS},
                NULL,
            )
        ),
    ] = Field(None, description="list of names, or a text of letters")
    logit_bias: Annotated[
        tuple[Bias, ...],
        WithJsonSchema(
            any_of(
                {
                    "type": "object",
                    "propertyNames": _BIASED,
                    "additionalProperties": _BIAS,
                    "maxProperties": MAX_BIASES,
                },
                {"type": "array", "items": _BIAS_PAIR, "maxItems": MAX_BIASES},
                NULL,
            )
        ),
    ] = Field(
        (),
        description="map from token id, or a text that is one token, to a number from -100 to 100, or `false` to ban "
        "the token; or a list of such pairs",
    )
    ignore_eos: bool | None = Field(None, description="true or false")
    cache_prompt: bool | None = Field(None, description="true or false")
    post_sampling_probs: bool | None = Field(None, description="true or false")
    reproducible: bool | None = Field(None, description="true or false")
    itl_target_ms: float | None = Field(None, gt=0, allow_inf_nan=False, description="a number greater than 0")
    lora: Annotated[tuple[AskedLora, ...] | None, WithJsonSchema(any_of(list_of(_LORA, maxItems=MAX_ASKED), NULL))] = (
        Field(None, description="a list of objects")
    )

    min_tokens: Whole | None = Field(None, ge=0, description="an integer of at least 0")
    id_slot: Whole | None = Field(None, ge=-1, description="the number of a slot, or -1 for any")
    return_progress: bool | None = Field(None, description="true or false")
    timings_per_token: bool | None = Field(None, description="true or false")
    t_max_predict_ms: Whole | None = Field(None, ge=-1, description="an integer of at least 1, or 0 or -1 for no limit")

    @field_validator("seed", mode="before")
    @classmethod
    def _read_seed(cls, value: Any) -> Any:
        """Return an integer of any length: those that are too long for JSON's readers come as 1e20."""
        return int(value) if isinstance(value, float) and value.is_integer() else value

    @field_validator("stop", mode="before")
    @classmethod
    def _read_stop(cls, value: Any) -> tuple[str, ...]:
        strings = [] if value is None else [value] if isinstance(value, str) else value
        if not isinstance(strings, list) or not all(isinstance(one, str) for one in strings):
            raise wrong(f"must be a string or a list of strings, but it is {show(value)}")
        if len(strings) > MAX_STOP_STRINGS:
            raise wrong(f"has {len(strings)} strings, but at most {MAX_STOP_STRINGS} are allowed")
        for one in strings:
            if not 1 <= len(one) <= MAX_STOP_CHARS:
                raise wrong(f"has a string of {len(one)} characters, but each must have 1 to {MAX_STOP_CHARS}")
        return tuple(strings)

    @field_validator("lora", mode="before")
    @classmethod
    def _read_lora(cls, value: Any) -> tuple[AskedLora, ...] | None:
        try:
            return None if value is None else read_loras(value)
        except ValueError as error:
            raise wrong(str(error)) from None

    @field_validator("samplers", mode="before")
    @classmethod
    def _read_samplers(cls, value: Any) -> tuple[SamplerKind, ...] | None:
        try:
            return None if value is None else read_samplers(value)
        except ValueError as error:
            raise wrong(str(error)) from error

    @field_validator("dry_sequence_breakers", mode="before")
    @classmethod
    def _read_breakers(cls, value: Any) -> tuple[str, ...] | None:
        if value is None:
            return None
        if not isinstance(value, list) or not all(isinstance(one, str) for one in value):
            raise wrong(f"must be a list of strings, but it is {show(value)}")
        if len(value) > MAX_BREAKERS:
            raise wrong(f"has {len(value)} strings, but at most {MAX_BREAKERS} are allowed")
        for one in value:
            if not 1 <= len(one.encode("utf-8", "replace")) <= MAX_BREAKER_BYTES:
                raise wrong(f"has the string {show(one)}, but each must have 1 to {MAX_BREAKER_BYTES} bytes")
        return tuple(value)

    @field_validator("logit_bias", mode="before")
    @classmethod
    def _read_biases(cls, value: Any) -> tuple[Bias, ...]:
        try:
            return read_biases(value)
        except ValueError as error:
            raise wrong(str(error)) from None

    def wants_post_sampling(self, num_logprobs: int | None) -> bool:
        """Return which log-probabilities are asked for. Raises: RequestError when none are and one field says so."""
        if self.post_sampling_probs and num_logprobs is None:
            raise RequestError(
                "'post_sampling_probs' only says which log-probabilities are meant. Ask for them as well, or leave the "
                "field out.",
                param="post_sampling_probs",
            )
        return bool(self.post_sampling_probs)

    def told_seed(self, used: int) -> int:
        """Return the seed as replies tell it: as the client has written it, which every JSON reader gives back.

        `used` is the engine's: told where the choice was the router's, or where JSON has no such integers.
        """
        if self.seed is None or self.seed == -1 or not -(2**63) <= self.seed < 2**64:
            return used
        return self.seed

    @property
    def max_predict_s(self) -> float | None:
        """How long an answer may take from its first token to the end of a line; None = as long as it needs."""
        return self.t_max_predict_ms / 1000 if self.t_max_predict_ms and self.t_max_predict_ms > 0 else None

    def sampling(self, vocabulary: Vocabulary, *, fallback_seed: int) -> SamplingParams:
        """Return the parameters: the request's, else the model file's, else llama-server's.

        Raises: RequestError when `logit_bias` names a token that the vocabulary lacks, or two names of one field
        have different values.
        """
        said = {name: value for name in _SAMPLING_FIELDS if (value := getattr(self, name)) is not None}
        for other, name in _OTHER_NAMES.items():
            if (value := one_of({name: getattr(self, name), other: getattr(self, other)})) is not None:
                said[name] = value
        defaults: Mapping[str, Any] = vocabulary.sampling_defaults
        biases = resolve_biases(vocabulary, self.logit_bias)
        params = replace(SamplingParams(**defaults), **said, logit_bias=biases)
        if params.dry_multiplier > 0.0:
            texts = DEFAULT_BREAKERS if self.dry_sequence_breakers is None else self.dry_sequence_breakers
            params = replace(params, dry_breakers=find_breakers(vocabulary, texts))
        if params.adaptive_target >= 0.0 and self.samplers is None:
            params = replace(params, samplers=(*params.samplers, SamplerKind.ADAPTIVE_P))
        seed = fallback_seed if self.seed is None or self.seed == -1 else self.seed
        return replace(params, seed=seed % 2**64, top_k=max(0, params.top_k))
