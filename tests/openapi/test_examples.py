"""The examples of openapi.json work: each reader makes a job of them, and the models they name are shipped."""

from __future__ import annotations

import html
from dataclasses import replace

import orjson
import pytest
import yaml

from openapi.document import ROOT, document
from openapi.examples import EXAMPLES, NOT_SHIPPED
from router.api_page import render_page
from tests.fakes.embedder import embedding_engine
from tests.worker.api.test_any_body import is_job, models, read
from worker.app import ROUTES

MAIN = {
    *("/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/rerank", "/v1/responses", "/v1/messages"),
    *("/api/chat", "/api/generate", "/completion", "/infill", "/tokenize"),
}


def test_every_main_route_has_an_example() -> None:
    assert MAIN <= EXAMPLES.keys() <= {route.path for route in ROUTES}


@pytest.mark.parametrize("path", EXAMPLES)
def test_example_is_understood(path: str) -> None:
    (route,) = (route for route in ROUTES if route.path == path)
    text, _, ranking = models()
    engine = embedding_engine(pooling="rank")
    engine.facts = replace(engine.facts, embedding_context=512)
    model = replace(ranking, engine=engine) if path == "/v1/rerank" else text
    found = read(route, model, orjson.dumps(EXAMPLES[path]))
    assert is_job(found), found


def test_examples_name_models_that_are_shipped() -> None:
    shipped = yaml.safe_load((ROOT / "models.yaml").read_text(encoding="utf-8"))["models"]
    named = {example["model"] for example in EXAMPLES.values()}
    assert named <= shipped.keys() | NOT_SHIPPED
    assert not NOT_SHIPPED & shipped.keys()


def test_examples_are_in_the_document_and_on_the_page_as_commands() -> None:
    described = document()
    page = html.unescape(render_page(described))
    for path, body in EXAMPLES.items():
        assert described["paths"][path]["post"]["requestBody"]["content"]["application/json"]["example"] == body
        text = orjson.dumps(body).decode()
        assert "'" not in text, "it stands between apostrophes in a shell command"
        command = page.partition(f"curl 127.0.0.1:8080{path} -d '")[2].partition("'</code>")[0]
        assert orjson.loads(command) == body
