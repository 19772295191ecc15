"""What the dashboard shows of requests: at a glance, how long they take, and their tokens.

Owns titles, descriptions, units, thresholds and queries. A query for something that has not happened gives nothing, and
its panel says "unknown" or stays empty: never 0.
"""

from __future__ import annotations

from collections.abc import Iterator

from panel import (
    BLUE,
    GREEN,
    GREY,
    ON,
    ORANGE,
    PURPLE,
    RATE,
    RED,
    SERVER,
    YELLOW,
    Panel,
    Target,
    figure,
    per,
    quantiles,
    rate,
)


def glance() -> Iterator[Panel]:
    """Yield what somebody wants to know who looks for a second."""
    yield figure(
        "Servers",
        "Servers that answer Prometheus, of those that it knows.",
        f'sum(up{{job="corral", {SERVER}}}) / count(up{{job="corral", {SERVER}}})',
        "percentunit",
        thresholds=[(0, RED), (1, GREEN)],
        is_now=True,
    )
    yield figure(
        "Loaded models",
        "Models that answer at once.",
        f'sum(corral_worker_state{{{ON}, state="ready"}}) or 0 * count(corral_worker_state{{{ON}}})',
    )
    yield figure(
        "Failing models",
        "Models that could not be loaded, wait for their next try, or whose files are missing. See the row `Workers`.",
        f'sum(corral_worker_state{{{ON}, state=~"backoff|failed|unavailable"}})'
        f" or 0 * count(corral_worker_state{{{ON}}})",
        thresholds=[(1, RED)],
    )
    yield figure(
        "Waiting requests",
        "Requests that wait for a place on a worker, of all models.",
        f"sum(corral_queue_length{{{ON}}})",
        thresholds=[(10, YELLOW), (100, RED)],
    )
    yield figure(
        "Longest wait",
        "How long the oldest of them has waited.",
        f"max(corral_queue_oldest_seconds{{{ON}}})",
        "s",
        thresholds=[(30, YELLOW), (120, RED)],
    )
    yield figure(
        "Failed requests",
        "Share of the last 5 minutes' requests that ended with `error`, `worker_died` or `timeout`; clients that left "
        "are not counted. Unknown while there are no requests.",
        f'(sum(instance_model_outcome:corral_requests:rate5m{{{ON}, outcome=~"error|worker_died|timeout"}}) or '
        f'0 * sum(instance_model_outcome:corral_requests:rate5m{{{ON}, outcome!="client_gone"}})) / '
        f'(sum(instance_model_outcome:corral_requests:rate5m{{{ON}, outcome!="client_gone"}}) > 0)',
        "percentunit",
        thresholds=[(0.01, YELLOW), (0.05, RED)],
    )
    yield figure(
        "Requests a second",
        "Requests that ended, over the last 5 minutes.",
        f"sum(instance_model:corral_requests:rate5m{{{ON}}})",
        "reqps",
    )
    yield figure(
        "Generated tokens a second",
        "By all models together, over the last minute.",
        f"sum(instance_model:corral_generated_tokens:rate1m{{{ON}}})",
    )
    yield figure(
        "Prompt tokens a second",
        "Computed and found in the cache, by all models together, over the last minute.",
        f"sum(instance_model_source:corral_prompt_tokens:rate1m{{{ON}}})",
    )
    yield figure(
        "Open streams",
        "Answers that are being streamed to clients now.",
        f'sum(corral_open_streams{{{SERVER}, kind="answers"}})',
    )
    yield figure(
        "Configuration",
        "Whether models.yaml as it stands is in force. If not, the server goes on with what it knew: `corral check`.",
        f"min(corral_catalog_reload_success{{{SERVER}}})",
        words={0: ("invalid", RED), 1: ("in force", GREEN)},
        is_now=True,
    )
    yield figure(
        "Alerts",
        "Alerts of Corral that fire.",
        'count(ALERTS{alertname=~"Corral.*", alertstate="firing"}) or vector(0)',
        thresholds=[(1, RED)],
        is_now=True,
    )
    yield Panel(
        "Requests by outcome",
        "`rejected` was refused before any work was done; `client_gone` left before its answer was complete.",
        [Target(rate("corral_requests_total", "outcome"), "{{outcome}}")],
        "reqps",
        is_stacked=True,
        colors={
            "ok": GREEN,
            "client_gone": GREY,
            "rejected": YELLOW,
            "timeout": ORANGE,
            "error": RED,
            "worker_died": PURPLE,
        },
    )
    yield Panel(
        "Generated tokens",
        "What each model generates.",
        [Target(rate("corral_generated_tokens_total"))],
        "short",
        is_stacked=True,
    )
    yield Panel(
        "Waiting requests by model",
        "A line that grows while slots are free hints at a model that does not fit: see `waiting_for` in `corral ps`.",
        [Target(f"sum by (model) (corral_queue_length{{{ON}}})")],
        is_stacked=True,
    )


def latency() -> Iterator[Panel]:
    """Yield how long clients wait for what."""
    yield Panel(
        "First byte of streams",
        "From the arrival of a request at the router to the first byte of its streamed answer: waiting, loading and "
        "reading the prompt. What clients feel.",
        quantiles("corral_time_to_first_byte_seconds", steps=(50, 90, 99)),
        "s",
        thresholds=[(5, YELLOW), (30, RED)],
        has_exemplars=True,
    )
    yield Panel(
        "Between two tokens",
        "Within one answer. People read about 10 tokens a second.",
        quantiles("corral_inter_token_seconds", steps=(50, 90, 99)),
        "s",
        thresholds=[(0.1, YELLOW), (0.5, RED)],
    )
    yield Panel(
        "Whole requests",
        "From the arrival of a request to the end of its reply, streamed or not.",
        quantiles("corral_request_seconds"),
        "s",
        has_exemplars=True,
    )
    yield Panel(
        "Waiting for a place",
        "How long requests waited in line, without the time in which their model was loading.",
        quantiles("corral_queue_wait_seconds"),
        "s",
        thresholds=[(5, YELLOW), (30, RED)],
    )
    yield Panel(
        "Waiting for a load",
        "How long requests waited for their model to be loaded; only those that did, since the server's start.",
        quantiles("corral_load_wait_seconds", is_of_all=True),
        "s",
    )
    yield Panel(
        "First token in the worker",
        "From the arrival of a request at the worker to its first token: waiting for a slot, and reading the prompt.",
        quantiles("corral_time_to_first_token_seconds"),
        "s",
    )
    yield Panel(
        "First byte, all of them",
        "How many streams started after how long.",
        [Target(f"sum by (le) (increase(corral_time_to_first_byte_seconds_bucket{{{ON}}}{RATE}))", "{{le}}")],
        "short",
        kind="heatmap",
        width=12,
        height=8,
    )
    yield Panel(
        "Whole requests, all of them",
        "How many requests took how long.",
        [Target(f"sum by (le) (increase(corral_request_seconds_bucket{{{ON}}}{RATE}))", "{{le}}")],
        "short",
        kind="heatmap",
        width=12,
        height=8,
    )


def tokens() -> Iterator[Panel]:
    """Yield what is read and what is written."""
    yield Panel(
        "Prompt tokens by source",
        "`cached` did not have to be computed: an earlier request had the same beginning.",
        [Target(rate("corral_prompt_tokens_total", "source"), "{{source}}")],
        is_stacked=True,
        colors={"computed": BLUE, "cached": GREEN},
    )
    yield Panel(
        "Cached share of prompts",
        "The higher, the better: system prompts and conversations that go on should be found again.",
        [
            Target(
                per(
                    "corral_prompt_tokens_total",
                    "corral_prompt_tokens_total",
                    on=f'{ON}, source="cached"',
                )
            )
        ],
        "percentunit",
    )
    yield Panel(
        "Speed of reading prompts",
        "Tokens that are computed in a second of reading prompts, by all requests of a model together.",
        [Target(per("corral_prompt_tokens_total", "corral_prefill_seconds_total", on=f'{ON}, source="computed"'))],
    )
    yield Panel(
        "Speed of generating",
        "Tokens in a second of generating, by all answers of a model together.",
        [Target(per("corral_generated_tokens_total", "corral_generation_seconds_total"))],
    )
    yield Panel(
        "Time of the engine",
        "How much of each second the engines read prompts and generate.",
        [
            Target(rate("corral_prefill_seconds_total"), "{{model}} prompts"),
            Target(rate("corral_generation_seconds_total"), "{{model}} generation"),
        ],
        "percentunit",
    )
    yield Panel(
        "Drafted tokens that were right",
        "Share of the tokens that were drafted ahead; empty for models that draft nothing.",
        [Target(per("corral_accepted_tokens_total", "corral_drafted_tokens_total"))],
        "percentunit",
    )


ROWS = (("At a glance", tuple(glance())), ("Latency", tuple(latency())), ("Tokens", tuple(tokens())))
