"""openapi.json: whole, up to date, and what it says of bodies and errors is what the code does."""

from __future__ import annotations

import importlib.resources
import json
import re
from collections.abc import Iterator
from typing import Any

import jsonschema
import pytest

from openapi.bodies import ROUTER_KEYS, body_schemas, public_schemas, sentence
from openapi.document import ROOT, document, read_summaries, shown_path, to_text
from openapi.meanings import PLACES, meaning_of, read_meanings
from openapi.replies import error_schemas, reply_schemas
from router.app import all_routes
from router.body import OwnedKeys
from router.dialects import Dialect, error_body
from router.llama_props import router_props
from worker.api.fields import Fields
from worker.app import ROUTES as WORKER_ROUTES
from worker.contract import ErrorPayload

DESCRIBED = document()
METHODS = {"*": "post"}
"""Routes that answer 501 to every method are shown under one."""


def operations() -> Iterator[tuple[str, dict[str, Any]]]:
    for path, found in DESCRIBED["paths"].items():
        for method, operation in found.items():
            yield f"{method.upper()} {path}", operation


def resolved(response: dict[str, Any]) -> dict[str, Any]:
    """Return what is meant: the response itself, or the one that it refers to."""
    name = response.get("$ref", "").rpartition("/")[2]
    return DESCRIBED["components"]["responses"][name] if name else response


def test_file_is_what_the_program_writes() -> None:
    file = ROOT / "router" / "openapi.json"
    assert file.read_text(encoding="utf-8") == to_text(DESCRIBED), "run: python -m openapi > router/openapi.json"
    assert importlib.resources.files("router").joinpath("openapi.json").is_file()


def test_every_route_is_described_and_no_other() -> None:
    routes = {f"{METHODS.get(route.method, route.method).upper()} {shown_path(route)}" for route in all_routes()}
    assert routes == {label for label, _ in operations()}


def test_every_operation_says_what_it_is_for_and_what_it_answers() -> None:
    ids = [operation["operationId"] for _, operation in operations()]
    assert len(set(ids)) == len(ids)
    for label, operation in operations():
        assert operation["summary"].endswith("."), label
        assert operation["tags"], label
        assert operation["responses"], label
        responses = [resolved(response) for status, response in operation["responses"].items() if status != "204"]
        assert all(response["description"] and response["content"] for response in responses)


def test_every_route_to_a_worker_has_a_body_with_its_fields() -> None:
    named = {operation["requestBody"]["content"]["application/json"]["schema"].get("$ref") for _, operation in bodies()}
    expected = {f"#/components/schemas/{route.fields.__name__}" for route in WORKER_ROUTES}
    assert named - {None} == expected


def bodies() -> list[tuple[str, dict[str, Any]]]:
    return [(label, operation) for label, operation in operations() if "requestBody" in operation]


def test_every_field_says_what_it_must_be_and_what_it_means() -> None:
    """A field's model says what it must be, docs/ what it means: a table in one of the `PLACES` of the body."""
    bare = public_schemas({})
    for body, schema in public_schemas(read_meanings(ROOT / "docs")).items():
        for name, field in schema.get("properties", {}).items():
            assert field.get("description"), f"{body}.{name} has no `description`"
            if name in ROUTER_KEYS and field == ROUTER_KEYS[name]:
                continue
            added = field["description"].removeprefix(bare[body]["properties"][name]["description"])
            meaning = re.sub(r"Default: `.*`\.$", "", added).strip()
            assert meaning, f"docs/ does not tell what {body}.{name} means: see PLACES in openapi/meanings.py"


def test_every_body_has_places_where_its_fields_are_told() -> None:
    assert {route.fields.__name__ for route in WORKER_ROUTES} <= PLACES.keys()
    told = read_meanings(ROOT / "docs").keys()
    assert {place for places in PLACES.values() for place in places} <= told


def test_every_main_member_of_a_reply_says_what_it_is() -> None:
    for path, schema in reply_schemas().items():
        for one in schema.get("anyOf", [schema]):
            for name, member in one.get("properties", {}).items():
                is_told = "description" in member or "const" in member or name == "object"
                assert is_told, f"{path}: {name}"


def test_replies_of_models_and_slots_are_told_in_the_words_of_the_docs() -> None:
    models = DESCRIBED["paths"]["/v1/models"]["get"]["responses"]["200"]["content"]["application/json"]["schema"]
    members = models["properties"]["data"]["items"]["properties"]
    assert members["slots"]["description"] == "Requests that are computed at the same time"
    assert {"id", "state", "context_length", "reason", "memory"} <= members.keys()


def test_a_request_without_messages_loads_the_model_and_is_allowed() -> None:
    for body, field in (("OllamaChatFields", "messages"), ("OllamaGenerateFields", "prompt")):
        schema = DESCRIBED["components"]["schemas"][body]
        jsonschema.validate({"model": "a"}, {"$ref": f"#/components/schemas/{body}"} | DESCRIBED)
        assert "the model is loaded" in schema["properties"][field]["description"]


def test_routes_of_corral_are_in_its_group() -> None:
    tags = {label: operation["tags"] for label, operation in operations()}
    assert {tuple(found) for label, found in tags.items() if " /admin/" in label} == {("Corral",)}
    assert tags["POST /v1/embeddings"] == ["OpenAI"]


def test_properties_are_described_of_a_model_and_of_the_router() -> None:
    response = DESCRIBED["paths"]["/props"]["get"]["responses"]["200"]
    schema = response["content"]["application/json"]["schema"]
    jsonschema.validate(router_props(None), schema["anyOf"][1])
    assert "role" in schema["anyOf"][1]["required"]
    assert "only one that is loaded" in response["description"]


def test_large_things_are_written_once() -> None:
    assert len(to_text(DESCRIBED)) < 540_000


def test_keys_that_the_router_reads_are_in_every_body() -> None:
    owned = {name.removesuffix("_s") for name in OwnedKeys.__dataclass_fields__}
    assert owned - ROUTER_KEYS.keys() == {"stream", "previous_response_id"}, (
        "which dialects have as fields of their own"
    )
    assert ROUTER_KEYS.keys() < owned
    for route in WORKER_ROUTES:
        assert ROUTER_KEYS.keys() <= DESCRIBED["components"]["schemas"][route.fields.__name__]["properties"].keys()


@pytest.mark.parametrize("fields", sorted({route.fields for route in WORKER_ROUTES}, key=str))
def test_every_field_that_is_read_by_hand_has_a_schema_by_hand(fields: type[Fields]) -> None:
    by_hand = {
        name
        for validator in fields.__pydantic_decorators__.field_validators.values()
        if validator.info.mode == "before"
        for name in validator.info.fields
    }
    for name in by_hand:
        shown = [type(one).__name__ for one in fields.model_fields[name].metadata]
        assert "WithJsonSchema" in shown or name in PLAIN, f"{fields.__name__}.{name}"


PLAIN = frozenset({"logprobs", "seed"})
"""What pydantic describes well enough: their validators only take a further way of saying the same."""


def test_schemas_are_valid_and_refer_to_what_there_is() -> None:
    schemas = DESCRIBED["components"]["schemas"]
    for schema in schemas.values():
        jsonschema.Draft202012Validator.check_schema(schema)
    named = set(re.findall(r'"#/components/schemas/(\w+)"', json.dumps(DESCRIBED)))
    assert named <= schemas.keys()
    unused = schemas.keys() - named
    assert not unused, unused


def test_limits_are_told_in_the_words_of_json_schema() -> None:
    text = json.dumps(body_schemas({}))
    assert not re.search(r'"(ge|gt|le|lt|title)": ', text)
    assert DESCRIBED["components"]["schemas"]["ChatFields"]["properties"]["top_logprobs"]["anyOf"][0] == {
        "type": "integer",
        "minimum": 0,
        "maximum": 20,
    }


@pytest.mark.parametrize("dialect", Dialect)
@pytest.mark.parametrize("status", [400, 401, 404, 413, 429, 500, 503])
def test_errors_have_the_form_that_is_described(dialect: Dialect, status: int) -> None:
    route = next(route for route in all_routes() if route.dialect is dialect and route.method == "POST")
    response = resolved(DESCRIBED["paths"][shown_path(route)]["post"]["responses"]["401"])
    described = response["content"]["application/json"]
    name = described["schema"]["$ref"].rpartition("/")[2]
    schema = error_schemas()[name] | {"additionalProperties": False}
    for param in (None, "messages[0].role"):
        body = json.loads(error_body(dialect, ErrorPayload(status, "some_code", "It is wrong.", param), "r1"))
        jsonschema.validate(body, schema)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({"error": {}}, schema)


def test_meanings_come_from_the_documents() -> None:
    meanings = read_meanings(ROOT / "docs")
    shared = "requests.md#Fields of both generation routes"
    assert meanings[shared]["ignore_eos"] == "Never ends by itself. Default: `False`."
    assert meaning_of("LlamaInfillFields", "prompt", meanings) == "How the text in the gap begins."
    assert meaning_of("LlamaCompletionFields", "prompt", meanings).startswith("A list with a token id in it")
    assert meaning_of("ResponsesFields", "text.verbosity", meanings).startswith("How long answers are")
    temperature = DESCRIBED["components"]["schemas"]["ChatFields"]["properties"]["temperature"]["description"]
    assert temperature.startswith("A number from 0 to 1000000. 0 takes the most likely token")


def test_summaries_are_those_of_the_page_of_routes_without_its_links() -> None:
    page = "## A\n| `GET /a` | | none | See [it](a.md), or `b`. |\n\n## B\n| `POST /b` | `/c`, `/d` | none | No. |\n"
    others = {("POST", path): "No." for path in ("/b", "/c", "/d")}
    assert read_summaries(page) == {("GET", "/a"): "See it, or `b`."} | others


def test_what_completes_a_sentence_becomes_one() -> None:
    assert [sentence(words) for words in ("a number", "0 (off) or 1", "Text.")] == [
        "A number.",
        "0 (off) or 1.",
        "Text.",
    ]
