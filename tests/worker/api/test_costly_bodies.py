"""Bodies that are cheap to send and would be costly to answer: each limit has a refusal that names the field."""

from __future__ import annotations

import time
from typing import Any

import orjson
import pytest

from tests.support.json_bodies import example
from tests.worker.api.test_any_body import described_by, models, read
from worker.app import ROUTES, Route
from worker.errors import RequestError

TOO_MUCH: dict[str, Any] = {
    "stop": ["a"] * 1_000_000,
    "stop_sequences": ["a"] * 100_000,
    "n": 1000,
    "n_cmpl": 1000,
    "best_of": 1000,
    "top_logprobs": 1_000_000,
    "n_probs": 1_000_000,
    "input": ["a"] * 10_000,
    "documents": ["a"] * 10_000,
    "prompt": ["a"] * 10_000,
    "content": ["a"] * 10_000,
    "input_extra": [{"filename": "a", "text": "b"}] * 10_000,
    "response_fields": ["a"] * 100_000,
    "logit_bias": {str(token): 1 for token in range(100_000)},
    "samplers": ["top_k"] * 100_000,
    "dry_sequence_breakers": ["a"] * 100_000,
    "lora": [{"id": 0}] * 100_000,
}
MAY_BE_LONG = frozenset({("/v1/responses", "input"), ("/v1/responses/input_tokens", "input"), ("/tokenize", "content")})
"""A conversation, or one text in pieces."""
WITHIN_CPU_S = 10.0
"""Much more than any of them takes; counted is this thread's own time, whatever else the machine does."""

CASES = [
    (route, name)
    for route in ROUTES
    for name in sorted(TOO_MUCH.keys() & route.fields.model_fields.keys())
    if (route.path, name) not in MAY_BE_LONG
]


@pytest.mark.parametrize(("route", "name"), CASES, ids=[f"{route.path} {name}" for route, name in CASES])
def test_field_that_asks_for_too_much_is_refused_by_name(route: Route, name: str) -> None:
    schemas = described_by()
    schema = schemas[route.fields.__name__]
    right = {needed: example(schema["properties"][needed], schemas) for needed in schema.get("required", ())}
    body = orjson.dumps(right | {name: TOO_MUCH[name]})
    started_s = time.thread_time()
    refusals = [read(route, model, body) for model in models()]
    assert time.thread_time() - started_s < WITHIN_CPU_S
    told = [one for one in refusals if isinstance(one, RequestError)]
    assert len(told) == len(refusals), "no model takes it"
    assert name in {one.param for one in told}, [str(one)[:200] for one in told]
    assert all(len(str(one)) < 1000 for one in told), "the message does not repeat the body"


def test_every_limit_is_tried_on_some_route() -> None:
    assert {name for _, name in CASES} >= TOO_MUCH.keys() - {"best_of", "n_cmpl", "n_probs", "stop_sequences"}
