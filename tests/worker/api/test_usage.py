"""Tokens and times of a reply, with numbers that can be checked by hand."""

from __future__ import annotations

from openai.types import CompletionUsage

from worker.api.usage import ChoiceTotals, Totals, add_up
from worker.engine.request import RequestTimings


def test_one_choice_reports_what_the_engine_measured() -> None:
    timings = RequestTimings(queue_s=9, prompt_s=0.5, generation_s=2.0, prompt_tokens=30, cached_tokens=20)
    totals = add_up([ChoiceTotals(30, 4, timings)], choices_per_prompt=1)
    assert totals.timings == {
        "cache_n": 20,
        "prompt_n": 10,
        "prompt_ms": 500.0,
        "prompt_per_token_ms": 50.0,
        "prompt_per_second": 20.0,
        "predicted_n": 4,
        "predicted_ms": 2000.0,
        "predicted_per_token_ms": 500.0,
        "predicted_per_second": 2.0,
    }
    usage = CompletionUsage.model_validate(totals.usage, strict=True)
    assert (usage.prompt_tokens, usage.completion_tokens, usage.total_tokens) == (30, 4, 34)
    assert usage.prompt_tokens_details is not None
    assert usage.prompt_tokens_details.cached_tokens == 20


def test_choices_of_one_prompt_count_it_once_and_what_they_shared_is_not_called_cached() -> None:
    first = ChoiceTotals(10, 3, RequestTimings(prompt_s=0.4, generation_s=1.0, cached_tokens=2))
    second = ChoiceTotals(10, 5, RequestTimings(prompt_s=0.5, generation_s=3.0, cached_tokens=9))
    totals = add_up([first, second], choices_per_prompt=2)
    assert totals == Totals(
        prompt_tokens=10, cached_tokens=2, completion_tokens=8, prompt_ms=500.0, predicted_ms=3000.0
    )


def test_several_prompts_add_up() -> None:
    choices = [ChoiceTotals(length, 1, RequestTimings(cached_tokens=1)) for length in (10, 10, 7, 7)]
    totals = add_up(choices, choices_per_prompt=2)
    assert (totals.prompt_tokens, totals.cached_tokens, totals.completion_tokens) == (17, 2, 4)


def test_nothing_measured_yet_gives_zeros_instead_of_a_division_by_zero() -> None:
    totals = add_up([ChoiceTotals(10, 0, None)], choices_per_prompt=1)
    assert totals.timings["prompt_per_second"] == 0.0
    assert totals.timings["predicted_per_token_ms"] == 0.0
    assert totals.usage["prompt_tokens"] == 10


def test_drafts_are_told_as_llama_server_tells_them_and_only_where_there_were_any() -> None:
    timings = RequestTimings(generated_tokens=20, drafted_tokens=12, accepted_tokens=9)
    told = add_up([ChoiceTotals(5, 20, timings)], choices_per_prompt=1).timings
    assert (told["draft_n"], told["draft_n_accepted"]) == (12, 9)
    assert "draft_n" not in add_up([ChoiceTotals(5, 20, RequestTimings())], choices_per_prompt=1).timings
