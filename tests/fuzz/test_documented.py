"""schemathesis sends what openapi.json allows and what it does not; every answer must be one that it documents."""

from __future__ import annotations

import itertools
import time
from contextlib import suppress
from typing import Any

import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis.errors import Unsatisfiable
from schemathesis import Case, GenerationMode
from schemathesis.core.failures import FailureGroup
from schemathesis.specs.openapi.checks import content_type_conformance, response_schema_conformance

from openapi.document import shown_path
from router.app import all_routes
from tests.fuzz.target import ANSWER_WITHIN_S, NEVER, Target, model_for, undisturbed

pytestmark = pytest.mark.fuzz

BUDGET_S = 70.0
"""For all routes together, in rounds over them."""
EXAMPLES = 3
"""Of each kind, for each route and round."""
LEFT_OUT = {
    "POST /models/load": "changes what is loaded",
    "POST /models/unload": "changes what is loaded",
    "POST /admin/reload": "changes what is served",
    "POST /api/pull": "fetches files",
    "GET /events": "goes on for ever",
    "GET /models/sse": "goes on for ever",
}
KEPT = "/v1/streams/{id}"
"""Whatever reply was kept."""
UNUSUAL = (404, 405)
"""For addresses that are none of the documented ones, because a part of them is empty or has a slash."""


def tame(case: Case, kept: str | None) -> None:
    """Have the request go to a model that can answer it, and keep every model loaded. Mutates: `case`.

    `kept` is the id of something that the server has, for addresses that end with one.
    """
    if kept is not None and isinstance(case.path_parameters, dict) and "id" in case.path_parameters:
        case.path_parameters["id"] = kept
    if kept is not None and isinstance(case.path_parameters, dict) and "file" in case.path_parameters:
        case.path_parameters["file"] = "index.html"
    if isinstance(case.query, dict) and "follow" in case.query:
        case.query["follow"] = "false"  # goes on for ever otherwise
    if not isinstance(case.body, dict):
        return
    if isinstance(case.body.get("model"), str | None) and case.method == "POST":
        case.body["model"] = model_for(case.path)
    if isinstance(case.body.get("keep_alive"), int | float | str):
        del case.body["keep_alive"]


def keep_one(fuzzed: Target, session: requests.Session, path: str) -> str:
    """Return the id of something that an address with this path can be asked for; it may be made for that."""
    if (known := {"/v1/models/{id}": "text", "/slots/{id}": "0"}.get(path)) is not None:
        return known
    body = {"model": "text", "input": "hello", "max_output_tokens": 1}
    headers = {"X-Corral-Conversation": "new"} if path == KEPT else {}
    made = session.post(f"{fuzzed.url}/v1/responses", json=body, headers=headers, timeout=ANSWER_WITHIN_S)
    return made.headers["X-Corral-Conversation"] if headers else str(made.json()["id"])


def check(case: Case, response: Any) -> None:
    assert response.status_code not in NEVER, response.text
    assert response.status_code not in (503, 507), f"nothing is overloaded or too large here: {response.text}"
    documented = case.operation.definition.raw["responses"].keys()
    if str(response.status_code) not in documented and "{" in case.path and response.status_code in UNUSUAL:
        return
    assert str(response.status_code) in documented, f"{response.status_code} is not documented: {response.text}"
    if case.path == KEPT and response.status_code == 200:
        return  # another route's reply, from any byte on
    case.validate_response(response, checks=[content_type_conformance, response_schema_conformance])


def test_every_reply_is_one_that_the_document_tells_of(fuzzed: Target) -> None:
    schema = schemathesis.openapi.from_url(f"{fuzzed.url}/openapi.json")
    operations = [found.ok() for found in schema.get_all_operations()]
    others = {f"{route.method} {shown_path(route)}" for route in all_routes() if route.same_as}
    assert LEFT_OUT.keys() | others <= {operation.label for operation in operations}
    asked = [operation for operation in operations if operation.label not in LEFT_OUT.keys() | others]
    statuses: dict[str, set[int]] = {operation.label: set() for operation in asked}
    faults: dict[str, str] = {}
    session = requests.Session()
    num, ends_at_s = 0, time.monotonic() + BUDGET_S

    def ask(operation: Any, mode: GenerationMode, round_: int) -> None:
        @seed(round_)
        @settings(
            max_examples=EXAMPLES,
            deadline=None,
            database=None,
            phases=(Phase.generate,),
            suppress_health_check=list(HealthCheck),
        )
        @given(case=operation.as_strategy(generation_mode=mode))
        def ask_once(case: Case) -> None:
            nonlocal num
            is_known = mode is GenerationMode.POSITIVE and num % 2
            tame(case, keep_one(fuzzed, session, case.path) if is_known else None)
            response = case.call(base_url=fuzzed.url, session=session, timeout=ANSWER_WITHIN_S)
            statuses[operation.label].add(response.status_code)
            num += 1
            try:
                check(case, response)
            except (AssertionError, FailureGroup) as fault:
                faults.setdefault(operation.label, f"{fault}\n{case.as_curl_command()[:600]}")

        with suppress(Unsatisfiable):  # some addresses cannot be wrong
            ask_once()

    with undisturbed(fuzzed) as streams:
        for round_ in itertools.count():
            for operation in asked:
                for mode in GenerationMode:
                    if round_ == 0 or time.monotonic() < ends_at_s:
                        ask(operation, mode, round_)
            if time.monotonic() > ends_at_s:
                break
    assert not faults, "\n\n".join(f"{label}: {fault}" for label, fault in faults.items())
    assert num > 3 * len(asked)
    assert streams.num_done > 3
    unanswered = [label for label, found in statuses.items() if not found & {200, 204, 400, 501}]
    assert not unanswered, f"these were never really asked: {unanswered}"
