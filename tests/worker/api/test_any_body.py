"""Whatever comes to a dialect, its reader makes a job of it or refuses it by name: nothing else ever leaves it."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import orjson
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from openapi.bodies import body_schemas
from tests.fakes.embedder import FakeEmbedder, embedding_engine
from tests.fakes.engine import FakeEngine, FakeVocabulary
from tests.support.json_bodies import ANYTHING, Schema, bodies, example, fitting
from worker.api import refusals
from worker.api.fields import Fields, read_fields
from worker.api.formatter import Piece
from worker.api.pooled import PooledJob, check_can_generate
from worker.api.refused_anthropic import MESSAGES
from worker.api.refused_llama import APPLY_TEMPLATE, LLAMA, LLAMA_EMBEDDING, TOKENIZE
from worker.api.refused_ollama import ALL_OPTIONS, OLLAMA_CHAT, OLLAMA_EMBED, OLLAMA_EMBEDDINGS, OLLAMA_GENERATE
from worker.api.refused_openai import CHAT, COMPLETIONS, EMBEDDINGS, RERANK
from worker.api.refused_responses import RESPONSES
from worker.api.served import Envelope, Job, ReadyJob, ServedModel
from worker.app import ROUTES, Route
from worker.chat.deltas import TextDelta
from worker.chat.template import ChatTemplate
from worker.contract import LoraFile
from worker.engine.pair_prompt import PairPrompt
from worker.errors import RequestError

TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content | trim }}"
    "{% for c in m.tool_calls or [] %}{{ c.function.name }}{{ c.function.arguments | tojson }}{% endfor %}<|im_end|>\n"
    "{% endfor %}{% if tools %}{{ tools | tojson }}{% endif %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
LIMITS = settings(
    max_examples=30,
    deadline=None,
    derandomize=True,
    database=None,
    phases=(Phase.generate,),
    suppress_health_check=list(HealthCheck),
)
"""The same bodies every time, so that a run that fails can be repeated; none is made smaller, which takes minutes."""

TABLES = (
    *(CHAT, COMPLETIONS, EMBEDDINGS, RERANK, LLAMA, LLAMA_EMBEDDING, APPLY_TEMPLATE, TOKENIZE, MESSAGES, RESPONSES),
    *(OLLAMA_GENERATE, OLLAMA_CHAT, ALL_OPTIONS, OLLAMA_EMBED, OLLAMA_EMBEDDINGS),
)
REFUSED = tuple(sorted({name for table in TABLES for name in table}))
"""Fields that some dialect refuses."""

BODIES = sorted({route.fields for route in ROUTES}, key=str)

DEEP = [functools.reduce(wrap, range(200), {}) for wrap in (lambda inner, _: [inner], lambda inner, _: {"a": inner})]
WRONG = (*DEEP, 2**63, 2**64 - 1, -(2**63), 1e308, -1e308, 5e-324, 2.5, True, "", "\x00", [], {}, [None], [[]], [{}])


@functools.cache
def described_by() -> Mapping[str, Schema]:
    return body_schemas({})


@functools.cache
def models() -> tuple[ServedModel, ...]:
    """Return a model that generates and embeds, one that embeds only, and a reranker."""
    engine = FakeEngine(FakeVocabulary(has_fim=True))
    vocabulary = engine.vocabulary
    engine.facts = replace(engine.facts, pooling="last", embedding_size=4, embedding_context=16)
    template = ChatTemplate(TEMPLATE, bos_text="<s>", eos_text="</s>", control_texts=vocabulary.control_texts)
    text = ServedModel(
        "text",
        engine,
        vocabulary,
        template,
        template_source=TEMPLATE,
        embedder=FakeEmbedder(),
        loras=(LoraFile("formal", "/formal.gguf", 1.0),),
    )
    embedding, ranking = embedding_engine(), embedding_engine(pooling="rank")
    pairs = PairPrompt(ranking.vocabulary, between=(0,))
    return (
        text,
        ServedModel("embedding", embedding, embedding.vocabulary, embedder=FakeEmbedder()),
        ServedModel("ranking", ranking, ranking.vocabulary, embedder=FakeEmbedder(), pair_prompt=pairs),
    )


def read(route: Route, model: ServedModel, body: bytes) -> Job | PooledJob | ReadyJob | RequestError:
    """Return what comes of `body`; everything else that is raised is a fault."""
    try:
        if route.generates:
            check_can_generate(model)
        return route.read(model, body, Envelope(request_id="r1", created=1_700_000_000, seed=7))
    except RequestError as error:
        refusal = error
    assert refusal.status in (400, 501), f"{refusal.status} is no answer to a wrong body: {refusal}"
    assert str(refusal).encode("utf-8", "replace")
    return refusal


def is_job(found: object) -> bool:
    return isinstance(found, Job | PooledJob | ReadyJob)


@pytest.mark.parametrize("route", ROUTES, ids=lambda route: route.path)
def test_every_json_object_becomes_a_job_or_is_refused(route: Route) -> None:
    schemas = described_by()
    outcomes: set[bool] = set()

    @LIMITS
    @given(body=bodies(schemas[route.fields.__name__], schemas, REFUSED))
    def check(body: dict[str, Any]) -> None:
        data = orjson.dumps(body)
        outcomes.update(is_job(read(route, model, data)) for model in models())

    check()
    assert outcomes == {True, False}, "some bodies are right and some are wrong"


@pytest.mark.parametrize("route", ROUTES, ids=lambda route: route.path)
def test_everything_that_is_no_json_object_is_refused(route: Route) -> None:
    @LIMITS
    @given(
        body=st.one_of(st.binary(max_size=40), ANYTHING.filter(lambda one: not isinstance(one, dict)).map(orjson.dumps))
    )
    def check(body: bytes) -> None:
        assert isinstance(read(route, models()[0], body), RequestError)

    check()
    for body in (b"", b"[]", b"null", b"NaN", b'{"a":NaN}', b'{"model":"\xff"}', b'{"a":"\\ud800"}', b"[" * 100_000):
        assert isinstance(read(route, models()[0], body), RequestError)


@pytest.mark.parametrize("route", ROUTES, ids=lambda route: route.path)
def test_wrong_values_in_each_field_are_refused_or_understood(route: Route) -> None:
    schema = described_by()[route.fields.__name__]
    right = {name: example(schema["properties"][name], described_by()) for name in schema.get("required", ())}
    for name in schema["properties"]:
        for value in WRONG:
            for model in models():
                read(route, model, orjson.dumps(right | {name: value}))


@pytest.mark.parametrize("fields", BODIES, ids=lambda one: one.__name__)
def test_what_the_schema_of_a_field_allows_the_field_takes(fields: type[Fields]) -> None:
    schemas = described_by()
    schema = schemas[fields.__name__]
    right = {name: example(schema["properties"][name], schemas) for name in schema.get("required", ())}

    @settings(LIMITS, max_examples=6)
    @given(st.data())
    def check(data: st.DataObject) -> None:
        for name in fields.model_fields:
            value = data.draw(fitting(schema["properties"][name], schemas), label=name)
            read_fields(fields, right | {name: value})

    check()


def test_message_shows_a_number_of_any_size_and_stays_short() -> None:
    assert refusals.show(10**300) == "1" + "0" * 56 + "..."
    assert refusals.show(1e300) == "1e+300"


def test_number_that_counts_nothing_is_no_integer_whatever_its_size() -> None:
    route = next(route for route in ROUTES if route.path == "/v1/completions")
    refusal = read(route, models()[0], b'{"prompt":"a","max_tokens":1e300}')
    assert isinstance(refusal, RequestError)
    assert (refusal.param, "1e+300" in str(refusal)) == ("max_tokens", True)
    assert is_job(read(route, models()[0], b'{"prompt":"a","max_tokens":5.0}'))


def test_name_of_a_model_may_be_what_a_formatter_looks_for() -> None:
    route = next(route for route in ROUTES if route.path == "/api/chat")
    body = orjson.dumps({"model": "\x00", "messages": [{"role": "user", "content": "hi"}]})
    job = read(route, models()[0], body)
    assert isinstance(job, Job)
    line = job.formatter.piece(0, Piece(TextDelta("red")))
    assert orjson.loads(line)["message"]["content"] == "red"
    assert orjson.loads(line)["model"] == "\x00"
