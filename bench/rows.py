"""The rows of the table: who takes part in which scenario, on which model, and what ours must reach.

Every bound is said as our figure divided by another one's. "At least 2.5 times as fast" is then a time of at most 0.4.
"""

from __future__ import annotations

from collections.abc import Sequence

from bench import scenarios as of
from bench.figures import ITSELF, PLAIN, PYTHON, Contestant, Kind, Target
from bench.fleet_rows import FLEET_ROWS
from bench.grammar_rows import GRAMMAR_ROWS
from bench.models import GEMMA3, QWEN, SMOLLM2
from bench.row import UNLIMITED, Row
from bench.tunings import COPY, LONG, PREFIX

MAX_TURNS = {SMOLLM2: UNLIMITED, GEMMA3: 3, QWEN: 3}
"""The other models show that the first is no exception; fewer and shorter runs do for that."""


UNIFIED = Contestant("unified", Kind.PEER, ("-kvu",))
NO_HOST_CACHE = Contestant("cache-ram 0", Kind.PEER, ("--cache-ram", "0"))


def _steady() -> list[Row]:
    target = (Target(of.SPEED, 0.97, aim=1.1),)
    guesses = {
        SMOLLM2: {1: 3.5, 4: 7.0, 8: 11.0, 16: 20.0},
        GEMMA3: {1: 3.0, 4: 5.0, 8: 7.0},
        QWEN: {1: 4.0, 4: 7.0, 8: 12.0},
    }
    tokens = {SMOLLM2: 128, GEMMA3: 32, QWEN: 32}
    return [
        Row(
            f"steady-{model}-{streams}",
            f"steady generation, {streams} stream{'s'[: streams > 1]} of {tokens[model]} tokens",
            of.steady(streams, tokens[model]),
            slots=streams,
            guess_s=guess_s,
            model=model,
            targets=target,
            max_turns=MAX_TURNS[model],
        )
        for model, by_streams in guesses.items()
        for streams, guess_s in by_streams.items()
    ]


def _long() -> list[Row]:
    return [
        Row(
            f"long-{model}",
            "2,500-token prompt beside 4 streams",
            of.long_prompt(),
            slots=5,
            guess_s=guess_s,
            model=model,
            context=4096,
            family=LONG,
            targets=(Target(of.GAP, 0.5, aim=0.25), Target(of.FIRST, 1.0)),
            is_joint=True,
            max_turns=MAX_TURNS[model],
        )
        for model, guess_s in {SMOLLM2: 16.0, GEMMA3: 25.0, QWEN: 40.0}.items()
    ]


def _sampling() -> list[Row]:
    return [
        Row(
            f"sampling-{model}",
            "sampling without top-k, 8 streams of 24 tokens",
            of.sampling_without_top_k(8, 24),
            slots=8,
            guess_s=guess_s,
            model=model,
            targets=targets,
            max_turns=MAX_TURNS[model],
        )
        for model, guess_s, targets in (
            (GEMMA3, 10.0, (Target(of.SPEED, 1.5, aim=3.0),)),
            (QWEN, 10.0, ()),
            (SMOLLM2, 5.0, ()),
        )
    ]


ROWS: Sequence[Row] = (
    *_steady(),
    Row(
        "prefix",
        "24 requests with a common 700-token prefix, 8 slots, and memory",
        of.common_prefix(),
        slots=8,
        guess_s=28.0,
        family=PREFIX,
        extras=(PYTHON,),
        targets=(
            Target(of.TIME, 0.4),
            Target(of.TIME, 1 / 1.3, PYTHON.name),
            Target(of.BOUND, None, ITSELF, aim=1.15),
            Target(of.LOADED, 1.1, aim=0.9),
            Target(of.WORKED, 1.1, aim=0.9),
        ),
    ),
    *_long(),
    Row(
        "conversations",
        "8 conversations of 4 turns with one 500-token prompt, 4 slots",
        of.conversations(),
        slots=4,
        guess_s=30.0,
        family=PREFIX,
        extras=(NO_HOST_CACHE,),
        targets=tuple(
            target
            for computed, of_floor in (of.PLAIN_COUNT, of.BRANCH_COUNT)
            for target in (Target(computed, 1.0), Target(of_floor, 1.05, ITSELF))
        ),
        max_turns=1,  # counts hardly vary
    ),
    Row(
        "overflow",
        "4 requests of 550 tokens each, KV for 2048",
        of.too_much_for_the_cache(),
        slots=4,
        guess_s=16.0,
        kv_tokens=2048,
        extras=(UNIFIED,),
        targets=(Target(of.COMPLETED, 4, ITSELF), Target(of.OF_SEQUENTIAL, 1.2, ITSELF)),
    ),
    *_sampling(),
    Row(
        "copy",
        "copying from a 400-token prompt, 1 stream",
        of.copying(),
        slots=1,
        guess_s=6.0,
        family=COPY,
        extras=(PLAIN,),
        targets=(Target(of.SPEED, 1.0), Target(of.SPEED, None, PLAIN.name, aim=1.5)),
    ),
    Row(
        "no-copy",
        "nothing to copy, 1 stream",
        of.not_copying(),
        slots=1,
        guess_s=5.0,
        family=None,
        extras=(PLAIN,),
        targets=(Target(of.SPEED, 0.97, PLAIN.name),),
    ),
    Row(
        "cancel",
        "a client leaves the only slot",
        of.cancelling,
        slots=1,
        guess_s=9.0,
        context=4096,
        family=LONG,
        targets=(Target(of.FREED_PREFILL, 0.2), Target(of.FREED_GENERATION, 0.2)),
    ),
    Row(
        "step",
        "time of a step, 8 streams",
        of.outside_the_pass,
        slots=8,
        guess_s=14.0,
        family=None,
        targets=(Target(of.OUTSIDE, 5.0, ITSELF, aim=2.0),),
    ),
    *GRAMMAR_ROWS,
    *FLEET_ROWS,
)


def chosen_rows(only: str) -> list[Row]:
    """Return the rows whose key, name or model contains one of the words of `only`, divided by commas; all for none."""
    wanted = [each.strip().lower() for each in only.split(",") if each.strip()]
    return [
        row for row in ROWS if not wanted or any(each in f"{row.key} {row.name} {row.model}".lower() for each in wanted)
    ]
