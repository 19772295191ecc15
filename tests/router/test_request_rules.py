"""A rule about the longest answer holds on every route, whatever the route calls it."""

from __future__ import annotations

from typing import Any

import pytest

from router.answer_limits import ANSWER_LIMITS
from router.catalog import RequestRules
from router.dialects import Dialect
from router.request_rules import LIMIT_NAMES, apply_rules, in_words_of
from tests.support.http_side import http_side, make_catalog, make_spec

ROUTES = [
    ("/v1/chat/completions", "max_tokens"),
    ("/v1/completions", "max_tokens"),
    ("/v1/responses", "max_output_tokens"),
    ("/v1/messages", "max_tokens"),
    ("/completion", "n_predict"),
    ("/infill", "n_predict"),
    ("/api/chat", "num_predict"),
    ("/api/generate", "num_predict"),
]


@pytest.mark.parametrize("ruled", sorted(ANSWER_LIMITS))
@pytest.mark.parametrize(("path", "own"), ROUTES)
async def test_a_forced_limit_binds_every_route_and_replaces_what_the_client_says(
    path: str, own: str, ruled: str
) -> None:
    is_ollama = path.startswith("/api/")
    said: dict[str, Any] = {"options": {own: 100}} if is_ollama else {own: 100}
    async with http_side(make_catalog(make_spec("smol", request=RequestRules(force={ruled: 9})))) as side:
        await side.client.post(path, json={"model": "smol", "prompt": "x", "messages": [{}], "stream": False} | said)
        body = side.worker.received[0].body
    limits = {name: value for name, value in (body["options"] if is_ollama else body).items() if name in ANSWER_LIMITS}
    assert list(limits.values()) == [9], "one limit, and it is the rule's"
    assert limits.keys() <= set(LIMIT_NAMES[_dialect_of(path)]), "under a name that the route knows"


def _dialect_of(path: str) -> Dialect:
    return {
        "/v1/responses": Dialect.RESPONSES,
        "/v1/messages": Dialect.ANTHROPIC,
        "/completion": Dialect.LLAMA,
        "/infill": Dialect.LLAMA,
        "/api/chat": Dialect.OLLAMA,
        "/api/generate": Dialect.OLLAMA,
    }.get(path, Dialect.OPENAI)


@pytest.mark.parametrize(
    ("rules", "body", "expected"),
    [
        ({"defaults": {"max_tokens": 9}}, {}, {"max_output_tokens": 9}),
        ({"defaults": {"max_tokens": 9}}, {"max_output_tokens": 5}, {"max_output_tokens": 5}),
        ({"defaults": {"max_tokens": 9}}, {"max_tokens": 5}, {"max_tokens": 5}),
        ({"drop": ("max_tokens",)}, {"max_output_tokens": 5}, {}),
        ({"force": {"max_output_tokens": 3, "max_tokens": 9}}, {}, {"max_output_tokens": 3}),
    ],
)
def test_defaults_and_drops_reach_the_name_of_the_responses_api(
    rules: dict[str, Any], body: dict[str, Any], expected: dict[str, Any]
) -> None:
    assert apply_rules(RequestRules(**rules), body, Dialect.RESPONSES) == expected


def test_a_name_that_the_dialect_has_stays_as_it_is_written() -> None:
    rules = RequestRules(force={"max_completion_tokens": 9}, drop=("n_predict",))
    assert in_words_of(Dialect.OPENAI, rules) == rules


def test_every_dialect_has_a_name_for_the_limit() -> None:
    assert LIMIT_NAMES.keys() == set(Dialect)
    assert {name for names in LIMIT_NAMES.values() for name in names} == ANSWER_LIMITS
