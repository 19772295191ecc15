"""The shared request fields: what is accepted, how each refusal reads, what the engine gets."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from tests.fakes.engine import FakeVocabulary
from tests.fakes.pieces import no_text
from worker.api.fields import read_fields
from worker.api.openai_fields import GenerationFields
from worker.engine.request import DEFAULT_SAMPLERS, GenerationRequest, SamplerKind, SamplingParams
from worker.engine.sampler import Sampler
from worker.errors import RequestError, UnsupportedParameter


def read(**body: Any) -> GenerationFields:
    return read_fields(GenerationFields, body)


def sampling(defaults: dict[str, Any] | None = None, *, fallback_seed: int = 7, **body: Any) -> SamplingParams:
    vocabulary = FakeVocabulary()
    vocabulary.num_vocab, vocabulary.sampling_defaults = 100, defaults or {}
    return read(**body).sampling(vocabulary, fallback_seed=fallback_seed)


@pytest.mark.parametrize(
    ("name", "value", "sentence"),
    [
        ("temperature", -1, "'temperature' is -1, but it must be a number from 0 to 1000000."),
        ("temperature", "hot", "'temperature' is \"hot\", but it must be a number from 0 to 1000000."),
        ("temperature", True, "'temperature' is true, but it must be a number from 0 to 1000000."),
        ("top_p", 1.5, "'top_p' is 1.5, but it must be a number from 0 to 1."),
        ("min_p", -0.1, "'min_p' is -0.1, but it must be a number from 0 to 1."),
        ("top_k", -2, "'top_k' is -2, but it must be an integer of at least 0, or -1 for off."),
        ("repeat_penalty", 0, "'repeat_penalty' is 0, but it must be a number greater than 0, at most 1000 (1 = off)."),
        ("presence_penalty", 3, "'presence_penalty' is 3, but it must be a number from -2 to 2."),
        ("frequency_penalty", -3, "'frequency_penalty' is -3, but it must be a number from -2 to 2."),
        (
            "repetition_penalty",
            0,
            "'repetition_penalty' is 0, but it must be a number greater than 0, at most 1000 (1 = off).",
        ),
        ("typical_p", 1.1, "'typical_p' is 1.1, but it must be a number from 0 to 1 (1 = off)."),
        ("typ_p", "x", "'typ_p' is \"x\", but it must be a number from 0 to 1 (1 = off)."),
        ("top_n_sigma", "x", "'top_n_sigma' is \"x\", but it must be a number (0 or less = off)."),
        ("xtc_probability", 2, "'xtc_probability' is 2, but it must be a number from 0 to 1 (0 = off)."),
        ("xtc_threshold", -1, "'xtc_threshold' is -1, but it must be a number from 0 to 1 (over 0.5 = off)."),
        ("min_keep", -1, "'min_keep' is -1, but it must be an integer of at least 0."),
        ("dry_multiplier", -1, "'dry_multiplier' is -1, but it must be a number from 0 to 1000000 (0 = off)."),
        ("dry_base", 0.5, "'dry_base' is 0.5, but it must be a number from 1 to 1000."),
        ("dry_allowed_length", -1, "'dry_allowed_length' is -1, but it must be an integer of at least 0."),
        (
            "dry_penalty_last_n",
            -2,
            "'dry_penalty_last_n' is -2, but it must be an integer of at least 0, or -1 for the whole context.",
        ),
        ("dry_sequence_breakers", "x", "'dry_sequence_breakers' must be a list of strings, but it is \"x\"."),
        ("dry_sequence_breakers", ["x"] * 33, "'dry_sequence_breakers' has 33 strings, but at most 32 are allowed."),
        (
            "dry_sequence_breakers",
            ["a", ""],
            "'dry_sequence_breakers' has the string \"\", but each must have 1 to 40 bytes.",
        ),
        ("dynatemp_range", -1, "'dynatemp_range' is -1, but it must be a number from 0 to 1000000 (0 = off)."),
        ("dynatemp_exponent", -1, "'dynatemp_exponent' is -1, but it must be a number from 0 to 1000."),
        ("mirostat", 3, "'mirostat' is 3, but it must be 0 (off), 1 or 2."),
        ("mirostat", True, "'mirostat' is true, but it must be 0 (off), 1 or 2."),
        ("mirostat_tau", -1, "'mirostat_tau' is -1, but it must be a number from 0 to 1000."),
        ("mirostat_eta", -1, "'mirostat_eta' is -1, but it must be a number from 0 to 1000."),
        ("adaptive_target", 2, "'adaptive_target' is 2, but it must be a number of at most 1 (less than 0 = off)."),
        ("adaptive_decay", 1, "'adaptive_decay' is 1, but it must be a number from 0 to 0.99."),
        ("samplers", 5, "'samplers' must be a list of names or a string of letters, but it is 5."),
        (
            "samplers",
            ["top_k", "tfs_z"],
            "'samplers' has the sampler \"tfs_z\", but the samplers are penalties, dry, top_n_sigma, top_k, typ_p, "
            "top_p, min_p, xtc, temperature, infill, adaptive_p.",
        ),
        (
            "samplers",
            "kz",
            "'samplers' has the letter \"z\", but the letters are e (penalties), d (dry), s (top_n_sigma), k (top_k), "
            "y (typ_p), p (top_p), m (min_p), x (xtc), t (temperature), i (infill), "
            "a (adaptive_p).",
        ),
        ("samplers", "k" * 33, "'samplers' has 33 entries, but at most 32 are allowed."),
        ("n", 0, "'n' is 0, but it must be an integer from 1 to 16."),
        ("n", 100, "'n' is 100, but it must be an integer from 1 to 16."),
        ("max_tokens", 0, "'max_tokens' is 0, but it must be an integer of at least 1."),
        ("max_tokens", -1, "'max_tokens' is -1, but it must be an integer of at least 1."),
        ("max_tokens", 2.5, "'max_tokens' is 2.5, but it must be an integer of at least 1."),
        ("max_completion_tokens", "5", "'max_completion_tokens' is \"5\", but it must be an integer of at least 1."),
        ("n_predict", 0, "'n_predict' is 0, but it must be an integer of at least 1, or -1 for no limit."),
        ("seed", "x", "'seed' is \"x\", but it must be an integer."),
        ("stream", "yes", "'stream' is \"yes\", but it must be true or false."),
        ("stop", "", "'stop' has a string of 0 characters, but each must have 1 to 500."),
        ("stop", ["a", ""], "'stop' has a string of 0 characters, but each must have 1 to 500."),
        ("stop", ["x" * 501], "'stop' has a string of 501 characters, but each must have 1 to 500."),
        ("stop", ["x"] * 17, "'stop' has 17 strings, but at most 16 are allowed."),
        ("stop", 5, "'stop' must be a string or a list of strings, but it is 5."),
        ("stop", ["a", 5], "'stop' must be a string or a list of strings, but it is a list."),
        (
            "logit_bias",
            "x",
            "'logit_bias' must be an object from token ids or texts to numbers, or a list of such pairs, but it is "
            '"x".',
        ),
        (
            "logit_bias",
            {"5": 101},
            "'logit_bias' maps token 5 to 101, but it must be a number from -100 to 100, or false.",
        ),
        ("stream_options", 1, "'stream_options' is 1, but it must be an object."),
        ("reproducible", "yes", "'reproducible' is \"yes\", but it must be true or false."),
        ("itl_target_ms", 0, "'itl_target_ms' is 0, but it must be a number greater than 0."),
        ("itl_target_ms", "50", "'itl_target_ms' is \"50\", but it must be a number greater than 0."),
    ],
)
def test_a_wrong_value_is_refused_by_name_with_what_is_allowed(name: str, value: object, sentence: str) -> None:
    with pytest.raises(RequestError) as caught:
        read(**{name: value})
    assert (caught.value.param, caught.value.message) == (name, sentence)
    assert (caught.value.status, caught.value.code) == (400, "invalid_request_error")


def test_a_wrong_value_inside_stream_options_is_named_by_its_path() -> None:
    with pytest.raises(RequestError) as caught:
        read(stream_options={"include_usage": 1})
    assert caught.value.param == "stream_options.include_usage"
    assert caught.value.message == "'stream_options.include_usage' is 1, but it must be true or false."


def test_padding_of_stream_chunks_is_refused_as_unsupported() -> None:
    with pytest.raises(UnsupportedParameter) as caught:
        read(stream_options={"include_obfuscation": True})
    assert caught.value.param == "stream_options.include_obfuscation"
    assert read(stream_options={"include_obfuscation": False}).includes_usage is False


def test_a_long_value_is_shortened_in_the_message() -> None:
    with pytest.raises(RequestError) as caught:
        read(temperature="x" * 10_000)
    assert len(caught.value.message) < 150


def test_null_means_not_said_for_every_field() -> None:
    nothing = read(**dict.fromkeys(GenerationFields.model_fields))
    assert nothing == read()


def test_fields_that_nobody_knows_are_ignored() -> None:
    assert read(my_own_extra=1) == read()


def test_whole_numbers_may_be_written_with_a_decimal_point() -> None:
    assert read(n=2.0, max_tokens=5.0).num_choices == 2


@pytest.mark.parametrize(
    "maxima",
    [
        {"max_tokens": 5},
        {"max_completion_tokens": 5},
        {"n_predict": 5},
        {"max_tokens": 5, "max_completion_tokens": 5, "n_predict": -1},
    ],
)
def test_every_name_of_the_maximum_is_honoured(maxima: dict[str, int]) -> None:
    assert read(**maxima).max_answer == 5


def test_maxima_that_contradict_each_other_are_refused() -> None:
    with pytest.raises(RequestError) as caught:
        read(max_tokens=5, max_completion_tokens=6)
    assert caught.value.param == "max_tokens"
    assert "'max_tokens' (5) and 'max_completion_tokens' (6) contradict" in caught.value.message
    with pytest.raises(RequestError) as caught:
        read(max_completion_tokens=6, n_predict=5)
    assert caught.value.param == "max_completion_tokens"


def test_one_stop_string_may_come_without_a_list() -> None:
    assert read(stop="x").stop == ("x",)
    assert read(stop=["x", "é"]).stop == ("x", "é")
    assert read(stop=[]).stop == ()


def test_a_request_that_says_nothing_samples_with_the_usual_defaults() -> None:
    assert sampling() == SamplingParams(seed=7)


def test_the_model_files_recommendation_replaces_defaults_and_the_request_replaces_both() -> None:
    params = sampling({"temperature": 0.3, "top_k": 64}, temperature=0)
    assert (params.temperature, params.top_k, params.top_p) == (0, 64, 0.95)


def test_every_sampling_field_reaches_the_engine() -> None:
    said = {
        "temperature": 0.5,
        "top_k": 3,
        "top_p": 0.4,
        "min_p": 0.2,
        "repeat_penalty": 1.5,
        "repeat_last_n": -1,
        "presence_penalty": 0.25,
        "frequency_penalty": -0.25,
        "ignore_eos": True,
        "typical_p": 0.75,
        "top_n_sigma": 1.5,
        "xtc_probability": 0.25,
        "xtc_threshold": 0.125,
        "min_keep": 2,
        "dry_multiplier": 0.5,
        "dry_base": 2.0,
        "dry_allowed_length": 3,
        "dry_penalty_last_n": -1,
        "dynatemp_range": 0.5,
        "dynatemp_exponent": 2.0,
        "mirostat": 2,
        "mirostat_tau": 4.0,
        "mirostat_eta": 0.2,
        "adaptive_target": 0.5,
        "adaptive_decay": 0.8,
    }
    params = sampling(**said)
    assert {name: getattr(params, name) for name in said} == said


def test_top_k_minus_one_means_off() -> None:
    assert sampling(top_k=-1).top_k == 0


@pytest.mark.parametrize(
    ("asked", "used"),
    [(None, 7), (-1, 7), (0, 0), (42, 42), (-2, 2**64 - 2), (2**64 - 1, 2**64 - 1), (1.0e20, 10**20 % 2**64)],
)
def test_any_integer_is_a_seed_and_minus_one_leaves_the_choice_to_the_router(asked: Any, used: int) -> None:
    assert sampling(seed=asked).seed == used


@pytest.mark.parametrize(
    ("asked", "told"),
    [(None, 7), (-1, 7), (0, 0), (-2, -2), (-(2**63), -(2**63)), (2**64 - 1, 2**64 - 1), (2**64, 0), (-(2**63) - 1, 5)],
)
def test_a_seed_is_told_as_it_was_sent_where_json_has_such_numbers(asked: int | None, told: int) -> None:
    used = 5 if asked == -(2**63) - 1 else sampling(seed=asked).seed
    assert read(seed=asked).told_seed(used) == told


def test_logit_bias_goes_to_the_engine_with_false_as_a_ban() -> None:
    assert sampling(logit_bias={"5": -100, "6": 1.5, "7": False}).logit_bias == ((5, -100.0), (6, 1.5), (7, -math.inf))


def test_logit_bias_outside_the_vocabulary_is_refused() -> None:
    with pytest.raises(RequestError, match="names the token 100, but the ids of this model are 0 to 99") as caught:
        sampling(logit_bias={"100": 1})
    assert caught.value.param == "logit_bias"


def test_fields_of_other_servers_mean_the_same() -> None:
    params = sampling(typ_p=0.5, repetition_penalty=1.25)
    assert (params.typical_p, params.repeat_penalty) == (0.5, 1.25)
    assert sampling(typ_p=0.5, typical_p=0.5).typical_p == 0.5


def test_two_names_of_one_field_that_disagree_are_refused() -> None:
    with pytest.raises(RequestError) as caught:
        sampling(repeat_penalty=1.5, repetition_penalty=1.2)
    assert caught.value.param == "repeat_penalty"
    assert caught.value.message == (
        "'repeat_penalty' (1.5) and 'repetition_penalty' (1.2) contradict each other. Set only one of them."
    )


@pytest.mark.parametrize(
    ("said", "meant"),
    [
        ("edskypmxt", DEFAULT_SAMPLERS),
        (
            ["penalties", "dry", "top_n_sigma", "top_k", "typ_p", "top_p", "min_p", "xtc", "temperature"],
            DEFAULT_SAMPLERS,
        ),
        (["Top-K", "topp", "temp"], (SamplerKind.TOP_K, SamplerKind.TOP_P, SamplerKind.TEMPERATURE)),
        (["nucleus", "typ", "min-p"], (SamplerKind.TOP_P, SamplerKind.TYPICAL_P, SamplerKind.MIN_P)),
        ("ta", (SamplerKind.TEMPERATURE, SamplerKind.ADAPTIVE_P)),
        ([], ()),
        ("", ()),
    ],
    ids=str,
)
def test_samplers_are_named_as_llama_server_names_them(said: Any, meant: tuple[SamplerKind, ...]) -> None:
    assert sampling(samplers=said).samplers == meant


def test_a_target_adds_the_sampler_that_heeds_it_unless_the_request_lists_its_own() -> None:
    assert sampling(adaptive_target=0.5).samplers == (*DEFAULT_SAMPLERS, SamplerKind.ADAPTIVE_P)
    assert sampling(adaptive_target=-1).samplers == DEFAULT_SAMPLERS
    assert sampling(adaptive_target=0.5, samplers="k").samplers == (SamplerKind.TOP_K,)


def test_breakers_are_found_in_the_vocabulary_only_where_dry_is_on() -> None:
    colon, star, letter = ord(":"), ord("*"), ord("a")
    assert sampling().dry_breakers == {}
    assert sampling(dry_multiplier=1).dry_breakers == {ord(one): ((),) for one in '\n:"*'}
    assert sampling(dry_multiplier=1, dry_sequence_breakers=[]).dry_breakers == {}
    own = sampling(dry_multiplier=1, dry_sequence_breakers=[":", "*", "*a"]).dry_breakers
    assert own == {colon: ((),), star: ((), (letter,))}


def test_sampling_survives_every_field_at_its_limits() -> None:
    """Bounds are where arithmetic still makes sense: whatever passes them can be sampled."""
    largest = {
        "temperature": 1e6,
        "dynatemp_range": 1e6,
        "dynatemp_exponent": 1000,
        "mirostat_tau": 1000,
        "mirostat_eta": 1000,
        "repeat_penalty": 1000,
        "dry_multiplier": 1e6,
        "dry_base": 1000,
    }
    row = np.random.RandomState(1).normal(0, 5, 500).astype(np.float32)
    for base in ({}, {"mirostat": 1}, {"mirostat": 2}, {"dynatemp_range": 1.0}, {"typical_p": 0.5}, {"min_keep": 3}):
        for name, value in largest.items():
            for rows in (row, np.zeros(500, dtype=np.float32), row * 1e-6):
                body = {"dry_multiplier": 1.0, **base, name: value}
                params = sampling(**body)
                sampler = Sampler(GenerationRequest((1, 2), 20, params), 500, frozenset(), no_text)
                tokens = [1, 2, 1, 2]
                for index in range(12):
                    tokens.append(sampler.sample(rows.copy(), np.array(tokens, dtype=np.int32), index).token)
