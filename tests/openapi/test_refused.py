"""What openapi.json lists as refused is what the readers refuse."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from openapi.document import document
from openapi.examples import EXAMPLES
from openapi.refused import AS_ON, SAMPLES, TABLES, WITH_OPTIONS, harmless_values, refusals
from tests.support.json_bodies import example
from tests.worker.api.test_any_body import described_by, models, read
from worker.api.refusals import never
from worker.api.refused_ollama import ALL_OPTIONS
from worker.app import ROUTES
from worker.errors import RequestError

UNLIKELY = {"nobody": "would send this"}


def body_for(path: str) -> dict[str, Any]:
    if path in EXAMPLES:
        return dict(EXAMPLES[path])
    (fields,) = (route.fields for route in ROUTES if route.path == path)
    assert fields is not None
    schema = described_by()[fields.__name__]
    return {name: example(schema["properties"][name], described_by()) for name in schema.get("required", ())}


def test_every_route_to_a_worker_says_what_it_refuses() -> None:
    assert TABLES.keys() | AS_ON.keys() == {route.path for route in ROUTES}
    assert set(AS_ON.values()) <= TABLES.keys()


@pytest.mark.parametrize("path", TABLES)
def test_listed_fields_are_refused_by_the_route(path: str) -> None:
    (route,) = (route for route in ROUTES if route.path == path)
    model = models()[2 if path == "/v1/rerank" else 0]
    for name in TABLES[path]:
        refusal = read(route, model, orjson.dumps(body_for(path) | {name: UNLIKELY}))
        assert isinstance(refusal, RequestError), name
        assert refusal.param == name
    for name in ALL_OPTIONS if path in WITH_OPTIONS else ():
        refusal = read(route, model, orjson.dumps(body_for(path) | {"options": {name: UNLIKELY}}))
        assert isinstance(refusal, RequestError), name
        assert refusal.param == f"options.{name}"


@pytest.mark.parametrize("path", AS_ON)
def test_counting_refuses_the_same_as_answering(path: str) -> None:
    (route,) = (route for route in ROUTES if route.path == path)
    for name in TABLES[AS_ON[path]]:
        refusal = read(route, models()[0], orjson.dumps(body_for(AS_ON[path]) | {name: UNLIKELY}))
        assert isinstance(refusal, RequestError), name


def test_every_value_that_passes_is_told() -> None:
    untold = {
        name
        for table in (*TABLES.values(), ALL_OPTIONS)
        for name, refused in table.items()
        if refused.passes is not never and not harmless_values(refused.passes)
    }
    assert not untold, f"add to SAMPLES in openapi/refused.py what these pass with: {untold}"
    assert len(SAMPLES) == len({orjson.dumps(value) for value in SAMPLES})


def test_description_of_chat_lists_what_clients_ask_for_most() -> None:
    operation = document()["paths"]["/v1/chat/completions"]["post"]
    text = operation["description"]
    assert "`best_of`" in text
    assert "`web_search_options`" in text
    assert refusals("/v1/chat/completions")[0] in text
    tools = document()["components"]["schemas"]["ChatFields"]["properties"]
    assert "Functions that the model may call" in tools["tools"]["description"]
    assert "one call at least" in tools["tool_choice"]["description"]
    assert "json_schema" in tools["response_format"]["description"]
