"""llama-server takes part at its best: all tunings are tried, and the right one is chosen for each family."""

from __future__ import annotations

import pytest

from bench.scenarios import FIRST, GAP, SPEED, TIME
from bench.tunings import COPY, LONG, PREFIX, STEADY, choose, front, speculations, tuned, tunings


def test_defaults_and_all_batches_with_and_without_unified_kv_are_tried() -> None:
    names = [one.name for one in tunings()]
    assert len(names) == len(set(names)) == 1 + 5 * 2
    assert "default" in names
    assert "-fa off -b 64 -ub 64" in names
    assert "-fa off -b 512 -ub 512 -kvu" in names
    assert all(" ".join(one.options) in (one.name, "") for one in tunings())


def test_every_way_to_guess_is_tried() -> None:
    guesses = [one.options[one.options.index("--spec-type") + 1] for one in speculations()]
    assert guesses == ["ngram-simple", "ngram-map-k", "ngram-map-k4v", "ngram-mod", "ngram-cache"]
    assert all("-b" not in one.options for one in speculations())


def test_the_fastest_is_chosen_for_steady_generation_and_copying() -> None:
    results = {"a": {SPEED: 80.0}, "b": {SPEED: 110.0}, "c": {SPEED: 100.0}}
    assert choose(STEADY, results) == choose(COPY, results) == "b"


def test_the_shortest_time_is_chosen_for_a_common_prefix() -> None:
    assert choose(PREFIX, {"a": {TIME: 30.0}, "b": {TIME: 25.0}}) == "b"


def test_the_smallest_product_is_chosen_for_a_long_prompt_and_lies_on_the_front() -> None:
    results = {
        "small": {GAP: 0.3, FIRST: 23.0},
        "middle": {GAP: 0.45, FIRST: 14.0},
        "large": {GAP: 8.5, FIRST: 11.0},
        "beaten": {GAP: 0.5, FIRST: 14.5},
    }
    assert choose(LONG, results) == "middle"
    assert front(LONG, results) == ["small", "middle", "large"]


def test_defaults_are_never_the_tuned_contestant_as_they_take_part_anyway() -> None:
    assert choose(STEADY, {"default": {SPEED: 200.0}, "a": {SPEED: 80.0}}) == "a"


def test_a_tuning_that_failed_is_not_chosen() -> None:
    assert choose(PREFIX, {"broken": {}, "b": {TIME: 25.0}}) == "b"
    with pytest.raises(ValueError, match="no tuning of llama-server ran for: common prefix"):
        choose(PREFIX, {"broken": {}})


def test_the_chosen_options_come_back_as_arguments() -> None:
    assert tuned("-fa off -b 64 -ub 64 -kvu").options == ("-fa", "off", "-b", "64", "-ub", "64", "-kvu")
