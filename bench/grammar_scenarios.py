"""What is driven for constrained answers: their speed beside that of free ones, and what others feel of them.

Raises RuntimeError when the server does not do what the scenario needs; must not know what a figure has to reach.
"""

from __future__ import annotations

import asyncio
import json
import statistics
from typing import Any

from bench.client import Answer, tokens_per_second
from bench.figures import Figure
from bench.grammar_libraries import measure_libraries
from bench.scenarios import CHANCE, Scenario
from bench.schema_corpora import count_corpus
from bench.servers import Running
from bench.texts import words

FREE = "free generation"
CONSTRAINED = "constrained generation"
OF_FREE = "constrained, of free"
GAP_BESIDE = "largest gap of free streams beside new schemas"
GAP_OF_FREE = "that gap, of the one without"
NUM_BESIDE = 4
"""Streams that others are disturbed by, or not."""


def endless_schema(number: int = 0) -> dict[str, Any]:
    """Return the schema of a list that no answer of the bench comes to the end of; each number gives another one."""
    person = {
        "type": "object",
        "properties": {
            "name": {"type": "string", "maxLength": 40},
            f"age{number or ''}": {"type": "integer", "minimum": 0, "maximum": 120},
            "colour": {"enum": ["red", "green", "blue", "yellow"]},
            "tags": {"type": "array", "items": {"type": "string", "maxLength": 20}, "minItems": 1, "maxItems": 4},
            "address": {
                "type": "object",
                "properties": {"street": {"type": "string", "maxLength": 30}, "number": {"type": "integer"}},
                "required": ["street", "number"],
                "additionalProperties": False,
            },
        },
        "required": ["name", f"age{number or ''}", "colour", "tags", "address"],
        "additionalProperties": False,
    }
    return {"type": "array", "items": person, "minItems": 100}


def constrained(streams: int, max_tokens: int) -> Scenario:
    """Free and constrained answers in turn, so that a drift of the machine harms both alike."""

    async def run(server: Running) -> list[Figure]:
        prompts = [f"People as JSON, number {i}:\n" for i in range(streams)]
        await server.client.together(prompts, 8, json_schema=endless_schema(), **CHANCE)  # compiled once
        free: list[float] = []
        held: list[float] = []
        for turn in range(4):
            for speeds, fields in ((free, {}), (held, {"json_schema": endless_schema()}))[:: 1 if turn % 2 else -1]:
                answers = await server.client.together(prompts, max_tokens, **fields, **CHANCE)
                speeds.append(tokens_per_second(answers))
                if fields:
                    _check_beginning(answers)
        speed = statistics.median(held)
        return [
            Figure(FREE, statistics.median(free), "tok/s", is_more_better=True),
            Figure(CONSTRAINED, speed, "tok/s", is_more_better=True),
            Figure(OF_FREE, speed / statistics.median(free), "x", is_more_better=True),
        ]

    return run


def _check_beginning(answers: list[Answer]) -> None:
    for answer in answers:
        if not answer.text.lstrip().startswith("["):
            raise RuntimeError(f"an answer is no list: {answer.text[:40]!r}")


async def beside_new_schemas(server: Running) -> list[Figure]:
    """Free streams, alone and while requests with schemas that were never seen before come one after another."""
    prompts = [words(8, i) for i in range(NUM_BESIDE)]
    await server.client.complete("JSON:\n", 2, json_schema=endless_schema(1))  # what is made once for all grammars
    alone = await server.client.together(prompts, 64, **CHANCE)
    running = asyncio.create_task(server.client.together(prompts, 64, **CHANCE))
    number = 2
    while not running.done():
        answer = await server.client.complete("JSON:\n", 1, json_schema=endless_schema(number))
        if answer.error is not None:
            raise RuntimeError(answer.error)
        number += 1
    beside = await running
    gaps = [max(answer.largest_gap_s() for answer in answers) for answers in (alone, beside)]
    return [
        Figure(GAP_BESIDE, gaps[1], "s", is_more_better=False),
        Figure(GAP_OF_FREE, gaps[1] / gaps[0], "x", is_more_better=False),
    ]


async def libraries(server: Running) -> list[Figure]:
    """What a token costs in the libraries, without any server: on this vocabulary, for one answer under one schema."""
    return await asyncio.to_thread(measure_libraries, server.model_path, json.dumps(endless_schema()))


async def corpora(_: Running) -> list[Figure]:
    """What becomes of public schemas, and of those that tools really have."""
    counts = await asyncio.to_thread(count_corpus, with_suite=True)
    return [
        Figure(f"{corpus}: {outcome}", count, "schemas", is_more_better=True)
        for corpus, outcomes in counts.items()
        for outcome, count in sorted(outcomes.items())
    ]
