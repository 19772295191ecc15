"""What the dashboard shows of the machine: engines, memory, workers, and the router's own process.

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
    average,
    events,
    per,
    quantiles,
    rate,
)

STATES = {
    "unloaded": GREY,
    "starting": "light-blue",
    "loading": BLUE,
    "ready": GREEN,
    "draining": YELLOW,
    "stopping": ORANGE,
    "backoff": "light-red",
    "failed": RED,
    "unavailable": PURPLE,
}


def state_number() -> str:
    """Return each model's state as a number: its place in `STATES`, from 1."""
    parts = [f'corral_worker_state{{{ON}, state="{name}"}} * {n}' for n, name in enumerate(STATES, start=1)]
    return f"max by (instance, model) ({' or '.join(parts)})"


def engine() -> Iterator[Panel]:
    """Yield how well the engines are used."""
    yield Panel(
        "Slots by state",
        "Each slot answers one request at a time. All busy, with requests waiting: more `slots` may help.",
        [Target(f"sum by (state) (corral_slots{{{ON}}})", "{{state}}")],
        is_stacked=True,
        colors={
            "idle": GREY,
            "started": "light-blue",
            "processing_prompt": BLUE,
            "done_prompt": "light-green",
            "generating": GREEN,
        },
    )
    yield Panel(
        "Busy slots in a pass",
        "Answers that share one forward pass, on average.",
        [Target(average("corral_batch_busy_slots"))],
    )
    yield Panel(
        "Fill of a pass",
        "Tokens of a forward pass, of those that it could have: few while generating, many while reading prompts.",
        [Target(f"{average('corral_batch_rows')} / max by (model) (corral_batch_rows_max{{{ON}}})")],
        "percentunit",
    )
    yield Panel(
        "Passes a second",
        "Forward passes of each model.",
        [Target(rate("corral_forward_total"))],
        "ops",
    )
    yield Panel(
        "Length of a pass",
        "How long a forward pass takes, on average. It grows with the tokens in it and before it.",
        [Target(per("corral_forward_seconds_total", "corral_forward_total"))],
        "s",
    )
    yield Panel(
        "Time around the passes",
        "Share of a step that is not the pass itself: sampling, grammars, bookkeeping.",
        [Target(f"1 - {per('corral_forward_seconds_total', 'corral_step_seconds_total')}")],
        "percentunit",
    )
    yield Panel(
        "KV cells",
        "Each token that a model remembers takes one: `used` by running answers, `shared` by several, `idle` kept for "
        "requests that begin the same.",
        [
            Target(f'sum by (kind) (corral_kv_cells{{{ON}, kind!="total"}})', "{{kind}}"),
            Target(f'sum(corral_kv_cells{{{ON}, kind="total"}})', "total"),
        ],
    )
    yield Panel(
        "Prompts found in the cache",
        "Share of requests whose prompt began like an earlier one.",
        [
            Target(
                per(
                    "corral_prefix_cache_requests_total",
                    "corral_prefix_cache_requests_total",
                    on=f'{ON}, result="hit"',
                )
            )
        ],
        "percentunit",
    )
    yield Panel(
        "Room made in the cache",
        "Finished prompts that lost their cells or their copy in memory, and answers that had to pause (`parked`). "
        "Often: give the model more `kv_tokens`.",
        [
            Target(rate("corral_prefix_cache_evictions_total", "kind"), "evicted: {{kind}}"),
            Target(f"sum(rate(corral_parked_sequences_total{{{ON}}}{RATE}))", "parked"),
        ],
        "ops",
    )
    yield Panel(
        "Waiting inside workers",
        "Requests that a worker has taken and that hold no slot yet.",
        [Target(f"sum by (model) (corral_worker_queue_length{{{ON}}})")],
    )
    yield Panel(
        "Work without progress",
        "How long an engine has had work without completing a pass. It is replaced when this goes on.",
        [Target(f"max by (model, replica) (corral_worker_stuck_seconds{{{ON}}})", "{{model}} {{replica}}")],
        "s",
        thresholds=[(30, YELLOW), (60, RED)],
    )
    yield Panel(
        "Steps that failed",
        "Passes that llama.cpp refused, and that were made good. Now and then is no reason to worry.",
        [Target(rate("corral_failed_steps_total"))],
        "ops",
    )


def memory() -> Iterator[Panel]:
    """Yield who has which memory."""
    yield Panel(
        "Memory of devices",
        "Reserved for workers, and used by other programs. `usable` is the most that models may have together.",
        [
            Target(
                f'sum by (device, kind) (corral_device_memory_bytes{{{SERVER}, kind!="free"}})',
                "{{device}} {{kind}}",
            )
        ],
        "bytes",
        width=12,
    )
    yield Panel(
        "Used of each device",
        "Reserved and used by others, of all that there is.",
        [
            Target(
                f"max by (instance, device) (instance_device:corral_device_memory_used:ratio{{{SERVER}}})", "{{device}}"
            )
        ],
        "percentunit",
        kind="bargauge",
        width=12,
        thresholds=[(0.85, YELLOW), (0.95, RED)],
    )
    yield Panel(
        "Reserved for workers",
        "What was set aside for each model on each device when it was loaded.",
        [Target(f"sum by (model, device) (corral_worker_reserved_bytes{{{ON}}})", "{{model}} on {{device}}")],
        "bytes",
        is_stacked=True,
    )
    yield Panel(
        "Allocated on devices",
        "What workers have really allocated: weights, memory for tokens (kv), room to compute.",
        [
            Target(
                f"sum by (device, kind) (corral_worker_device_bytes{{{ON}}})",
                "{{device}} {{kind}}",
            )
        ],
        "bytes",
        is_stacked=True,
    )
    yield Panel(
        "Memory of worker processes",
        "`private` is what no other process could share; weights are mapped from their file and may be shared.",
        [
            Target(
                f'sum by (model, kind) (corral_worker_memory_bytes{{{ON}, kind=~"private|rss"}})', "{{model}} {{kind}}"
            )
        ],
        "bytes",
    )


def workers() -> Iterator[Panel]:
    """Yield what becomes of the models' processes."""
    words = {n: (name, color) for n, (name, color) in enumerate(STATES.items(), start=1)}
    yield Panel(
        "States of models",
        "`backoff` waits for its next try, `failed` needs a repair, `unavailable` lacks a file.",
        [Target(state_number(), "{{model}}")],
        kind="state-timeline",
        width=24,
        height=9,
        words=words,
    )
    yield Panel(
        "Starts",
        "Workers that were started, and those of them that replace one which had failed.",
        [
            Target(events("corral_worker_starts_total", "model"), "{{model}}"),
            Target(events("corral_worker_restarts_total", "model"), "{{model}} again"),
        ],
        is_bars=True,
        is_stacked=True,
    )
    yield Panel(
        "Ends by reason",
        "`stopped` was asked for and `no_room` made room; everything else is a failure.",
        [Target(events("corral_worker_exits_total", "reason"), "{{reason}}")],
        is_bars=True,
        is_stacked=True,
    )
    yield Panel(
        "Made room for others",
        "Models that were unloaded because another one needed their place. Often: too little memory for what is asked.",
        [Target(events("corral_evictions_total", "model"))],
        is_bars=True,
        is_stacked=True,
    )
    of_phases = f'{ON}, phase!="total"'
    yield Panel(
        "Loads by phase",
        "How long each phase takes on average, of all loads since the server's start: fetching the file, starting the "
        "process, reading the file, warming up.",
        [
            Target(
                f"sum by (phase) (corral_load_seconds_sum{{{of_phases}}}) / "
                f"sum by (phase) (corral_load_seconds_count{{{of_phases}}})",
                "{{phase}}",
            )
        ],
        "s",
        is_stacked=True,
    )
    yield Panel(
        "Whole loads",
        "From the decision to load a model to its being ready, of all loads since the server's start.",
        quantiles("corral_load_seconds", on=f'{ON}, phase="total"', is_of_all=True),
        "s",
    )
    yield Panel(
        "Places",
        "Requests that hold a place on a worker, and how many may.",
        [
            Target(f"sum by (model) (corral_leases_held{{{ON}}})", "{{model}}"),
            Target(f"sum by (model) (corral_leases_max{{{ON}}})", "{{model}} at most"),
        ],
    )


def router() -> Iterator[Panel]:
    """Yield how the router itself is."""
    yield Panel(
        "Processor",
        "Cores that the router takes. One is the most that it can use.",
        [Target(f'rate(process_cpu_seconds_total{{job="corral", {SERVER}}}{RATE})', "{{instance}}")],
        thresholds=[(0.7, YELLOW), (0.9, RED)],
    )
    yield Panel(
        "Memory",
        "Resident memory of the router; workers have their own.",
        [
            Target(f'process_resident_memory_bytes{{job="corral", {SERVER}}}', "{{instance}}"),
            Target(f"sum by (instance) (corral_request_body_bytes{{{SERVER}}})", "{{instance}} bodies of requests"),
            Target(f"sum by (instance) (corral_kept_responses_bytes{{{SERVER}}})", "{{instance}} kept responses"),
        ],
        "bytes",
    )
    yield Panel(
        "File descriptors",
        "Of those that the process may have. A running answer takes two.",
        [Target(f"instance:corral_open_fds:ratio{{{SERVER}}}", "{{instance}}")],
        "percentunit",
        thresholds=[(0.6, YELLOW), (0.8, RED)],
    )
    yield Panel(
        "Lateness",
        "By how much the router misses its own timer: when this grows, everything that clients get is late.",
        quantiles("corral_event_loop_lag_seconds", "instance", SERVER, (50, 99)),
        "s",
        thresholds=[(0.1, YELLOW), (0.5, RED)],
    )
    yield Panel(
        "Open streams",
        "Replies that go on until their client leaves or they are complete.",
        [Target(f"sum by (kind) (corral_open_streams{{{SERVER}}})", "{{kind}}")],
        is_stacked=True,
    )
    yield Panel(
        "Configuration",
        "Attempts to take over a changed models.yaml.",
        [Target(events("corral_catalog_reloads_total", "result", SERVER), "{{result}}")],
        is_bars=True,
        is_stacked=True,
    )
    yield Panel(
        "Versions",
        "What runs where, and since when.",
        [
            Target(f"corral_build_info{{{SERVER}}}", ""),
        ],
        kind="table",
        width=12,
        height=5,
    )
    yield Panel(
        "Alerts that fire",
        "Each has a section in docs/operations.md.",
        [Target('ALERTS{alertname=~"Corral.*", alertstate="firing"}', "")],
        kind="table",
        width=12,
        height=5,
        no_value="none",
    )


ROWS = (
    ("Engine", tuple(engine())),
    ("Memory and devices", tuple(memory())),
    ("Workers", tuple(workers())),
    ("Router", tuple(router())),
)
